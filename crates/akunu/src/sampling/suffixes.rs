//! The suffix automaton of a text that grows: which tokens have followed a suffix of the text before.
//!
//! A state stands for the strings that end at the same places of the text. Each of them is a suffix of the longest one,
//! and `link` is the state of the longest suffix that also ends elsewhere. An edge of a state by a token leads to the
//! state of its strings with that token behind them. Adding a token takes constant time on average, for any text: at
//! most two states and three edges are added for each.

use std::collections::HashMap;

use akunu_plan::DeviceError;

use super::WORKING_MEMORY;
use crate::memory::{grow, grow_map};

const ROOT: u32 = 0;
/// No state, or no edge.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct State {
    /// The length of its longest string.
    length: u32,
    link: u32,
    /// Its first edge.
    edges: u32,
    edge_count: u32,
}

#[derive(Clone, Copy, Debug)]
struct Edge {
    token: u32,
    to: u32,
    /// The next edge of the same state.
    next: u32,
}

#[derive(Debug)]
pub(super) struct Suffixes {
    states: Vec<State>,
    edges: Vec<Edge>,
    /// The edge of a state by a token.
    by_token: HashMap<(u32, u32), u32>,
    /// The state of the whole text.
    whole: u32,
    /// The state and the length of the suffix that [`Suffixes::followers`] looks at.
    suffix: (u32, u32),
}

impl Suffixes {
    pub(super) fn new() -> Result<Suffixes, DeviceError> {
        let mut suffixes = Suffixes {
            states: Vec::new(),
            edges: Vec::new(),
            by_token: HashMap::new(),
            whole: ROOT,
            suffix: (ROOT, 0),
        };
        suffixes.add_state(0, NONE)?;
        Ok(suffixes)
    }

    /// Adds a token to the text, and to the suffix that is looked at, which has at most `longest` tokens.
    pub(super) fn push(&mut self, token: u32, longest: u32) -> Result<(), DeviceError> {
        self.extend(token)?;
        let (state, length) = self.suffix;
        // A state that was split has its shorter strings no more.
        let state = self.with_length(state, length);
        let next = self.edge(state, token).map_or(ROOT, |edge| self.edges[edge].to);
        let length = (length + 1).min(longest);
        self.suffix = (self.with_length(next, length), length);
        Ok(())
    }

    /// Calls `found` with each token that has followed a string of at least `shortest` tokens (1 or more) with which the
    /// suffix ends, and the length of that string: the longest such string first, and perhaps others after it.
    pub(super) fn followers(
        &self,
        shortest: u32,
        mut found: impl FnMut(u32, u32) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let (mut at, mut length) = self.suffix;
        let mut known = 0;
        while length >= shortest {
            let state = self.states[at as usize];
            // What has followed a string has also followed its suffixes.
            if state.edge_count > known {
                known = state.edge_count;
                for edge in self.edges_of(state) {
                    found(edge.token, length)?;
                }
            }
            // The root's length, 0, ends the loop.
            at = state.link;
            length = self.states[at as usize].length;
        }
        Ok(())
    }

    /// The state of the suffix of this length, which a state's longest string has.
    fn with_length(&self, mut state: u32, length: u32) -> u32 {
        loop {
            let link = self.states[state as usize].link;
            if link == NONE || self.states[link as usize].length < length {
                return state;
            }
            state = link;
        }
    }

    fn extend(&mut self, token: u32) -> Result<(), DeviceError> {
        let new = self.add_state(self.states[self.whole as usize].length + 1, ROOT)?;
        let mut at = std::mem::replace(&mut self.whole, new);
        while at != NONE {
            if let Some(edge) = self.edge(at, token) {
                self.states[new as usize].link = self.split(at, token, self.edges[edge].to)?;
                break;
            }
            self.add_edge(at, token, new)?;
            at = self.states[at as usize].link;
        }
        Ok(())
    }

    /// The state of the longest string of the state `at` with the token behind it, which is one of the strings of `to`. If
    /// `to` has longer ones, these end at fewer places now, and the others get a state of their own.
    fn split(&mut self, mut at: u32, token: u32, to: u32) -> Result<u32, DeviceError> {
        let (length, old) = (self.states[at as usize].length + 1, self.states[to as usize]);
        if old.length == length {
            return Ok(to);
        }
        let new = self.add_state(length, old.link)?;
        let mut next = old.edges;
        while next != NONE {
            let edge = self.edges[next as usize];
            self.add_edge(new, edge.token, edge.to)?;
            next = edge.next;
        }
        self.states[to as usize].link = new;
        while let Some(edge) = self.edge(at, token).filter(|edge| self.edges[*edge].to == to) {
            self.edges[edge].to = new;
            at = self.states[at as usize].link;
        }
        Ok(new)
    }

    fn edge(&self, state: u32, token: u32) -> Option<usize> {
        self.by_token.get(&(state, token)).map(|edge| *edge as usize)
    }

    fn edges_of(&self, state: State) -> impl Iterator<Item = &Edge> {
        let edge = |at: u32| self.edges.get(at as usize);
        std::iter::successors(edge(state.edges), move |before| edge(before.next))
    }

    fn add_state(&mut self, length: u32, link: u32) -> Result<u32, DeviceError> {
        grow(WORKING_MEMORY, &mut self.states, 1)?;
        self.states.push(State { length, link, edges: NONE, edge_count: 0 });
        Ok(self.states.len() as u32 - 1)
    }

    fn add_edge(&mut self, state: u32, token: u32, to: u32) -> Result<(), DeviceError> {
        grow(WORKING_MEMORY, &mut self.edges, 1)?;
        grow_map(WORKING_MEMORY, &mut self.by_token)?;
        let new = self.edges.len() as u32;
        let State { edges, edge_count, .. } = &mut self.states[state as usize];
        self.edges.push(Edge { token, to, next: *edges });
        (*edges, *edge_count) = (new, *edge_count + 1);
        self.by_token.insert((state, token), new);
        Ok(())
    }
}
