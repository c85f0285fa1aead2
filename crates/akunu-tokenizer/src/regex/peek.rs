//! What a match can begin with at each instruction of a program.

use super::node::Assert;
use super::program::Inst;
use super::sets::Set;

/// A set of first bytes and of the end of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Peek([u64; 5]);

impl Peek {
    pub(super) const NONE: Peek = Peek([0; 5]);
    pub(super) const ALL: Peek = Peek([!0; 5]);
    const END: Peek = Peek([0, 0, 0, 0, 1]);

    pub(super) fn insert(&mut self, byte: u8) {
        self.0[byte as usize >> 6] |= 1 << (byte & 63);
    }

    #[inline]
    pub(super) fn contains(&self, byte: u8) -> bool {
        self.0[byte as usize >> 6] >> (byte & 63) & 1 == 1
    }

    pub(super) fn or(mut self, other: Peek) -> Peek {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine |= theirs);
        self
    }

    pub(super) fn is_disjoint(&self, other: &Peek) -> bool {
        self.0.iter().zip(other.0).all(|(mine, theirs)| mine & theirs == 0)
    }

    #[inline]
    pub(super) fn allows(&self, text: &[u8], at: usize) -> bool {
        let index = text.get(at).map_or(256, |&byte| byte as usize);
        self.0[index >> 6] >> (index & 63) & 1 == 1
    }
}

/// For each instruction, at least what a match from there can begin with.
pub(super) fn peeks(insts: &[Inst], literals: &[u8], sets: &[Set]) -> Vec<Peek> {
    let mut peeks = vec![Peek::NONE; insts.len()];
    let lead = |set: u32| sets.get(set as usize).map_or(Peek::ALL, |set| set.lead);
    loop {
        let mut changed = false;
        for at in (0..insts.len()).rev() {
            let of = |target: u32| peeks.get(target as usize).copied().unwrap_or(Peek::ALL);
            let next = || of(at as u32 + 1);
            let peek = match insts[at] {
                Inst::Literal { start, .. } => {
                    let mut peek = Peek::NONE;
                    literals.get(start as usize).iter().for_each(|byte| peek.insert(**byte));
                    peek
                }
                Inst::Set(set) => lead(set),
                Inst::Run { set, min: 0, .. } => lead(set).or(next()),
                Inst::Run { set, .. } => lead(set),
                Inst::Split { first, second, .. } => of(first).or(of(second)),
                Inst::Jump { to, .. } => of(to),
                Inst::Assert(Assert::TextEnd) => Peek::END,
                Inst::Assert(_) | Inst::Atomic { .. } | Inst::Begin(_) => next(),
                Inst::Look { end, .. } => of(end),
                Inst::Check { exit, .. } => of(exit).or(next()),
                Inst::End | Inst::Back(_) | Inst::SetBack(_) | Inst::LiteralBack { .. } | Inst::Match => {
                    Peek::ALL
                }
            };
            changed |= peek != peeks[at];
            peeks[at] = peek;
        }
        if !changed {
            return peeks;
        }
    }
}
