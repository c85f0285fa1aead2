//! The commands that a router decides about, and which experts it has chosen.

use std::ops::Sub;

use crate::ops::{self, ExpertParams, MAX_EXPERTS, Op, RouteParams};
use crate::table::{Binding, DispatchCommand, DispatchTable};
use crate::{Cost, Kernel};

const WORDS: usize = MAX_EXPERTS.div_ceil(64);

/// Some of the experts of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpertSet([u64; WORDS]);

impl ExpertSet {
    /// The experts that are picked at least once. Numbers beyond the last expert are limited to it, as kernels do.
    pub fn of_picks(picks: impl IntoIterator<Item = u32>, experts: usize) -> ExpertSet {
        let mut set = ExpertSet::default();
        picks.into_iter().for_each(|pick| set.add((pick as usize).min(experts.saturating_sub(1))));
        set
    }

    /// Numbers from [`MAX_EXPERTS`] on are ignored.
    pub fn add(&mut self, expert: usize) {
        if let Some(word) = self.0.get_mut(expert / 64) {
            *word |= 1 << (expert % 64);
        }
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn contains(&self, expert: usize) -> bool {
        self.0.get(expert / 64).is_some_and(|word| word >> (expert % 64) & 1 == 1)
    }

    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + use<> {
        let set = *self;
        (0..WORDS).flat_map(move |word| {
            let mut bits = set.0[word];
            std::iter::from_fn(move || {
                let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
                bits &= bits - 1;
                Some(word * 64 + bit)
            })
        })
    }
}

/// The commands of a mixture of experts, by their indices in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoutedCommands {
    pub route: usize,
    /// The products of gate and up.
    pub glu: usize,
    /// The products back to the hidden size.
    pub down: usize,
}

impl RoutedCommands {
    /// The picks of the router, `[row][top]`, and the numbers of experts and of picks of a row.
    pub fn picks(self, table: &DispatchTable) -> Option<(Binding, usize, usize)> {
        let command = &table.commands[self.route];
        let Kernel::Route(op) = command.kernel else { return None };
        let p: RouteParams = command.params();
        Some((op.operands(command.bindings()).picks.0, p.experts as usize, p.top as usize))
    }

    /// Bytes of the most experts that so many rows can be routed to.
    pub fn most_bytes(self, table: &DispatchTable, rows: usize) -> u64 {
        let most = self.picks(table).map_or(0, |(_, experts, top)| experts.min(rows * top));
        most as u64 * self.expert_bytes(table)
    }

    /// Bytes of the weights of one expert.
    pub fn expert_bytes(self, table: &DispatchTable) -> u64 {
        [self.glu, self.down].map(|index| table.commands[index].expert_bytes()).iter().sum()
    }
}

impl DispatchTable {
    /// The mixtures of experts of a table, in the order of its commands.
    pub fn routed(&self) -> Vec<RoutedCommands> {
        let (mut route, mut glu, mut found) = (None, None, Vec::new());
        for (index, command) in self.commands.iter().enumerate() {
            match command.kernel {
                Kernel::Route(_) => (route, glu) = (Some(index), None),
                Kernel::ExpertGlu(_) | Kernel::HalfExpertGlu(_) => glu = Some(index),
                // Latent attention has such products, too, of which no router decides.
                Kernel::ExpertMatmul(_) | Kernel::HalfExpertMatmul(_) | Kernel::ExpertSum(_) => {
                    if let (Some(route), Some(glu)) = (route, glu.take()) {
                        found.push(RoutedCommands { route, glu, down: index });
                    }
                }
                _ => {}
            }
        }
        found
    }
}

impl DispatchCommand {
    /// Bytes of the weights of one expert that a command multiplies with; 0 for commands without experts.
    pub fn expert_bytes(&self) -> u64 {
        let (weight, matrices) = match self.kernel {
            Kernel::ExpertGlu(ops::ExpertGlu { weight, .. })
            | Kernel::HalfExpertGlu(ops::HalfExpertGlu { weight, .. }) => (weight, 2),
            Kernel::ExpertMatmul(ops::ExpertMatmul { weight, .. })
            | Kernel::HalfExpertMatmul(ops::HalfExpertMatmul { weight }) => (weight, 1),
            Kernel::ExpertSum(ops::ExpertSum { weight, .. }) => (weight, 1),
            _ => return 0,
        };
        let p: ExpertParams = self.params();
        Cost::product(weight, p.inputs, matrices * u64::from(p.outputs), 1, false).weight_bytes
    }
}

/// The weights of experts that the passes of a device have read, in all since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpertReads {
    /// Bytes of the experts that the rows of a layer were routed to, each once for a pass.
    pub bytes: u64,
    /// How many layers have routed rows of which nothing was counted.
    pub uncounted: u64,
    /// Of experts that are paged: how many were in memory when they were needed, and how many were not.
    pub hits: u64,
    pub misses: u64,
    /// Bytes that were read from files for those that were not.
    pub file_bytes: u64,
}

impl Sub for ExpertReads {
    type Output = ExpertReads;

    /// What was read between two counts.
    fn sub(self, before: ExpertReads) -> ExpertReads {
        ExpertReads {
            bytes: self.bytes.saturating_sub(before.bytes),
            uncounted: self.uncounted.saturating_sub(before.uncounted),
            hits: self.hits.saturating_sub(before.hits),
            misses: self.misses.saturating_sub(before.misses),
            file_bytes: self.file_bytes.saturating_sub(before.file_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_each_expert_once_and_limits_numbers() {
        let set = ExpertSet::of_picks([7, 0, 7, 64, u32::MAX], 100);
        assert_eq!((set.len(), set.is_empty()), (4, false));
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 7, 64, 99]);
        assert!(set.contains(64) && !set.contains(63) && !set.contains(usize::MAX));
        assert_eq!(set, ExpertSet::of_picks([99, 64, 7, 0], 100));
        assert_eq!(ExpertSet::of_picks([3], 0).iter().collect::<Vec<_>>(), [0]);
        assert!(ExpertSet::of_picks([], 4).is_empty());
    }
}
