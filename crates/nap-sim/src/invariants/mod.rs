//! What must hold at every instant of every simulation, whatever the workload.
//!
//! The invariants see each change of an object at the time of the change, inside of the API server,
//! and each deletion of a pod that nap asks for. They make no requests, so that a simulation goes
//! on as it does without them, and call none of the code that they judge.
//!
//! | invariant | when |
//! |---|---|
//! | [`budgets`] are not exceeded | a node is chosen for disruption |
//! | [`settled`]: nothing moves long after the last change | a node is chosen for consolidation |
//! | [`savings`]: replacements cost less than what they replace | an old node is deleted |
//! | [`pods`] end by eviction, or when the time of their node is over | nap deletes a pod |

mod budgets;
mod pods;
mod savings;
mod settled;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use nap_api::PlanRecord;
use nap_api::labels;
use nap_apiserver::Observed;
use nap_clock::Clock;
use serde_json::Value;

use crate::azure::Emulator;

pub(crate) use pods::Guarded;

/// Violations that are kept; later ones are dropped.
const MAX_VIOLATIONS: usize = 100;

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
    /// Node and grace period in seconds of each pod, by namespace and name.
    pods: BTreeMap<(String, String), (String, i64)>,
    settled: settled::Settled,
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

impl Invariants {
    pub(crate) fn new(clock: Clock, azure: Emulator) -> Self {
        Self(Arc::new(Mutex::new(State {
            clock,
            azure,
            claims: BTreeMap::new(),
            pools: BTreeMap::new(),
            pods: BTreeMap::new(),
            settled: settled::Settled::default(),
            violations: Vec::new(),
        })))
    }

    /// Looks at a change.
    pub(crate) fn observe(&self, change: Observed<'_>) {
        self.state().observe(change);
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
            ("", "pods") => {
                let namespace = new.or(old).and_then(|pod| text(pod, "/metadata/namespace"));
                let key = (namespace.unwrap_or_default(), name);
                let node = new.and_then(|pod| text(pod, "/spec/nodeName"));
                match (new, node) {
                    (Some(pod), Some(node)) => {
                        let grace = pod.pointer("/spec/terminationGracePeriodSeconds");
                        let grace = grace.and_then(Value::as_i64).unwrap_or(30);
                        self.pods.insert(key, (node, grace));
                    }
                    _ => drop(self.pods.remove(&key)),
                }
            }
            _ => {}
        }
    }

    fn claim(&mut self, name: &str, new: Option<&Value>, now: Timestamp) {
        let before = self.claims.remove(name).unwrap_or_default();
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
            found.extend(budgets::check(self, name));
            found.extend(self.settled.check(&self.claims[name], now));
        }
        if ends {
            found.extend(savings::check(self, name));
        }
        for violation in found {
            self.violation(now, &violation);
        }
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

/// The text at a JSON pointer.
fn text(object: &Value, pointer: &str) -> Option<String> {
    object.pointer(pointer)?.as_str().map(str::to_owned)
}
