//! What must hold at every instant of every simulation, whatever the workload.
//!
//! The invariants see each change of an object at the time of the change, inside of the API server,
//! and each deletion of a pod that nap asks for. They make no requests, so that a simulation goes
//! on as it does without them, and call none of the code that they judge.
//!
//! | invariant | when |
//! |---|---|
//! | [`budgets`] are not exceeded, whatever their schedule | a node is chosen for disruption |
//! | [`windows`] are open | a node is chosen for disruption |
//! | [`emptied`]: no pod loses its node, bound or pending | a node is chosen as empty |
//! | [`settled`]: nothing moves long after the last change | a node is chosen for consolidation |
//! | [`undo`]: a NodePool rests whose move was undone | a node is chosen for consolidation |
//! | [`savings`]: replacements cost less than what they replace | an old node is deleted |
//! | [`pods`] end by eviction, or when the time of their node is over | nap deletes a pod |

mod budgets;
mod calendar;
mod emptied;
mod pods;
mod savings;
mod settled;
#[cfg(test)]
mod tests;
mod undo;
mod windows;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use nap_api::PlanRecord;
use nap_api::labels;
use nap_apiserver::Observed;
use nap_clock::Clock;
use serde_json::Value;

use crate::azure::Emulator;

pub(crate) use pods::Guarded;

/// Violations that are kept; later ones are dropped.
const MAX_VIOLATIONS: usize = 100;
/// Time between a decision and the write that shows it, within which the cluster may change.
const DECIDED_WITHIN: SignedDuration = SignedDuration::from_secs(10);

/// The invariants of one world. Clones share them.
#[derive(Clone)]
pub(crate) struct Invariants(Arc<Mutex<State>>);

/// What the invariants know of the cluster.
struct State {
    clock: Clock,
    azure: Emulator,
    /// NodeClaims by name.
    claims: BTreeMap<String, Claim>,
    /// NodePools by name.
    pools: BTreeMap<String, Value>,
    /// Pods by namespace and name.
    pods: BTreeMap<(String, String), Pod>,
    settled: settled::Settled,
    undo: undo::Undo,
    /// Whether a NodeOverlay states other prices than Azure bills.
    has_overlays: bool,
    violations: Vec<String>,
}

/// A NodeClaim.
#[derive(Clone, Debug, Default)]
struct Claim {
    pool: String,
    node: String,
    provider_id: String,
    /// Reason of its voluntary disruption.
    reason: Option<String>,
    is_initialized: bool,
    instance_terminates: bool,
    is_deleted: bool,
    /// End of the time that its pods have.
    ends: Option<Timestamp>,
    plan: PlanRecord,
    /// Price of its VM in micro-dollars per hour, from the time when it was chosen.
    price: Option<i64>,
}

/// A pod.
#[derive(Clone, Debug)]
struct Pod {
    node: Option<String>,
    /// Node that it is nominated for.
    nominated: Option<String>,
    /// Time since which these two are as they are.
    since: Timestamp,
    /// Seconds.
    grace: i64,
    /// `None` without a controller.
    workload: Option<String>,
    /// Whether it needs a place elsewhere if its node goes.
    moves: bool,
}

impl Invariants {
    pub(crate) fn new(clock: Clock, azure: Emulator) -> Self {
        Self(Arc::new(Mutex::new(State {
            clock,
            azure,
            claims: BTreeMap::new(),
            pools: BTreeMap::new(),
            pods: BTreeMap::new(),
            settled: settled::Settled::default(),
            undo: undo::Undo::default(),
            has_overlays: false,
            violations: Vec::new(),
        })))
    }

    /// Looks at a change.
    pub(crate) fn observe(&self, change: Observed<'_>) {
        self.state().observe(change);
    }

    /// Takes in that nap is started.
    pub(crate) fn restarted(&self) {
        let mut state = self.state();
        let now = state.clock.now();
        state.undo.restarted(now);
    }

    /// The violations so far, one line each with its time.
    pub(crate) fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn observe(&mut self, Observed { group, plural, old, new }: Observed<'_>) {
        let Some(name) = new.or(old).and_then(|object| text(object, "/metadata/name")) else {
            return;
        };
        let now = self.clock.now();
        self.settled.observe(plural, old, new, now);
        match (group, plural) {
            (labels::GROUP, "nodeclaims") => self.claim(&name, new, now),
            (labels::GROUP, "nodepools") => match new {
                Some(pool) => drop(self.pools.insert(name, pool.clone())),
                None => drop(self.pools.remove(&name)),
            },
            (labels::GROUP, "nodeoverlays") => self.has_overlays = true,
            ("", "pods") => {
                let namespace = new.or(old).and_then(|pod| text(pod, "/metadata/namespace"));
                self.pod((namespace.unwrap_or_default(), name), new, now);
            }
            ("coordination.k8s.io", "leases") => {
                let holder = |lease: &Value| text(lease, "/spec/holderIdentity");
                if old.is_some_and(|old| holder(old) != new.and_then(holder)) {
                    self.undo.restarted(now);
                }
            }
            _ => {}
        }
    }

    fn pod(&mut self, key: (String, String), new: Option<&Value>, now: Timestamp) {
        let before = self.pods.remove(&key);
        let after = new.map(|pod| Pod::read(pod, before.as_ref(), now));
        let workload = after.as_ref().or(before.as_ref()).and_then(|pod| pod.workload.as_deref());
        if let Some(workload) = workload
            && before.is_some() != after.is_some()
        {
            self.undo.count(workload, after.is_some(), now);
        }
        self.pods.extend(after.map(|pod| (key, pod)));
    }

    fn claim(&mut self, name: &str, new: Option<&Value>, now: Timestamp) {
        let known = self.claims.remove(name);
        let is_new = known.is_none();
        let before = known.unwrap_or_default();
        let Some(new) = new else { return };
        let mut claim = Claim::read(new);
        claim.price = before.price;
        let is_chosen = claim.reason.is_some() && before.reason.is_none();
        if is_chosen {
            claim.price = savings::price(&self.azure, &claim.provider_id);
        }
        let ends = claim.is_deleted && !before.is_deleted;
        self.claims.insert(name.to_owned(), claim);
        let mut found = Vec::new();
        if is_chosen {
            found.extend(budgets::check(self, name, now));
            found.extend(windows::check(self, name, now));
            found.extend(emptied::check(self, name, now));
            found.extend(self.settled.check(&self.claims[name], now));
            found.extend(self.consolidated(name, now));
        }
        if is_new && self.claims[name].plan.replaces.is_empty() {
            self.launched(name, now);
        }
        if ends {
            if !self.has_overlays {
                found.extend(savings::check(self, name));
            }
            let is_replaced = self.claims.values().any(|one| one.plan.replaces.contains(name));
            let claim = &self.claims[name];
            if is_replaced && claim.reason.as_deref() == Some("Underutilized") {
                self.undo.succeeded(&claim.pool);
            }
        }
        for violation in found {
            self.violation(now, &violation);
        }
    }

    /// Looks at a node that has just been chosen, for undone moves of its NodePool.
    fn consolidated(&mut self, name: &str, now: Timestamp) -> Option<String> {
        let chosen = &self.claims[name];
        if chosen.reason.as_deref() != Some("Underutilized") {
            return None;
        }
        let here = self.pods.values().filter(|pod| pod.node.as_ref() == Some(&chosen.node));
        let moved = here.filter(|pod| pod.moves).filter_map(|pod| pod.workload.as_deref());
        self.undo.check(chosen, moved.collect(), now)
    }

    /// Looks at a NodeClaim that has just been created and replaces none.
    fn launched(&mut self, name: &str, now: Timestamp) {
        let planned = self.claims[name].plan.pods.iter().filter_map(|key| {
            let (namespace, name) = key.split_once('/')?;
            self.pods.get(&(namespace.to_owned(), name.to_owned()))
        });
        self.undo.launched(&planned.collect::<Vec<_>>(), now);
    }

    fn violation(&mut self, now: Timestamp, text: &str) {
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(format!("{now}: {text}"));
        }
    }
}

impl Claim {
    fn read(object: &Value) -> Self {
        let condition = |kind: &str| {
            let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
            let mut conditions = conditions.into_iter().flatten();
            conditions.find(|one| one["type"] == kind && one["status"] == "True")
        };
        let of_metadata = |map: &str, key: &str| {
            object.pointer(&format!("/metadata/{map}"))?.get(key)?.as_str().map(str::to_owned)
        };
        let plan = of_metadata("annotations", labels::PLAN);
        let ends = of_metadata("annotations", labels::TERMINATION_TIMESTAMP);
        let reason = condition("DisruptionReason").and_then(|one| text(one, "/reason"));
        Self {
            pool: of_metadata("labels", labels::NODEPOOL).unwrap_or_default(),
            node: text(object, "/status/nodeName").unwrap_or_default(),
            provider_id: text(object, "/status/providerID").unwrap_or_default(),
            reason,
            is_initialized: condition("Initialized").is_some(),
            instance_terminates: condition("InstanceTerminating").is_some(),
            is_deleted: object.pointer("/metadata/deletionTimestamp").is_some(),
            ends: ends.and_then(|time| time.parse().ok()),
            plan: plan.and_then(|plan| PlanRecord::parse(&plan).ok()).unwrap_or_default(),
            price: None,
        }
    }
}

impl Pod {
    fn read(object: &Value, before: Option<&Self>, now: Timestamp) -> Self {
        let node = text(object, "/spec/nodeName");
        let nominated = text(object, "/status/nominatedNodeName");
        let is_same = |pod: &&Self| pod.node == node && pod.nominated == nominated;
        let since = before.filter(is_same).map_or(now, |pod| pod.since);
        let grace = object.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64);
        let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        let stays = |owner: &Value| owner["kind"] == "DaemonSet" || owner["kind"] == "Node";
        let phase = text(object, "/status/phase").unwrap_or_default();
        let has_ended = phase == "Succeeded" || phase == "Failed";
        let is_deleted = object.pointer("/metadata/deletionTimestamp").is_some();
        let is_bound_to_stay = owners.is_some_and(|owners| owners.iter().any(stays));
        let moves = !(has_ended || is_deleted || is_bound_to_stay);
        let (grace, workload) = (grace.unwrap_or(30), undo::workload(object));
        Self { node, nominated, since, grace, workload, moves }
    }
}

/// The text at a JSON pointer.
fn text(object: &Value, pointer: &str) -> Option<String> {
    object.pointer(pointer)?.as_str().map(str::to_owned)
}
