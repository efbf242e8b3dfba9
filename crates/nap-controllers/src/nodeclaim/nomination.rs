//! Nomination: planned pods get `status.nominatedNodeName` as their Node is opened.
//!
//! kube-scheduler tries a nominated node first and reserves its room against other pods. Without
//! that it packs by its own scores, large pods find no room on the nodes bought for them, and a
//! second node is bought. A failed scheduling attempt clears a nomination, so pods are nominated
//! when their Node becomes usable, not before, and again for as long as the plan holds.
//!
//! kube-scheduler counts nominated pods as if they were bound. Pods with a spread constraint would
//! therefore exclude each other if more of them were nominated to one node than `maxSkew` allows;
//! the rest is nominated after the first ones are bound.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{self as core, Node};
use kube::api::{Api, Patch, PatchParams};
use kube::{Error as KubeError, ResourceExt};
use nap_api::nodeclaim::condition::REGISTERED;
use nap_api::{NodeClaim, Taint, taints};
use nap_engine::PodKey;
use serde_json::json;

use super::{Step, live_claim, spread_domains};
use crate::cluster::{Index, Pod, claim_is, is_ready, readiness};
use crate::context::{Context, Error};
use crate::snapshot::{engine_pod, fits, is_plan_holding, room_left};

/// Longest time that a ready Node is held closed for Nodes that precede it.
const MAX_HOLD: SignedDuration = SignedDuration::from_secs(20);
/// Longest time that a ready Node is held closed until the zones of its pods' spread constraints
/// exist.
const MAX_DOMAINS_HOLD: SignedDuration = SignedDuration::from_mins(1);
/// Longest time that a ready Node is held closed until kube-scheduler has tried its pods.
const MAX_IDLE_HOLD: SignedDuration = SignedDuration::from_secs(10);
/// Time without a visible attempt after which kube-scheduler counts as idle although it was not
/// seen to try the planned pods: it tries none that the change could not help, and an attempt with
/// the same result as the last one shows nowhere.
const IDLE_AFTER: SignedDuration = SignedDuration::from_secs(1);
/// Longest time that the watch may take to show nominations before the Node is opened regardless.
const MAX_UNSEEN: Duration = Duration::from_millis(500);
/// Interval at which the watch is looked at for nominations.
const SEEN_INTERVAL: Duration = Duration::from_millis(5);
/// Interval at which waiting pods without a nomination are nominated again.
const REPEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Most nominations per second.
const MAX_PER_SECOND: usize = 500;

/// Reason why a ready Node is held closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Pods wait for Nodes that precede this one in the release order of the plan.
    ReleaseOrder,
    /// A zone that the pods must be spread over has no Node yet.
    Domains,
    /// kube-scheduler is trying pending pods, and would clear the nominations.
    Scheduler,
}

impl Hold {
    /// Reason of the condition.
    pub fn reason(self) -> &'static str {
        match self {
            Self::ReleaseOrder => "AwaitingReleaseOrder",
            Self::Domains => "AwaitingSpreadDomains",
            Self::Scheduler => "AwaitingScheduler",
        }
    }

    /// Message of the condition.
    pub fn message(self) -> &'static str {
        match self {
            Self::ReleaseOrder => "Node is ready; nodes of the same plan are opened before it",
            Self::Domains => "Node is ready; its pods are spread over zones without a node yet",
            Self::Scheduler => "Node is ready; kube-scheduler is trying pending pods",
        }
    }

    /// Time until the next look.
    pub fn retry_after(self) -> Duration {
        match self {
            Self::ReleaseOrder | Self::Domains => Duration::from_secs(1),
            Self::Scheduler => Duration::from_millis(50),
        }
    }
}

/// Number of nominations in the current second.
#[derive(Clone, Copy, Debug, Default)]
pub struct NominationRate {
    second: i64,
    used: usize,
}

impl NominationRate {
    /// Takes as many of `wanted` nominations as this second has left.
    fn take(&mut self, wanted: usize, now: Timestamp) -> usize {
        if self.second != now.as_second() {
            *self = Self { second: now.as_second(), used: 0 };
        }
        let taken = wanted.min(MAX_PER_SECOND.saturating_sub(self.used));
        self.used += taken;
        taken
    }
}

/// Nominates the planned pods that still wait to the Node of a registered NodeClaim, for as long as
/// the plan holds.
pub async fn nominate(context: &Context, name: &str) -> Result<Step, Error> {
    let Some(claim) = live_claim(context, name) else { return Ok(Step::Deleted) };
    let Some((node, pods)) = nominations(&context.index(), &claim, context.clock.now()) else {
        return Ok(Step::Done);
    };
    nominate_all(context, &pods, &node).await;
    let waiting = !waiting_pods(&context.index(), &claim).is_empty();
    Ok(if waiting { Step::DoneUntil(REPEAT_INTERVAL) } else { Step::Done })
}

/// The Node of a NodeClaim and the pods to nominate to it. `None` unless the Node is registered,
/// open to pods, and the plan holds.
fn nominations(index: &Index, claim: &NodeClaim, now: Timestamp) -> Option<(String, Vec<PodKey>)> {
    if !claim_is(claim, REGISTERED) || !is_plan_holding(claim, now) {
        return None;
    }
    let name = claim.status.as_ref()?.node_name.clone()?;
    let node = index.node(&name)?;
    let startup = &claim.spec.startup_taints;
    let starting = taints_of(node).any(|taint| startup.iter().any(|one| one.matches(&taint)));
    let room = room_left(index, claim);
    let has_room = |key: &PodKey| {
        room.as_ref().is_none_or(|room| index.pod(key).is_some_and(|pod| fits(pod, room)))
    };
    let pods = || {
        let mut pods = without_nomination(index, nominable_pods(index, claim), &name);
        // kube-scheduler would clear a nomination without room, and try other pods again for it.
        pods.retain(has_room);
        pods
    };
    (is_up(node) && !starting).then(|| (name.clone(), pods()))
}

/// Nominates the planned pods of a ready Node before it is opened. Returns why it should stay
/// closed for now; `None` if it may be opened.
pub async fn prepare(
    context: &Context,
    claim: &NodeClaim,
    node: &Node,
    opened: Option<Timestamp>,
) -> Option<Hold> {
    let name = node.name_any();
    let hold = || release_hold(&context.index(), claim, node, opened, context.clock.now());
    if let Some(hold) = hold() {
        return Some(hold);
    }
    let pods = {
        let index = context.index();
        without_nomination(&index, nominable_pods(&index, claim), &name)
    };
    let nominated = nominate_all(context, &pods, &name).await;
    wait_until_seen(context, nominated, &name).await;
    // If kube-scheduler has tried pods meanwhile, nominations were cleared.
    hold()
}

/// Waits until the watch shows nominations: kube-scheduler's watch then does too, so that it does
/// not see the Node open before the room is reserved.
async fn wait_until_seen(context: &Context, mut pods: Vec<PodKey>, node: &str) {
    let since = context.clock.now();
    loop {
        {
            let index = context.index();
            pods = without_nomination(&index, pods, node);
            pods.retain(|key| index.unschedulable_since(key).is_some());
        }
        let waited = context.clock.now().duration_since(since).unsigned_abs();
        if pods.is_empty() || waited >= MAX_UNSEEN {
            return;
        }
        context.clock.sleep(SEEN_INTERVAL).await;
    }
}

/// Reason to hold a ready Node closed now, if any. Another Node was last opened at `opened`.
fn release_hold(
    index: &Index,
    claim: &NodeClaim,
    node: &Node,
    opened: Option<Timestamp>,
    now: Timestamp,
) -> Option<Hold> {
    if waiting_pods(index, claim).is_empty() {
        return None;
    }
    let ready = readiness(node).and_then(|ready| ready.last_transition_time.as_ref());
    // The kubelet's clock may be ahead.
    let within = |most| ready.is_some_and(|since| now.duration_since(since.0).abs() < most);
    let in_order = index.plan(&claim.name_any()).is_some_and(|plan| plan.release.is_some());
    if within(MAX_HOLD) && others_go_first(index, claim) {
        Some(Hold::ReleaseOrder)
    } else if within(MAX_DOMAINS_HOLD) && spread_domains::are_missing(index, claim) {
        Some(Hold::Domains)
    } else if within(if in_order { MAX_HOLD } else { MAX_IDLE_HOLD })
        && is_busy(index, claim, opened, now)
    {
        Some(Hold::Scheduler)
    } else {
        None
    }
}

/// Whether kube-scheduler may still try the planned pods of a NodeClaim while its Node is closed,
/// and clear their nominations. It tries pending pods again, one after the other, when a Node was
/// opened and when something else woke it, and each of them once.
fn is_busy(index: &Index, claim: &NodeClaim, opened: Option<Timestamp>, now: Timestamp) -> bool {
    let woken = index.scheduler_woken().max(opened);
    let seen = index.last_retry().max(woken);
    let name = claim.name_any();
    seen.is_some_and(|seen| now.duration_since(seen) < IDLE_AFTER)
        && index.waiting_pods(&name).any(|key| index.last_tried(key) < woken)
}

/// Whether pods wait for NodeClaims that precede this one in the release order.
fn others_go_first(index: &Index, claim: &NodeClaim) -> bool {
    index.is_preceded(&claim.name_any())
}

/// Whether kube-scheduler would bind pods to a Node, but for the unregistered taint.
pub fn is_up(node: &Node) -> bool {
    is_ready(node)
        && !taints_of(node).any(|taint| taint.key != taints::UNREGISTERED && taint.is_ephemeral())
}

fn taints_of(node: &Node) -> impl Iterator<Item = Taint> + '_ {
    node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).into_iter().flatten().map(Taint::from)
}

/// Planned pods of a NodeClaim that are still unschedulable.
pub fn waiting_pods(index: &Index, claim: &NodeClaim) -> Vec<PodKey> {
    index.waiting_pods(&claim.name_any()).cloned().collect()
}

/// Waiting pods of a NodeClaim that may be nominated together.
fn nominable_pods(index: &Index, claim: &NodeClaim) -> Vec<PodKey> {
    let waiting = waiting_pods(index, claim);
    let pods = waiting.iter().filter_map(|key| index.pod(key));
    within_max_skew(pods.map(|pod| engine_pod(index, pod)))
}

/// A maximal prefix-greedy choice of pods such that no spread constraint counts more than `maxSkew`
/// of them on one node.
fn within_max_skew(pods: impl IntoIterator<Item = nap_engine::Pod>) -> Vec<PodKey> {
    let mut chosen: Vec<nap_engine::Pod> = Vec::new();
    for pod in pods {
        chosen.push(pod);
        let is_kept = |pod: &nap_engine::Pod| {
            pod.spread.iter().all(|spread| {
                let same = |other: &&nap_engine::Pod| other.key.parts().0 == pod.key.parts().0;
                let counted = chosen
                    .iter()
                    .filter(same)
                    .filter(|other| spread.selector.matches(&other.labels));
                counted.count() <= usize::try_from(spread.max_skew).unwrap_or(usize::MAX)
            })
        };
        if !chosen.iter().all(is_kept) {
            chosen.pop();
        }
    }
    chosen.into_iter().map(|pod| pod.key).collect()
}

/// The pods that are not nominated to the Node yet.
fn without_nomination(index: &Index, mut pods: Vec<PodKey>, node: &str) -> Vec<PodKey> {
    let is_nominated = |pod: &Arc<Pod>| pod.nominated_node() == Some(node);
    pods.retain(|key| index.pod(key).is_some_and(|pod| !is_nominated(pod)));
    pods
}

/// Nominates pods to a Node, as many as this second allows. Returns those that are nominated.
async fn nominate_all(context: &Context, pods: &[PodKey], node: &str) -> Vec<PodKey> {
    let most = context.memory().nominations.take(pods.len(), context.clock.now());
    let nominate = |key| async move { nominate_one(context, key, node).await.then(|| key.clone()) };
    join_all(pods.iter().take(most).map(nominate)).await.into_iter().flatten().collect()
}

/// Returns whether the pod is nominated.
async fn nominate_one(context: &Context, key: &PodKey, node: &str) -> bool {
    let (namespace, name) = key.parts();
    let api: Api<core::Pod> = Api::namespaced(context.client.clone(), namespace);
    let patch = Patch::Merge(json!({ "status": { "nominatedNodeName": node } }));
    match api.patch_status(name, &PatchParams::default(), &patch).await {
        Ok(_) => {
            tracing::debug!(pod = %key, node, "nominated pod");
            true
        }
        // Deleted or bound in the meantime.
        Err(KubeError::Api(status)) if matches!(status.code, 404 | 409 | 422) => false,
        // The plan is then only less likely to be realised.
        Err(error) => {
            tracing::warn!(pod = %key, node, %error, "nomination failed; check RBAC of pods/status");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use nap_api::labels;
    use nap_engine::{Selector, Spread};

    use super::*;
    use crate::testing::{at, claim, index, node, pending_pod};

    fn spread_pod(name: &str, app: &str, skews: &[u32]) -> nap_engine::Pod {
        let spread = |max_skew: &u32| Spread {
            topology_key: "zone".to_owned(),
            max_skew: *max_skew,
            min_domains: None,
            selector: Selector::label("app", "web"),
            honor_affinity: true,
            honor_taints: false,
        };
        nap_engine::Pod {
            key: PodKey::new("shop", name),
            labels: BTreeMap::from([("app".to_owned(), app.to_owned())]),
            spread: skews.iter().map(spread).collect(),
            ..nap_engine::Pod::default()
        }
    }

    fn web(skews: &[u32]) -> Vec<nap_engine::Pod> {
        (0..3).map(|number| spread_pod(&format!("web-{number}"), "web", skews)).collect()
    }

    fn chosen(pods: Vec<nap_engine::Pod>) -> Vec<String> {
        within_max_skew(pods).iter().map(|key| key.parts().1.to_owned()).collect()
    }

    #[test]
    fn no_more_pods_are_nominated_than_their_spread_allows() {
        assert_eq!(chosen(web(&[])), ["web-0", "web-1", "web-2"]);
        assert_eq!(chosen(web(&[2])), ["web-0", "web-1"]);
    }

    #[test]
    fn pods_that_a_spread_does_not_count_are_nominated_beside_it() {
        let mut all = web(&[1]);
        all.push(spread_pod("other", "other", &[]));
        assert_eq!(chosen(all), ["web-0", "other"]);
    }

    #[test]
    fn a_counted_pod_without_a_spread_of_its_own_takes_the_slot() {
        let mut counted = vec![spread_pod("counted", "web", &[])];
        counted.extend(web(&[1]));
        assert_eq!(chosen(counted), ["counted"]);
    }

    fn planned(name: &str, pod: &str, slot: Option<u32>) -> NodeClaim {
        let release = slot.map(|number| json!({ "plan": "p", "number": number }));
        let plan = json!({ "version": 1, "pods": [format!("shop/{pod}")], "release": release });
        let annotations = json!({ labels::PLAN: plan.to_string() });
        claim(
            name,
            json!({
                "metadata": { "annotations": annotations },
                "status": {
                    "nodeName": name,
                    "conditions": [{
                        "type": "Registered", "status": "True", "reason": "", "message": "",
                        "lastTransitionTime": "1970-01-01T00:00:00Z",
                    }],
                },
            }),
        )
    }

    #[test]
    fn a_node_waits_for_pods_of_nodes_that_precede_it() {
        let (first, second) = (planned("a", "x", Some(0)), planned("b", "y", Some(1)));
        let mut index = index([first.clone(), second.clone()]);
        index.apply(pending_pod("shop", "y"), at(0));
        assert!(!others_go_first(&index, &second), "no pod of the first one waits");
        index.apply(pending_pod("shop", "x"), at(0));
        assert!(others_go_first(&index, &second));
        assert!(!others_go_first(&index, &first));
    }

    #[test]
    fn without_a_release_slot_nothing_goes_first() {
        let (first, second) = (planned("a", "x", Some(0)), planned("b", "y", None));
        let mut index = index([first, second.clone()]);
        index.apply(pending_pod("shop", "x"), at(0));
        index.apply(pending_pod("shop", "y"), at(0));
        assert!(!others_go_first(&index, &second));
    }

    fn ready_node(name: &str, taint: Option<&str>) -> Node {
        let taints = taint.map(|key| json!([{ "key": key, "effect": "NoSchedule" }]));
        let condition = json!({
            "type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:00Z",
        });
        node(
            name,
            json!({
                "spec": { "taints": taints }, "status": { "conditions": [condition] },
            }),
        )
    }

    #[test]
    fn a_node_waits_for_its_slot_for_twenty_seconds_at_most() {
        let (first, second) = (planned("a", "x", Some(0)), planned("b", "y", Some(1)));
        let mut index = index([first, second.clone()]);
        index.apply(pending_pod("shop", "x"), at(-60));
        index.apply(pending_pod("shop", "y"), at(-60));
        let node = ready_node("b", None);
        let hold = |seconds| release_hold(&index, &second, &node, None, at(seconds));
        assert_eq!((hold(19), hold(20)), (Some(Hold::ReleaseOrder), None));
        assert_eq!(hold(-19), Some(Hold::ReleaseOrder), "the kubelet's clock is ahead");
    }

    fn millis(milliseconds: i64) -> Timestamp {
        Timestamp::from_millisecond(milliseconds).unwrap()
    }

    /// A pod that kube-scheduler has tried again, with another result.
    fn tried_again(name: &str, message: &str) -> core::Pod {
        let mut pod = pending_pod("shop", name);
        let conditions = pod.status.as_mut().unwrap().conditions.as_mut().unwrap();
        conditions[0].message = Some(message.to_owned());
        pod
    }

    #[test]
    fn a_node_waits_until_its_pods_were_tried_on_the_node_opened_before() {
        let claim = planned("a", "x", None);
        let mut index = index([claim.clone()]);
        let node = ready_node("a", None);
        let opened = Some(millis(1000));
        let hold = |index: &Index, time| release_hold(index, &claim, &node, opened, millis(time));
        assert_eq!(hold(&index, 1010), None, "no pod waits");
        index.apply(pending_pod("shop", "x"), millis(0));
        index.apply(pending_pod("shop", "other"), millis(0));
        assert_eq!(hold(&index, 1010), Some(Hold::Scheduler), "a node was opened");
        index.apply(tried_again("other", "1 Insufficient cpu"), millis(1200));
        assert_eq!(hold(&index, 2199), Some(Hold::Scheduler), "its pod was not tried yet");
        assert_eq!(hold(&index, 2200), None, "no pod was tried for a second");
        index.apply(tried_again("x", "1 Insufficient cpu"), millis(1300));
        assert_eq!(hold(&index, 1301), None, "its pod was tried");
    }

    #[test]
    fn a_node_is_not_opened_right_after_the_scheduler_was_woken() {
        let claim = planned("a", "x", None);
        let mut index = index([claim.clone()]);
        let node = ready_node("a", None);
        let hold = |index: &Index, time| release_hold(index, &claim, &node, None, millis(time));
        index.apply(pending_pod("shop", "x"), millis(0));
        assert_eq!(hold(&index, 10), None, "a first attempt");
        index.apply(ready_node("other", None), millis(5000));
        assert_eq!(hold(&index, 5999), Some(Hold::Scheduler), "a node has joined");
        assert_eq!(hold(&index, 6000), None);
        let mut nominated = pending_pod("shop", "z");
        nominated.status.as_mut().unwrap().nominated_node_name = Some("n".to_owned());
        index.apply(nominated, millis(7000));
        index.apply(pending_pod("shop", "z"), millis(8000));
        assert_eq!(hold(&index, 8999), Some(Hold::Scheduler), "a nomination was cleared");
        index.apply(ready_node("third", None), millis(9990));
        assert_eq!(hold(&index, 9999), Some(Hold::Scheduler));
        assert_eq!(hold(&index, 10_000), None, "no longer than ten seconds");
    }

    #[test]
    fn a_pod_that_lost_its_room_is_not_nominated_again() {
        let claim = planned("a", "x", None);
        let mut index = index([claim.clone()]);
        let mut small = ready_node("a", None);
        small.status.as_mut().unwrap().allocatable =
            serde_json::from_value(json!({ "pods": "1" })).unwrap();
        index.apply(small, at(0));
        index.apply(pending_pod("shop", "x"), at(0));
        let found = |index: &Index| nominations(index, &claim, at(0)).unwrap().1.len();
        assert_eq!(found(&index), 1);
        let other = crate::testing::pod("shop", "other", json!({ "spec": { "nodeName": "a" } }));
        index.apply(other, at(0));
        assert_eq!(found(&index), 0);
    }

    #[test]
    fn a_cleared_nomination_wakes_the_nodeclaim_of_the_plan() {
        let mut index = index([planned("a", "x", None)]);
        let mut pod = pending_pod("shop", "x");
        pod.status.as_mut().unwrap().nominated_node_name = Some("a".to_owned());
        index.apply(pod, at(0));
        index.take_dirty();
        index.apply(pending_pod("shop", "x"), at(1));
        assert!(index.take_dirty().contains(&crate::cluster::Dirty::NodeClaim("a".to_owned())));
    }

    #[test]
    fn pods_are_not_nominated_twice() {
        let claim = planned("a", "x", None);
        let mut index = index([claim.clone()]);
        index.apply(ready_node("a", None), at(0));
        let mut pod = pending_pod("shop", "x");
        pod.status.as_mut().unwrap().nominated_node_name = Some("a".to_owned());
        index.apply(pod, at(0));
        assert_eq!(nominations(&index, &claim, at(0)), Some(("a".to_owned(), Vec::new())));
        index.take_dirty();
        index.apply(pending_pod("shop", "x"), at(1));
        let cleared = vec![PodKey::new("shop", "x")];
        assert_eq!(nominations(&index, &claim, at(1)), Some(("a".to_owned(), cleared)));
    }

    #[test]
    fn nominations_per_second_are_limited() {
        let mut rate = NominationRate::default();
        assert_eq!((rate.take(400, at(0)), rate.take(400, at(0))), (400, 100));
        assert_eq!((rate.take(1, at(0)), rate.take(1, at(1))), (0, 1));
    }

    #[test]
    fn pods_are_nominated_once_the_node_is_open() {
        let claim = planned("a", "x", None);
        let mut index = index([claim.clone()]);
        index.apply(pending_pod("shop", "x"), at(0));
        assert_eq!(nominations(&index, &claim, at(0)), None, "there is no node");
        index.apply(ready_node("a", Some("node.kubernetes.io/not-ready")), at(0));
        assert_eq!(nominations(&index, &claim, at(0)), None, "the node is closed");
        index.apply(ready_node("a", None), at(0));
        let expected = Some(("a".to_owned(), vec![PodKey::new("shop", "x")]));
        assert_eq!(nominations(&index, &claim, at(0)), expected);
    }
}
