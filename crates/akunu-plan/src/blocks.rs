//! Blocks of a KV cache: how a position of a sequence is found.
//!
//! A [`crate::Row::start`] and the positions that follow are logical: every sequence has a range of them, as long as
//! the context. A cache has blocks of a fixed number of positions, and the table of its blocks names the block of each
//! run of logical positions, as the page table of a processor does. Blocks of a sequence may be anywhere, sequences may
//! share blocks, and the cache may have fewer blocks than there are logical ones.

/// The place of logical position `at` in a cache of `positions`, in blocks of `block`. Numbers beyond the last block
/// mean the last one, so that no table leads outside the cache.
#[inline(always)]
pub fn place(table: &[u32], at: usize, [positions, block]: [u32; 2]) -> usize {
    let block = block as usize;
    let last = positions as usize / block - 1;
    (table[at / block] as usize).min(last) * block + at % block
}

/// The table in which each logical block is the same block of a cache of `count`, again from the first one on after
/// the last.
pub fn identity(logical: u32, count: u32) -> Vec<u32> {
    (0..logical).map(|block| block % count.max(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_in_the_block_that_the_table_names() {
        let table = [2, 0, 7];
        let at = |position| place(&table, position, [48, 16]);
        assert_eq!([0, 15, 16, 31].map(at), [32, 47, 0, 15]);
        // There is no block 7: the last one takes its place.
        assert_eq!([32, 47].map(at), [32, 47]);
    }

    #[test]
    fn without_a_choice_blocks_are_in_order() {
        assert_eq!(identity(3, 3), [0, 1, 2]);
        assert_eq!(identity(5, 2), [0, 1, 0, 1, 0]);
    }
}
