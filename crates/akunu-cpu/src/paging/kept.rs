//! Which experts of a layer are kept in memory: those that passes have needed most often lately.

use std::cmp::Reverse;

use akunu_plan::ExpertSet;

const NONE: u32 = u32::MAX;
/// A slot that is being filled.
const FILLING: u32 = u32::MAX - 1;

/// Uses are halved after so many passes of a layer, so that none is above twice this number.
const HALVED_AFTER: u32 = 64;

#[derive(Debug)]
pub(super) struct Kept {
    /// By expert.
    slots: Box<[u32]>,
    /// By expert, in how many passes it was needed; older ones count less.
    uses: Box<[u32]>,
    /// By slot.
    owners: Box<[u32]>,
    passes: u32,
}

/// An expert that is not in memory, and the slot in which it is to be kept, if it is used more than what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Miss {
    pub(super) expert: usize,
    pub(super) kept_in: Option<usize>,
}

impl Kept {
    pub(super) fn new(experts: usize, slots: usize) -> Kept {
        Kept {
            slots: vec![NONE; experts].into(),
            uses: vec![0; experts].into(),
            owners: vec![NONE; slots].into(),
            passes: 0,
        }
    }

    /// The slot of an expert that is kept.
    pub(super) fn slot(&self, expert: usize) -> Option<usize> {
        self.slots.get(expert).filter(|slot| **slot != NONE).map(|slot| *slot as usize)
    }

    /// Counts a pass that needs some experts, and finds those that are not kept. One of these takes the place of the
    /// expert that is used least, if it is used at least twice more and this pass does not need that one. So a pass that
    /// needs all experts replaces none, and experts that are used in turn, whose counts differ by one, do not take turns
    /// in the slots.
    pub(super) fn need(&mut self, needed: &ExpertSet, misses: &mut Vec<Miss>) {
        self.passes += 1;
        if self.passes.is_multiple_of(HALVED_AFTER) {
            self.uses.iter_mut().for_each(|uses| *uses /= 2);
        }
        misses.clear();
        for expert in needed.iter() {
            self.uses[expert] += 1;
            if self.slots[expert] == NONE {
                misses.push(Miss { expert, kept_in: None });
            }
        }
        misses.sort_unstable_by_key(|miss| (Reverse(self.uses[miss.expert]), miss.expert));
        for miss in misses {
            // The others are not used more than this one.
            let Some(slot) = self.replaced(needed, self.uses[miss.expert]) else { return };
            let owner = std::mem::replace(&mut self.owners[slot], FILLING);
            if let Some(place) = self.slots.get_mut(owner as usize) {
                *place = NONE;
            }
            miss.kept_in = Some(slot);
        }
    }

    /// A slot that is free, or the one of the expert that is used least, if `uses` is more by two.
    fn replaced(&self, needed: &ExpertSet, uses: u32) -> Option<usize> {
        if let Some(free) = self.owners.iter().position(|owner| *owner == NONE) {
            return Some(free);
        }
        let others = self.owners.iter().enumerate().filter(|(_, owner)| **owner != FILLING);
        let others = others.filter(|(_, owner)| !needed.contains(**owner as usize));
        let least = others.min_by_key(|(_, owner)| self.uses[**owner as usize]);
        least.filter(|(_, owner)| self.uses[**owner as usize] + 1 < uses).map(|(slot, _)| slot)
    }

    /// Ends a pass: experts are in the slots that they were to be kept in, or these are free.
    pub(super) fn settle(&mut self, misses: &[Miss], are_filled: bool) {
        for miss in misses {
            let Some(slot) = miss.kept_in else { continue };
            self.owners[slot] = if are_filled { miss.expert as u32 } else { NONE };
            if are_filled {
                self.slots[miss.expert] = slot as u32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hits of passes that need these experts.
    fn hits(kept: &mut Kept, needed: impl IntoIterator<Item = u32> + Clone) -> usize {
        let set = ExpertSet::of_picks(needed, kept.slots.len());
        let mut misses = Vec::new();
        kept.need(&set, &mut misses);
        let slots: Vec<usize> = misses.iter().filter_map(|miss| miss.kept_in).collect();
        kept.settle(&misses, true);
        for (slot, owner) in kept.owners.iter().enumerate().filter(|(_, owner)| **owner != NONE) {
            assert_eq!(
                kept.slot(*owner as usize),
                Some(slot),
                "an expert has a slot, and the slot that expert"
            );
        }
        assert!((1..slots.len()).all(|i| !slots[..i].contains(&slots[i])), "a slot has one expert");
        set.len() - misses.len()
    }

    #[test]
    fn free_slots_are_filled_and_kept() {
        let mut kept = Kept::new(8, 4);
        assert_eq!(hits(&mut kept, [1, 5]), 0);
        assert_eq!(hits(&mut kept, [5, 1]), 2);
        assert_eq!(hits(&mut kept, [2, 3]), 0);
        assert_eq!(hits(&mut kept, 0..8), 4);
    }

    #[test]
    fn passes_that_need_all_experts_do_not_replace_those_that_are_used_most() {
        let mut kept = Kept::new(16, 4);
        for _ in 0..3 {
            hits(&mut kept, [2, 7]);
        }
        assert_eq!(hits(&mut kept, 0..16), 2);
        for _ in 0..200 {
            assert_eq!(hits(&mut kept, 0..16), 4);
        }
        assert_eq!(hits(&mut kept, [2, 7]), 2);
    }

    /// Where each expert is read once in a round, the least recently used one would always be the next one.
    #[test]
    fn experts_in_turn_hit_as_many_as_are_kept() {
        let mut kept = Kept::new(16, 4);
        let round = |kept: &mut Kept| (0..16).map(|expert| hits(kept, [expert])).sum::<usize>();
        round(&mut kept);
        assert!((0..50).all(|_| round(&mut kept) == 4));
    }

    #[test]
    fn what_is_used_more_takes_the_place_of_what_is_used_less() {
        let mut kept = Kept::new(8, 2);
        for _ in 0..100 {
            hits(&mut kept, [0, 1]);
        }
        for _ in 0..2 * HALVED_AFTER {
            hits(&mut kept, [4, 5]);
        }
        assert_eq!(hits(&mut kept, [4, 5]), 2);
        assert!(kept.uses.iter().all(|uses| *uses <= 2 * HALVED_AFTER));
    }

    #[test]
    fn what_was_not_filled_is_not_there() {
        let mut kept = Kept::new(4, 2);
        let mut misses = Vec::new();
        kept.need(&ExpertSet::of_picks([3, 1], 4), &mut misses);
        assert_eq!(misses.len(), 2);
        kept.settle(&misses, false);
        assert_eq!((kept.slot(1), kept.slot(3)), (None, None));
        assert_eq!(hits(&mut kept, [1, 3]), 0);
        assert_eq!(hits(&mut kept, [1, 3]), 2);
        // Without any slot, everything is read.
        let mut none = Kept::new(4, 0);
        assert_eq!((hits(&mut none, [1]), hits(&mut none, [1])), (0, 0));
    }
}
