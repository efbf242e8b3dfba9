//! Blockers: what keeps a node from being disrupted.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nap_api::{NodeClaim, labels};
use nap_engine::{PodKey, Unplaced};

use crate::cluster::{Index, Pod, key_of, pods};
use crate::context::Context;
use crate::events::Severity;

/// Reason why a node may not be disrupted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// The Node or the NodeClaim is annotated `karpenter.sh/do-not-disrupt`.
    Node,
    /// A pod is annotated so.
    Pod(PodKey),
    /// The PodDisruptionBudget of a pod allows no eviction now.
    Budget(PodKey, String),
    /// Several PodDisruptionBudgets cover a pod, which the eviction API refuses.
    Budgets(PodKey),
    /// A pod would have no place.
    Unplaced(PodKey, String),
    /// A pod has no controller that would make it again. It keeps its node from consolidation only.
    Bare(PodKey),
    /// A pod of a Job that ends by itself at a time. It keeps its node from consolidation only.
    Ending(PodKey, Timestamp),
    /// The pods of a workload were moved as often as they state, but for this number. It keeps its
    /// node from drift only: of consolidation, the engine tells.
    Evictions(String, usize),
    /// The Node is annotated `karpenter.sh/do-not-repair`.
    DoNotRepair,
    /// Pods block the drain for a repair, and nothing bounds it.
    NoDrainBound,
}

impl Blocker {
    /// The blocker that an unplaced pod is.
    pub fn unplaced(unplaced: &Unplaced) -> Self {
        Self::Unplaced(unplaced.pod.clone(), unplaced.refusal.to_string())
    }

    /// The annotation, pod or PodDisruptionBudget that would have to change.
    pub fn subject(&self) -> String {
        match self {
            Self::Node => format!("annotation {}", labels::DO_NOT_DISRUPT),
            Self::Budget(_, budget) => format!("PodDisruptionBudget {budget}"),
            Self::Pod(pod)
            | Self::Budgets(pod)
            | Self::Unplaced(pod, _)
            | Self::Bare(pod)
            | Self::Ending(pod, _) => format!("Pod {pod}"),
            Self::Evictions(workload, _) => workload.clone(),
            Self::DoNotRepair => format!("annotation {}", labels::DO_NOT_REPAIR),
            Self::NoDrainBound => "terminationGracePeriod".to_owned(),
        }
    }

    /// Whether a `terminationGracePeriod` waives it for disruption that must happen in the end.
    pub fn is_waivable(&self) -> bool {
        matches!(self, Self::Pod(_) | Self::Budget(..) | Self::Budgets(_))
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let annotation = labels::DO_NOT_DISRUPT;
        match self {
            Self::Node => {
                write!(f, "Disruption is blocked through the \"{annotation}\" annotation")
            }
            Self::Pod(pod) => write!(f, "Pod has \"{annotation}\" annotation (Pod={pod})"),
            Self::Budget(pod, budget) => {
                write!(f, "Pdb prevents pod evictions (PodDisruptionBudget={budget}, Pod={pod})")
            }
            Self::Budgets(pod) => {
                write!(f, "Pod is covered by more than one PodDisruptionBudget (Pod={pod})")
            }
            Self::Unplaced(pod, why) => write!(f, "Pod would not schedule, {why} (Pod={pod})"),
            Self::Bare(pod) => {
                write!(f, "Pod has no controller and would not come back (Pod={pod})")
            }
            Self::Ending(pod, at) => {
                write!(f, "Pod of a Job ends at {at}, before a move would pay back (Pod={pod})")
            }
            Self::Evictions(workload, left) => write!(
                f,
                "The pods of {workload} may be moved {left} more times today, as their \
                 \"{}\" annotation states",
                labels::MAX_EVICTIONS_PER_DAY
            ),
            Self::DoNotRepair => {
                write!(f, "repair is blocked through the {:?} annotation", labels::DO_NOT_REPAIR)
            }
            Self::NoDrainBound => {
                write!(f, "repair requires a termination grace period to bypass blocking pods")
            }
        }
    }
}

/// A node and what blocks its disruption.
pub type Blocked = (Arc<NodeClaim>, Arc<Node>, Blocker);

/// The first thing that blocks the disruption of a node; `None` if nothing does.
pub fn blocker(index: &Index, claim: &NodeClaim, node: &Node, now: Timestamp) -> Option<Blocker> {
    blockers(index, claim, node, now).next()
}

/// Everything that blocks the disruption of a node.
pub fn blockers<'i>(
    index: &'i Index,
    claim: &NodeClaim,
    node: &'i Node,
    now: Timestamp,
) -> impl Iterator<Item = Blocker> + use<'i> {
    let is_protected = |annotations: &BTreeMap<String, String>| {
        annotations.get(labels::DO_NOT_DISRUPT).is_some_and(|value| value == "true")
    };
    let is_annotated = is_protected(node.annotations()) || is_protected(claim.annotations());
    is_annotated.then_some(Blocker::Node).into_iter().chain(pod_blockers(index, node, now))
}

/// The first pod that blocks the disruption of a node; `None` if none does.
pub fn pods_blocker(index: &Index, node: &Node, now: Timestamp) -> Option<Blocker> {
    pod_blockers(index, node, now).next()
}

/// Every pod that blocks the disruption of a node.
fn pod_blockers<'i>(
    index: &'i Index,
    node: &'i Node,
    now: Timestamp,
) -> impl Iterator<Item = Blocker> + use<'i> {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let active = index.pods_on(name).filter(|pod| pods::is_active(pod));
    active.filter_map(move |pod| pod_blocker(index, pod, now))
}

fn pod_blocker(index: &Index, pod: &Pod, now: Timestamp) -> Option<Blocker> {
    let key = pod.key().clone();
    if pods::is_do_not_disrupt(pod, now) {
        return Some(Blocker::Pod(key));
    }
    if !pods::is_drainable(pod, now) {
        return None;
    }
    match index.budgets_of(pod).as_slice() {
        [] => None,
        [budget] => {
            let allowed = budget.status.as_ref().map_or(0, |status| status.disruptions_allowed);
            let blocks = allowed <= 0 && !pods::is_exempt_from(budget, pod);
            blocks.then(|| Blocker::Budget(key, key_of(budget.as_ref())))
        }
        _ => Some(Blocker::Budgets(key)),
    }
}

/// Publishes what blocks disruption.
pub fn report(context: &Context, blocked: &[Blocked]) {
    let (severity, reason) = (Severity::Normal, "DisruptionBlocked");
    for (claim, node, blocker) in blocked {
        let message = blocker.to_string();
        context.events.publish(node.as_ref(), severity, reason, &message);
        context.events.publish(claim.as_ref(), severity, reason, &message);
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::policy::v1::PodDisruptionBudget;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{at, budget, cluster_of, pod};

    fn blocked(index: &Index) -> Option<Blocker> {
        blocker(index, index.claim("claim-0").unwrap(), index.node("node-0").unwrap(), at(0))
    }

    fn with_pod(over: &Value) -> Index {
        let mut index = cluster_of(1);
        let mut object = json!({ "spec": { "nodeName": "node-0" } });
        object.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
        index.apply(pod("shop", "web", object), at(0));
        index
    }

    fn labelled() -> Value {
        json!({ "metadata": { "name": "web", "namespace": "shop", "labels": { "app": "web" } } })
    }

    fn web() -> PodKey {
        PodKey::new("shop", "web")
    }

    #[test]
    fn an_annotated_node_is_blocked() {
        let mut index = cluster_of(1);
        let mut node = index.node("node-0").unwrap().as_ref().clone();
        node.annotations_mut().insert(labels::DO_NOT_DISRUPT.to_owned(), "true".to_owned());
        index.apply(node, at(0));
        assert_eq!(blocked(&index), Some(Blocker::Node));
    }

    #[test]
    fn an_annotated_pod_blocks_its_node() {
        let mut object = labelled();
        object["metadata"]["annotations"] = json!({ labels::DO_NOT_DISRUPT: "true" });
        assert_eq!(blocked(&with_pod(&object)), Some(Blocker::Pod(web())));
    }

    #[test]
    fn a_disruption_budget_without_allowance_blocks() {
        let mut index = with_pod(&labelled());
        index.apply(budget("shop", "pdb", "web", 0), at(0));
        assert_eq!(blocked(&index), Some(Blocker::Budget(web(), "shop/pdb".to_owned())));
        index.apply(budget("shop", "pdb", "web", 1), at(1));
        assert_eq!(blocked(&index), None);
    }

    #[test]
    fn a_budget_that_always_allows_unhealthy_pods_blocks_only_for_healthy_ones() {
        let with_readiness = |ready: &str| {
            let mut object = labelled();
            object["status"] = json!({ "conditions": [{ "type": "Ready", "status": ready }] });
            let mut index = with_pod(&object);
            let mut lenient = budget("shop", "pdb", "web", 0);
            lenient.spec.as_mut().unwrap().unhealthy_pod_eviction_policy =
                Some("AlwaysAllow".to_owned());
            index.apply(lenient, at(0));
            blocked(&index).is_some()
        };
        assert!(with_readiness("True"));
        assert!(!with_readiness("False"));
    }

    #[test]
    fn a_budget_of_another_namespace_or_app_does_not_block() {
        let mut index = with_pod(&labelled());
        index.apply(budget("other", "pdb", "web", 0), at(0));
        index.apply(budget("shop", "pdb", "db", 0), at(0));
        assert_eq!(blocked(&index), None);
    }

    #[test]
    fn two_budgets_over_one_pod_block_until_one_is_deleted() {
        let mut index = with_pod(&labelled());
        index.apply(budget("shop", "a", "web", 1), at(0));
        index.apply(budget("shop", "b", "web", 1), at(0));
        assert_eq!(blocked(&index), Some(Blocker::Budgets(web())));
        index.delete::<PodDisruptionBudget>("shop/b");
        assert_eq!(blocked(&index), None);
    }

    #[test]
    fn daemon_pods_block_by_their_budget_unless_they_stay_through_a_drain() {
        let mut daemon = labelled();
        daemon["metadata"]["ownerReferences"] =
            json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u" }]);
        let mut index = with_pod(&daemon);
        index.apply(budget("shop", "pdb", "web", 0), at(0));
        assert!(matches!(blocked(&index), Some(Blocker::Budget(..))));
        daemon["spec"] = json!({
            "nodeName": "node-0", "containers": [], "tolerations": [{ "operator": "Exists" }],
        });
        let mut index = with_pod(&daemon);
        index.apply(budget("shop", "pdb", "web", 0), at(0));
        assert_eq!(blocked(&index), None);
    }
}
