//! A replay of kube-scheduler on a packing, without nominations.
//!
//! The scheduler binds pods one by one, each to the emptiest node that holds it, and knows nothing
//! of plans. So small pods can take the room of large ones, and a tight plan needs nominations to
//! come true. Of two plans with the same cost, the one that needs fewer is better.

use std::collections::BTreeMap;

use crate::classes::dimensions::holds;
use crate::ids::{ClassId, EligibilityId};
use crate::offerings::index::OfferingIndex;
use crate::packing::packer::PackingProblem;
use crate::packing::result::Packing;

/// Upper limit on the comparisons of a replay.
const MAX_COMPARISONS: usize = 2_000_000;

/// A new node during the replay.
struct ReplayedNode {
    eligibility: EligibilityId,
    capacity: Vec<i64>,
    free: Vec<i64>,
}

/// Number of pods on new nodes that would find no room, were the pods of all classes bound
/// round-robin. Topology rules are ignored. `None` if the packing is too large to replay.
pub(crate) fn pods_unbound_without_nomination(
    offerings: &mut OfferingIndex<'_>,
    problem: &PackingProblem<'_, '_>,
    packing: &Packing,
) -> Option<usize> {
    let mut waiting: BTreeMap<ClassId, usize> = BTreeMap::new();
    for (class, count) in packing.bins.iter().flat_map(|bin| &bin.content) {
        *waiting.entry(*class).or_default() += count;
    }
    let pods: usize = waiting.values().sum();
    if pods.saturating_mul(packing.bins.len()) > MAX_COMPARISONS {
        return None;
    }
    let mut nodes: Vec<ReplayedNode> = Vec::with_capacity(packing.bins.len());
    for (id, bin) in packing.bins.enumerate() {
        let eligible = offerings.eligible(bin.eligibility);
        let cheapest = offerings.cheapest(eligible, packing.used(id), &[])?;
        let capacity = offerings.table(eligible).free(cheapest.id).to_vec();
        let free = capacity.clone();
        nodes.push(ReplayedNode { eligibility: bin.eligibility, capacity, free });
    }
    let mut suits: BTreeMap<(ClassId, EligibilityId), bool> = BTreeMap::new();
    let mut unbound = 0;
    while !waiting.is_empty() {
        for (id, count) in &mut waiting {
            let class = &problem.classes[*id];
            let mut best: Option<(f64, usize)> = None;
            for (number, node) in nodes.iter().enumerate() {
                let eligibility = node.eligibility;
                let suits = *suits.entry((*id, eligibility)).or_insert_with(|| {
                    let pool = offerings.eligible(eligibility).pool;
                    let mut terms = class.terms.iter();
                    offerings.tolerates(pool, class)
                        && terms.any(|term| offerings.narrow(eligibility, *term).is_some())
                });
                if suits && holds(&node.free, &class.requests) {
                    let emptiness = emptiness(node, offerings.resources);
                    if best.is_none_or(|(best, _)| emptiness > best) {
                        best = Some((emptiness, number));
                    }
                }
            }
            match best {
                Some((_, number)) => {
                    for (free, request) in nodes[number].free.iter_mut().zip(&class.requests) {
                        *free -= request;
                    }
                    *count -= 1;
                }
                None => unbound += std::mem::take(count),
            }
        }
        waiting.retain(|_, count| *count > 0);
    }
    Some(unbound)
}

/// Sum of the free fractions of a node's resources.
#[expect(clippy::cast_precision_loss, reason = "it guides a choice; the last digits do not matter")]
fn emptiness(node: &ReplayedNode, resources: usize) -> f64 {
    let each = node.capacity.iter().zip(&node.free).take(resources);
    let each = each.filter(|(capacity, _)| **capacity > 0);
    each.map(|(capacity, free)| *free as f64 / *capacity as f64).sum()
}
