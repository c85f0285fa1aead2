//! Instructions.

use super::node::Assert;
use super::peek::Peek;
use super::sets::Set;

/// For [`Inst::Run::max`].
pub(super) const UNLIMITED: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) enum Inst {
    /// The bytes of [`Program::literals`].
    Literal {
        start: u32,
        len: u32,
    },
    /// The bytes before the position, which moves back.
    LiteralBack {
        start: u32,
        len: u32,
    },
    Set(u32),
    SetBack(u32),
    /// As many characters of a set as there are, at least `min` and at most `max`, with fewer tried later unless it is
    /// possessive.
    Run {
        set: u32,
        min: u32,
        max: u32,
        possessive: bool,
        mark: u32,
    },
    /// `first`, and `second` if that fails. With a register, it fails where it is being tried already.
    Split {
        first: u32,
        second: u32,
        mark: u32,
        register: u32,
    },
    Jump {
        to: u32,
        mark: u32,
    },
    Assert(Assert),
    /// A lookaround: what follows up to an [`Inst::End`] is matched, and then `end` from the same position.
    Look {
        negative: bool,
        end: u32,
    },
    /// What follows up to an [`Inst::End`] is matched, and is not tried in another way later.
    Atomic {
        end: u32,
    },
    /// The end of the innermost lookaround or atomic group.
    End,
    Back(u32),
    /// The beginning of another repetition of something that may be empty.
    Begin(u32),
    /// Leaves the loop if nothing was matched since [`Inst::Begin`].
    Check {
        register: u32,
        exit: u32,
    },
    Match,
}

/// For a choice without a register.
pub(super) const NO_REGISTER: u32 = u32::MAX;

/// What contains an instruction most closely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Whole,
    Look,
    Atomic,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) scope: Scope,
    /// Whether it is in a loop whose body may match nothing. What is known then depends on what is being tried.
    pub(super) in_loop: bool,
}

#[derive(Debug)]
pub(super) struct Program {
    pub(super) insts: Vec<Inst>,
    pub(super) literals: Vec<u8>,
    pub(super) sets: Vec<Set>,
    /// For each instruction, what a match from there can begin with.
    pub(super) peeks: Vec<Peek>,
    /// States are remembered at marks.
    pub(super) marks: Vec<Mark>,
    /// The marks in loops.
    pub(super) loop_marks: Vec<u32>,
    pub(super) registers: usize,
    /// The set of the characters of words, if their boundaries are asked for.
    pub(super) word: Option<u32>,
}
