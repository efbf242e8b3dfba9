//! Carries out plans as the controllers do, with the real scheduler, and records the outcome.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nap_api::labels;
use nap_engine::{
    Options, Placement, Plan, PodKey, PoolRejection, Refusal, Snapshot, Unplaced, after,
    release_order, solve,
};
use nap_units::Resources;

use super::bench::{Bench, Hint, Pods, by_pod};
use super::objects;
use super::outcome::{Outcome, PodGroup, rules_of};

/// Maximum number of new plans for pods that were not bound.
const REPLANS: usize = 4;

static CASE: AtomicU32 = AtomicU32::new(0);

/// Carries out a plan. Pods that stay pending are planned again, with the cluster as it is then.
pub(super) async fn judge(bench: &Bench, snapshot: &Snapshot, plan: &Plan, hint: Hint) -> Outcome {
    let prefix = format!("case-{}-", CASE.fetch_add(1, Ordering::Relaxed));
    // The objects have only fields that the engine models.
    let made: Vec<nap_engine::Pod> =
        snapshot.pods.iter().filter(|pod| pod.unsupported.is_none()).cloned().collect();
    let pods: Pods = made.iter().map(|pod| (&pod.key, pod)).collect();
    let planned: BTreeSet<PodKey> = plan
        .placements
        .iter()
        .map(|placement| &placement.pod)
        .chain(plan.launches.iter().flat_map(|launch| &launch.pods))
        .cloned()
        .collect();
    let refused_by_pools: BTreeSet<PodKey> =
        plan.unplaced.iter().filter(|one| is_pool_matter(one)).map(|one| one.pod.clone()).collect();

    let (machines, residents) = objects::existing(snapshot, &prefix);
    bench.create_machines(machines, &residents).await;
    let mut now = Snapshot { pods: made.clone(), ..snapshot.clone() };
    let mut plan = plan.clone();
    let launches = create_launches(bench, &now, &plan, &prefix, 0).await;
    for pod in &made {
        bench.create_waiting(pod).await;
    }
    // As in production, nodes appear some time after the scheduler has tried the pods.
    bench.wait_until_all_are_judged().await;
    let there: Vec<String> =
        snapshot.nodes.iter().map(|node| format!("{prefix}{}", node.name)).collect();
    let mut places = carry_out(bench, &plan, &there, launches, &prefix, hint, &pods).await;

    let mut outcome = Outcome { cost: plan.cost, ..Outcome::default() };
    let bound_at_once = places.clone();
    for replan in 1..=REPLANS {
        if planned.iter().all(|pod| places.contains_key(pod)) {
            break;
        }
        outcome.replans = replan;
        now = left_by(&now, &plan, &places, &prefix, replan - 1);
        plan = solve(&now, &Options::default());
        outcome.more += plan.cost;
        let launches = create_launches(bench, &now, &plan, &prefix, replan).await;
        places = carry_out(bench, &plan, &[], launches, &prefix, hint, &pods).await;
    }

    let mut kinds: BTreeMap<nap_engine::Pod, Vec<&PodKey>> = BTreeMap::new();
    for pod in &snapshot.pods {
        let kind = nap_engine::Pod { key: PodKey::default(), ..pod.clone() };
        kinds.entry(kind).or_default().push(&pod.key);
    }
    let count =
        |pods: &[&PodKey], is: &dyn Fn(&PodKey) -> bool| pods.iter().filter(|key| is(key)).count();
    for (kind, pods) in &kinds {
        outcome.kinds.push(PodGroup {
            pod: pods[0].clone(),
            rules: rules_of(kind),
            planned: count(pods, &|key| planned.contains(key)),
            at_once: count(pods, &|key| bound_at_once.contains_key(key)),
            bound: count(pods, &|key| places.contains_key(key)),
            is_outranked: snapshot.pods.iter().any(|other| other.priority > kind.priority),
            is_pool_matter: count(pods, &|key| refused_by_pools.contains(key)) > 0,
        });
    }
    if outcome.replans > 0 {
        outcome.last = Some((now, plan));
    }
    outcome.places = places;
    outcome.complaints = bench.places().await.complaints;
    bench.clear().await;
    outcome
}

/// Name of a launch's node.
fn new_name(round: usize, index: usize) -> String {
    format!("new-{round}-{index}")
}

/// Creates the nodes of a plan's launches, held back; returns them with their pods in the order of
/// release.
async fn create_launches(
    bench: &Bench,
    snapshot: &Snapshot,
    plan: &Plan,
    prefix: &str,
    round: usize,
) -> Vec<(String, Vec<PodKey>)> {
    let (mut machines, mut daemons, mut launches) = (Vec::new(), Vec::new(), Vec::new());
    for (index, (launch, turn)) in
        plan.launches.iter().zip(release_order(snapshot, plan)).enumerate()
    {
        let name = format!("{prefix}{}", new_name(round, index));
        let (machine, of_it) = objects::launched(snapshot, launch, &name);
        machines.push(machine);
        daemons.extend(of_it);
        launches.push((turn, (name, launch.pods.clone())));
    }
    bench.create_machines(machines, &daemons).await;
    // By release slot, and in random order within a slot.
    launches.sort_by_cached_key(|(turn, (node, _))| (*turn, scrambled(node)));
    launches.into_iter().map(|(_, launch)| launch).collect()
}

/// Releases existing nodes at once and new ones one by one; returns the resulting state of the
/// pods.
async fn carry_out(
    bench: &Bench,
    plan: &Plan,
    closed: &[String],
    launches: Vec<(String, Vec<PodKey>)>,
    prefix: &str,
    hint: Hint,
    pods: &Pods<'_>,
) -> BTreeMap<PodKey, String> {
    let mut for_node: BTreeMap<String, Vec<PodKey>> =
        closed.iter().map(|node| (node.clone(), Vec::new())).collect();
    for Placement { pod, node } in &plan.placements {
        for_node.entry(format!("{prefix}{node}")).or_default().push(pod.clone());
    }
    let for_node: Vec<(String, Vec<PodKey>)> = for_node.into_iter().collect();
    let mut wanted = by_pod(&for_node);
    bench.open(&for_node, hint, pods).await;
    bench.settle(&wanted, hint, pods).await;
    for launch in &launches {
        bench.open(std::slice::from_ref(launch), hint, pods).await;
    }
    wanted.extend(by_pod(&launches));
    bench.settle(&wanted, hint, pods).await
}

/// The cluster after a plan was carried out, with its pending pods.
fn left_by(
    before: &Snapshot,
    plan: &Plan,
    places: &BTreeMap<PodKey, String>,
    prefix: &str,
    round: usize,
) -> Snapshot {
    let requests_of = |keys: &[PodKey]| {
        let pods = before.pods.iter().filter(|pod| keys.contains(&pod.key));
        pods.fold(Resources::new(), |mut sum, pod| {
            sum.add(&pod.requests);
            sum
        })
    };
    let on = |node: &str| -> Vec<PodKey> {
        let here = before
            .pods
            .iter()
            .filter(|pod| places.get(&pod.key).is_some_and(|there| there == node));
        here.map(|pod| pod.key.clone()).collect()
    };
    let mut done = plan.clone();
    done.placements = before
        .nodes
        .iter()
        .flat_map(|node| {
            let here = on(&format!("{prefix}{}", node.name));
            here.into_iter().map(|pod| Placement { pod, node: node.name.clone() })
        })
        .collect();
    for (index, launch) in done.launches.iter_mut().enumerate() {
        let here = on(&format!("{prefix}{}", new_name(round, index)));
        launch.requests.subtract(&requests_of(&launch.pods));
        launch.requests.add(&requests_of(&here));
        launch.pods = here;
    }
    let mut left = after(before, &done);
    for (index, node) in left.nodes[before.nodes.len()..].iter_mut().enumerate() {
        let node = Arc::make_mut(node);
        node.name = new_name(round, index);
        node.labels.insert(labels::HOSTNAME.to_owned(), format!("{prefix}{}", node.name));
        node.initialized = true;
    }
    left.pods = before.pods.iter().filter(|pod| !places.contains_key(&pod.key)).cloned().collect();
    left
}

/// Whether a pod is unplaced because of NodePool settings, which the scheduler does not know: it
/// may bind the pod to a node of other pods.
fn is_pool_matter(unplaced: &Unplaced) -> bool {
    let Refusal::Pools(reasons) = &unplaced.refusal else { return false };
    reasons.iter().any(|reason| {
        matches!(reason.why, PoolRejection::Limit(_) | PoolRejection::MinValues { .. })
    })
}

fn scrambled(name: &str) -> u64 {
    name.bytes().fold(7, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
