//! The order of waiting requests: by [`super::Request::priority`], then round-robin between owners, then by arrival.

use std::collections::{BTreeMap, HashMap};

#[derive(Debug)]
pub(super) struct Queue<T> {
    /// Waiting requests by priority, lowest first.
    levels: BTreeMap<i32, Level<T>>,
    arrivals: u64,
}

/// Requests of one priority, in rounds: each owner has at most one request per round. A new request is put into the round after the
/// owner's last one, or into the current one if that is later.
#[derive(Debug)]
struct Level<T> {
    /// By round, then by arrival.
    waiting: BTreeMap<(u64, u64), T>,
    round: u64,
    /// The round of each owner's last request. Owners without an entry start in the current round.
    last: HashMap<u64, u64>,
}

impl<T> Default for Level<T> {
    fn default() -> Level<T> {
        Level { waiting: BTreeMap::new(), round: 0, last: HashMap::new() }
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue { levels: BTreeMap::new(), arrivals: 0 }
    }
}

impl<T> Queue<T> {
    pub(super) fn push(&mut self, priority: i32, owner: u64, item: T) {
        let level = self.levels.entry(priority).or_default();
        let round = level.last.get(&owner).map_or(level.round, |last| level.round.max(last + 1));
        level.last.insert(owner, round);
        level.waiting.insert((round, self.arrivals), item);
        self.arrivals += 1;
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let mut entry = self.levels.first_entry()?;
        let level = entry.get_mut();
        let ((round, _), item) = level.waiting.pop_first()?;
        if round > level.round {
            level.round = round;
            level.last.retain(|_, last| *last >= round);
        }
        if level.waiting.is_empty() {
            entry.remove();
        }
        Some(item)
    }

    /// Removes and returns the items for which `predicate` is true.
    pub(super) fn extract(&mut self, predicate: impl Fn(&T) -> bool) -> Vec<T> {
        let mut removed = Vec::new();
        for level in self.levels.values_mut() {
            removed.extend(level.waiting.extract_if(.., |_, item| predicate(item)).map(|(_, item)| item));
        }
        self.levels.retain(|_, level| !level.waiting.is_empty());
        removed
    }

    pub(super) fn len(&self) -> usize {
        self.levels.values().map(|level| level.waiting.len()).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.levels.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(queue: &mut Queue<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn lower_priorities_come_first_and_equals_in_order() {
        let mut queue = Queue::default();
        for (priority, name) in [(0, "a"), (1, "late"), (-5, "first"), (0, "b")] {
            queue.push(priority, name.len() as u64, name);
        }
        assert_eq!(queue.len(), 4);
        assert_eq!(all(&mut queue), ["first", "a", "b", "late"]);
        assert!(queue.is_empty());
    }

    #[test]
    fn owners_alternate() {
        let mut queue = Queue::default();
        for name in ["a1", "a2", "a3", "a4"] {
            queue.push(0, 1, name);
        }
        queue.push(0, 2, "b1");
        assert_eq!([queue.pop(), queue.pop(), queue.pop()], [Some("a1"), Some("b1"), Some("a2")]);
        // An owner's second request waits for the next round; a new owner starts in the current one.
        queue.push(0, 2, "b2");
        queue.push(0, 3, "c1");
        queue.push(0, 2, "b3");
        assert_eq!(all(&mut queue), ["b2", "c1", "a3", "b3", "a4"]);
    }

    #[test]
    fn extract_keeps_the_order_of_the_rest() {
        let mut queue = Queue::default();
        for (priority, name) in [(0, "a"), (-1, "gone 1"), (0, "gone 2"), (0, "b")] {
            queue.push(priority, 7, name);
        }
        assert_eq!(queue.extract(|name| name.starts_with("gone")), ["gone 1", "gone 2"]);
        assert_eq!(queue.len(), 2);
        assert_eq!(all(&mut queue), ["a", "b"]);
    }

    #[test]
    fn owners_without_requests_are_removed() {
        let mut queue = Queue::default();
        queue.push(0, 0, "x");
        for owner in 1..1000 {
            queue.push(0, 0, "x");
            queue.push(0, owner, "y");
            queue.pop();
            queue.pop();
        }
        assert!(queue.levels.values().all(|level| level.last.len() < 4));
    }
}
