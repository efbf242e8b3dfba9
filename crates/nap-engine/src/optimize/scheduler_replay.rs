//! Whether kube-scheduler, left to itself, would do what a packing says.
//!
//! It binds pods one by one, each to the emptiest node that holds it, and knows nothing of plans.
//! So small pods can take the room that was meant for large ones, and a tight plan is not realised
//! without help. Of two plans at one price, the one is better that needs less of it.

use std::collections::BTreeMap;

use crate::classes::holds;
use crate::offerings::index::OfferingIndex;
use crate::packing::first_fit::PackingProblem;
use crate::packing::result::Packing;

/// With more comparisons than this nothing is said.
const MAX_COMPARISONS: usize = 2_000_000;

/// How many pods of a packing would find no room, if those of all classes came by turns; rules
/// between pods are left out. `None` if it is too much to find out.
pub(crate) fn pods_unbound_without_nomination(
    offerings: &mut OfferingIndex<'_>,
    task: &PackingProblem<'_, '_>,
    packing: &Packing,
) -> Option<usize> {
    let mut waiting: BTreeMap<usize, usize> = BTreeMap::new();
    for (class, count) in packing.bins.iter().flat_map(|bin| &bin.content) {
        *waiting.entry(*class).or_default() += count;
    }
    let pods: usize = waiting.values().sum();
    if pods.saturating_mul(packing.bins.len()) > MAX_COMPARISONS {
        return None;
    }
    let mut nodes: Vec<(usize, Vec<i64>, Vec<i64>)> = Vec::with_capacity(packing.bins.len());
    for (number, bin) in packing.bins.iter().enumerate() {
        let signature = offerings.signature(bin.signature);
        let (_, kind) = offerings.cheapest(signature, packing.used(number), &[])?;
        let free = offerings.table(signature).free(kind).to_vec();
        nodes.push((bin.signature, free.clone(), free));
    }
    let mut suits: BTreeMap<(usize, usize), bool> = BTreeMap::new();
    let mut pods_unbound_without_nomination = 0;
    while !waiting.is_empty() {
        for (number, count) in &mut waiting {
            let class = &task.classes.list[*number];
            let mut best: Option<(f64, usize)> = None;
            for (index, (signature, whole, free)) in nodes.iter().enumerate() {
                let suits = *suits.entry((*number, *signature)).or_insert_with(|| {
                    let pool = offerings.signature(*signature).pool;
                    offerings.tolerates(pool, class)
                        && class
                            .terms
                            .iter()
                            .any(|term| offerings.step(*signature, *term).is_some())
                });
                if suits && holds(free, &class.row) {
                    let emptiness = emptiness(whole, free, offerings.resources);
                    if best.is_none_or(|(best, _)| emptiness > best) {
                        best = Some((emptiness, index));
                    }
                }
            }
            match best {
                Some((_, index)) => {
                    for (free, request) in nodes[index].2.iter_mut().zip(&class.row) {
                        *free -= request;
                    }
                    *count -= 1;
                }
                None => pods_unbound_without_nomination += std::mem::take(count),
            }
        }
        waiting.retain(|_, count| *count > 0);
    }
    Some(pods_unbound_without_nomination)
}

/// How much of a node's resources is free on average.
#[expect(clippy::cast_precision_loss, reason = "it guides a choice; the last digits do not matter")]
fn emptiness(whole: &[i64], free: &[i64], resources: usize) -> f64 {
    let parts = whole.iter().zip(free).take(resources).filter(|(whole, _)| **whole > 0);
    parts.map(|(whole, free)| *free as f64 / *whole as f64).sum()
}
