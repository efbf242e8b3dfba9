//! Pods that kube-scheduler refuses to put on the nodes launched for them.
//!
//! The plan and the scheduler then disagree, and a further node would be refused as well. After two
//! of them the pod is left alone for a while, longer after each further one. The memory is lost in
//! a restart, after which at most two more nodes are launched for the pod.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use nap_api::NodeClaim;
use nap_api::nodeclaim::condition::INITIALIZED;
use nap_engine::PodKey;

use crate::cluster::{Index, Pod, claim_is};
use crate::snapshot::{has_unplanned_pods, is_plan_holding};

/// Refused nodes after which a pod is held.
const MAX_REFUSED: usize = 2;
/// Hold after [`MAX_REFUSED`] refused nodes; each further one doubles it.
const FIRST_HOLD: SignedDuration = SignedDuration::from_mins(5);
/// Longest hold.
const MAX_HOLD: SignedDuration = SignedDuration::from_hours(1);

/// Pods by the nodes that kube-scheduler refused for them.
#[derive(Clone, Debug, Default)]
pub struct RefusedPods(BTreeMap<PodKey, Refused>);

#[derive(Clone, Debug)]
struct Refused {
    uid: Option<String>,
    /// NodeClaims whose Nodes were refused.
    claims: BTreeSet<String>,
    held_until: Option<Timestamp>,
}

impl RefusedPods {
    /// Looks for pods that still wait although the plan of their NodeClaim has ended. Returns those
    /// that are held from now on, with the time until which they are.
    pub fn observe(&mut self, index: &Index, now: Timestamp) -> Vec<(PodKey, Timestamp)> {
        self.0.retain(|key, refused| {
            index.unschedulable_since(key).is_some()
                && index.pod(key).is_some_and(|pod| pod.uid() == refused.uid.as_deref())
        });
        let mut held = Vec::new();
        for claim in index.claims().filter(|claim| has_failed(index, claim, now)) {
            let name = claim.name_any();
            for key in index.waiting_pods(&name).cloned() {
                let uid = index.pod(&key).and_then(|pod| pod.uid()).map(str::to_owned);
                let refused = self.0.entry(key.clone()).or_insert_with(|| Refused {
                    uid,
                    claims: BTreeSet::new(),
                    held_until: None,
                });
                if refused.claims.insert(name.clone()) && refused.claims.len() >= MAX_REFUSED {
                    let until = now.checked_add(hold(refused.claims.len()));
                    let until = until.unwrap_or(Timestamp::MAX);
                    refused.held_until = Some(until);
                    held.push((key, until));
                }
            }
        }
        held
    }

    /// Whether no node is launched for a pod now.
    pub fn is_held(&self, pod: &PodKey, now: Timestamp) -> bool {
        self.0.get(pod).and_then(|refused| refused.held_until).is_some_and(|until| until > now)
    }
}

/// Whether a NodeClaim came up, its plan has ended, and no pod without a place in the plan took the
/// room.
fn has_failed(index: &Index, claim: &NodeClaim, now: Timestamp) -> bool {
    claim.metadata.deletion_timestamp.is_none()
        && index.waiting_pods(&claim.name_any()).next().is_some()
        && claim_is(claim, INITIALIZED)
        && !is_plan_holding(claim, now)
        && !has_unplanned_pods(index, claim)
}

fn hold(refused: usize) -> SignedDuration {
    let doublings = refused.saturating_sub(MAX_REFUSED).min(10);
    FIRST_HOLD.saturating_mul(1 << doublings).min(MAX_HOLD)
}

/// Why kube-scheduler does not bind a pod, in its own words.
pub fn scheduler_message(pod: &Pod) -> String {
    pod.attempt().map(|attempt| attempt.message.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, claim, condition, node, pending_pod, pod};
    use nap_api::labels;
    use serde_json::json;

    /// A NodeClaim that was initialized at 0 s for `shop/web`, and its Node.
    fn launched(index: &mut Index, name: &str) {
        let plan = r#"{"version":1,"pods":["shop/web"]}"#;
        let id = format!("azure:///{name}");
        let object = json!({
            "metadata": { "annotations": { labels::PLAN: plan } },
            "status": {
                "providerID": id, "nodeName": name, "conditions": [condition("Initialized", "True")],
            },
        });
        index.apply(claim(name, object), at(0));
        index.apply(node(name, json!({ "spec": { "providerID": id } })), at(0));
    }

    fn web() -> PodKey {
        PodKey::new("shop", "web")
    }

    #[test]
    fn a_pod_is_held_after_two_nodes_that_were_refused() {
        let mut index = Index::default();
        let mut refused = RefusedPods::default();
        index.apply(pending_pod("shop", "web"), at(0));
        launched(&mut index, "a");
        assert!(refused.observe(&index, at(20)).is_empty(), "the first one");
        launched(&mut index, "b");
        assert_eq!(refused.observe(&index, at(30)), [(web(), at(330))]);
        assert!(refused.observe(&index, at(31)).is_empty(), "reported once");
        assert!(refused.is_held(&web(), at(329)) && !refused.is_held(&web(), at(330)));
        launched(&mut index, "c");
        assert_eq!(refused.observe(&index, at(330)), [(web(), at(930))], "twice as long");
    }

    #[test]
    fn a_node_is_not_refused_while_its_plan_holds() {
        let mut index = Index::default();
        let mut refused = RefusedPods::default();
        index.apply(pending_pod("shop", "web"), at(0));
        launched(&mut index, "a");
        launched(&mut index, "b");
        assert!(refused.observe(&index, at(10)).is_empty());
        assert_eq!(refused.observe(&index, at(20)).len(), 1);
    }

    #[test]
    fn a_pod_is_held_while_it_waits_but_another_of_its_name_is_not() {
        let mut index = Index::default();
        let mut refused = RefusedPods::default();
        index.apply(pending_pod("shop", "web"), at(0));
        launched(&mut index, "a");
        launched(&mut index, "b");
        refused.observe(&index, at(20));
        index.delete::<NodeClaim>("a");
        index.delete::<NodeClaim>("b");
        refused.observe(&index, at(21));
        assert!(refused.is_held(&web(), at(21)), "the nodes were removed, being empty");
        let mut another = pending_pod("shop", "web");
        another.metadata.uid = Some("another".to_owned());
        index.apply(another, at(22));
        refused.observe(&index, at(22));
        assert!(!refused.is_held(&web(), at(22)));
    }

    #[test]
    fn a_pod_that_was_bound_starts_over() {
        let mut index = Index::default();
        let mut refused = RefusedPods::default();
        index.apply(pending_pod("shop", "web"), at(0));
        launched(&mut index, "a");
        launched(&mut index, "b");
        assert_eq!(refused.observe(&index, at(20)).len(), 1);
        index.apply(pod("shop", "web", json!({ "spec": { "nodeName": "b" } })), at(21));
        refused.observe(&index, at(21));
        assert!(!refused.is_held(&web(), at(21)));
    }

    #[test]
    fn a_node_whose_room_was_taken_by_another_pod_was_not_refused() {
        let mut index = Index::default();
        let mut refused = RefusedPods::default();
        index.apply(pending_pod("shop", "web"), at(0));
        for name in ["a", "b"] {
            launched(&mut index, name);
            let thief = json!({ "spec": { "nodeName": name } });
            index.apply(pod("shop", &format!("thief-{name}"), thief), at(0));
        }
        assert!(refused.observe(&index, at(20)).is_empty());
    }
}
