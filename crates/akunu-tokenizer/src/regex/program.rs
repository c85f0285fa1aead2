//! Compiles an expression into instructions.

use super::parse::{Assert, Node};
use super::peek::{Peek, peeks};
use super::sets::{Set, Sets};

/// Maximum number of instructions, where a repeated class counts as often as it is repeated.
const MAX_INSTS: usize = 100_000;
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
    /// `first`, and `second` if that fails.
    Split {
        first: u32,
        second: u32,
        mark: u32,
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
    /// The beginning of a repetition of something that may be empty.
    Begin(u32),
    /// Leaves the loop if nothing was matched since [`Inst::Begin`].
    Check {
        register: u32,
        exit: u32,
    },
    Match,
}

/// What contains an instruction most closely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Whole,
    Look,
    Atomic,
}

#[derive(Debug)]
pub(super) struct Program {
    pub(super) insts: Vec<Inst>,
    pub(super) literals: Vec<u8>,
    pub(super) sets: Vec<Set>,
    /// For each instruction, what a match from there can begin with.
    pub(super) peeks: Vec<Peek>,
    /// For each mark, where it is. States are remembered at marks.
    pub(super) marks: Vec<Scope>,
    pub(super) registers: usize,
    /// The set of the characters of words, if their boundaries are asked for.
    pub(super) word: Option<u32>,
    /// Whether matches depend on where a search began.
    pub(super) has_search_start: bool,
}

pub(super) fn compile(node: &Node, sets: Sets) -> Result<Program, String> {
    let mut compiler = Compiler {
        insts: Vec::new(),
        literals: Vec::new(),
        marks: Vec::new(),
        sets,
        scope: Scope::Whole,
        repeated: 0,
        registers: 0,
        word: None,
        has_search_start: false,
    };
    compiler.node(node, false)?;
    compiler.push(Inst::Match)?;
    let Compiler { mut insts, literals, marks, registers, word, has_search_start, sets, .. } = compiler;
    let sets = sets.finish();
    let peeks = peeks(&insts, &literals, &sets);
    for (at, inst) in insts.iter_mut().enumerate() {
        // Fewer characters need not be tried if what follows can begin with none of them.
        if let Inst::Run { set, possessive, .. } = inst
            && let (Some(set), Some(next)) = (sets.get(*set as usize), peeks.get(at + 1))
        {
            *possessive |= set.lead.is_disjoint(next);
        }
    }
    Ok(Program { insts, literals, sets, peeks, marks, registers, word, has_search_start })
}

struct Compiler {
    insts: Vec<Inst>,
    literals: Vec<u8>,
    marks: Vec<Scope>,
    sets: Sets,
    scope: Scope,
    repeated: usize,
    registers: usize,
    word: Option<u32>,
    has_search_start: bool,
}

impl Compiler {
    fn here(&self) -> u32 {
        self.insts.len() as u32
    }

    fn push(&mut self, inst: Inst) -> Result<usize, String> {
        self.grow(0)?;
        self.insts.push(inst);
        Ok(self.insts.len() - 1)
    }

    fn grow(&mut self, repeated: usize) -> Result<(), String> {
        self.repeated = self.repeated.saturating_add(repeated);
        if self.insts.len().saturating_add(self.repeated) >= MAX_INSTS {
            return Err(format!("it is too large: it has more than {MAX_INSTS} steps"));
        }
        Ok(())
    }

    fn mark(&mut self) -> u32 {
        self.marks.push(self.scope);
        self.marks.len() as u32 - 1
    }

    /// A choice between the next instruction and one that [`Compiler::target`] states later.
    fn split(&mut self) -> Result<usize, String> {
        let (first, mark) = (self.here() + 1, self.mark());
        self.push(Inst::Split { first, second: 0, mark })
    }

    /// Makes `split` choose the next instruction, first or second.
    fn target(&mut self, split: usize, greedy: bool) {
        let here = self.here();
        if let Some(Inst::Split { first, second, .. }) = self.insts.get_mut(split) {
            (*first, *second) = if greedy { (*first, here) } else { (here, *first) };
        }
    }

    fn node(&mut self, node: &Node, back: bool) -> Result<(), String> {
        match node {
            Node::Empty => Ok(()),
            Node::Char(c) => self.literal(c.encode_utf8(&mut [0; 4]), back),
            Node::Set(set) => self.push(if back { Inst::SetBack(*set) } else { Inst::Set(*set) }).map(drop),
            Node::Assert(assert) => self.assert(*assert),
            Node::Cat(nodes) => self.sequence(nodes, back),
            Node::Alt(nodes) => match self.as_set(node)? {
                Some(set) => self.node(&Node::Set(set), back),
                None => self.alternatives(nodes.len(), |compiler, at| compiler.node(&nodes[at], back)),
            },
            Node::Repeat { node, min, max, greedy } => self.repeat(node, *min, *max, *greedy, back),
            Node::Look { behind: false, negative, node } => {
                self.look(*negative, |compiler| compiler.node(node, false))
            }
            Node::Look { negative, node, .. } => self.look_behind(*negative, node),
            Node::Atomic(node) => self.atomic(node),
        }
    }

    fn literal(&mut self, text: &str, back: bool) -> Result<(), String> {
        let (start, len) = (self.literals.len() as u32, text.len() as u32);
        self.literals.extend(text.bytes());
        self.push(if back { Inst::LiteralBack { start, len } } else { Inst::Literal { start, len } })
            .map(drop)
    }

    fn assert(&mut self, assert: Assert) -> Result<(), String> {
        match assert {
            Assert::TextStart | Assert::TextEnd | Assert::LineStart | Assert::LineEnd => (),
            Assert::SearchStart => self.has_search_start = true,
            _ => self.word = Some(self.sets.of_text(r"\w", false)?),
        }
        self.push(Inst::Assert(assert)).map(drop)
    }

    /// Neighbouring characters become one literal.
    fn sequence(&mut self, nodes: &[Node], back: bool) -> Result<(), String> {
        let is_char = |node: &Node| matches!(node, Node::Char(_));
        let mut chunks: Vec<&[Node]> = nodes.chunk_by(|one, next| is_char(one) && is_char(next)).collect();
        if back {
            chunks.reverse();
        }
        for chunk in chunks {
            match chunk {
                [node] => self.node(node, back)?,
                chars => {
                    let chars = chars
                        .iter()
                        .filter_map(|node| if let Node::Char(c) = node { Some(*c) } else { None });
                    self.literal(&chars.collect::<String>(), back)?;
                }
            }
        }
        Ok(())
    }

    fn alternatives(
        &mut self,
        count: usize,
        mut alternative: impl FnMut(&mut Self, usize) -> Result<(), String>,
    ) -> Result<(), String> {
        let (mut jumps, mark) = (Vec::new(), self.mark());
        for at in 0..count {
            if at + 1 == count {
                alternative(self, at)?;
                break;
            }
            let split = self.split()?;
            alternative(self, at)?;
            jumps.push(self.push(Inst::Jump { to: 0, mark })?);
            self.target(split, true);
        }
        let here = self.here();
        for jump in jumps {
            if let Some(Inst::Jump { to, .. }) = self.insts.get_mut(jump) {
                *to = here;
            }
        }
        Ok(())
    }

    /// The set of what matches exactly one character.
    fn as_set(&mut self, node: &Node) -> Result<Option<u32>, String> {
        match node {
            Node::Char(c) => self.sets.of_char(*c).map(Some),
            Node::Set(set) => Ok(Some(*set)),
            Node::Alt(nodes) if nodes.iter().all(|node| matches!(node, Node::Char(_) | Node::Set(_))) => {
                let mut sets = Vec::new();
                for node in nodes {
                    sets.extend(self.as_set(node)?);
                }
                self.sets.union(&sets).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn repeat(
        &mut self,
        node: &Node,
        min: usize,
        max: Option<usize>,
        greedy: bool,
        back: bool,
    ) -> Result<(), String> {
        if greedy
            && !back
            && (min, max) != (1, Some(1))
            && let Some(set) = self.as_set(node)?
        {
            return self.run(set, min, max, max == Some(min));
        }
        let is_nullable = length(node).0 == 0;
        let mandatory = if max.is_none() { min.saturating_sub(1) } else { min };
        if !self.copies(mandatory, node, back)? {
            return Ok(());
        }
        let Some(max) = max else { return self.endless(node, min == 0, is_nullable, greedy, back) };
        let (mut splits, before) = (Vec::new(), self.insts.len());
        for _ in min..max {
            splits.push(self.split()?);
            self.node(node, back)?;
            // What has no instructions matches nothing, however often it is repeated.
            if self.insts.len() == before + 1 {
                break;
            }
        }
        splits.into_iter().for_each(|split| self.target(split, greedy));
        Ok(())
    }

    /// Whether there is anything to repeat.
    fn copies(&mut self, count: usize, node: &Node, back: bool) -> Result<bool, String> {
        let before = self.insts.len();
        for _ in 0..count {
            self.node(node, back)?;
            if self.insts.len() == before {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn endless(
        &mut self,
        node: &Node,
        is_optional: bool,
        is_nullable: bool,
        greedy: bool,
        back: bool,
    ) -> Result<(), String> {
        let entry = if is_optional { Some(self.split()?) } else { None };
        let start = self.here();
        let register = self.registers as u32;
        if is_nullable {
            self.registers += 1;
            self.push(Inst::Begin(register))?;
        }
        self.node(node, back)?;
        let check = if is_nullable { Some(self.push(Inst::Check { register, exit: 0 })?) } else { None };
        let again = self.split()?;
        let exit = self.here();
        if let Some(Inst::Split { first, second, .. }) = self.insts.get_mut(again) {
            (*first, *second) = if greedy { (start, exit) } else { (exit, start) };
        }
        if let Some(check) = check
            && let Some(Inst::Check { exit: target, .. }) = self.insts.get_mut(check)
        {
            *target = exit;
        }
        if let Some(entry) = entry {
            self.target(entry, greedy);
        }
        Ok(())
    }

    fn run(&mut self, set: u32, min: usize, max: Option<usize>, possessive: bool) -> Result<(), String> {
        self.grow(max.unwrap_or(min))?;
        let (min, max, mark) = (min as u32, max.map_or(UNLIMITED, |max| max as u32), self.mark());
        self.push(Inst::Run { set, min, max, possessive, mark }).map(drop)
    }

    /// Compiles `body` between `inst` and [`Inst::End`].
    fn group(
        &mut self,
        inst: Inst,
        scope: Scope,
        body: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        let start = self.push(inst)?;
        let outer = std::mem::replace(&mut self.scope, scope);
        body(self)?;
        self.scope = outer;
        self.push(Inst::End)?;
        let here = self.here();
        if let Some(Inst::Look { end, .. } | Inst::Atomic { end }) = self.insts.get_mut(start) {
            *end = here;
        }
        Ok(())
    }

    fn look(
        &mut self,
        negative: bool,
        body: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        self.group(Inst::Look { negative, end: 0 }, Scope::Look, body)
    }

    /// A body of a fixed length is matched from where it would begin, another one backwards.
    fn look_behind(&mut self, negative: bool, node: &Node) -> Result<(), String> {
        let (min, max) = length(node);
        if max == Some(min) {
            self.grow(min)?;
            return self.look(negative, |compiler| {
                if min > 0 {
                    compiler.push(Inst::Back(min as u32))?;
                }
                compiler.node(node, false)
            });
        }
        if let Node::Alt(nodes) = node {
            if negative {
                return nodes.iter().try_for_each(|node| self.look_behind(true, node));
            }
            return self.alternatives(nodes.len(), |compiler, at| compiler.look_behind(false, &nodes[at]));
        }
        if !is_reversible(node) {
            let what =
                "it has a lookbehind of variable length with a lookaround, an atomic group or \\G in it";
            return Err(format!("{what}, which is not supported"));
        }
        self.look(negative, |compiler| compiler.node(node, true))
    }

    fn atomic(&mut self, node: &Node) -> Result<(), String> {
        if let Node::Repeat { node, min, max, greedy: true } = node
            && let Some(set) = self.as_set(node)?
        {
            return self.run(set, *min, *max, true);
        }
        self.group(Inst::Atomic { end: 0 }, Scope::Atomic, |compiler| compiler.node(node, false))
    }
}

/// The minimum and maximum number of characters that a node matches.
fn length(node: &Node) -> (usize, Option<usize>) {
    match node {
        Node::Empty | Node::Assert(_) | Node::Look { .. } => (0, Some(0)),
        Node::Char(_) | Node::Set(_) => (1, Some(1)),
        Node::Atomic(node) => length(node),
        Node::Cat(nodes) => nodes.iter().map(length).fold((0, Some(0)), |sum, next| {
            let max = sum.1.zip(next.1).and_then(|(sum, next)| usize::checked_add(sum, next));
            (sum.0.saturating_add(next.0), max)
        }),
        Node::Alt(nodes) => {
            let lengths = nodes.iter().map(length);
            let both = lengths.reduce(|one, other| {
                (one.0.min(other.0), one.1.zip(other.1).map(|(one, other)| one.max(other)))
            });
            both.unwrap_or((0, Some(0)))
        }
        Node::Repeat { node, min, max, .. } => {
            let (least, most) = length(node);
            let most = if most == Some(0) {
                most
            } else {
                most.zip(*max).and_then(|(most, max)| most.checked_mul(max))
            };
            (least.saturating_mul(*min), most)
        }
    }
}

/// Whether a node can be matched backwards.
fn is_reversible(node: &Node) -> bool {
    match node {
        Node::Look { .. } | Node::Atomic(_) | Node::Assert(Assert::SearchStart) => false,
        Node::Empty | Node::Assert(_) | Node::Char(_) | Node::Set(_) => true,
        Node::Cat(nodes) | Node::Alt(nodes) => nodes.iter().all(is_reversible),
        Node::Repeat { node, .. } => is_reversible(node),
    }
}
