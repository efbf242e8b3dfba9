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

impl Invariants {
    pub(crate) fn new(clock: Clock, azure: Emulator) -> Self {
        Self(Arc::new(Mutex::new(State {
            clock,
            azure,
            claims: BTreeMap::new(),
            pools: BTreeMap::new(),
            pods: BTreeMap::new(),
            settled: settled::Settled::default(),
            has_overlays: false,
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
            (labels::GROUP, "nodeoverlays") => self.has_overlays = true,
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
        if ends && !self.has_overlays {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::azure::EmulatorConfig;

    /// Two initialized nodes of a NodePool that may lose one at a time.
    fn cluster() -> Invariants {
        let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let config = EmulatorConfig::new("eastus", 1, clock.clone());
        let invariants = Invariants::new(clock, Emulator::new(config).unwrap().0);
        let budgets = json!({ "budgets": [{ "nodes": "1" }] });
        let pool = json!({ "metadata": { "name": "p" }, "spec": { "disruption": budgets } });
        apply(&invariants, labels::GROUP, "nodepools", &pool);
        invariants
    }

    fn apply(invariants: &Invariants, group: &str, plural: &str, new: &Value) {
        invariants.observe(Observed { group, plural, old: None, new: Some(new) });
    }

    fn claim(invariants: &Invariants, name: &str, conditions: &[(&str, &str)], more: &Value) {
        let condition = |(kind, reason): &(&str, &str)| json!({ "type": kind, "status": "True", "reason": reason });
        let conditions: Vec<Value> = conditions.iter().map(condition).collect();
        let mut object = json!({
            "metadata": { "name": name, "labels": { labels::NODEPOOL: "p" } },
            "status": { "nodeName": format!("node-{name}"), "conditions": conditions },
        });
        json_patch::merge(&mut object, more);
        apply(invariants, labels::GROUP, "nodeclaims", &object);
    }

    const INITIALIZED: (&str, &str) = ("Initialized", "Initialized");
    const EMPTY: (&str, &str) = ("DisruptionReason", "Empty");

    #[tokio::test(start_paused = true)]
    async fn a_node_more_than_the_budget_is_a_violation() {
        let cluster = cluster();
        for name in ["a", "b", "c"] {
            claim(&cluster, name, &[INITIALIZED], &json!({}));
        }
        claim(&cluster, "a", &[INITIALIZED, EMPTY], &json!({}));
        assert_eq!(cluster.violations(), [""; 0]);
        claim(&cluster, "b", &[INITIALIZED, EMPTY], &json!({}));
        let found = cluster.violations();
        assert!(found[0].ends_with("2 of 3 nodes leave with b, 1 may for Empty"), "{found:?}");
        // A node whose instance terminates has left.
        let gone = [INITIALIZED, EMPTY, ("InstanceTerminating", "x")];
        claim(&cluster, "a", &gone, &json!({}));
        claim(&cluster, "b", &gone, &json!({}));
        claim(&cluster, "c", &[INITIALIZED, EMPTY], &json!({}));
        assert_eq!(cluster.violations().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn consolidation_long_after_the_last_change_is_a_violation() {
        let cluster = cluster();
        claim(&cluster, "a", &[INITIALIZED], &json!({}));
        tokio::time::advance(std::time::Duration::from_hours(6)).await;
        claim(&cluster, "a", &[INITIALIZED, EMPTY], &json!({}));
        assert_eq!(cluster.violations(), [""; 0], "an empty node is no move");
        claim(&cluster, "a", &[INITIALIZED], &json!({}));
        let moved = ("DisruptionReason", "Underutilized");
        claim(&cluster, "a", &[INITIALIZED, moved], &json!({}));
        assert!(cluster.violations()[0].contains("360 min after the last change"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_nap_deletes_before_the_time_of_its_node_is_a_violation() {
        let cluster = cluster();
        claim(&cluster, "a", &[INITIALIZED], &json!({}));
        let pod = json!({
            "metadata": { "namespace": "shop", "name": "web" },
            "spec": { "nodeName": "node-a", "terminationGracePeriodSeconds": 60 },
        });
        apply(&cluster, "", "pods", &pod);
        let server = tower::service_fn(async |_: http::Request<()>| Ok::<_, ()>(()));
        let mut nap = Guarded::new(server, cluster.clone());
        let mut delete = async || {
            let request = http::Request::delete("/api/v1/namespaces/shop/pods/web").body(());
            tower::Service::call(&mut nap, request.unwrap()).await.unwrap();
            cluster.violations().len()
        };
        assert_eq!(delete().await, 1, "its node has no end");
        let ends = |time: &str| {
            let annotations = json!({ labels::TERMINATION_TIMESTAMP: time });
            json!({ "metadata": { "annotations": annotations } })
        };
        claim(&cluster, "a", &[INITIALIZED], &ends("2026-01-01T00:01:01Z"));
        assert_eq!(delete().await, 2, "it would end a second before its node");
        claim(&cluster, "a", &[INITIALIZED], &ends("2026-01-01T00:01:00Z"));
        assert_eq!(delete().await, 2);
    }
}
