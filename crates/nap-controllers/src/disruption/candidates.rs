//! Which machines may be disrupted now, and what stands in the way of the others.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use nap_api::nodeclaim::condition::{CONSOLIDATABLE, DRIFTED};
use nap_api::{NodeClaim, NodePool, labels};
use nap_engine::{CapacityType, InstanceType, PodKey};
use nap_units::UsdPerHour;

use crate::context::Context;
use crate::events::Severity;
use crate::state::catalogues::Catalogues;
use crate::state::snapshot::key;
use crate::state::{Machine, State, claim_is, pods};

/// A machine that may be disrupted.
pub struct Candidate {
    /// Its claim.
    pub claim: Arc<NodeClaim>,
    /// Its node.
    pub node: Arc<Node>,
    /// Its pool.
    pub pool: Arc<NodePool>,
    /// The pods that would have to move.
    pub pods: Vec<Arc<Pod>>,
    /// What it costs, if its offering is still known.
    pub price: Option<UsdPerHour>,
    /// How it is paid for.
    pub capacity_type: Option<CapacityType>,
    name: String,
}

impl Candidate {
    /// The node's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// What stands in the way of disrupting a machine.
pub enum Blocker {
    /// The node says `karpenter.sh/do-not-disrupt`.
    Node,
    /// A pod says so.
    Pod(PodKey),
    /// A disruption budget of a pod allows no eviction now.
    Budget(PodKey, String),
    /// More than one budget covers a pod, which the eviction API refuses.
    Budgets(PodKey),
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => {
                write!(
                    f,
                    "Disruption is blocked through the \"{}\" annotation",
                    labels::DO_NOT_DISRUPT
                )
            }
            Self::Pod(pod) => {
                write!(f, "Pod has \"{}\" annotation (Pod={pod})", labels::DO_NOT_DISRUPT)
            }
            Self::Budget(pod, budget) => {
                write!(f, "Pdb prevents pod evictions (PodDisruptionBudget={budget}, Pod={pod})")
            }
            Self::Budgets(pod) => {
                write!(f, "Pod is covered by more than one PodDisruptionBudget (Pod={pod})")
            }
        }
    }
}

/// A machine and what stands in its way.
pub type Blocked = (Arc<NodeClaim>, Arc<Node>, Blocker);

/// Every machine that may be disrupted now, and those that would be if something did not stand in
/// the way.
pub fn collect(
    state: &State,
    catalogues: &Catalogues,
    now: Timestamp,
) -> (Vec<Candidate>, Vec<Blocked>) {
    let planned = state.planned(now);
    let mut candidates = Vec::new();
    let mut blocked = Vec::new();
    for machine in state.machines() {
        if machine.is_leaving() || !machine.is_initialized() {
            continue;
        }
        let pool = machine.pool().and_then(|pool| state.pools.get(pool)).cloned();
        let Machine { claim: Some(claim), node: Some(node) } = machine else { continue };
        let Some(pool) = pool else { continue };
        let name = node.name_any();
        let nominated = [&name, &claim.name_any()]
            .into_iter()
            .any(|one| state.nominated.get(one).is_some_and(|until| *until > now));
        if nominated
            || planned.values().any(|target| *target == claim.name_any())
            || pool.spec.replicas.is_some()
        {
            continue;
        }
        let interesting = claim_is(&claim, CONSOLIDATABLE) || claim_is(&claim, DRIFTED);
        if !interesting {
            continue;
        }
        let on_node = state.pods_on(&name);
        if let Some(blocker) = blocker(state, &claim, &node, &on_node, now) {
            blocked.push((claim, node, blocker));
            continue;
        }
        let pods = on_node.into_iter().filter(|pod| pods::is_reschedulable(pod)).collect();
        let (price, capacity_type) =
            price(&claim, catalogues.of(&pool.name_any()).map(|types| types.types()));
        candidates.push(Candidate { claim, node, pool, pods, price, capacity_type, name });
    }
    (candidates, blocked)
}

fn blocker(
    state: &State,
    claim: &NodeClaim,
    node: &Node,
    pods: &[Arc<Pod>],
    now: Timestamp,
) -> Option<Blocker> {
    let says_no = |annotations: &BTreeMap<String, String>| {
        annotations.get(labels::DO_NOT_DISRUPT).is_some_and(|value| value == "true")
    };
    if says_no(node.annotations()) || says_no(claim.annotations()) {
        return Some(Blocker::Node);
    }
    for pod in pods.iter().filter(|pod| pods::is_active(pod)) {
        if pods::is_do_not_disrupt(pod, now) {
            return Some(Blocker::Pod(key(pod)));
        }
        if !pods::is_drainable(pod, now) || pods::is_daemon(pod) {
            continue;
        }
        let budgets = state.budgets_of(pod);
        if budgets.len() > 1 {
            return Some(Blocker::Budgets(key(pod)));
        }
        if let Some(budget) = budgets.first()
            && budget.status.as_ref().is_none_or(|status| status.disruptions_allowed <= 0)
        {
            return Some(Blocker::Budget(key(pod), crate::state::key_of(budget.as_ref())));
        }
    }
    None
}

fn price(
    claim: &NodeClaim,
    catalogue: Option<&[InstanceType]>,
) -> (Option<UsdPerHour>, Option<CapacityType>) {
    let label = |key: &str| claim.labels().get(key).map(String::as_str);
    let capacity_type = label(labels::CAPACITY_TYPE).and_then(CapacityType::parse);
    let price = || {
        let instance_type = catalogue?
            .iter()
            .find(|one| Some(one.name.as_str()) == label(labels::INSTANCE_TYPE))?;
        let zone = label(labels::ZONE)?;
        let mut offerings = instance_type.offerings.iter();
        let offering =
            offerings.find(|one| one.zone == zone && Some(one.capacity_type) == capacity_type)?;
        Some(offering.price)
    };
    (price(), capacity_type)
}

/// Says what stands in the way.
pub async fn report(context: &Context, blocked: &[Blocked]) {
    for (claim, node, blocker) in blocked {
        let message = blocker.to_string();
        context
            .events
            .publish(node.as_ref(), Severity::Normal, "DisruptionBlocked", &message)
            .await;
        context
            .events
            .publish(claim.as_ref(), Severity::Normal, "DisruptionBlocked", &message)
            .await;
    }
}
