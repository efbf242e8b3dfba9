//! Sizes at which growing bins are capped.

use crate::offerings::index::OfferingIndex;
use crate::packing::packer::PackingProblem;

/// Number of sizes around the average load of the nodes that hostname rules force.
const SIZES_AROUND_AVERAGE: usize = 2;

/// Sizes just above the average load of a node, where ports and host slots force a number of nodes:
/// larger nodes would leave the rest of them with single pods. Empty where nothing is forced.
pub(crate) fn around_forced_average(
    offerings: &OfferingIndex<'_>,
    problem: &PackingProblem<'_, '_>,
) -> Vec<i64> {
    let demand = problem.classes.demand(problem.pending);
    let each = problem.classes.list.iter().zip(problem.pending);
    let cpu = each.fold(0_i64, |sum, (class, count)| {
        sum.saturating_add(class.cpu.saturating_mul(i64::try_from(*count).unwrap_or(i64::MAX)))
    });
    let free =
        || offerings.pools.iter().flat_map(|table| table.types.ids().map(|id| table.free(id)));
    let forced = (offerings.resources..offerings.width).map(|dimension| {
        let max = free().map(|free| free[dimension]).max().unwrap_or(0);
        if max > 0 { demand[dimension].div_euclid(max) } else { 0 }
    });
    let Some(nodes) = forced.max().filter(|nodes| *nodes > 1) else { return Vec::new() };
    let mut sizes = all_sizes(offerings);
    sizes.retain(|size| *size > cpu / nodes);
    sizes.truncate(SIZES_AROUND_AVERAGE);
    sizes
}

/// Up to `max` sizes on sale, each about twice the one before.
pub(crate) fn doubling(offerings: &OfferingIndex<'_>, max: usize) -> Vec<i64> {
    let sizes = all_sizes(offerings);
    if sizes.len() <= max {
        return sizes;
    }
    let mut chosen: Vec<i64> = Vec::new();
    let mut target = sizes.first().copied().unwrap_or(1).max(1);
    while chosen.len() < max && sizes.last().is_some_and(|largest| target <= *largest) {
        let at_most = sizes.partition_point(|size| *size <= target);
        chosen.extend(at_most.checked_sub(1).map(|index| sizes[index]));
        target = target.saturating_mul(2);
    }
    chosen.dedup();
    chosen
}

/// The distinct sizes on sale, in milli-cores, ascending.
fn all_sizes(offerings: &OfferingIndex<'_>) -> Vec<i64> {
    let types = offerings.pools.iter().flat_map(|table| &table.types);
    let mut sizes: Vec<i64> = types.map(|row| row.cpu).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}
