//! The order of waiting requests: by [`super::Request::priority`], then fairly between owners by the tokens that they got,
//! then by arrival.
//!
//! Owners of one priority are served by fair queueing. A virtual time advances by the tokens that are served, divided by
//! the number of owners that have requests: it is how much an owner has got that always had requests and its fair share.
//! The next request is that of the owner that has got least. An owner that had no requests for a while is owed nothing,
//! and continues at the virtual time, but what it got in advance still counts. So an owner that has got much waits until
//! the virtual time has reached it, however many new owners arrive meanwhile.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// So many levels without requests are remembered, and of each level so many owners without requests.
const KEPT_LEVELS: usize = 64;
const KEPT_OWNERS: usize = 1024;

/// Virtual time that passes with one token for a single owner.
const TOKEN: u64 = 1 << 16;

#[derive(Debug)]
pub(super) struct Queue<T> {
    /// By priority, lowest first.
    levels: BTreeMap<i32, Level<T>>,
    arrivals: u64,
    len: usize,
}

/// Requests of one priority.
#[derive(Debug)]
struct Level<T> {
    /// Owners that have requests, and others that got more than the virtual time.
    owners: HashMap<u64, Owner<T>>,
    /// How many of them have requests, waiting or running.
    active: usize,
    /// Owners of waiting requests, by what they got and the arrival of their first one.
    order: BTreeSet<(u64, u64, u64)>,
    /// The virtual time.
    time: u64,
}

#[derive(Debug)]
struct Owner<T> {
    /// By arrival.
    waiting: VecDeque<Waiting<T>>,
    /// How many requests have left the queue and not ended.
    running: usize,
    /// What it got, in virtual time.
    got: u64,
}

#[derive(Debug)]
struct Waiting<T> {
    arrival: u64,
    tokens: usize,
    item: T,
}

impl<T> Owner<T> {
    fn is_active(&self) -> bool {
        self.running > 0 || !self.waiting.is_empty()
    }

    fn place(&self, id: u64) -> Option<(u64, u64, u64)> {
        Some((self.got, self.waiting.front()?.arrival, id))
    }
}

impl<T> Default for Level<T> {
    fn default() -> Level<T> {
        Level { owners: HashMap::new(), active: 0, order: BTreeSet::new(), time: 0 }
    }
}

impl<T> Level<T> {
    /// Changes an owner, and keeps its place in the order and the number of active owners up to date.
    fn change<R>(&mut self, id: u64, change: impl FnOnce(&mut Owner<T>) -> R) -> Option<R> {
        let owner = self.owners.get_mut(&id)?;
        let (was_active, before) = (owner.is_active(), owner.place(id));
        let result = change(owner);
        let (is_active, after) = (owner.is_active(), owner.place(id));
        if before != after {
            before.iter().for_each(|place| {
                self.order.remove(place);
            });
            self.order.extend(after);
        }
        self.active += usize::from(is_active);
        self.active -= usize::from(was_active);
        if was_active && !is_active {
            self.forget(id);
        }
        Some(result)
    }

    /// Forgets an owner without requests, if it got no more than the virtual time. If there are too many that got more,
    /// those that got most are kept.
    fn forget(&mut self, id: u64) {
        let is_ahead = |owner: &Owner<T>, time: u64| owner.got > time;
        if self.owners.get(&id).is_some_and(|owner| !is_ahead(owner, self.time)) {
            self.owners.remove(&id);
        }
        if self.owners.len() - self.active > KEPT_OWNERS {
            let inactive = self.owners.values().filter(|owner| !owner.is_active());
            let mut got: Vec<u64> = inactive.map(|owner| owner.got).collect();
            let (_, &mut median, _) = got.select_nth_unstable(KEPT_OWNERS / 2);
            let least = median.max(self.time);
            self.owners.retain(|_, owner| owner.is_active() || is_ahead(owner, least));
        }
    }

    fn push(&mut self, id: u64, waiting: Waiting<T>) {
        let time = self.time;
        let new = || Owner { waiting: VecDeque::new(), running: 0, got: time };
        self.owners.entry(id).or_insert_with(new);
        self.change(id, |owner| {
            if !owner.is_active() {
                owner.got = owner.got.max(time);
            }
            owner.waiting.push_back(waiting);
        });
    }

    fn pop(&mut self) -> Option<T> {
        let &(got, _, id) = self.order.first()?;
        // No owner that waits got less.
        self.time = self.time.max(got);
        let Waiting { tokens, item, .. } = self.change(id, |owner| {
            owner.running += 1;
            owner.waiting.pop_front()
        })??;
        self.charge(id, tokens);
        Some(item)
    }

    fn charge(&mut self, id: u64, tokens: usize) {
        let more = TOKEN.saturating_mul(tokens as u64);
        if self.change(id, |owner| owner.got = owner.got.saturating_add(more)).is_some() {
            self.time = self.time.saturating_add(more / self.active.max(1) as u64);
        }
    }

    fn extract(&mut self, predicate: impl Fn(&T) -> bool, removed: &mut Vec<(u64, T)>) {
        let is_gone = |waiting: &Waiting<T>| predicate(&waiting.item);
        let with_some = self.owners.iter().filter(|(_, owner)| owner.waiting.iter().any(is_gone));
        let ids: Vec<u64> = with_some.map(|(id, _)| *id).collect();
        for id in ids {
            self.change(id, |owner| {
                let (gone, left): (VecDeque<_>, VecDeque<_>) = owner.waiting.drain(..).partition(is_gone);
                owner.waiting = left;
                removed.extend(gone.into_iter().map(|waiting| (waiting.arrival, waiting.item)));
            });
        }
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue { levels: BTreeMap::new(), arrivals: 0, len: 0 }
    }
}

impl<T> Queue<T> {
    /// Adds a request that counts so many tokens for its owner when it leaves the queue.
    pub(super) fn push(&mut self, priority: i32, owner: u64, tokens: usize, item: T) {
        if self.levels.len() >= KEPT_LEVELS && !self.levels.contains_key(&priority) {
            self.levels.retain(|_, level| level.active > 0);
        }
        let waiting = Waiting { arrival: self.arrivals, tokens, item };
        self.levels.entry(priority).or_default().push(owner, waiting);
        self.arrivals += 1;
        self.len += 1;
    }

    /// The item that [`Queue::pop`] returns next.
    pub(super) fn first(&self) -> Option<&T> {
        self.levels.values().find_map(|level| {
            let (_, _, owner) = level.order.first()?;
            level.owners.get(owner)?.waiting.front().map(|waiting| &waiting.item)
        })
    }

    /// Takes the first item, whose request runs until [`Queue::end`].
    pub(super) fn pop(&mut self) -> Option<T> {
        let item = self.levels.values_mut().find_map(Level::pop)?;
        self.len -= 1;
        Some(item)
    }

    /// Counts more tokens for an owner of a running request.
    pub(super) fn charge(&mut self, priority: i32, owner: u64, tokens: usize) {
        if let Some(level) = self.levels.get_mut(&priority) {
            level.charge(owner, tokens);
        }
    }

    /// A request of an owner has ended that had left the queue.
    pub(super) fn end(&mut self, priority: i32, owner: u64) {
        if let Some(level) = self.levels.get_mut(&priority) {
            level.change(owner, |owner| owner.running = owner.running.saturating_sub(1));
        }
    }

    /// Removes and returns the items for which `predicate` is true, by arrival.
    pub(super) fn extract(&mut self, predicate: impl Fn(&T) -> bool) -> Vec<T> {
        let mut removed = Vec::new();
        for level in self.levels.values_mut() {
            level.extract(&predicate, &mut removed);
        }
        removed.sort_unstable_by_key(|(arrival, _)| *arrival);
        self.len -= removed.len();
        removed.into_iter().map(|(_, item)| item).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
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
            queue.push(priority, name.len() as u64, 1, name);
        }
        assert_eq!((queue.len(), queue.first()), (4, Some(&"first")));
        assert_eq!(all(&mut queue), ["first", "a", "b", "late"]);
        assert!(queue.is_empty());
    }

    #[test]
    fn owners_of_equal_requests_alternate() {
        let mut queue = Queue::default();
        for name in ["a1", "a2", "a3", "a4"] {
            queue.push(0, 1, 1, name);
        }
        queue.push(0, 2, 1, "b1");
        assert_eq!([queue.pop(), queue.pop(), queue.pop()], [Some("a1"), Some("b1"), Some("a2")]);
        // An owner's second request starts after its first; a new owner starts now.
        queue.push(0, 2, 1, "b2");
        queue.push(0, 3, 1, "c1");
        queue.push(0, 2, 1, "b3");
        assert_eq!(all(&mut queue), ["b2", "c1", "a3", "b3", "a4"]);
    }

    #[test]
    fn owners_get_equally_many_tokens_and_not_requests() {
        let mut queue = Queue::default();
        for _ in 0..60 {
            queue.push(0, 1, 600, (1, 1000));
            queue.push(0, 2, 100, (2, 100));
        }
        let mut served = [0usize; 3];
        // Until the owner of short requests has no more.
        while served[2] < 6000 {
            let Some((owner, tokens)) = queue.pop() else { panic!("there are more") };
            served[owner] += tokens;
            // The tokens of an answer count when they are there.
            queue.charge(0, owner as u64, if owner == 1 { 400 } else { 0 });
            queue.end(0, owner as u64);
            assert!(served[1].abs_diff(served[2]) <= 1000, "{served:?}");
        }
        assert_eq!(served, [0, 6000, 6000]);
    }

    #[test]
    fn an_owner_that_returns_is_not_owed_anything() {
        let mut queue = Queue::default();
        let served = |queue: &mut Queue<(u64, usize)>| {
            let (owner, tokens) = queue.pop()?;
            queue.end(0, owner);
            Some((owner, tokens))
        };
        for _ in 0..10 {
            queue.push(0, 1, 500, (1, 500));
        }
        assert!((0..6).all(|_| served(&mut queue) == Some((1, 500))));
        // It was away, and starts where the other is: they alternate. What it had in advance was for its time alone.
        for _ in 0..4 {
            queue.push(0, 2, 500, (2, 500));
        }
        let owners: Vec<u64> = std::iter::from_fn(|| served(&mut queue)).map(|(owner, _)| owner).collect();
        assert_eq!(owners, [1, 2, 1, 2, 1, 2, 1, 2]);
    }

    /// What an owner got in advance counts when it returns, as far as others have not got as much meanwhile.
    #[test]
    fn a_debt_is_paid_by_waiting_and_not_by_being_away_for_a_moment() {
        let mut queue = Queue::default();
        queue.push(0, 1, 1000, "large");
        queue.push(0, 2, 100, "b1");
        assert_eq!(queue.pop(), Some("large"));
        queue.end(0, 1);
        for name in ["b2", "b3", "b4", "b5", "b6", "b7", "b8", "b9", "b10", "b11", "b12"] {
            queue.push(0, 2, 100, name);
        }
        queue.push(0, 1, 100, "a2");
        let names = all(&mut queue);
        // After ten requests the other owner has got as much, and its eleventh request came earlier.
        assert_eq!(names.iter().position(|name| *name == "a2"), Some(11), "{names:?}");
    }

    /// New owners come in endlessly, and each waits when the next one is served. An owner that has got much waits for as
    /// much as is served to the others, and no longer.
    #[test]
    fn new_owners_do_not_starve_an_old_one() {
        for backlog in [1, 10] {
            let mut queue = Queue::default();
            // A newcomer was there while the old owner got 10,000 tokens.
            for owner in 0..backlog {
                queue.push(0, 100 + owner, 50, 100 + owner);
            }
            queue.push(0, 1, 50, 1);
            while queue.pop() != Some(1) {}
            queue.charge(0, 1, 10_000);
            queue.end(0, 1);
            for owner in 0..backlog {
                queue.push(0, 200 + owner, 50, 200 + owner);
            }
            queue.push(0, 1, 50, 1);
            let (mut services, mut next) = (0, 1000);
            while let Some(owner) = queue.pop()
                && owner != 1
            {
                queue.push(0, next, 50, next);
                queue.charge(0, owner, 50);
                queue.end(0, owner);
                (services, next) = (services + 1, next + 1);
                assert!(services < 1000 * (backlog + 1), "it starves");
            }
            // Its fair share is one part of those that wait, and it had 10,050 tokens, in services of 100 each. Owners of
            // the beginning, whose requests have not ended, count too.
            let fair = 10_050 / 100 * (2 * backlog + 1);
            assert!((fair / 3..=fair + backlog).contains(&services), "{services} of {fair}");
        }
    }

    #[test]
    fn two_busy_owners_get_equally_much_beside_a_stream_of_others() {
        let mut queue = Queue::default();
        let mut served: HashMap<u64, usize> = HashMap::new();
        let (mut next, mut running) = (10, VecDeque::new());
        for round in 0..20_000 {
            for (owner, tokens) in [(1, 900), (2, 70)] {
                if round < 4 {
                    queue.push(0, owner, tokens, (owner, tokens));
                }
            }
            if round % 3 == 0 {
                queue.push(0, next, 40, (next, 40));
                next += 1;
            }
            let Some((owner, tokens)) = queue.pop() else { continue };
            let answer = if owner == 2 { 30 } else { 160 };
            queue.charge(0, owner, answer);
            *served.entry(owner.min(10)).or_default() += tokens + answer;
            running.push_back((owner, tokens));
            // Four run at once.
            if running.len() == 4
                && let Some((owner, tokens)) = running.pop_front()
            {
                queue.end(0, owner);
                if owner < 10 {
                    queue.push(0, owner, tokens, (owner, tokens));
                }
            }
        }
        let [one, two, others] = [1, 2, 10].map(|owner| served[&owner]);
        assert!(one.abs_diff(two) * 10 < one, "{one} {two}");
        assert!(others > one / 10, "{others}: others get their share too");
    }

    #[test]
    fn extract_keeps_the_order_of_the_rest() {
        let mut queue = Queue::default();
        for (priority, name) in [(0, "a"), (-1, "gone 1"), (0, "gone 2"), (0, "b")] {
            queue.push(priority, 7, 1, name);
        }
        assert_eq!(queue.extract(|name| name.starts_with("gone")), ["gone 1", "gone 2"]);
        assert_eq!(queue.len(), 2);
        assert_eq!(all(&mut queue), ["a", "b"]);
    }

    #[test]
    fn owners_and_levels_without_requests_are_forgotten() {
        let mut queue = Queue::default();
        queue.push(0, u64::MAX, 1, "runs");
        queue.pop();
        for owner in 0..5000 {
            // Each has a debt, as another owner has a request.
            queue.push(0, owner, 1 + owner as usize % 7, "x");
            queue.pop();
            queue.end(0, owner);
            queue.push(owner as i32, 0, 1, "y");
            queue.pop();
            queue.end(owner as i32, 0);
            assert!(queue.levels.len() <= KEPT_LEVELS + 1);
            assert!(queue.levels.values().all(|level| level.owners.len() <= KEPT_OWNERS + level.active));
        }
        assert!(queue.levels[&0].owners.len() > KEPT_OWNERS / 2 && queue.levels[&0].active == 1);
        queue.end(0, u64::MAX);
        assert!(queue.levels.values().all(|level| level.order.is_empty() && level.active == 0));
    }

    #[test]
    fn the_largest_debts_are_remembered() {
        let mut queue = Queue::default();
        queue.push(0, u64::MAX, 1, 0);
        for owner in 0..2000u64 {
            queue.push(0, owner, 1, owner);
            let large = if owner == 3 { 1_000_000_000 } else { 1000 };
            while queue.pop() != Some(owner) {}
            queue.charge(0, owner, large);
            queue.end(0, owner);
            queue.push(0, u64::MAX, 1, u64::MAX);
        }
        assert!(queue.levels[&0].owners.contains_key(&3));
    }

    #[test]
    fn the_next_owner_is_the_one_that_got_least_whatever_happens() {
        let mut state = 1u32;
        let mut draw = |n: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % n
        };
        let mut queue = Queue::default();
        let mut waiting: Vec<(u64, u32)> = Vec::new();
        let mut running: Vec<u64> = Vec::new();
        for number in 0..4000u32 {
            let owner = u64::from(draw(5));
            match draw(5) {
                0 | 1 => {
                    queue.push(0, owner, draw(50) as usize, (owner, number));
                    waiting.push((owner, number));
                }
                2 => queue.charge(0, owner, draw(90) as usize),
                3 if !running.is_empty() => {
                    queue.end(0, running.swap_remove(draw(running.len() as u32) as usize));
                }
                _ if draw(20) == 0 => {
                    let gone = queue.extract(|(_, number)| number % 3 == 0);
                    let (expected, left): (Vec<_>, Vec<_>) =
                        waiting.iter().copied().partition(|(_, number)| number % 3 == 0);
                    waiting = left;
                    assert_eq!(gone, expected);
                }
                _ => {
                    let Some(level) = queue.levels.get(&0) else { continue };
                    let expected = waiting.iter().copied().min_by_key(|(owner, number)| {
                        let first = waiting.iter().find(|(other, _)| other == owner);
                        (level.owners[owner].got, first.map(|(_, number)| *number), *number)
                    });
                    assert_eq!(queue.pop(), expected);
                    running.extend(expected.map(|(owner, _)| owner));
                    waiting.retain(|one| Some(*one) != expected);
                }
            }
            assert_eq!(queue.len(), waiting.len());
            let is_active =
                |owner: &u64| running.contains(owner) || waiting.iter().any(|one| one.0 == *owner);
            let active = (0..5).filter(is_active).count();
            assert_eq!(queue.levels.get(&0).map_or(0, |level| level.active), active);
        }
    }
}
