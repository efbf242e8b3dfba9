//! What a change of a NodePool or a node class would do to the nodes that run.

use jiff::Timestamp;
use kube::ResourceExt;
use nap_api::nodeclaim::condition::DRIFTED;
use nap_api::nodepool::{Budget, DisruptionReason};
use nap_api::{AKSNodeClass, NodeClaim, NodePool, budget, conditions};
use nap_engine::Options;

use super::preview::{Preview, preview};
use crate::cluster::{Index, claim_is, pool_of};
use crate::hash_migration::HashStamp;
use crate::nodeclaim::drift_of;
use crate::snapshot::Catalogues;

/// A change of a cluster's definitions.
#[derive(Clone, Debug)]
pub enum Change {
    /// A NodePool, new or changed.
    NodePool(Box<NodePool>),
    /// A node class, new or changed.
    NodeClass(Box<AKSNodeClass>),
}

/// What a change would do.
#[derive(Clone, Debug, Default)]
pub struct WhatIf {
    /// Nodes that would drift, in the order of their names.
    pub drifted: Vec<Drifted>,
    /// What disruption would do in the end: budgets delay it and do not prevent it.
    pub preview: Preview,
    /// Nodes of each NodePool that would drift, and how many of them may go at a time by the
    /// budgets of this moment.
    pub pace: Vec<(String, usize, usize)>,
}

/// A node that would drift.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drifted {
    /// Name of the NodeClaim.
    pub claim: String,
    /// Name of the NodePool.
    pub pool: String,
    /// Reason of its `Drifted` condition.
    pub reason: &'static str,
}

/// Applies changes to an index, and decides about the nodes that drift by them. Drift that the
/// index has already does not count as caused by the change.
pub fn what_if(
    index: &mut Index,
    changes: Vec<Change>,
    catalogues: impl FnOnce(&Index) -> std::sync::Arc<Catalogues>,
    options: &Options,
    now: Timestamp,
) -> WhatIf {
    for change in changes {
        match change {
            Change::NodePool(mut pool) => {
                let stamp = HashStamp::of_pool(&pool).annotations();
                pool.annotations_mut().extend(stamp);
                pool.status = index.pool(&pool.name_any()).and_then(|old| old.status.clone());
                index.apply(*pool, now);
            }
            Change::NodeClass(mut class) => {
                let stamp = HashStamp::of_class(&class).annotations();
                class.annotations_mut().extend(stamp);
                class.status = index.class(&class.name_any()).and_then(|old| old.status.clone());
                index.apply(*class, now);
            }
        }
    }
    let drifted = drift(index, now);
    let pace = pace(index, &drifted, now);
    open_budgets(index, now);
    let catalogues = catalogues(index);
    let preview = preview(index, &catalogues, options, now);
    WhatIf { drifted, preview, pace }
}

/// Marks the NodeClaims that drift by their NodePool or node class.
fn drift(index: &mut Index, now: Timestamp) -> Vec<Drifted> {
    let mut found = Vec::new();
    let mut changed: Vec<NodeClaim> = Vec::new();
    for claim in index.claims().filter(|claim| !claim_is(claim, DRIFTED)) {
        let Some(pool) = pool_of(claim.as_ref()).and_then(|pool| index.pool(pool)) else {
            continue;
        };
        let class = index.class(&claim.spec.node_class_ref.name);
        let Some(drift) = drift_of(claim, pool, class.map(AsRef::as_ref)) else { continue };
        let mut claim = claim.as_ref().clone();
        let generation = claim.metadata.generation;
        let of_claim = &mut claim.status.get_or_insert_default().conditions;
        let (status, reason) = (conditions::Status::True, drift.as_str());
        conditions::set(of_claim, DRIFTED, status, reason, reason, generation, now);
        let (name, pool) = (claim.name_any(), pool.name_any());
        found.push(Drifted { claim: name, pool, reason: drift.as_str() });
        changed.push(claim);
    }
    for claim in changed {
        index.apply(claim, now);
    }
    found.sort_by(|a, b| a.claim.cmp(&b.claim));
    found
}

fn pace(index: &Index, drifted: &[Drifted], now: Timestamp) -> Vec<(String, usize, usize)> {
    let mut pace = Vec::new();
    for (name, pool) in index.pools() {
        let count = drifted.iter().filter(|one| one.pool == *name).count();
        if count > 0 {
            let total = index.views_of_pool(name).filter(|view| view.is_initialized()).count();
            let budgets = &pool.spec.disruption.budgets;
            let allowed = budget::allowed(budgets, DisruptionReason::Drifted, total, now);
            pace.push((name.clone(), count, allowed));
        }
    }
    pace
}

/// Lets every node be disrupted at once.
fn open_budgets(index: &mut Index, now: Timestamp) {
    let all = Budget { nodes: "100%".to_owned(), reasons: None, schedule: None, duration: None };
    let pools: Vec<NodePool> = index.pools().map(|(_, pool)| pool.as_ref().clone()).collect();
    for mut pool in pools {
        pool.spec.disruption.budgets = vec![all.clone()];
        index.apply(pool, now);
    }
}
