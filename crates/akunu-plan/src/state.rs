//! States of layers that mix positions without attention: where they are in the cache.
//!
//! A state is kept for each block of positions, as it is after the last of them that was processed. So the state at the
//! end of every block stays as long as its slot does, and a sequence can go on from there. A table has the slot of each
//! block of logical positions ([`crate::blocks`]).

use std::ops::Range;

use crate::Row;

/// The rows that continue each other: of one sequence, and one position after the other. A pass has at most one run of a
/// sequence, since runs are processed in any order.
pub fn runs(rows: &[Row]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut first = 0;
    rows.chunk_by(follows).map(move |run| {
        first += run.len();
        first - run.len()..first
    })
}

/// Whether a row continues the one before it.
#[inline(always)]
pub fn follows(before: &Row, row: &Row) -> bool {
    row.start == before.start && row.position == before.position.wrapping_add(1)
}

/// The slots of one layer.
#[derive(Clone, Copy, Debug)]
pub struct StateCache<'a> {
    /// Empty if states are not kept.
    table: &'a [u32],
    slots: u32,
    block: u32,
}

impl<'a> StateCache<'a> {
    pub fn new(table: &'a [u32], slots: u32, block: u32) -> StateCache<'a> {
        StateCache { table, slots, block }
    }

    /// The slot of a logical position. Numbers beyond the last slot mean the last one.
    #[inline(always)]
    fn slot(&self, at: u32) -> Option<usize> {
        if self.block == 0 {
            return None;
        }
        Some(self.table[(at / self.block) as usize].min(self.slots - 1) as usize)
    }

    /// Where the state before a row is; `None`: it is zero.
    #[inline(always)]
    pub fn before(&self, row: &Row) -> Option<usize> {
        if row.position == 0 { None } else { self.slot(row.start + row.position - 1) }
    }

    /// Where the state after a row is to be written, if it is: after the last row of a run, and of a block.
    #[inline(always)]
    pub fn after(&self, row: &Row, is_last: bool) -> Option<usize> {
        let at = row.start + row.position;
        let ends = self.block > 0 && (at + 1).is_multiple_of(self.block);
        if is_last || ends { self.slot(at) } else { None }
    }

    /// How many states a pass reads and writes, in blocks of so many positions.
    pub fn moved(rows: &[Row], block: u32) -> u64 {
        let ends = |row: &Row| (row.start + row.position + 1).is_multiple_of(block.max(1));
        let of_run = |run: Range<usize>| {
            let rows = &rows[run];
            let inside = rows[..rows.len() - 1].iter().filter(|row| ends(row)).count();
            u64::from(rows[0].position > 0) + 1 + inside as u64
        };
        runs(rows).map(of_run).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(start: u32, position: u32) -> Row {
        Row::causal(0, position, start)
    }

    #[test]
    fn rows_that_continue_each_other_are_a_run() {
        let rows = [row(0, 5), row(0, 6), row(64, 7), row(64, 8), row(64, 3), row(0, 7)];
        assert_eq!(runs(&rows).collect::<Vec<_>>(), [0..2, 2..4, 4..5, 5..6]);
        assert_eq!(runs(&[]).count(), 0);
    }

    #[test]
    fn states_are_kept_at_the_end_of_runs_and_blocks() {
        let table = [2, 0, 7, 1];
        let cache = StateCache::new(&table, 3, 16);
        assert_eq!(
            [0, 1, 16, 17].map(|position| cache.before(&row(0, position))),
            [None, Some(2), Some(2), Some(0)]
        );
        // There is no slot 7: the last one takes its place.
        assert_eq!(cache.before(&row(32, 1)), Some(2));
        assert_eq!(cache.after(&row(0, 14), false), None);
        assert_eq!(cache.after(&row(0, 14), true), Some(2));
        assert_eq!(cache.after(&row(0, 15), false), Some(2));
        assert_eq!(cache.after(&row(16, 0), true), Some(0));
        let none = StateCache::new(&[], 0, 0);
        assert_eq!((none.before(&row(0, 9)), none.after(&row(0, 9), true)), (None, None));
    }

    #[test]
    fn states_of_a_pass_are_counted() {
        // One begins at 0, crosses a block and ends within the next; the other goes on within its block.
        let rows: Vec<Row> = (0..20).map(|p| row(0, p)).chain([row(64, 5), row(64, 6)]).collect();
        assert_eq!(StateCache::moved(&rows, 16), 2 + 2);
    }
}
