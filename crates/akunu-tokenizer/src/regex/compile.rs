//! Compiles an expression into instructions.

use super::node::{Assert, Node};
use super::peek::peeks;
use super::program::{Inst, Mark, NO_REGISTER, Program, Scope, UNLIMITED};
use super::sets::Sets;

/// Maximum number of instructions, where a repeated class counts as often as it is repeated.
const MAX_INSTS: usize = 100_000;

/// How the library matches a part, which decides what loops do whose body matches nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By the `regex` crate: a choice fails where it is being tried already.
    Automaton,
    /// By its own backtracking: the loop is left. The crate is used for what contains nothing else and ends the whole,
    /// a lookaround or an atomic group.
    Ending,
    Backtracking,
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
        loops: 0,
        repeats: 0,
        visits: 0,
    };
    if node.has_late_search_start() {
        return Err("it has \\G after its beginning, which is not supported".into());
    }
    compiler.whole(node)?;
    compiler.push(Inst::Match)?;
    let Compiler { mut insts, literals, marks, registers, word, sets, .. } = compiler;
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
    let loop_marks = (0..).zip(&marks).filter(|(_, mark)| mark.in_loop).map(|(at, _)| at).collect();
    Ok(Program { insts, literals, sets, peeks, marks, loop_marks, registers, word })
}

struct Compiler {
    insts: Vec<Inst>,
    literals: Vec<u8>,
    marks: Vec<Mark>,
    sets: Sets,
    scope: Scope,
    repeated: usize,
    registers: usize,
    word: Option<u32>,
    /// The number of loops around, whose bodies may match nothing.
    loops: usize,
    /// The number of repetitions around.
    repeats: usize,
    visits: usize,
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
            return too_large();
        }
        Ok(())
    }

    fn mark(&mut self) -> u32 {
        self.marks.push(Mark { scope: self.scope, in_loop: self.loops > 0 });
        self.marks.len() as u32 - 1
    }

    /// A choice between the next instruction and one that [`Compiler::target`] states later.
    fn split(&mut self, way: Way) -> Result<usize, String> {
        let (first, mark) = (self.here() + 1, self.mark());
        let register = if way == Way::Automaton && self.loops > 0 { self.register() } else { NO_REGISTER };
        self.push(Inst::Split { first, second: 0, mark, register })
    }

    fn register(&mut self) -> u32 {
        self.registers += 1;
        self.registers as u32 - 1
    }

    /// Makes `split` choose the next instruction, first or second.
    fn target(&mut self, split: usize, greedy: bool) {
        let here = self.here();
        if let Some(Inst::Split { first, second, .. }) = self.insts.get_mut(split) {
            (*first, *second) = if greedy { (*first, here) } else { (here, *first) };
        }
    }

    /// The library moves a lookahead at the end out of the match.
    fn whole(&mut self, node: &Node) -> Result<(), String> {
        let (before, last) = match node {
            Node::Cat(nodes) => match nodes.split_last() {
                Some((last, before)) => (before, last),
                None => return Ok(()),
            },
            node => (&[][..], node),
        };
        let Node::Look { behind: false, negative: false, node: ahead } = last else {
            return self.node(node, Way::Ending, false);
        };
        let (mut way, mut ahead_way) = (Way::Automaton, Way::Automaton);
        if ahead.is_hard() {
            (way, ahead_way) = (Way::Backtracking, Way::Backtracking);
        } else if before.iter().any(Node::is_hard) {
            way = Way::Backtracking;
        }
        self.sequence(before, way, false)?;
        self.look(false, |compiler| compiler.node(ahead, ahead_way, false))
    }

    fn node(&mut self, node: &Node, way: Way, back: bool) -> Result<(), String> {
        self.visits += 1;
        if self.visits > 10 * MAX_INSTS {
            return too_large();
        }
        let way = if way == Way::Ending && !node.is_hard() { Way::Automaton } else { way };
        match node {
            Node::Empty => Ok(()),
            Node::Group(node) => self.node(node, way, back),
            Node::Char(c) => self.literal(c.encode_utf8(&mut [0; 4]), back),
            Node::Set(set) => self.push(if back { Inst::SetBack(*set) } else { Inst::Set(*set) }).map(drop),
            Node::Assert(assert) => self.assert(*assert),
            Node::Cat(nodes) if way == Way::Ending => self.ending(nodes),
            Node::Cat(nodes) => self.sequence(nodes, way, back),
            Node::Alt(nodes) => {
                self.alternatives(nodes.len(), way, |compiler, at| compiler.node(&nodes[at], way, back))
            }
            Node::Repeat { node, min, max, greedy } => self.repeat(node, (*min, *max), *greedy, way, back),
            Node::Look { behind: false, negative, node } => {
                self.look(*negative, |compiler| compiler.node(node, Way::Ending, false))
            }
            Node::Look { negative, node, .. } => self.look_behind(*negative, node, way),
            Node::Atomic(node) => self.atomic(node),
        }
    }

    /// A sequence that ends something, and has parts that are hard for the `regex` crate.
    fn ending(&mut self, nodes: &[Node]) -> Result<(), String> {
        let hard = nodes.iter().rposition(Node::is_hard).map_or(0, |last| last + 1);
        self.sequence(&nodes[..hard], Way::Backtracking, false)?;
        self.sequence(&nodes[hard..], Way::Automaton, false)
    }

    fn literal(&mut self, text: &str, back: bool) -> Result<(), String> {
        let (start, len) = (self.literals.len() as u32, text.len() as u32);
        self.grow(text.len())?;
        self.literals.extend(text.bytes());
        self.push(if back { Inst::LiteralBack { start, len } } else { Inst::Literal { start, len } })
            .map(drop)
    }

    fn assert(&mut self, assert: Assert) -> Result<(), String> {
        match assert {
            Assert::TextStart
            | Assert::TextEnd
            | Assert::LineStart
            | Assert::LineEnd
            | Assert::SearchStart => (),
            _ => self.word = Some(self.sets.of_text(r"\w", false)?),
        }
        self.push(Inst::Assert(assert)).map(drop)
    }

    /// Neighbouring characters become one literal.
    fn sequence(&mut self, nodes: &[Node], way: Way, back: bool) -> Result<(), String> {
        let is_char = |node: &Node| matches!(node, Node::Char(_));
        let mut chunks: Vec<&[Node]> = nodes.chunk_by(|one, next| is_char(one) && is_char(next)).collect();
        if back {
            chunks.reverse();
        }
        for chunk in chunks {
            match chunk {
                [node] => self.node(node, way, back)?,
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
        way: Way,
        mut alternative: impl FnMut(&mut Self, usize) -> Result<(), String>,
    ) -> Result<(), String> {
        let (mut jumps, mark) = (Vec::new(), self.mark());
        for at in 0..count {
            if at + 1 == count {
                alternative(self, at)?;
                break;
            }
            let split = self.split(way)?;
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
            Node::Group(node) => self.as_set(node),
            Node::Char(c) => self.sets.of_char(*c).map(Some),
            Node::Set(set) => Ok(Some(*set)),
            _ => Ok(None),
        }
    }

    fn repeat(
        &mut self,
        node: &Node,
        (min, max): (usize, Option<usize>),
        greedy: bool,
        way: Way,
        back: bool,
    ) -> Result<(), String> {
        if greedy
            && !back
            && (min, max) != (1, Some(1))
            && let Some(set) = self.as_set(node)?
        {
            return self.run(set, min, max, max == Some(min));
        }
        // The library asks the `regex` crate for an optional part, but not for one that is repeated.
        let way = if way == Way::Ending && (min, max) != (0, Some(1)) { Way::Backtracking } else { way };
        // The library leaves such a loop too early if it left it at the same position before.
        if way == Way::Backtracking && self.repeats > 0 && min > 1 && max.is_none() && node.length().0 == 0 {
            let what = "a repetition with a minimum above 1 of what may match nothing, in another repetition";
            return Err(format!("it has {what}, which is not supported"));
        }
        self.repeats += usize::from(max != Some(1));
        self.repeated(node, (min, max), greedy, way, back)?;
        self.repeats -= usize::from(max != Some(1));
        Ok(())
    }

    fn repeated(
        &mut self,
        node: &Node,
        (min, max): (usize, Option<usize>),
        greedy: bool,
        way: Way,
        back: bool,
    ) -> Result<(), String> {
        let mandatory = if max.is_none() { min.saturating_sub(1) } else { min };
        let before = self.insts.len();
        for _ in 0..mandatory {
            self.node(node, way, back)?;
            // What has no instructions matches nothing, however often it is repeated.
            if self.insts.len() == before {
                return Ok(());
            }
        }
        let Some(max) = max else { return self.endless(node, min == 0, greedy, way, back) };
        let (mut splits, before) = (Vec::new(), self.insts.len());
        for _ in min..max {
            splits.push(self.split(way)?);
            self.node(node, way, back)?;
            if self.insts.len() == before + 1 {
                break;
            }
        }
        splits.into_iter().for_each(|split| self.target(split, greedy));
        Ok(())
    }

    fn endless(
        &mut self,
        node: &Node,
        is_optional: bool,
        greedy: bool,
        way: Way,
        back: bool,
    ) -> Result<(), String> {
        let is_nullable = node.length().0 == 0;
        let is_checked = is_nullable && way != Way::Automaton;
        // The `regex` crate has a choice of its own before a loop whose body may match nothing.
        let (mut entry, mut jump) = (None, None);
        if is_optional && is_nullable && !is_checked {
            entry = Some(self.split(way)?);
        } else if is_optional {
            let mark = self.mark();
            jump = Some(self.push(Inst::Jump { to: 0, mark })?);
        }
        self.loops += usize::from(is_nullable);
        let start = self.here();
        self.node(node, way, back)?;
        let register = if is_checked { self.register() } else { NO_REGISTER };
        let check = if is_checked { Some(self.push(Inst::Check { register, exit: 0 })?) } else { None };
        let head = self.here();
        if is_checked {
            self.push(Inst::Begin(register))?;
        }
        let again = self.split(way)?;
        self.loops -= usize::from(is_nullable);
        let end = self.here();
        if let Some(Inst::Split { first, second, .. }) = self.insts.get_mut(again) {
            (*first, *second) = if greedy { (start, end) } else { (end, start) };
        }
        if let Some(Inst::Check { exit, .. }) = check.and_then(|check| self.insts.get_mut(check)) {
            *exit = end;
        }
        if let Some(Inst::Jump { to, .. }) = jump.and_then(|jump| self.insts.get_mut(jump)) {
            *to = head;
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
    fn look_behind(&mut self, negative: bool, node: &Node, way: Way) -> Result<(), String> {
        let (min, max) = node.length();
        if max == Some(min) {
            self.grow(min)?;
            return self.look(negative, |compiler| {
                if min > 0 {
                    compiler.push(Inst::Back(min as u32))?;
                }
                compiler.node(node, Way::Ending, false)
            });
        }
        if let Node::Alt(nodes) = node {
            if negative {
                return nodes.iter().try_for_each(|node| self.look_behind(true, node, way));
            }
            return self
                .alternatives(nodes.len(), way, |compiler, at| compiler.look_behind(false, &nodes[at], way));
        }
        if !node.is_reversible() {
            let what = "it has a lookbehind of variable length with a lookaround or an atomic group in it";
            return Err(format!("{what}, which is not supported"));
        }
        self.look(negative, |compiler| compiler.node(node, Way::Automaton, true))
    }

    fn atomic(&mut self, node: &Node) -> Result<(), String> {
        if let Node::Repeat { node, min, max, greedy: true } = node
            && let Some(set) = self.as_set(node)?
        {
            return self.run(set, *min, *max, true);
        }
        let body = |compiler: &mut Self| compiler.node(node, Way::Ending, false);
        self.group(Inst::Atomic { end: 0 }, Scope::Atomic, body)
    }
}

fn too_large<T>() -> Result<T, String> {
    Err(format!("it is too large: it has more than {MAX_INSTS} steps"))
}
