//! Provisioning: pending pods in, NodeClaims out.

mod batch;
mod creations;
mod in_flight;
pub(crate) mod nodeclaims;
mod quota;
mod refused;
mod solver;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use nap_api::nodepool::DisruptionReason;
use nap_api::{ReleaseSlot, labels};
use nap_engine::{
    Launch, Plan, PodKey, PoolRejection, PriceEstimates, Refusal, Snapshot, Unplaced, release_order,
};
use nap_units::UsdPerHour;

pub use batch::BatchWindow;
use creations::Creation;
pub use creations::{CreationBackoff, Creations};
use quota::QuotaLedger;
pub(crate) use quota::quota_left;
pub use quota::stay_within_quota;
pub use refused::RefusedPods;
pub(crate) use solver::{Solver, SolverState};

use crate::cluster::Index;
use crate::context::{Context, Outcome};
use crate::decision_memory::DecisionMemory;
use crate::decisions::{DecisionRecord, Kind};
use crate::disruption::eviction_ledger;
use crate::events::Severity;
use crate::metrics::{PROVISIONER, catalogue as table, dollars, number};
use crate::snapshot::Catalogues;

/// Interval at which pending pods are planned for again when nothing else happens.
const REPLAN_INTERVAL: Duration = Duration::from_secs(10);
/// Most NodeClaims that wait to be created when a further plan is made.
const MAX_DECIDED: usize = 5000;
/// Wait while there are more.
const DECIDED_INTERVAL: Duration = Duration::from_secs(1);

/// Reason in the record of a plan.
const PENDING: &str = "Pending";

/// Plans for every pending pod once the batch is closed, and decides the planned NodeClaims. They
/// are created beside the next plan, which counts on them.
pub async fn reconcile(context: &Context) -> Outcome {
    let settings = &context.settings;
    let now = context.clock.now();
    {
        let mut memory = context.memory();
        let wait = memory.batch.closes_in(settings.batch_idle, settings.batch_max, now);
        let wait = wait.max(memory.creation_backoff.wait(now));
        if !wait.is_zero() {
            return Ok(Some(wait));
        }
        memory.batch.close();
    }
    if context.index().decided().len() >= MAX_DECIDED {
        return Ok(Some(DECIDED_INTERVAL));
    }
    let catalogues = context.catalogues().await;
    let now = context.clock.now();
    hold_refused(context, now);
    let (mut snapshot, mut plan) = plan(context, &catalogues, &BTreeSet::new()).await;
    if snapshot.pods.is_empty() {
        let unschedulable = context.index().unschedulable_pods().next().is_some();
        return Ok(unschedulable.then_some(REPLAN_INTERVAL));
    }
    if settings.dry_run {
        publish_unplaced(context, &plan);
        publish_launches(context, &plan);
        return Ok(Some(REPLAN_INTERVAL));
    }
    let mut recorded = false;
    if !plan.launches.is_empty() && in_flight::has_displaced(&context.index(), &snapshot.pods) {
        let moved = in_flight::movable_pods(&context.index());
        let (with_moved, mut moving) = self::plan(context, &catalogues, &moved).await;
        if in_flight::is_better(&moving, &plan)
            && in_flight::keep_off_launches(&mut moving, &with_moved.pods, &moved)
            && in_flight::record(context, &moving, &moved).await?
        {
            let saved = plan.cost - moving.cost;
            tracing::info!(%saved, "moved pods between nodeclaims in flight");
            (snapshot, plan, recorded) = (with_moved, moving, true);
        }
    }
    if !recorded {
        in_flight::record(context, &plan, &BTreeSet::new()).await?;
    }
    {
        let (index, mut memory) = (context.index(), context.memory());
        memory.nominate(&index, &plan, now);
        memory.remember_unplaced(&index, &plan);
        rest_after_undone_moves(&index, &mut memory, &plan, now);
        memory.remember_growth(&plan, now);
    }
    publish_unplaced(context, &plan);
    let slots = release_slots(&snapshot, &plan, now);
    if let Some(decision) = decide(context, &catalogues, &plan, slots) {
        let input = context.aside(move |solver| solver.digests().snapshot(&snapshot)).await;
        context.memory().decisions.set_input(decision, input);
    }
    Ok(Some(REPLAN_INTERVAL))
}

/// Lets the consolidation of a NodePool rest whose moves a plan undoes: pods of a workload that it
/// evicted a short while ago need a new node.
fn rest_after_undone_moves(
    index: &Index,
    memory: &mut DecisionMemory,
    plan: &Plan,
    now: Timestamp,
) {
    let pods = plan.launches.iter().flat_map(|launch| &launch.pods);
    let pods = pods.filter_map(|key| index.pod(key));
    if memory.moves.is_empty() {
        return;
    }
    let replicas = eviction_ledger::replicas(index);
    let undone = pods.filter_map(|pod| memory.moves.undone(pod, &replicas, now));
    let undone: BTreeSet<(String, Timestamp)> =
        undone.map(|(nodepool, at)| (nodepool.to_owned(), at)).collect();
    for (nodepool, at) in &undone {
        memory.decisions.undone(nodepool, *at, now);
    }
    let nodepools: BTreeSet<&String> = undone.iter().map(|(nodepool, _)| nodepool).collect();
    for nodepool in nodepools {
        let rest = memory.backoff.undone(nodepool, DisruptionReason::Underutilized, now);
        tracing::info!(nodepool, ?rest, "a consolidation was undone, the nodepool rests from it");
    }
}

/// The plan for pending pods, and for those that are `moved`.
async fn plan(
    context: &Context,
    catalogues: &Catalogues,
    moved: &BTreeSet<PodKey>,
) -> (Arc<Snapshot>, Plan) {
    let now = context.clock.now();
    let mut snapshot = context.snapshot(catalogues, moved, now);
    snapshot.pods.retain(|pod| !context.memory().refused.is_held(&pod.key, now));
    let snapshot = Arc::new(snapshot);
    if snapshot.pods.is_empty() {
        return (snapshot, Plan::default());
    }
    let taken = context.clock.now();
    context.metrics.set_planning(Some((snapshot.pods.len(), taken)));
    let plan = context.plan(&snapshot).await;
    context.metrics.set_planning(None);
    count_plan(context, &snapshot, &plan, taken);
    tracing::debug!(
        pods = snapshot.pods.len(),
        moved = moved.len(),
        nodes = snapshot.nodes.len(),
        launches = plan.launches.len(),
        snapshot = %taken.duration_since(now),
        solve = %context.clock.now().duration_since(taken),
        "planned for pending pods"
    );
    (snapshot, plan)
}

/// Counts a plan: its duration, its pods without a place and its gap.
fn count_plan(context: &Context, snapshot: &Snapshot, plan: &Plan, begun: Timestamp) {
    let (metrics, now) = (&context.metrics, context.clock.now());
    metrics.observe(&table::SCHEDULING_DURATION, &[PROVISIONER], now.duration_since(begun));
    let first = {
        let (index, mut memory) = (context.index(), context.memory());
        memory.remember_planned(&index, snapshot.pods.iter().map(|pod| &pod.key))
    };
    for since in first {
        let metric = &table::PODS_SCHEDULING_DECISION_DURATION;
        metrics.observe(metric, &[], now.duration_since(since));
    }
    let ignored = |one: &&Unplaced| matches!(one.refusal, Refusal::Unsupported { .. });
    metrics.set(&table::IGNORED_PODS, &[], number(plan.unplaced.iter().filter(ignored).count()));
    metrics.set(&table::UNSCHEDULABLE_PODS, &[PROVISIONER], number(plan.unplaced.len()));
    let mut zones: BTreeMap<String, usize> = BTreeMap::new();
    for pod in &snapshot.pods {
        *zones.entry(zone_of(&context.index(), &pod.key)).or_default() += 1;
    }
    let zones = zones.iter().map(|(zone, pods)| (vec![PROVISIONER, zone.as_str()], *pods));
    metrics.replace(&table::PENDING_PODS_BY_ZONE, zones);
    if !plan.launches.is_empty() {
        metrics.set(&table::PLAN_COST, &[], dollars(plan.cost));
        if let Some(bound) = plan.lower_bound.filter(|bound| *bound > UsdPerHour::ZERO) {
            metrics.set(&table::PLAN_GAP, &[], dollars(plan.cost) / dollars(bound) - 1.0);
        }
    }
}

/// The zone that a pod asks for by its node selector, or `flexible`.
fn zone_of(index: &Index, key: &PodKey) -> String {
    let selector = index.pod(key).and_then(|pod| pod.spec().node_selector.as_ref());
    let zone = selector.and_then(|selector| selector.get(labels::ZONE));
    zone.cloned().unwrap_or_else(|| "flexible".to_owned())
}

/// Counts on the NodeClaims of a plan from now on, and hands them over to be created. Returns the
/// id of the decision's record; `None` if there is nothing to create.
fn decide(
    context: &Context,
    catalogues: &Catalogues,
    plan: &Plan,
    slots: Vec<Option<ReleaseSlot>>,
) -> Option<i64> {
    let mut index = context.index();
    let mut quota = QuotaLedger::of(context.cloud.as_ref(), &index);
    let (mut creations, mut launches) = (Vec::new(), Vec::new());
    let estimates = context.cloud.price_estimates();
    for (launch, release) in plan.launches.iter().zip(slots) {
        let pool = index.pool(&launch.pool).cloned();
        let (Some(pool), Some(catalogue)) = (pool, catalogues.of(&launch.pool)) else { continue };
        let mut offerings = nodeclaims::offerings(&pool, launch, catalogue, None);
        if !quota.take(&mut offerings) {
            // The next plan is made with what is left of the quota then.
            let (nodepool, pods) = (&launch.pool, launch.pods.len());
            tracing::info!(nodepool, pods, "no offering of a launch is within the quota");
            continue;
        }
        let claim = nodeclaims::node_claim(&pool, launch, &offerings, release, None);
        let (pods, why) = (launch.pods.clone(), plan.explain_launch(launch, estimates));
        let id = index.decide(&claim, pods.clone());
        creations.push(Creation { id, pool: launch.pool.clone(), claim, pods, why });
        launches.push(launch);
    }
    if creations.is_empty() {
        return None;
    }
    let now = context.clock.now();
    let record = DecisionRecord::new(Kind::Provisioning, PENDING, plan, &launches, estimates, now);
    let mut memory = context.memory();
    let decision = memory.decisions.add(record);
    memory.creations.push(Creations::new(creations, decision));
    Some(decision)
}

/// Says on NodePools what a plan would launch for them.
fn publish_launches(context: &Context, plan: &Plan) {
    let pools: BTreeSet<&str> = plan.launches.iter().map(|launch| launch.pool.as_str()).collect();
    for name in pools {
        let pool = context.index().pool(name).cloned();
        let Some(pool) = pool else { continue };
        let message = dry_run_message(plan, name, context.cloud.price_estimates());
        tracing::info!(nodepool = name, message, "dry run: nodes would be launched");
        context.events.publish(pool.as_ref(), Severity::Normal, "ProvisioningDryRun", &message);
    }
}

/// `Dry run: launch 2 nodes for 10 pods at $0.483/h: Standard_D4als_v6 on-demand in eastus-1,
/// Standard_D8als_v6 on-demand in eastus-2`.
fn dry_run_message(plan: &Plan, pool: &str, estimates: PriceEstimates) -> String {
    let launches: Vec<&Launch> = plan.launches.iter().filter(|one| one.pool == pool).collect();
    let pods: usize = launches.iter().map(|launch| launch.pods.len()).sum();
    let cost: UsdPerHour = launches.iter().map(|launch| launch.price).sum();
    let mark = estimates.mark_sum(launches.iter().map(|launch| launch.capacity_type));
    let mut equal: BTreeMap<String, usize> = BTreeMap::new();
    for one in &launches {
        let Launch { instance_type, capacity_type, zone, .. } = one;
        let zone = labels::zone_text(zone);
        *equal.entry(format!("{instance_type} {capacity_type} {zone}")).or_default() += 1;
    }
    let times = |(what, count): (&String, &usize)| match count {
        1 => what.clone(),
        count => format!("{count} x {what}"),
    };
    let nodes: Vec<String> = equal.iter().map(times).collect();
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    format!(
        "Dry run: launch {} node{} for {pods} pod{} at {mark}{cost}/h: {}",
        launches.len(),
        plural(launches.len()),
        plural(pods),
        nodes.join(", ")
    )
}

/// Looks for pods whose nodes kube-scheduler refused, and says so on those that are held.
fn hold_refused(context: &Context, now: Timestamp) {
    let held = {
        let (index, mut memory) = (context.index(), context.memory());
        memory.refused.observe(&index, now)
    };
    for (key, until) in held {
        let pod = context.index().pod(&key).cloned();
        let Some(pod) = pod else { continue };
        let message = format!(
            "Failed to schedule pod, the scheduler refuses the nodes launched for it, no other is \
             launched before {until}: {}",
            refused::scheduler_message(&pod)
        );
        tracing::warn!(pod = %key, %until, message, "holding pod");
        let (severity, reason) = (Severity::Warning, "FailedScheduling");
        context.events.publish(pod.as_ref(), severity, reason, &message);
    }
}

/// The release slot of each launch, in their order; `None` for all if the order does not matter.
fn release_slots(snapshot: &Snapshot, plan: &Plan, now: Timestamp) -> Vec<Option<ReleaseSlot>> {
    let numbers = release_order(snapshot, plan);
    let matters = numbers.iter().any(|number| *number > 0);
    let id = now.as_millisecond().to_string();
    let slot = |number| matters.then(|| ReleaseSlot { plan: id.clone(), number });
    numbers.into_iter().map(slot).collect()
}

fn publish_unplaced(context: &Context, plan: &Plan) {
    let retry = context.cloud.next_retry().map(|time| time.strftime("%FT%TZ"));
    let estimates = context.cloud.price_estimates();
    for unplaced in &plan.unplaced {
        let pod = context.index().pod(&unplaced.pod).cloned();
        if let Some(pod) = pod {
            let refusal = unplaced.refusal.marked(estimates);
            let mut message = format!("Failed to schedule pod, {refusal}");
            if let Some(retry) = retry.as_ref().filter(|_| awaits_offerings(&unplaced.refusal)) {
                // Writing to a String cannot fail.
                let _ = write!(message, "; failed offerings are tried again from {retry}");
            }
            context.events.publish(pod.as_ref(), Severity::Warning, "FailedScheduling", &message);
        }
    }
}

/// Whether a NodePool would have a node for a pod if only its offerings were available.
fn awaits_offerings(refusal: &Refusal) -> bool {
    let Refusal::Pools(reasons) = refusal else { return false };
    reasons.iter().any(|reason| {
        let PoolRejection::Offerings { large_enough, available, .. } = reason.why else {
            return false;
        };
        available == 0 && large_enough > 0
    })
}
