//! Expressions as trees, and what is known of them before they are compiled.

/// An expression. The single-character sets are in a [`Sets`].
#[derive(Debug)]
pub(super) enum Node {
    Empty,
    /// A group that captures.
    Group(Box<Node>),
    Char(char),
    Set(u32),
    Assert(Assert),
    Cat(Vec<Node>),
    Alt(Vec<Node>),
    Repeat {
        node: Box<Node>,
        min: usize,
        max: Option<usize>,
        greedy: bool,
    },
    Look {
        behind: bool,
        negative: bool,
        node: Box<Node>,
    },
    Atomic(Box<Node>),
}

/// What is asserted of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Assert {
    TextStart,
    TextEnd,
    LineStart,
    LineEnd,
    Word,
    NotWord,
    WordStart,
    WordEnd,
    WordStartHalf,
    WordEndHalf,
    /// Where the search for this match began.
    SearchStart,
}

impl Node {
    /// The minimum and maximum number of characters that this matches.
    pub(super) fn length(&self) -> (usize, Option<usize>) {
        match self {
            Node::Empty | Node::Assert(_) | Node::Look { .. } => (0, Some(0)),
            Node::Char(_) | Node::Set(_) => (1, Some(1)),
            Node::Atomic(node) | Node::Group(node) => node.length(),
            Node::Cat(nodes) => nodes.iter().map(Node::length).fold((0, Some(0)), |sum, next| {
                let max = sum.1.zip(next.1).and_then(|(sum, next)| usize::checked_add(sum, next));
                (sum.0.saturating_add(next.0), max)
            }),
            Node::Alt(nodes) => {
                let both = nodes.iter().map(Node::length).reduce(|one, other| {
                    (one.0.min(other.0), one.1.zip(other.1).map(|(one, other)| one.max(other)))
                });
                both.unwrap_or((0, Some(0)))
            }
            Node::Repeat { node, min, max, .. } => {
                let (least, most) = node.length();
                let product = most.zip(*max).and_then(|(most, max)| most.checked_mul(max));
                (least.saturating_mul(*min), if most == Some(0) { most } else { product })
            }
        }
    }

    fn children(&self) -> &[Node] {
        match self {
            Node::Empty | Node::Char(_) | Node::Set(_) | Node::Assert(_) => &[],
            Node::Cat(nodes) | Node::Alt(nodes) => nodes,
            Node::Group(node) | Node::Atomic(node) | Node::Repeat { node, .. } | Node::Look { node, .. } => {
                std::slice::from_ref(node)
            }
        }
    }

    /// Whether the library's own matcher is needed, not only the `regex` crate.
    pub(super) fn is_hard(&self) -> bool {
        use Assert::{LineEnd, LineStart, TextEnd, TextStart};
        match self {
            Node::Look { .. } | Node::Atomic(_) => true,
            Node::Assert(assert) => !matches!(assert, TextStart | TextEnd | LineStart | LineEnd),
            node => node.children().iter().any(Node::is_hard),
        }
    }

    /// Whether this can be matched backwards.
    pub(super) fn is_reversible(&self) -> bool {
        let is_itself = !matches!(self, Node::Look { .. } | Node::Atomic(_));
        is_itself && self.children().iter().all(Node::is_reversible)
    }

    fn has_search_start(&self) -> bool {
        let is_itself = matches!(self, Node::Assert(Assert::SearchStart));
        is_itself || self.children().iter().any(Node::has_search_start)
    }

    /// Whether `\G` is elsewhere than at the beginning. There, the library gives up too early.
    pub(super) fn has_late_search_start(&self) -> bool {
        match self {
            Node::Assert(_) => false,
            Node::Group(node) => node.has_late_search_start(),
            Node::Alt(nodes) => nodes.iter().any(Node::has_late_search_start),
            Node::Cat(nodes) => nodes.split_first().is_some_and(|(first, rest)| {
                first.has_late_search_start() || rest.iter().any(Node::has_search_start)
            }),
            node => node.has_search_start(),
        }
    }
}
