//! NodeClaims in flight: until its Node is open to pods, the plan of a NodeClaim may still change.
//!
//! Pods that arrive later join the plan record of the node that has room for them, so that they are
//! nominated like the first ones. If a pod has lost its place to others and the launch for it can
//! be spared, pods move from one node in flight to another: a large pod takes the room of small
//! ones, which fit into what is left elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use kube::ResourceExt;
use nap_api::nodeclaim::condition::REGISTERED;
use nap_api::{NodeClaim, PlanRecord, labels};
use nap_engine::{Plan, Pod, PodKey};

use crate::cluster::{Index, NodeKey, claim_is};
use crate::context::{Context, Error};

/// Pods that wait for NodeClaims in flight and may be planned again. Where the release order of a
/// plan matters, its pods stay: the order was computed for their places.
pub(super) fn movable_pods(index: &Index) -> BTreeSet<PodKey> {
    let claims = index.claims().filter(|claim| is_in_flight(claim));
    let may_change = |claim: &&_| {
        let plan = index.plan(&ResourceExt::name_any(*claim));
        plan.is_some_and(|plan| plan.release.is_none() && plan.replaces.is_empty())
    };
    let names = claims.filter(|claim| may_change(&claim.as_ref())).map(|claim| claim.name_any());
    names.flat_map(|name| index.waiting_pods(&name).cloned().collect::<Vec<_>>()).collect()
}

/// Whether the Node of a NodeClaim is not open to pods yet.
fn is_in_flight(claim: &NodeClaim) -> bool {
    claim.metadata.deletion_timestamp.is_none() && !claim_is(claim, REGISTERED)
}

/// Whether any of these pods had a place on a node that is open, and lost it to others.
pub(super) fn has_displaced(index: &Index, pods: &[Pod]) -> bool {
    pods.iter().any(|pod| index.was_planned(&pod.key))
}

/// Whether a plan that moves pods is better than one that does not: it places at least the same
/// pods, for less.
pub(super) fn is_better(moving: &Plan, plan: &Plan) -> bool {
    let unplaced: BTreeSet<&PodKey> = plan.unplaced.iter().map(|one| &one.pod).collect();
    moving.cost < plan.cost && moving.unplaced.iter().all(|one| unplaced.contains(&one.pod))
}

/// Gives the pods that are `moved` places on nodes that exist or are in flight, in exchange with
/// equal pods: they must not wait for a launch now. Returns whether that was possible.
pub(super) fn keep_off_launches(plan: &mut Plan, pods: &[Pod], moved: &BTreeSet<PodKey>) -> bool {
    let launched = || plan.launches.iter().flat_map(|launch| &launch.pods);
    if launched().all(|key| !moved.contains(key)) {
        return true;
    }
    let nameless = |pod: &Pod| Pod { key: PodKey::new(pod.key.parts().0, ""), ..pod.clone() };
    let shapes: BTreeMap<&PodKey, Pod> = pods.iter().map(|pod| (&pod.key, nameless(pod))).collect();
    let mut partners: BTreeMap<&Pod, Vec<usize>> = BTreeMap::new();
    for (number, placement) in plan.placements.iter().enumerate() {
        if let Some(shape) = shapes.get(&placement.pod).filter(|_| !moved.contains(&placement.pod))
        {
            partners.entry(shape).or_default().push(number);
        }
    }
    let launched = plan.launches.iter_mut().flat_map(|launch| &mut launch.pods);
    for key in launched.filter(|key| moved.contains(key)) {
        let partner = shapes.get(key).and_then(|shape| partners.get_mut(shape)?.pop());
        let Some(partner) = partner else { return false };
        std::mem::swap(key, &mut plan.placements[partner].pod);
    }
    true
}

/// Writes the pods that a plan places on NodeClaims in flight into their plan records, and takes
/// the pods that are `moved` out of those that they leave. Returns `false`, with nothing written,
/// if pods would leave a NodeClaim whose Node is open by now.
pub(super) async fn record(
    context: &Context,
    plan: &Plan,
    moved: &BTreeSet<PodKey>,
) -> Result<bool, Error> {
    // No Node is opened meanwhile: its pods are nominated by the record.
    let opening = context.opened.lock().await;
    let Some(places) = changed_places(&context.index(), plan, moved) else { return Ok(false) };
    let write = |(name, pods): (String, BTreeSet<String>)| async move {
        let set_pods = |claim: &mut NodeClaim| {
            let Some(Ok(mut record)) = PlanRecord::of(&claim.metadata) else { return false };
            record.pods.clone_from(&pods);
            let annotation = record.to_annotation();
            claim.annotations_mut().insert(labels::PLAN.to_owned(), annotation);
            true
        };
        context.update::<NodeClaim>(&name, set_pods).await
    };
    let written = join_all(places.into_iter().map(write)).await;
    drop(opening);
    written.into_iter().collect::<Result<(), Error>>().map(|()| true)
}

/// The pods of each NodeClaim in flight whose plan record a plan changes; `None` if a pod that is
/// `moved` may not move any more.
fn changed_places(
    index: &Index,
    plan: &Plan,
    moved: &BTreeSet<PodKey>,
) -> Option<BTreeMap<String, BTreeSet<String>>> {
    if !moved.is_subset(&movable_pods(index)) {
        return None;
    }
    let mut placed: BTreeMap<NodeKey, Vec<&PodKey>> = BTreeMap::new();
    for placement in &plan.placements {
        if let Some(key) = index.key_of_view(&placement.node) {
            placed.entry(key).or_default().push(&placement.pod);
        }
    }
    let mut changed = BTreeMap::new();
    for claim in index.claims().filter(|claim| is_in_flight(claim)) {
        let name = claim.name_any();
        let Some(known) = index.plan(&name) else { continue };
        let stays = |pod: &&String| !moved.contains(&PodKey::from(pod.as_str()));
        let mut pods: BTreeSet<String> = known.pods.iter().filter(stays).cloned().collect();
        let added = placed.get(&NodeKey::NodeClaim(name.clone())).into_iter().flatten();
        pods.extend(added.map(ToString::to_string));
        if pods != known.pods {
            changed.insert(name, pods);
        }
    }
    Some(changed)
}

#[cfg(test)]
mod tests {
    use nap_engine::Launch;
    use nap_units::UsdPerHour;
    use serde_json::json;

    use super::*;
    use crate::testing::{
        at, claim, condition, index, launch, pending_pod, placement, plan_without_places,
    };

    /// A NodeClaim with a plan record of pods that wait.
    fn planned(name: &str, pods: &[&str], more: &serde_json::Value) -> NodeClaim {
        let mut record = json!({ "version": 1, "pods": pods });
        record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let annotations = json!({ labels::PLAN: record.to_string() });
        claim(name, json!({ "metadata": { "annotations": annotations } }))
    }

    fn with_pending(claims: impl IntoIterator<Item = NodeClaim>, pods: &[&str]) -> Index {
        let mut index = index(claims);
        for name in pods {
            index.apply(pending_pod("shop", name), at(0));
        }
        index
    }

    fn open(mut claim: NodeClaim) -> NodeClaim {
        let status = json!({ "conditions": [condition("Registered", "True")] });
        claim.status = serde_json::from_value(status).unwrap();
        claim
    }

    fn keys(names: &[&str]) -> BTreeSet<PodKey> {
        names.iter().map(|name| PodKey::new("shop", name)).collect()
    }

    fn strings(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(ToString::to_string).collect()
    }

    fn placing(places: &[(&str, &str)]) -> Plan {
        let placed = places.iter().map(|(pod, node)| placement(&PodKey::new("shop", pod), node));
        Plan { placements: placed.collect(), ..Plan::default() }
    }

    #[test]
    fn pods_move_while_their_node_is_closed_and_its_order_does_not_matter() {
        let ordered = json!({ "release": { "plan": "1", "number": 0 } });
        let index = with_pending(
            [
                planned("a", &["shop/a", "shop/bound"], &json!({})),
                planned("b", &["shop/b"], &ordered),
                planned("c", &["shop/c"], &json!({ "replaces": ["old"], "siblings": 1 })),
                open(planned("d", &["shop/d"], &json!({}))),
            ],
            &["a", "b", "c", "d"],
        );
        assert_eq!(movable_pods(&index), keys(&["a"]));
    }

    #[test]
    fn later_pods_join_the_record_of_a_node_in_flight() {
        let claims =
            [planned("a", &["shop/a"], &json!({})), open(planned("b", &["shop/b"], &json!({})))];
        let index = with_pending(claims, &["a", "late", "later"]);
        let plan = placing(&[("late", "a"), ("later", "b")]);
        let changed = changed_places(&index, &plan, &BTreeSet::new()).unwrap();
        assert_eq!(changed.len(), 1, "an open node takes pods without a record");
        assert_eq!(changed["a"], strings(&["shop/a", "shop/late"]));
    }

    #[test]
    fn pods_that_move_leave_one_record_for_another() {
        let claims = ["a", "b"].map(|name| planned(name, &[&format!("shop/{name}")], &json!({})));
        let index = with_pending(claims.clone(), &["a", "b", "large"]);
        let plan = placing(&[("a", "b"), ("b", "b"), ("large", "a")]);
        let changed = changed_places(&index, &plan, &keys(&["a", "b"])).unwrap();
        assert_eq!(changed["a"], strings(&["shop/large"]));
        assert_eq!(changed["b"], strings(&["shop/a", "shop/b"]));
        let opened =
            with_pending([open(claims[0].clone()), claims[1].clone()], &["a", "b", "large"]);
        assert_eq!(changed_places(&opened, &plan, &keys(&["a", "b"])), None, "one was opened");
    }

    #[test]
    fn pods_move_only_if_that_costs_less_and_leaves_no_pod_without_a_place() {
        let plan = |micros, unplaced: &[&str]| {
            let cost = UsdPerHour::from_micros(micros);
            Plan { cost, ..plan_without_places(keys(unplaced)) }
        };
        assert!(is_better(&plan(1, &["x"]), &plan(2, &["x"])));
        assert!(!is_better(&plan(2, &[]), &plan(2, &[])));
        assert!(!is_better(&plan(1, &["y"]), &plan(2, &["x"])));
    }

    #[test]
    fn pods_that_move_do_not_wait_for_a_launch() {
        let pod = |name: &str, priority| Pod {
            key: PodKey::new("shop", name),
            priority,
            ..Pod::default()
        };
        let pods = [pod("waits", 0), pod("new", 0), pod("other", 1)];
        let planned = |launched: &str, placed: &str| {
            let launches =
                vec![Launch { pods: keys(&[launched]).into_iter().collect(), ..launch("D4", 1) }];
            Plan { launches, ..placing(&[(placed, "a")]) }
        };
        let mut plan = planned("waits", "new");
        assert!(keep_off_launches(&mut plan, &pods, &keys(&["waits"])));
        assert_eq!(plan, planned("new", "waits"));
        assert!(keep_off_launches(&mut plan, &pods, &keys(&["waits"])), "nothing to do");
        let mut plan = planned("waits", "other");
        assert!(!keep_off_launches(&mut plan, &pods, &keys(&["waits"])), "another kind of pod");
    }

    #[test]
    fn a_pod_was_displaced_if_a_nodeclaim_was_planned_for_it() {
        let index = with_pending([open(planned("a", &["shop/a"], &json!({})))], &["a", "new"]);
        let pod = |name| Pod { key: PodKey::new("shop", name), ..Pod::default() };
        assert!(has_displaced(&index, &[pod("new"), pod("a")]));
        assert!(!has_displaced(&index, &[pod("new")]));
    }
}
