//! Runs a program on a text: backtracking, with a stack of its own.

use super::memo::{Known, Memo};
use super::node::Assert;
use super::program::{Inst, Mark, NO_REGISTER, Program, Scope, UNLIMITED};
use crate::TokenizerError;
use crate::cancel::Watch;

/// Maximum size of the stack in bytes.
const MAX_STACK: usize = 1 << 27;
/// No barrier.
const NONE: u32 = u32::MAX;
/// Steps before the first that are remembered, and for each byte of the text and each instruction. Remembering costs
/// more than these steps, which most texts do not exceed.
const FREE: u64 = 4096;
const FREE_PER_BYTE: u64 = 32;

#[derive(Clone, Copy, Debug)]
enum Frame {
    /// Continues at an instruction and a position.
    Branch {
        pc: u32,
        at: u32,
    },
    /// A run that ended at `high`: shorter ones end at `low` or above.
    Run {
        pc: u32,
        low: u32,
        high: u32,
    },
    /// When this is reached, the state has failed.
    Leave {
        mark: u32,
        at: u32,
    },
    Register {
        register: u32,
        old: u32,
    },
    /// The beginning of a lookaround or an atomic group, and the barrier around it.
    Barrier {
        pc: u32,
        at: u32,
        outer: u32,
    },
}

/// Small, as it is in the results of all steps.
type Failure = Box<TokenizerError>;

/// Where to continue: an instruction and a position. `None` after a failure.
type Next = Option<(u32, u32)>;

#[derive(Debug)]
pub(super) struct Matcher<'a> {
    program: &'a Program,
    text: &'a str,
    watch: &'a mut Watch,
    stack: Vec<Frame>,
    /// The innermost barrier on the stack.
    barrier: u32,
    registers: Vec<u32>,
    memo: Memo,
    /// Whether failed states are remembered.
    remembers: bool,
    /// The steps so far, and how many are allowed before states are remembered.
    spent: u64,
    allowed: u64,
    allowed_per_byte: u64,
    from: u32,
    skipped: bool,
}

impl<'a> Matcher<'a> {
    pub(super) fn new(
        program: &'a Program,
        text: &'a str,
        watch: &'a mut Watch,
    ) -> Result<Matcher<'a>, TokenizerError> {
        if text.len() > crate::MAX_TEXT {
            return Err(TokenizerError::TextTooLong { len: text.len(), max: crate::MAX_TEXT });
        }
        Ok(Matcher {
            program,
            text,
            watch,
            stack: Vec::new(),
            barrier: NONE,
            registers: vec![NONE; program.registers],
            memo: Memo::new(),
            remembers: false,
            spent: 0,
            allowed: FREE,
            allowed_per_byte: FREE_PER_BYTE + program.insts.len() as u64,
            from: 0,
            skipped: false,
        })
    }

    /// Remembers all states after this many steps.
    #[cfg(any(test, feature = "oracle"))]
    pub(super) fn allow(&mut self, steps: u64) {
        (self.allowed, self.allowed_per_byte) = (steps, 0);
    }

    /// The first match from a position on. `skipped` states that it is after an empty match.
    ///
    /// What is remembered remains true in later searches. Only `\G` depends on the search, and it is at the beginning of
    /// an expression, which is not tried twice at a position.
    pub(super) fn find(
        &mut self,
        from: usize,
        skipped: bool,
    ) -> Result<Option<(usize, usize)>, TokenizerError> {
        (self.from, self.skipped) = (from as u32, skipped);
        let Some(first) = self.program.peeks.first() else { return Ok(None) };
        let bytes = self.text.as_bytes();
        let mut at = from;
        loop {
            let skip = (at..bytes.len()).take_while(|&at| !first.allows(bytes, at)).count();
            at += skip;
            crate::work::count(skip);
            if !first.allows(bytes, at) {
                return Ok(None);
            }
            self.remembers = self.spent >= self.allowed.saturating_add(self.allowed_per_byte * at as u64);
            if let Some(end) = self.run(at).map_err(|failure| *failure)? {
                return Ok(Some((at, end)));
            }
            match bytes.get(at) {
                Some(&byte) => at += len_utf8(byte),
                None => return Ok(None),
            }
        }
    }

    /// The end of the match that begins at a position.
    fn run(&mut self, start: usize) -> Result<Option<usize>, Failure> {
        self.stack.clear();
        self.barrier = NONE;
        let allowed = self.allowed.saturating_add(self.allowed_per_byte * start as u64);
        let (mut pc, mut at) = (0, start as u32);
        loop {
            self.steps(1)?;
            if self.spent >= allowed {
                self.remembers = true;
            }
            let next = match self.program.insts.get(pc as usize) {
                Some(Inst::Match) | None => {
                    self.forget_failures(at);
                    // An attempt that fails restores them.
                    self.registers.iter_mut().for_each(|register| *register = NONE);
                    return Ok(Some(at as usize));
                }
                Some(&inst) => self.step(inst, pc, at)?,
            };
            match next {
                Some(next) => (pc, at) = next,
                None => match self.backtrack()? {
                    Some(next) => (pc, at) = next,
                    None => return Ok(None),
                },
            }
        }
    }

    #[inline]
    fn steps(&mut self, steps: usize) -> Result<(), Failure> {
        self.spent += steps as u64;
        crate::work::count(steps);
        Ok(self.watch.step()?)
    }

    #[inline]
    fn step(&mut self, inst: Inst, pc: u32, at: u32) -> Result<Next, Failure> {
        let (position, next) = (at as usize, pc + 1);
        let bytes = self.text.as_bytes();
        let moved = |to: Option<usize>| Ok(to.map(|to| (next, to as u32)));
        match inst {
            Inst::Literal { start, len } => {
                let literal = self.literal(start, len);
                let found = bytes.get(position..).is_some_and(|rest| rest.starts_with(literal));
                Ok(found.then_some((next, at + len)))
            }
            Inst::LiteralBack { start, len } => {
                let literal = self.literal(start, len);
                let found = bytes.get(..position).is_some_and(|before| before.ends_with(literal));
                Ok(found.then(|| (next, at - len)))
            }
            Inst::Set(set) => moved(self.program.sets[set as usize].after(self.text, position)),
            Inst::SetBack(set) => moved(self.program.sets[set as usize].before(self.text, position)),
            Inst::Run { set, min, max, possessive, mark } => {
                self.run_of(pc, set, (min, max), possessive, mark, at)
            }
            Inst::Split { first, second, mark, register } => {
                if register != NO_REGISTER {
                    if self.registers[register as usize] == at {
                        return Ok(None);
                    }
                    self.set(register, at)?;
                }
                match self.enter(mark, at)? {
                    Known::Nothing => (),
                    Known::Failed => return Ok(None),
                    Known::Ends(end) => return self.ends(end),
                }
                let peeks = &self.program.peeks;
                match (
                    peeks[first as usize].allows(bytes, position),
                    peeks[second as usize].allows(bytes, position),
                ) {
                    (true, true) => {
                        self.push(Frame::Branch { pc: second, at })?;
                        Ok(Some((first, at)))
                    }
                    (true, false) => Ok(Some((first, at))),
                    (false, true) => Ok(Some((second, at))),
                    (false, false) => Ok(None),
                }
            }
            Inst::Jump { to, mark } => match self.enter(mark, at)? {
                Known::Nothing => Ok(Some((to, at))),
                Known::Failed => Ok(None),
                Known::Ends(end) => self.ends(end),
            },
            Inst::Assert(assert) => Ok(self.holds(assert, position).then_some((next, at))),
            Inst::Look { .. } | Inst::Atomic { .. } => {
                let outer = std::mem::replace(&mut self.barrier, self.stack.len() as u32);
                self.push(Frame::Barrier { pc, at, outer })?;
                Ok(Some((next, at)))
            }
            Inst::End => self.ends(at),
            Inst::Back(count) => {
                let mut chars = self.text[..position].char_indices().rev();
                Ok(chars.nth(count as usize - 1).map(|(to, _)| (next, to as u32)))
            }
            Inst::Begin(register) => {
                self.set(register, at)?;
                Ok(Some((next, at)))
            }
            Inst::Check { register, exit } => {
                Ok(Some((if self.registers[register as usize] == at { exit } else { next }, at)))
            }
            Inst::Match => Ok(Some((pc, at))),
        }
    }

    /// Sets a register, until this is tracked back.
    fn set(&mut self, register: u32, at: u32) -> Result<(), Failure> {
        let old = std::mem::replace(&mut self.registers[register as usize], at);
        self.push(Frame::Register { register, old })
    }

    fn literal(&self, start: u32, len: u32) -> &'a [u8] {
        &self.program.literals[start as usize..(start + len) as usize]
    }

    fn push(&mut self, frame: Frame) -> Result<(), Failure> {
        if self.stack.len() >= MAX_STACK / size_of::<Frame>() {
            return Err(Box::new(TokenizerError::ExpressionMemory { max: MAX_STACK }));
        }
        self.stack.push(frame);
        Ok(())
    }

    /// What is known of a state. If nothing is, it will be noted when it fails.
    #[inline]
    fn enter(&mut self, mark: u32, at: u32) -> Result<Known, Failure> {
        if !self.remembers {
            return Ok(Known::Nothing);
        }
        let known = self.memo.get(mark, at);
        if known == Known::Nothing {
            self.push(Frame::Leave { mark, at })?;
        }
        Ok(known)
    }

    fn run_of(
        &mut self,
        pc: u32,
        set: u32,
        (min, max): (u32, u32),
        possessive: bool,
        mark: u32,
        at: u32,
    ) -> Result<Next, Failure> {
        let (set, text) = (&self.program.sets[set as usize], self.text);
        let (mut low, mut count) = (at as usize, 0);
        while count < min {
            let Some(next) = set.after(text, low) else { return Ok(None) };
            (low, count) = (next, count + 1);
        }
        self.steps(count as usize)?;
        if self.remembers && max == UNLIMITED {
            return self.remembered_run(pc, set, possessive, mark, low as u32);
        }
        if min < max && !possessive {
            // The positions after the minimum determine what follows, but that of the beginning does so, too.
            match self.enter(mark, at)? {
                Known::Nothing => (),
                Known::Failed => return Ok(None),
                Known::Ends(end) => return self.ends(end),
            }
        }
        let mut high = low;
        while count < max
            && let Some(next) = set.after(text, high)
        {
            (high, count) = (next, count + 1);
            if count % 256 == 0 {
                self.steps(256)?;
            }
        }
        self.steps(count as usize % 256)?;
        if high > low && !possessive {
            self.push(Frame::Run { pc, low: low as u32, high: high as u32 })?;
        }
        Ok(Some((pc + 1, high as u32)))
    }

    /// A run without a maximum, whose states at each position are remembered.
    fn remembered_run(
        &mut self,
        pc: u32,
        set: &super::sets::Set,
        possessive: bool,
        mark: u32,
        low: u32,
    ) -> Result<Next, Failure> {
        let mut at = low;
        if possessive {
            let mut passed = Vec::new();
            loop {
                self.steps(1)?;
                if let Known::Ends(end) = self.memo.get(mark, at) {
                    at = end;
                    break;
                }
                passed.push(at);
                match set.after(self.text, at as usize) {
                    Some(next) => at = next as u32,
                    None => break,
                }
            }
            passed.into_iter().try_for_each(|from| self.memo.ended(mark, from, Some(at)))?;
            return Ok(Some((pc + 1, at)));
        }
        loop {
            self.steps(1)?;
            match self.enter(mark, at)? {
                Known::Nothing => (),
                Known::Failed => return Ok(None),
                Known::Ends(end) => return self.ends(end),
            }
            let Some(next) = set.after(self.text, at as usize) else { return Ok(Some((pc + 1, at))) };
            if self.program.peeks[pc as usize + 1].allows(self.text.as_bytes(), at as usize) {
                self.push(Frame::Branch { pc: pc + 1, at })?;
            }
            at = next as u32;
        }
    }

    /// The innermost lookaround or atomic group has been matched.
    fn ends(&mut self, end: u32) -> Result<Next, Failure> {
        let barrier = self.barrier as usize;
        let Some(&Frame::Barrier { pc, at, outer }) = self.stack.get(barrier) else { return Ok(None) };
        let mut forgotten = NONE;
        while self.stack.len() > barrier
            && let Some(frame) = self.stack.pop()
        {
            match frame {
                Frame::Leave { mark, at } => {
                    let Mark { scope, in_loop } = self.program.marks[mark as usize];
                    self.memo.ended(mark, at, (scope == Scope::Atomic).then_some(end))?;
                    if in_loop && forgotten != at {
                        self.forget_failures(at);
                        forgotten = at;
                    }
                }
                Frame::Register { register, old } => self.registers[register as usize] = old,
                Frame::Branch { .. } | Frame::Run { .. } | Frame::Barrier { .. } => (),
            }
        }
        self.barrier = outer;
        match self.program.insts[pc as usize] {
            Inst::Look { negative: true, .. } => Ok(None),
            Inst::Look { end, .. } => Ok(Some((end, at))),
            Inst::Atomic { end: after } => Ok(Some((after, end))),
            _ => Ok(None),
        }
    }

    /// In a loop whose body may match nothing, a state may have failed only because another one at the same position was
    /// being tried. If that one succeeds, the failure says nothing about the state.
    fn forget_failures(&mut self, at: u32) {
        if self.remembers {
            self.program.loop_marks.iter().for_each(|mark| self.memo.forget_failure(*mark, at));
        }
    }

    fn backtrack(&mut self) -> Result<Next, Failure> {
        let (text, program) = (self.text, self.program);
        loop {
            self.steps(1)?;
            match self.stack.pop() {
                None => return Ok(None),
                Some(Frame::Branch { pc, at }) => return Ok(Some((pc, at))),
                Some(Frame::Run { pc, low, mut high }) => {
                    high -= text[..high as usize].chars().next_back().map_or(1, char::len_utf8) as u32;
                    if high > low {
                        self.stack.push(Frame::Run { pc, low, high });
                    }
                    if program.peeks[pc as usize + 1].allows(text.as_bytes(), high as usize) {
                        return Ok(Some((pc + 1, high)));
                    }
                }
                Some(Frame::Leave { mark, at }) => self.memo.failed(mark, at)?,
                Some(Frame::Register { register, old }) => self.registers[register as usize] = old,
                Some(Frame::Barrier { pc, at, outer }) => {
                    self.barrier = outer;
                    if let Inst::Look { negative: true, end } = program.insts[pc as usize] {
                        return Ok(Some((end, at)));
                    }
                }
            }
        }
    }

    fn holds(&self, assert: Assert, at: usize) -> bool {
        let bytes = self.text.as_bytes();
        let is_word = |c: Option<char>| {
            let set = self.program.word.and_then(|set| self.program.sets.get(set as usize));
            set.zip(c).is_some_and(|(set, c)| set.contains(c))
        };
        let before = || is_word(self.text[..at].chars().next_back());
        let after = || is_word(self.text[at..].chars().next());
        match assert {
            Assert::TextStart => at == 0,
            Assert::TextEnd => at == bytes.len(),
            Assert::LineStart => at == 0 || bytes[at - 1] == b'\n',
            Assert::LineEnd => bytes.get(at).is_none_or(|&byte| byte == b'\n'),
            Assert::Word => before() != after(),
            Assert::NotWord => before() == after(),
            Assert::WordStart => !before() && after(),
            Assert::WordEnd => before() && !after(),
            Assert::WordStartHalf => !before(),
            Assert::WordEndHalf => !after(),
            Assert::SearchStart => at <= self.from as usize && !self.skipped,
        }
    }
}

fn len_utf8(first: u8) -> usize {
    match first {
        0..0x80 => 1,
        0x80..0xe0 => 2,
        0xe0..0xf0 => 3,
        _ => 4,
    }
}
