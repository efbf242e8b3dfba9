//! Sizes at which growing nodes are capped.

use crate::offerings::index::OfferingIndex;
use crate::packing::first_fit::PackingProblem;

impl OfferingIndex<'_> {
    /// The few sizes around what a node has on average, where rules by host name force a number of
    /// nodes: larger nodes would leave the rest of them with single pods.
    pub(crate) fn sizes_for(&self, task: &PackingProblem<'_, '_>) -> Vec<i64> {
        const MAX_SIZES: usize = 2;
        let demand = task.classes.demand(task.pending);
        let each = task.classes.list.iter().zip(task.pending);
        let cpu = each.fold(0_i64, |sum, (class, count)| {
            sum.saturating_add(class.cpu.saturating_mul(i64::try_from(*count).unwrap_or(i64::MAX)))
        });
        let types = || self.pools.iter().flat_map(|table| &table.types);
        let free = || {
            self.pools.iter().flat_map(|table| (0..table.types.len()).map(|kind| table.free(kind)))
        };
        let forced = (self.resources..self.width).map(|dimension| {
            let most = free().map(|free| free[dimension]).max().unwrap_or(0);
            if most > 0 { demand[dimension].div_euclid(most) } else { 0 }
        });
        let Some(nodes) = forced.max().filter(|nodes| *nodes > 1) else { return Vec::new() };
        let mut sizes: Vec<i64> =
            types().map(|row| row.cpu).filter(|size| *size > cpu / nodes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes.truncate(MAX_SIZES);
        sizes
    }

    /// Sizes at which growing nodes can be capped: vCPU counts on offer, each about twice the one
    /// before.
    pub(crate) fn levels(&self, most: usize) -> Vec<i64> {
        let mut sizes: Vec<i64> =
            self.pools.iter().flat_map(|table| table.types.iter().map(|row| row.cpu)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        if sizes.len() <= most {
            return sizes;
        }
        let mut levels: Vec<i64> = Vec::new();
        let mut target = sizes.first().copied().unwrap_or(1).max(1);
        while levels.len() < most && sizes.last().is_some_and(|largest| target <= *largest) {
            let at_most = sizes.partition_point(|size| *size <= target);
            levels.extend(at_most.checked_sub(1).map(|index| sizes[index]));
            target = target.saturating_mul(2);
        }
        levels.dedup();
        levels
    }
}
