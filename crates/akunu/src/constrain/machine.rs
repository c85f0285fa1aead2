//! The parser of a grammar, byte by byte with a stack: which bytes may follow.
//!
//! All ways to parse a text are followed at once; each is a [`Stack`]. Every stack can be continued to a complete value, so an
//! answer never reaches a dead end.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::node::{ArrayRule, Grammar, IMPOSSIBLE, Node, NodeId, ObjectRule};
use super::number::{self, NumberAt};
use super::text::{self, Step, TextAt, TextRule};

/// Maximum white space before a value.
const FIRST_BLANKS: u8 = 2;
/// Indentation per open bracket after a new line. Only the usual white space is allowed, because models may otherwise repeat it
/// without end.
const INDENT: u16 = 4;
/// Maximum nesting of values, because parsers have limits, and models may open brackets without end.
pub(super) const MOST_DEPTH: u16 = 64;
/// Maximum number of parses. Further ones are dropped, which allows fewer texts, but never wrong ones.
const MOST_STACKS: usize = 512;

/// The position in a list or an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Opened,
    /// After a key.
    Key,
    /// After a value.
    Value,
    Comma,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Frame {
    /// The value is complete.
    Done,
    /// Before a value, with at most this much white space.
    Value {
        node: NodeId,
        room: u8,
    },
    /// In one of the node's texts: those from `low` to `high` begin with the `at` bytes so far.
    Literals {
        node: NodeId,
        low: u32,
        high: u32,
        at: u32,
    },
    Text {
        node: NodeId,
        at: TextAt,
        count: u32,
    },
    Number {
        node: NodeId,
        at: NumberAt,
    },
    Array {
        node: NodeId,
        place: Place,
        count: u32,
        blanks: Blanks,
    },
    /// `next`: the first property that may follow; `other`: the last key was not that of a property.
    Object {
        node: NodeId,
        place: Place,
        next: u32,
        other: bool,
        blanks: Blanks,
    },
    /// In the key of a property; its object is below on the stack.
    Key {
        node: NodeId,
        property: u32,
        at: u32,
    },
    /// In a key that is not that of a property; those from `low` to `high` have the same prefix. Its object is below on the stack.
    OtherKey {
        node: NodeId,
        low: u32,
        high: u32,
        bytes: u32,
        at: TextAt,
    },
    Until {
        node: NodeId,
        found: u16,
    },
}

#[derive(Debug)]
struct Link {
    frame: Frame,
    below: Below,
    hash: u64,
    depth: u16,
}

type Below = Option<Arc<Link>>;

/// One way to parse the text so far.
#[derive(Clone, Debug)]
pub(super) struct Stack {
    pub(super) top: Frame,
    below: Below,
}

impl PartialEq for Link {
    fn eq(&self, other: &Link) -> bool {
        std::ptr::eq(self, other)
            || (self.hash == other.hash && self.frame == other.frame && self.below == other.below)
    }
}

impl PartialEq for Stack {
    fn eq(&self, other: &Stack) -> bool {
        self.top == other.top && self.below == other.below
    }
}

impl Eq for Stack {}

impl Hash for Stack {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.top.hash(state);
        self.below.as_ref().map_or(0, |link| link.hash).hash(state);
    }
}

fn link(frame: Frame, below: Below) -> Below {
    let mut hasher = std::hash::DefaultHasher::new();
    frame.hash(&mut hasher);
    below.as_ref().map_or(0, |link| link.hash).hash(&mut hasher);
    let depth = depth(&below) + 1;
    Some(Arc::new(Link { frame, below, hash: hasher.finish(), depth }))
}

fn depth(below: &Below) -> u16 {
    below.as_ref().map_or(0, |link| link.depth)
}

fn pop(below: &Below) -> Stack {
    match below {
        None => Stack { top: Frame::Done, below: None },
        Some(link) => Stack { top: link.frame, below: link.below.clone() },
    }
}

/// White space between parts of a list or an object: a space, or a new line with indentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Blanks {
    None,
    Space,
    Line { indent: u16 },
}

impl Blanks {
    /// Adds a byte of white space. After a value it may only precede the end; after a key it is not allowed.
    fn and(self, byte: u8, place: Place, may_end: bool, depth: u16) -> Option<Blanks> {
        if place == Place::Key || (place == Place::Value && !may_end) {
            return None;
        }
        match (self, byte) {
            (Blanks::None, b' ') => Some(Blanks::Space),
            (Blanks::None, b'\n') => Some(Blanks::Line { indent: 0 }),
            (Blanks::Line { indent }, b' ' | b'\t') if indent < INDENT * depth => {
                Some(Blanks::Line { indent: indent + 1 })
            }
            _ => None,
        }
    }

    fn may_stand_before(self, byte: u8) -> bool {
        self == Blanks::None || byte != b','
    }
}

#[derive(Debug)]
pub(super) struct Machine {
    grammar: Grammar,
}

impl Machine {
    /// `None`: no value satisfies the grammar.
    pub(super) fn new(grammar: Grammar) -> Option<Machine> {
        (grammar.height(grammar.root) <= MOST_DEPTH).then_some(Machine { grammar })
    }

    pub(super) fn start(&self) -> Vec<Stack> {
        vec![Stack { top: Frame::Value { node: self.grammar.root, room: FIRST_BLANKS }, below: None }]
    }

    /// Advances all parses by a byte; the result is empty if the byte is not allowed.
    pub(super) fn step(&self, stacks: &[Stack], byte: u8, to: &mut Vec<Stack>) {
        to.clear();
        for stack in stacks {
            if to.len() < MOST_STACKS {
                self.step_one(&stack.top, &stack.below, byte, to);
            }
        }
        to.truncate(MOST_STACKS);
        without_doubles(to);
    }

    /// Whether the value may be complete.
    pub(super) fn may_end(&self, stacks: &[Stack]) -> bool {
        stacks.iter().any(|stack| {
            let (mut frame, mut below) = (&stack.top, &stack.below);
            while self.frame_may_end(frame) {
                let Some(link) = below else { return true };
                (frame, below) = (&link.frame, &link.below);
            }
            *frame == Frame::Done
        })
    }

    /// Whether nothing can follow.
    pub(super) fn is_over(&self, stacks: &[Stack]) -> bool {
        let mut to = Vec::new();
        let mut follows = |byte| {
            self.step(stacks, byte, &mut to);
            !to.is_empty()
        };
        self.may_end(stacks) && !(0..=u8::MAX).any(&mut follows)
    }

    /// Whether any characters that need no escape may follow in a string: up to this many, or any number.
    pub(super) fn plain(&self, stacks: &[Stack]) -> Option<u32> {
        let room = |stack: &Stack| match &stack.top {
            // The key equals that of a property only at its end.
            Frame::OtherKey { at: TextAt::Body, .. } => Some(u32::MAX),
            Frame::Text { node, at: TextAt::Body, count } => match self.grammar.node(*node) {
                Node::Text(rule) if rule.max == u32::MAX => Some(u32::MAX),
                Node::Text(rule) if stacks.len() == 1 => Some(rule.max - count),
                _ => None,
            },
            _ => None,
        };
        stacks.iter().filter_map(room).max()
    }

    /// Whether it ends without a byte of its own.
    fn frame_may_end(&self, frame: &Frame) -> bool {
        match *frame {
            Frame::Number { node, at } => match self.grammar.node(node) {
                Node::Number(rule) => rule.may_end(at),
                _ => false,
            },
            Frame::Literals { node, low, at, .. } => match self.grammar.node(node) {
                Node::Literals(texts) => texts[low as usize].len() == at as usize,
                _ => false,
            },
            _ => false,
        }
    }

    fn step_one(&self, frame: &Frame, below: &Below, byte: u8, to: &mut Vec<Stack>) {
        let on = |top: Frame| Stack { top, below: below.clone() };
        match *frame {
            Frame::Done => {}
            Frame::Value { node, room } => {
                if room > 0 && matches!(byte, b' ' | b'\n') {
                    to.push(on(Frame::Value { node, room: room - 1 }));
                }
                self.begin(node, below, byte, to);
            }
            Frame::Literals { node, low, high, at } => {
                if let Node::Literals(texts) = self.grammar.node(node) {
                    literals(texts, (node, low, high, at), below, byte, to);
                }
            }
            Frame::Text { node, at, count } => {
                if let Node::Text(rule) = self.grammar.node(node) {
                    text_step(*rule, (node, at, count), below, byte, to);
                }
            }
            Frame::Number { node, at } => {
                if let Node::Number(rule) = self.grammar.node(node)
                    && let Some(at) = rule.step(at, byte)
                {
                    to.push(on(Frame::Number { node, at }));
                }
            }
            Frame::Array { node, place, count, blanks } => {
                let Node::Array(rule) = self.grammar.node(node) else { return };
                let may_end = count >= rule.min;
                match blanks.and(byte, place, may_end, depth(below) + 1) {
                    Some(blanks) => to.push(on(Frame::Array { node, place, count, blanks })),
                    None if blanks.may_stand_before(byte) => {
                        self.step_array(rule, (node, place, count), below, byte, to);
                    }
                    None => {}
                }
            }
            Frame::Object { node, place, next, other, blanks } => {
                let Node::Object(rule) = self.grammar.node(node) else { return };
                match blanks.and(byte, place, rule.may_end(next), depth(below) + 1) {
                    Some(blanks) => to.push(on(Frame::Object { node, place, next, other, blanks })),
                    None if blanks.may_stand_before(byte) => {
                        self.step_object(rule, (node, place, next, other), below, byte, to);
                    }
                    None => {}
                }
            }
            Frame::Key { node, property, at } => {
                let Node::Object(rule) = self.grammar.node(node) else { return };
                let key = &rule.properties[property as usize].key;
                if key[at as usize] == byte {
                    let is_whole = at as usize + 1 == key.len();
                    to.push(if is_whole {
                        pop(below)
                    } else {
                        on(Frame::Key { node, property, at: at + 1 })
                    });
                }
            }
            Frame::OtherKey { node, low, high, bytes, at } => {
                if let Node::Object(rule) = self.grammar.node(node) {
                    other_key(rule, (node, low, high, bytes, at), below, byte, to);
                }
            }
            Frame::Until { node, found } => {
                let Node::Until(mark) = self.grammar.node(node) else { return };
                to.push(
                    mark.next(found, byte)
                        .map_or_else(|| pop(below), |found| on(Frame::Until { node, found })),
                );
            }
        }
        if self.frame_may_end(frame)
            && let Some(link) = below
        {
            self.step_one(&link.frame, &link.below, byte, to);
        }
    }

    /// The first byte of a value.
    fn begin(&self, id: NodeId, below: &Below, byte: u8, to: &mut Vec<Stack>) {
        let on = |top: Frame| Stack { top, below: below.clone() };
        match self.grammar.node(id) {
            Node::Choice(all) => all.iter().for_each(|&id| self.begin(id, below, byte, to)),
            Node::Then(one, other) => {
                self.begin(
                    *one,
                    &link(Frame::Value { node: *other, room: FIRST_BLANKS }, below.clone()),
                    byte,
                    to,
                );
            }
            Node::Literals(texts) => literals(texts, (id, 0, texts.len() as u32, 0), below, byte, to),
            Node::Text(_) if byte == b'"' => {
                to.push(on(Frame::Text { node: id, at: TextAt::Body, count: 0 }))
            }
            Node::Number(_) => self.step_one(&Frame::Number { node: id, at: number::START }, below, byte, to),
            Node::Array(_) if byte == b'[' && self.fits(id, below) => {
                to.push(on(Frame::Array { node: id, place: Place::Opened, count: 0, blanks: Blanks::None }));
            }
            Node::Object(_) if byte == b'{' && self.fits(id, below) => {
                to.push(on(Frame::Object {
                    node: id,
                    place: Place::Opened,
                    next: 0,
                    other: false,
                    blanks: Blanks::None,
                }));
            }
            Node::Until(_) => self.step_one(&Frame::Until { node: id, found: 0 }, below, byte, to),
            _ => {}
        }
    }

    /// Whether the nesting limit allows a value of this kind with the least nesting.
    fn fits(&self, id: NodeId, below: &Below) -> bool {
        let height = self.grammar.height(id);
        height != IMPOSSIBLE && depth(below) + height <= MOST_DEPTH
    }

    fn step_array(
        &self,
        rule: &ArrayRule,
        (node, place, count): (NodeId, Place, u32),
        below: &Below,
        byte: u8,
        to: &mut Vec<Stack>,
    ) {
        if byte == b']' && place != Place::Comma && count >= rule.min {
            to.push(pop(below));
        }
        let list = |place, count| Frame::Array { node, place, count, blanks: Blanks::None };
        let after = link(list(Place::Value, rule.counted(count + 1)), below.clone());
        let item = rule.item(count).filter(|item| self.fits(*item, &after));
        match (place, item) {
            (Place::Opened | Place::Comma, Some(item)) => self.begin(item, &after, byte, to),
            (Place::Value, Some(_)) if byte == b',' => {
                to.push(Stack { top: list(Place::Comma, count), below: below.clone() });
            }
            _ => {}
        }
    }

    fn step_object(
        &self,
        rule: &ObjectRule,
        (node, place, next, other): (NodeId, Place, u32, bool),
        below: &Below,
        byte: u8,
        to: &mut Vec<Stack>,
    ) {
        let object = |place, next, other| Frame::Object { node, place, next, other, blanks: Blanks::None };
        // The nesting of a value.
        let fits = |value: NodeId| {
            let height = self.grammar.height(value);
            height != IMPOSSIBLE && depth(below) + 1 + height <= MOST_DEPTH
        };
        let candidates =
            || rule.candidates(next).filter(|property| fits(rule.properties[*property as usize].value));
        let more = rule.more.filter(|more| rule.may_end(next) && fits(*more));
        match (place, byte) {
            (Place::Opened | Place::Value, b'}') if rule.may_end(next) => to.push(pop(below)),
            (Place::Value, b',') if more.is_some() || candidates().next().is_some() => {
                to.push(Stack { top: object(Place::Comma, next, other), below: below.clone() });
            }
            (Place::Opened | Place::Comma, b'"') => {
                for property in candidates() {
                    let below = link(object(Place::Key, property + 1, false), below.clone());
                    to.push(Stack { top: Frame::Key { node, property, at: 1 }, below });
                }
                if more.is_some() {
                    let below = link(object(Place::Key, rule.properties.len() as u32, true), below.clone());
                    let high = rule.names.len() as u32;
                    let top = Frame::OtherKey { node, low: 0, high, bytes: 0, at: TextAt::Body };
                    to.push(Stack { top, below });
                }
            }
            (Place::Key, b':') => {
                let value = match other {
                    true => rule.more,
                    false => rule.properties.get(next as usize - 1).map(|property| property.value),
                };
                let Some(value) = value else { return };
                let below = link(object(Place::Value, next, false), below.clone());
                to.push(Stack { top: Frame::Value { node: value, room: 1 }, below });
            }
            _ => {}
        }
    }
}

fn text_step(
    rule: TextRule,
    (node, at, count): (NodeId, TextAt, u32),
    below: &Below,
    byte: u8,
    to: &mut Vec<Stack>,
) {
    let on = |top: Frame| Stack { top, below: below.clone() };
    let is_full = at == TextAt::Body && count >= rule.max;
    match text::step(at, byte) {
        Some(Step::End) if count >= rule.min => to.push(pop(below)),
        Some(Step::Within(at)) if !is_full => to.push(on(Frame::Text { node, at, count })),
        Some(Step::Whole) if !is_full => {
            to.push(on(Frame::Text { node, at: TextAt::Body, count: rule.counted(count + 1) }));
        }
        _ => {}
    }
}

/// Of sorted texts, those that continue with a byte.
fn literals(
    texts: &[Box<[u8]>],
    (node, low, high, at): (NodeId, u32, u32, u32),
    below: &Below,
    byte: u8,
    to: &mut Vec<Stack>,
) {
    let (low, high) = narrowed(texts, low, high, at, byte);
    if low == high {
        return;
    }
    let is_whole = texts[low as usize].len() == at as usize + 1;
    to.push(match is_whole && high - low == 1 {
        true => pop(below),
        false => Stack { top: Frame::Literals { node, low, high, at: at + 1 }, below: below.clone() },
    });
}

/// Of the texts from `low` to `high`, which have the same prefix, those with this byte at `at`.
fn narrowed(texts: &[Box<[u8]>], low: u32, high: u32, at: u32, byte: u8) -> (u32, u32) {
    let part = &texts[low as usize..high as usize];
    let of = |text: &[u8]| text.get(at as usize).copied();
    let first = part.partition_point(|text| of(text) < Some(byte));
    let len = part[first..].partition_point(|text| of(text) == Some(byte));
    (low + first as u32, low + (first + len) as u32)
}

/// While a key is a prefix of a property's key, escapes are not allowed, because they would be another way to write that key.
fn other_key(
    rule: &ObjectRule,
    (node, low, high, bytes, at): (NodeId, u32, u32, u32, TextAt),
    below: &Below,
    byte: u8,
    to: &mut Vec<Stack>,
) {
    let next = match text::step(at, byte) {
        None => return,
        Some(Step::End) => {
            let is_a_property = low < high && rule.names[low as usize].len() == bytes as usize;
            if !is_a_property {
                to.push(pop(below));
            }
            return;
        }
        Some(Step::Within(TextAt::Escape)) if low < high => return,
        Some(Step::Within(at)) => at,
        Some(Step::Whole) => TextAt::Body,
    };
    let (low, high) = match low < high {
        true => narrowed(&rule.names, low, high, bytes, byte),
        false => (0, 0),
    };
    // After it differs from all of them, its prefix no longer matters.
    let top = match low < high {
        true => Frame::OtherKey { node, low, high, bytes: bytes + 1, at: next },
        false => Frame::OtherKey { node, low: 0, high: 0, bytes: 0, at: next },
    };
    to.push(Stack { top, below: below.clone() });
}

fn without_doubles(stacks: &mut Vec<Stack>) {
    let mut kept = 0;
    for at in 0..stacks.len() {
        if !stacks[..kept].contains(&stacks[at]) {
            stacks.swap(kept, at);
            kept += 1;
        }
    }
    stacks.truncate(kept);
}
