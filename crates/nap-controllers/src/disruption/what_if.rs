//! What a change of a NodePool or a node class would do to the nodes that run.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use nap_api::disruption::{MAX_SEARCH_DAYS, PlannedMaintenance, Settings};
use nap_api::nodeclaim::condition::DRIFTED;
use nap_api::nodepool::{Budget, DisruptionReason};
use nap_api::{AKSNodeClass, NodeClaim, NodePool, budget, conditions, labels};
use nap_engine::Options;

use super::preview::{Known, Preview, preview};
use super::waves::SECOND_WAVE;
use crate::cluster::{Index, claim_is, pool_of};
use crate::hash_migration::HashStamp;
use crate::nodeclaim::drift_of;
use crate::snapshot::Catalogues;

/// Time that a node takes to be replaced, for the estimate of the duration.
const PER_ROUND: SignedDuration = SignedDuration::from_mins(5);
/// Upper limit on the time that is looked ahead.
const HORIZON: SignedDuration = SignedDuration::from_hours(24 * MAX_SEARCH_DAYS);

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
    /// What disruption would do in the end, in all its rounds: budgets, windows and waves delay it
    /// and do not prevent it.
    pub preview: Preview,
    /// How long that takes in each NodePool with nodes that would drift.
    pub pace: Vec<Pace>,
}

/// How long it takes until the drifted nodes of a NodePool are replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Name of the NodePool.
    pub pool: String,
    /// Most nodes that go at a time.
    pub at_once: usize,
    /// Number of rounds.
    pub rounds: usize,
    /// Time until the first round; zero if it may begin now.
    pub wait: SignedDuration,
    /// Time until all are replaced, through closed windows, budgets and waves; `None` if that is
    /// beyond what is looked ahead.
    pub lasts: Option<SignedDuration>,
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
    known: Known,
    now: Timestamp,
) -> WhatIf {
    for change in changes {
        match change {
            Change::NodePool(mut pool) => {
                let stamp = HashStamp::of_pool(&pool).annotations();
                pool.annotations_mut().extend(stamp);
                pool.metadata.resource_version = None;
                pool.status = index.pool(&pool.name_any()).and_then(|old| old.status.clone());
                index.apply(*pool, now);
            }
            Change::NodeClass(mut class) => {
                let stamp = HashStamp::of_class(&class).annotations();
                class.annotations_mut().extend(stamp);
                class.metadata.resource_version = None;
                class.status = index.class(&class.name_any()).and_then(|old| old.status.clone());
                index.apply(*class, now);
            }
        }
    }
    let drifted = drift(index, now);
    let pace = paces(index, &drifted, now);
    open_pools(index, now);
    let catalogues = catalogues(index);
    let known = Known { all_rounds: true, ..known };
    let preview = preview(index, &catalogues, options, &known, now);
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
        // The index ignores a version that it has.
        claim.metadata.resource_version = None;
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

fn paces(index: &Index, drifted: &[Drifted], now: Timestamp) -> Vec<Pace> {
    let mut paces = Vec::new();
    let maintenance = index.maintenance(now);
    for (name, pool) in index.pools() {
        let count = drifted.iter().filter(|one| one.pool == *name).count();
        if count > 0 {
            let nodes = index.views_of_pool(name).filter(|view| view.is_initialized()).count();
            paces.push(pace(pool, (count, nodes), &maintenance, now));
        }
    }
    paces
}

/// Lays the rounds over the budgets, windows and waves of a NodePool.
fn pace(
    pool: &NodePool,
    (drifted, nodes): (usize, usize),
    maintenance: &PlannedMaintenance,
    now: Timestamp,
) -> Pace {
    let reason = DisruptionReason::Drifted;
    let name = pool.name_any();
    let mut pace = Pace { pool: name, at_once: 0, rounds: 0, wait: HORIZON, lasts: None };
    let Ok(Settings { windows, soak }) = Settings::of(pool) else { return pace };
    let (mut done, mut passed) = (0, SignedDuration::ZERO);
    while passed < HORIZON {
        let Ok(time) = now.checked_add(passed) else { return pace };
        if windows.closed(reason, time, maintenance).is_some() {
            let Some(opening) = windows.next_opening(reason, time, maintenance) else {
                return pace;
            };
            passed = opening.duration_since(now).max(passed + SignedDuration::from_secs(1));
            continue;
        }
        let allowed = budget::allowed(&pool.spec.disruption.budgets, reason, nodes, time);
        let end = time.checked_add(PER_ROUND).unwrap_or(Timestamp::MAX);
        if allowed == 0 || windows.closed(reason, end, maintenance).is_some() {
            passed += PER_ROUND;
            continue;
        }
        let second = nodes.div_ceil(SECOND_WAVE).max(1);
        let wave = match soak {
            Some(_) if done == 0 => 1,
            Some(_) if done < second => second - done,
            _ => usize::MAX,
        };
        let taken = allowed.min(wave).min(drifted - done);
        if pace.rounds == 0 {
            pace.wait = passed;
        }
        pace.at_once = pace.at_once.max(taken);
        pace.rounds += 1;
        done += taken;
        passed += PER_ROUND;
        if done == drifted {
            pace.lasts = Some(passed);
            return pace;
        }
        let is_soaking = done == 1 || (done - taken < second && done >= second);
        passed += soak.filter(|_| is_soaking).unwrap_or(SignedDuration::ZERO);
    }
    pace
}

/// Lets every node be disrupted at once: without budgets, windows and waves.
fn open_pools(index: &mut Index, now: Timestamp) {
    let all = Budget { nodes: "100%".to_owned(), reasons: None, schedule: None, duration: None };
    let pools: Vec<NodePool> = index.pools().map(|(_, pool)| pool.as_ref().clone()).collect();
    for mut pool in pools {
        pool.spec.disruption.budgets = vec![all.clone()];
        let annotations = pool.annotations_mut();
        annotations.remove(labels::DISRUPTION_WINDOWS);
        annotations.remove(labels::DRIFT_WAVES);
        pool.metadata.resource_version = None;
        index.apply(pool, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, pool};
    use serde_json::json;

    fn lasts(budget: &str, annotations: &serde_json::Value, nodes: usize) -> (Pace, Option<i64>) {
        let object = json!({
            "metadata": { "annotations": annotations },
            "spec": { "disruption": { "budgets": [{ "nodes": budget }] } },
        });
        let pace = pace(&pool("p", object), (nodes, nodes), &PlannedMaintenance::default(), at(0));
        let minutes = pace.lasts.map(|it| it.as_mins());
        (pace, minutes)
    }

    #[test]
    fn rounds_take_some_minutes_each() {
        let (pace, minutes) = lasts("10%", &json!({}), 25);
        assert_eq!((pace.at_once, pace.rounds, minutes), (3, 9, Some(45)));
        assert_eq!(lasts("0", &json!({}), 25).1, None);
    }

    #[test]
    fn rounds_wait_for_windows() {
        let windows = "- {action: allow, schedule: 0 2 * * *, duration: 30m}";
        let annotations = json!({ labels::DISRUPTION_WINDOWS: windows });
        let (pace, minutes) = lasts("10%", &annotations, 20);
        assert_eq!(pace.wait.as_hours(), 2);
        // Five rounds of ten fit a night: none starts in the last five minutes.
        assert_eq!((pace.rounds, minutes), (10, Some(26 * 60 + 25)));
    }

    #[test]
    fn rounds_wait_until_waves_have_soaked() {
        let waves = json!({ labels::DRIFT_WAVES: "30m" });
        let (pace, minutes) = lasts("100%", &waves, 20);
        // One, one, and the other eighteen.
        assert_eq!((pace.rounds, pace.at_once, minutes), (3, 18, Some(3 * 5 + 2 * 30)));
    }
}
