//! Pods of a snapshot: which need capacity, which are expected on a node, and what they require.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use nap_api::nodeclaim::condition::{INITIALIZED, REGISTERED};
use nap_api::{NodeClaim, PlanRecord, Toleration, conditions};
use nap_engine::{PodKey, Unsupported};
use nap_units::Resources;

use crate::cluster::node_affinity::required_terms;
use crate::cluster::pods;
use crate::cluster::{
    Index, NodeKey, NodeView, Pod, claim_conditions, claim_is, counted_by_driver, spread,
};
use crate::decision_memory::DecisionMemory;

/// Time after initialization for which a NodeClaim's plan holds, so that kube-scheduler can bind
/// the planned pods.
pub const PLAN_HOLDS: Duration = Duration::from_secs(20);

/// Whether the planned pods of a NodeClaim are still expected on it.
pub fn is_plan_holding(claim: &NodeClaim, now: Timestamp) -> bool {
    let holds = SignedDuration::try_from(PLAN_HOLDS).unwrap_or(SignedDuration::ZERO);
    let since = conditions::since(claim_conditions(claim), INITIALIZED);
    !claim_is(claim, INITIALIZED) || since.is_none_or(|since| now.duration_since(since) < holds)
}

/// The pods of a plan record.
fn planned_pods_of(plan: &PlanRecord) -> impl Iterator<Item = PodKey> + '_ {
    plan.pods.iter().map(|key| PodKey::from(key.as_str()))
}

/// Pods without capacity that were planned onto a NodeClaim whose plan holds, with the NodeClaim's
/// name. A NodeClaim that is not created yet counts.
pub fn planned_pods(index: &Index, now: Timestamp) -> BTreeMap<PodKey, String> {
    let mut planned = BTreeMap::new();
    let live = index.claims().filter(|claim| claim.metadata.deletion_timestamp.is_none());
    for claim in live.filter(|claim| is_plan_holding(claim, now)) {
        let name = claim.name_any();
        let Some(plan) = index.plan(&name) else { continue };
        let room = room_left(index, claim);
        for key in planned_pods_of(plan) {
            let Some(pod) = index.pod(&key).filter(|pod| needs_capacity(index, pod)) else {
                continue;
            };
            if room.as_ref().is_none_or(|room| fits(pod, room)) {
                planned.insert(key, name.clone());
            }
        }
    }
    for decided in index.decided() {
        let name = decided.name();
        let waits = |key: &&PodKey| index.pod(key).is_some_and(|pod| needs_capacity(index, pod));
        let waiting = decided.pods.iter().filter(waits);
        planned.extend(waiting.map(|key| (key.clone(), name.clone())));
    }
    planned
}

/// Free resources of the Node of a NodeClaim on which pods run that were not planned for it; `None`
/// without such pods. A planned pod that no longer fits has lost its place.
pub fn room_left(index: &Index, claim: &NodeClaim) -> Option<Resources> {
    if !claim_is(claim, REGISTERED) || !has_unplanned_pods(index, claim) {
        return None;
    }
    let node = index.node(claim.status.as_ref()?.node_name.as_deref()?)?;
    let mut free = pods::node_resources(node.status.as_ref()?.allocatable.as_ref());
    for pod in index.pods_on(&node.name_any()).filter(|pod| !pod.is_terminal()) {
        pod.occupies().into_iter().for_each(|occupied| free.subtract(occupied));
    }
    Some(free)
}

/// Whether the requests of a pod fit.
pub fn fits(pod: &Pod, room: &Resources) -> bool {
    let mut requests = pod.requests().into_iter().flat_map(Resources::iter);
    requests.all(|(name, amount)| amount == 0 || room.get(name) >= amount)
}

/// Whether pods other than daemons are bound to the Node of a NodeClaim that its plan does not
/// name.
pub fn has_unplanned_pods(index: &Index, claim: &NodeClaim) -> bool {
    let node = claim.status.as_ref().and_then(|status| status.node_name.as_deref());
    let plan = index.plan(&claim.name_any());
    let is_planned = |pod: &Pod| plan.is_some_and(|plan| plan.pods.contains(pod.key().as_str()));
    let mut bound = node.into_iter().flat_map(|node| index.pods_on(node));
    bound.any(|pod| {
        let counts = !pod.is_terminal() && !pods::is_daemon(pod) && !pods::is_mirror(pod);
        counts && !is_planned(pod)
    })
}

/// Whether a pod is unbound, or bound to a node that is leaving.
fn needs_capacity(index: &Index, pod: &Pod) -> bool {
    if !pods::is_active(pod) {
        return false;
    }
    let Some(node) = pod.node() else { return true };
    let view = index.node(node).and_then(|_| index.view(&index.key_of_view(node)?));
    view.is_none_or(NodeView::is_leaving)
}

/// Unschedulable pods without a nomination that counts, planned ones included.
pub fn pending_pods(index: &Index, now: Timestamp) -> impl Iterator<Item = (&PodKey, &Arc<Pod>)> {
    index.unschedulable_pods().filter(move |(key, pod)| nomination(index, key, pod, now).is_none())
}

/// The node that an unschedulable pod is nominated to, if that counts: the node exists, and the
/// nomination is not one of nap's own whose plan has ended or whose room is taken. kube-scheduler
/// clears a nomination only when it retries the pod, which can take minutes.
fn nomination<'p>(index: &Index, key: &PodKey, pod: &'p Pod, now: Timestamp) -> Option<&'p str> {
    let name = pod.nominated_node()?;
    let node = index.node(name)?;
    let ended = index.claim_of_node(node).is_some_and(|claim| {
        let lost = || room_left(index, claim).is_some_and(|room| !fits(pod, &room));
        index.plan(&claim.name_any()).is_some_and(|plan| plan.pods.contains(key.as_str()))
            && (!is_plan_holding(claim, now) || lost())
    });
    (!ended).then_some(name)
}

/// Unbound pods that will be bound to a node without further decisions: those planned onto it, and
/// those nominated to it.
pub(super) fn expected_pods(index: &Index, now: Timestamp) -> BTreeMap<NodeKey, Vec<Arc<Pod>>> {
    let mut expected: BTreeMap<NodeKey, Vec<Arc<Pod>>> = BTreeMap::new();
    let planned = planned_pods(index, now);
    for (key, claim) in &planned {
        let pods = expected.entry(NodeKey::NodeClaim(claim.clone())).or_default();
        pods.extend(index.pod(key).cloned());
    }
    for (key, pod) in index.unschedulable_pods().filter(|(key, _)| !planned.contains_key(key)) {
        let node = nomination(index, key, pod, now);
        if let Some(node) = node.and_then(|name| index.key_of_view(name)) {
            expected.entry(node).or_default().push(Arc::clone(pod));
        }
    }
    expected
}

/// Pods that provisioning has to find capacity for: pending ones, and those of deleting nodes that
/// may be evicted; less the planned ones.
pub(super) fn pods_without_capacity(index: &Index, now: Timestamp) -> Vec<nap_engine::Pod> {
    let pods = unplanned_pods(index, NodeView::is_deleting, now);
    pods.values().map(|pod| engine_pod(index, pod)).collect()
}

/// Pods that need a place before a node may be removed: those without capacity, and those of nodes
/// in a disruption command. Pods that the last plan could not place, or that kube-scheduler refuses
/// to place, do not count: a node that stays does not help them.
pub(super) fn waiting_or_leaving(
    index: &Index,
    memory: &DecisionMemory,
    now: Timestamp,
) -> Vec<nap_engine::Pod> {
    let pods = unplanned_pods(index, NodeView::is_leaving, now);
    let placeable = pods
        .iter()
        .filter(|(key, _)| !memory.is_unplaced(index, key) && !memory.refused.is_held(key, now));
    placeable.map(|(_, pod)| engine_pod(index, pod)).collect()
}

/// Pending pods, and evictable pods of the nodes that `leaves` selects, that no plan has a place
/// for.
fn unplanned_pods(
    index: &Index,
    leaves: fn(&NodeView) -> bool,
    now: Timestamp,
) -> BTreeMap<PodKey, Arc<Pod>> {
    let planned = planned_pods(index, now);
    let pending = pending_pods(index, now).map(|(key, pod)| (key.clone(), Arc::clone(pod)));
    let evicted_soon = index
        .views()
        .filter(|view| leaves(view))
        .filter_map(|view| view.node.as_ref())
        .filter_map(|node| node.metadata.name.as_deref())
        .flat_map(|name| index.pods_on(name))
        .filter(|pod| pods::is_reschedulable(pod) && !pods::is_do_not_disrupt(pod, now))
        .filter(|pod| may_be_evicted(pod, &index.budgets_of(pod)))
        .map(|pod| (pod.key().clone(), Arc::clone(pod)));
    let all = pending.chain(evicted_soon);
    all.filter(|(key, _)| !planned.contains_key(key)).collect()
}

/// Whether the PodDisruptionBudgets of a pod allow its eviction at some number of replicas. The
/// eviction API refuses a pod with more than one.
fn may_be_evicted(pod: &Pod, budgets: &[Arc<PodDisruptionBudget>]) -> bool {
    match budgets {
        [] => true,
        [budget] => !never_allows_eviction(budget) || pods::is_exempt_from(budget, pod),
        _ => false,
    }
}

/// Whether a PodDisruptionBudget allows no eviction at any number of replicas.
fn never_allows_eviction(budget: &PodDisruptionBudget) -> bool {
    let Some(spec) = &budget.spec else { return false };
    let none_unavailable = match &spec.max_unavailable {
        Some(IntOrString::Int(value)) => *value == 0,
        Some(IntOrString::String(value)) => value == "0%",
        None => false,
    };
    let all_available = matches!(
        &spec.min_available,
        Some(IntOrString::String(value)) if value == "100%"
    );
    none_unavailable || all_available
}

/// A pod in the engine's terms.
pub fn engine_pod(index: &Index, pod: &Pod) -> nap_engine::Pod {
    let spec = pod.spec();
    let (terms, mut unsupported) = required_terms(spec);
    let mut requests = pod.requests().cloned().unwrap_or_else(|field| {
        unsupported = Some(Unsupported::Field(field.clone()));
        Resources::new()
    });
    requests.add(&counted_by_driver(&index.attached(pod)));
    let volume_terms = index.volume_terms(pod).unwrap_or_else(|problem| {
        unsupported.get_or_insert(Unsupported::Volume(problem));
        Vec::new()
    });
    nap_engine::Pod {
        key: pod.key().clone(),
        requests,
        terms,
        tolerations: tolerations(spec),
        priority: spec.priority.unwrap_or(0),
        unsupported: unsupported.or_else(|| unsupported_field(spec).map(Unsupported::Field)),
        labels: pod.labels().clone(),
        spread: spread(pod),
        affinity: index.affinity(pod),
        anti_affinity: index.anti_affinity(pod),
        host_ports: pod.host_ports().to_vec(),
        volume_terms,
        preferences: index.preferences(pod),
        workload: index.workloads().of(pod),
        blocks_disruption: will_block_disruption(index, pod),
    }
}

/// Whether a pod will keep its node from voluntary disruption, or should not be moved: it is
/// annotated `karpenter.sh/do-not-disrupt`, has no controller, belongs to a Job, or its
/// PodDisruptionBudgets never allow an eviction.
fn will_block_disruption(index: &Index, pod: &Pod) -> bool {
    if pods::is_annotated_do_not_disrupt(pod) || pods::is_bare(pod) || pods::is_of_job(pod) {
        return true;
    }
    match index.budgets_of(pod).as_slice() {
        [] => false,
        [budget] => never_allows_eviction(budget),
        _ => true,
    }
}

/// The path of the first hard constraint that the engine does not know.
fn unsupported_field(spec: &PodSpec) -> Option<String> {
    let claims = spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
    claims.then(|| "spec.resourceClaims".to_owned())
}

pub(super) fn tolerations(spec: &PodSpec) -> Vec<Toleration> {
    spec.tolerations.iter().flatten().map(Toleration::from).collect()
}
