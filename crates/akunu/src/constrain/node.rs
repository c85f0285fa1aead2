//! Grammars as data: each kind of value, and each text around it, is a node.

use super::number::NumberRule;
use super::text::TextRule;

pub(super) type NodeId = u32;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Node {
    /// One of these texts: sorted, unique, not empty.
    Literals(Vec<Box<[u8]>>),
    Text(TextRule),
    Number(NumberRule),
    Array(ArrayRule),
    Object(ObjectRule),
    /// One of these nodes. In a finished grammar, none of them is a choice.
    Choice(Vec<NodeId>),
    /// The first node, optional white space, and the second node.
    Then(NodeId, NodeId),
    /// Any text up to and including the first occurrence of this text.
    Until(Mark),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ArrayRule {
    /// The first items.
    pub(super) first: Vec<NodeId>,
    /// All further items; `None`: there are none.
    pub(super) rest: Option<NodeId>,
    pub(super) min: u32,
    pub(super) max: u32,
}

impl ArrayRule {
    /// The node of item number `count`.
    pub(super) fn item(&self, count: u32) -> Option<NodeId> {
        let item = self.first.get(count as usize).copied().or(self.rest);
        item.filter(|_| count < self.max)
    }

    /// The state after this many items. Counts that make no difference are merged.
    pub(super) fn counted(&self, count: u32) -> u32 {
        match self.max {
            u32::MAX => count.min(self.min.max(self.first.len() as u32)),
            _ => count,
        }
    }
}

/// Properties come in this order; those that are not required may be omitted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ObjectRule {
    pub(super) properties: Vec<Property>,
    /// The node of further properties, with other keys; `None`: there are none.
    pub(super) more: Option<NodeId>,
    /// The properties' keys as written in JSON, without quotes, sorted.
    pub(super) names: Vec<Box<[u8]>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Property {
    /// The key with its quotes.
    pub(super) key: Box<[u8]>,
    pub(super) value: NodeId,
    pub(super) required: bool,
}

impl ObjectRule {
    /// Properties that may follow from number `next` on: up to the first required one.
    pub(super) fn candidates(&self, next: u32) -> std::ops::Range<u32> {
        let rest = self.properties.get(next as usize..).unwrap_or_default();
        let some = rest.iter().position(|property| property.required).map_or(rest.len(), |at| at + 1);
        next..next + some as u32
    }

    /// Whether no required property follows from number `next` on.
    pub(super) fn may_end(&self, next: u32) -> bool {
        let rest = self.properties.get(next as usize..).unwrap_or_default();
        !rest.iter().any(|property| property.required)
    }
}

/// A text to search for, byte by byte.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Mark {
    text: Box<[u8]>,
    /// For each prefix, its longest proper suffix that is also a prefix.
    shorter: Vec<u16>,
}

impl Mark {
    /// The text must not be empty.
    pub(super) fn new(text: &str) -> Mark {
        let text = text.as_bytes();
        let shorter = |len: usize| {
            let ends_with = |part: &usize| text[..len].ends_with(&text[..*part]);
            (0..len).rev().find(ends_with).unwrap_or(0) as u16
        };
        Mark { text: text.into(), shorter: (0..=text.len()).map(shorter).collect() }
    }

    /// The length of the match after one more byte; `None`: complete.
    pub(super) fn next(&self, mut found: u16, byte: u8) -> Option<u16> {
        while found > 0 && self.text[found as usize] != byte {
            found = self.shorter[found as usize];
        }
        found += u16::from(self.text[found as usize] == byte);
        ((found as usize) < self.text.len()).then_some(found)
    }
}

/// The nesting of a node that no value satisfies.
pub(super) const IMPOSSIBLE: u16 = u16::MAX;

/// Nodes, and the least nesting of a value of each.
#[derive(Debug)]
pub(super) struct Grammar {
    pub(super) nodes: Vec<Node>,
    pub(super) heights: Vec<u16>,
    pub(super) root: NodeId,
}

impl Grammar {
    pub(super) fn new(mut nodes: Vec<Node>, root: NodeId) -> Grammar {
        let flat: Vec<Option<Vec<NodeId>>> = (0..nodes.len() as u32).map(|id| leaves(&nodes, id)).collect();
        for (node, flat) in nodes.iter_mut().zip(flat) {
            if let Some(flat) = flat {
                *node = Node::Choice(flat);
            }
        }
        let heights = heights(&nodes);
        Grammar { nodes, heights, root }
    }

    pub(super) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id as usize]
    }

    pub(super) fn height(&self, id: NodeId) -> u16 {
        self.heights[id as usize]
    }
}

/// The alternatives of a choice, with nested choices resolved, even recursive ones.
fn leaves(nodes: &[Node], id: NodeId) -> Option<Vec<NodeId>> {
    let Node::Choice(_) = &nodes[id as usize] else { return None };
    let (mut leaves, mut seen, mut open) = (Vec::new(), std::collections::HashSet::new(), vec![id]);
    while let Some(id) = open.pop() {
        if !seen.insert(id) {
            continue;
        }
        match &nodes[id as usize] {
            Node::Choice(of) => open.extend(of.iter().rev()),
            _ => leaves.push(id),
        }
    }
    Some(leaves)
}

fn heights(nodes: &[Node]) -> Vec<u16> {
    let mut heights = vec![IMPOSSIBLE; nodes.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for (at, node) in nodes.iter().enumerate() {
            let height = height(node, &heights);
            changed |= height < heights[at];
            heights[at] = heights[at].min(height);
        }
    }
    heights
}

fn height(node: &Node, heights: &[u16]) -> u16 {
    let of = |id: &NodeId| heights[*id as usize];
    match node {
        Node::Literals(_) | Node::Text(_) | Node::Number(_) | Node::Until(_) => 0,
        Node::Choice(all) => all.iter().map(of).min().unwrap_or(IMPOSSIBLE),
        Node::Then(one, other) => of(one).max(of(other)),
        Node::Array(rule) => {
            let needed = (0..rule.min.min(rule.first.len() as u32 + 1)).map(|count| rule.item(count));
            let highest = needed.map(|item| item.as_ref().map_or(IMPOSSIBLE, of)).max();
            highest.unwrap_or(0).saturating_add(1)
        }
        Node::Object(rule) => {
            let needed = rule.properties.iter().filter(|property| property.required);
            needed.map(|property| of(&property.value)).max().unwrap_or(0).saturating_add(1)
        }
    }
}
