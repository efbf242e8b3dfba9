//! Gauges about the cluster, from the index at the time of a scrape.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::{Resource, ResourceExt};
use nap_api::{AKSNodeClass, NodeClaim, NodePool, labels};
use nap_engine::CapacityType;
use nap_units::{CPU, Resources, Rounding, UsdPerHour};

use super::{PROVISIONER, label, number, snake, status, table};
use crate::cluster::{Conditioned, Index, NodeView, Pod, pods};
use crate::context::Context;
use crate::disruption::candidates::price;
use crate::disruption::{Budgets, REASONS};
use crate::metrics::{Metric, Registry};
use crate::provisioning::quota_left;
use crate::snapshot::{Catalogues, pool_usage};

/// The gauges of now. Those of single objects are left out if the settings say so.
pub fn registry(context: &Context) -> Registry {
    let mut registry = Registry::default();
    let now = context.clock.now();
    let leads = context.leadership.is_held(now);
    let catalogues = context.solver.catalogues();
    let index = context.index();
    about_the_process(context, &index, leads, now, &mut registry);
    nodepools(&index, &catalogues, now, &mut registry);
    quota(context, &index, &mut registry);
    if context.settings.observes_objects {
        nodes(&index, now, &mut registry);
        pods(context, &index, now, &mut registry);
        conditions(&index, now, &mut registry);
    }
    utilization(&index, &mut registry);
    let dropped = registry.dropped().clone();
    let kept = context.metrics.kept().registry.dropped().clone();
    for (metric, count) in dropped.into_iter().chain(kept) {
        #[expect(clippy::cast_precision_loss, reason = "samples are floats")]
        registry.add(&table::SERIES_DROPPED, &[metric], count as f64);
    }
    registry
}

fn about_the_process(
    context: &Context,
    index: &Index,
    leads: bool,
    now: Timestamp,
    registry: &mut Registry,
) {
    let mut kept = context.metrics.kept();
    let version = env!("CARGO_PKG_VERSION");
    let build = [version, concat!("rust", env!("CARGO_PKG_RUST_VERSION")), arch(), kept.commit];
    registry.set(&table::BUILD_INFO, &build, 1.0);
    registry.set(&table::LEADER, &[], f64::from(u8::from(leads)));
    registry.set(&table::NODE_COUNT, &[], number(index.views().count()));
    registry.set(&table::PENDING_PODS, &[], number(index.unschedulable_pods().count()));
    let synced = index.is_synced() && !context.has_stale_watch();
    let unsynced = if synced { None } else { Some(*kept.unsynced.get_or_insert(now)) };
    kept.unsynced = unsynced;
    registry.set(&table::STATE_SYNCED, &[], f64::from(u8::from(synced)));
    let time = unsynced.map_or(0.0, |since| now.duration_since(since).as_secs_f64());
    registry.set(&table::STATE_UNSYNCED_TIME, &[], time);
    let (pods, begun) = kept.planning.map_or((0, now), |(pods, begun)| (pods, begun));
    // The incumbent's id of each run would make a new series of each.
    registry.set(&table::QUEUE_DEPTH, &[PROVISIONER, ""], number(pods));
    let time = now.duration_since(begun).as_secs_f64();
    registry.set(&table::UNFINISHED_WORK, &[PROVISIONER, ""], time);
    for kind in ["multi", "single"] {
        registry.add(&table::CONSOLIDATION_TIMEOUTS, &[kind], 0.0);
    }
}

/// The architecture, as Go names it.
fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn nodepools(index: &Index, catalogues: &Catalogues, now: Timestamp, registry: &mut Registry) {
    let budgets = Budgets::new(index, now);
    for (name, pool) in index.pools() {
        for (resource, amount) in resources(&pool_usage(index, name)) {
            registry.set(&table::NODEPOOLS_USAGE, &[&resource, name], amount);
        }
        let limits = Resources::from_quantities(pool.spec.limits.iter().flatten(), Rounding::Down);
        for (resource, amount) in resources(&limits) {
            registry.set(&table::NODEPOOLS_LIMIT, &[&resource, name], amount);
        }
        for reason in REASONS {
            let label = snake(reason.as_str());
            let (left, used) = budgets.counts(name, reason);
            registry.set(&table::ALLOWED_DISRUPTIONS, &[name, &label], number(left));
            registry.set(&table::NODES_CONSUMING_BUDGETS, &[name, &label], number(used));
        }
        cost(index, catalogues, name, registry);
    }
}

fn cost(index: &Index, catalogues: &Catalogues, pool: &str, registry: &mut Registry) {
    let types = catalogues.of(pool).map(|types| types.types()).unwrap_or_default();
    let mut by_capacity_type: BTreeMap<&str, UsdPerHour> = BTreeMap::new();
    let mut unknown = 0;
    for claim in index.claims_of_pool(pool) {
        let capacity_type = label(claim.as_ref(), labels::CAPACITY_TYPE);
        if claim.status.as_ref().is_none_or(|status| status.provider_id.is_none()) {
            continue;
        }
        match price(claim, types) {
            Some(price) => *by_capacity_type.entry(capacity_type).or_default() += price,
            None => unknown += 1,
        }
    }
    for (capacity_type, cost) in &by_capacity_type {
        registry.set(&table::FLEET_COST, &[pool, capacity_type], dollars(*cost));
    }
    let total = by_capacity_type.values().copied().sum();
    registry.set(&table::NODEPOOLS_COST, &[pool], dollars(total));
    registry.add(&table::COST_ERRORS, &[pool], number(unknown));
}

/// Dollars per hour as a sample.
#[expect(clippy::cast_precision_loss, reason = "samples are floats")]
pub fn dollars(price: UsdPerHour) -> f64 {
    price.micros() as f64 / 1e6
}

fn quota(context: &Context, index: &Index, registry: &mut Registry) {
    for (quota, left) in quota_left(context.cloud.as_ref(), index) {
        #[expect(clippy::cast_precision_loss, reason = "samples are floats")]
        registry.set(&table::QUOTA_LEFT, &[&quota], left as f64);
    }
    let estimates = context.cloud.price_estimates();
    for capacity_type in [CapacityType::OnDemand, CapacityType::Spot] {
        let sample = f64::from(u8::from(estimates.covers(capacity_type)));
        registry.set(&table::PRICES_ESTIMATED, &[capacity_type.as_str()], sample);
    }
    for ((capacity_type, cause), count) in context.cloud.unavailable_offerings() {
        registry.set(&table::UNAVAILABLE, &[capacity_type.as_str(), cause], number(count));
    }
}

/// Resources as label and sample: cores for CPU, whole units for everything else.
fn resources(resources: &Resources) -> Vec<(String, f64)> {
    let sample = |(name, amount): (&str, i64)| {
        #[expect(clippy::cast_precision_loss, reason = "samples are floats")]
        let amount = if name == CPU { amount as f64 / 1000.0 } else { amount as f64 };
        (name.to_lowercase().replace('-', "_"), amount)
    };
    resources.iter().map(sample).collect()
}

fn nodes(index: &Index, now: Timestamp, registry: &mut Registry) {
    for view in index.views() {
        let Some(node) = &view.node else { continue };
        let name = node.name_any();
        let own = node_labels(view, node, &name);
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        let status = node.status.as_ref();
        let of = |list: Option<&BTreeMap<_, _>>| pods::node_resources(list);
        let allocatable = of(status.and_then(|status| status.allocatable.as_ref()));
        let mut overhead = of(status.and_then(|status| status.capacity.as_ref()));
        overhead.subtract(&allocatable);
        let (mut plain, mut daemons) = (Resources::new(), Resources::new());
        for pod in index.pods_on(&name).filter(|pod| !pod.is_terminal()) {
            let sum = if pods::is_daemon(pod) { &mut daemons } else { &mut plain };
            pod.occupies().into_iter().for_each(|requests| sum.add(requests));
        }
        for (metric, amounts) in [
            (&table::NODES_ALLOCATABLE, &allocatable),
            (&table::NODES_SYSTEM_OVERHEAD, &overhead),
            (&table::NODES_TOTAL_POD_REQUESTS, &plain),
            (&table::NODES_TOTAL_DAEMON_REQUESTS, &daemons),
        ] {
            for (resource, amount) in resources(amounts) {
                let labels: Vec<&str> = own.iter().copied().chain([resource.as_str()]).collect();
                registry.set(metric, &labels, amount);
            }
        }
        registry.set(&table::NODES_CURRENT_LIFETIME, &own, age(node.as_ref(), now).as_secs_f64());
    }
}

/// Values of the labels of a node, in the order of the table.
fn node_labels(view: &NodeView, node: &Node, name: &str) -> Vec<String> {
    let mut known: Vec<&str> = Vec::new();
    let mut values = Vec::new();
    for key in labels::WELL_KNOWN {
        let part = key.split_once('/').map_or(*key, |(_, part)| part);
        if !known.contains(&part) {
            known.push(part);
            values.push(label(node, key).to_owned());
        }
    }
    let phase = if view.is_deleting() {
        "Terminating"
    } else if view.is_initialized() {
        "Running"
    } else {
        "Pending"
    };
    let managed = if view.claim.is_some() { "true" } else { "false" };
    values.extend([name, phase, managed].map(str::to_owned));
    values
}

fn age<K: Resource>(object: &K, now: Timestamp) -> SignedDuration {
    let created = object.meta().creation_timestamp.as_ref();
    created.map_or(SignedDuration::ZERO, |time| now.duration_since(time.0))
}

fn pods(context: &Context, index: &Index, now: Timestamp, registry: &mut Registry) {
    let memory = context.memory();
    for (key, pod) in index.pods() {
        pod_state(index, pod, registry);
        if pod.is_terminal() || pods::is_daemon(pod) || pod.ready() == Some(true) {
            continue;
        }
        let (namespace, name) = key.parts();
        let own = [name, namespace];
        let since = |since: Timestamp| now.duration_since(since).as_secs_f64();
        let age = pod.created().map(since).unwrap_or_default();
        // A pod that has started and is not ready any more was started once.
        let is_starting = pod.started().is_none() || index.provisioned_since(key).is_some();
        if is_starting {
            registry.set(&table::PODS_UNSTARTED_TIME, &own, age);
        }
        let waiting = index.unschedulable_since(key);
        if let Some(first) = waiting.or(index.provisioned_since(key)) {
            registry.set(&table::PODS_PROVISIONING_UNSTARTED_TIME, &own, since(first));
        }
        if pod.node().is_some() {
            continue;
        }
        let dynamic = pod.spec().resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
        let unbound = [name, namespace, if dynamic { "true" } else { "false" }];
        registry.set(&table::PODS_UNBOUND_TIME, &unbound, age);
        let Some(first) = waiting else { continue };
        registry.set(&table::PODS_PROVISIONING_UNBOUND_TIME, &unbound, since(first));
        if !memory.was_planned_for(key) {
            registry.set(&table::PODS_SCHEDULING_UNDECIDED_TIME, &own, since(first));
        }
    }
}

fn pod_state(index: &Index, pod: &Pod, registry: &mut Registry) {
    let node = pod.node().and_then(|name| index.node(name));
    let of_node = |key: &str| node.map_or("", |node| label(node.as_ref(), key));
    let owner = pod.owners().iter().find(|owner| owner.is_controller);
    let owner = owner.map(|owner| format!("{}/{}", owner.kind, owner.name)).unwrap_or_default();
    let flag = |value: bool| if value { "true" } else { "false" };
    let phase = match (pod.is_terminal(), pod.node(), pod.ready()) {
        (true, _, _) => "Completed",
        (false, Some(_), Some(true)) => "Running",
        _ => "Pending",
    };
    let managed = node.is_some_and(|node| index.claim_of_node(node).is_some());
    let values = [
        pod.name(),
        pod.namespace(),
        &owner,
        pod.node().unwrap_or_default(),
        flag(pod.node().is_some()),
        of_node(labels::NODEPOOL),
        of_node(labels::ZONE),
        of_node(labels::ARCH),
        of_node(labels::CAPACITY_TYPE),
        of_node(labels::INSTANCE_TYPE),
        phase,
        flag(pod.ready() == Some(true)),
        flag(managed),
    ];
    registry.set(&table::PODS_STATE, &values, 1.0);
}

fn conditions(index: &Index, now: Timestamp, registry: &mut Registry) {
    for claim in index.claims() {
        object::<NodeClaim>(claim, now, registry);
    }
    for (_, pool) in index.pools() {
        object::<NodePool>(pool, now, registry);
    }
    for view in index.views().filter(|view| view.claim.is_some()) {
        view.node.iter().for_each(|node| object::<Node>(node, now, registry));
    }
    for (_, class) in index.classes() {
        object::<AKSNodeClass>(class, now, registry);
    }
}

fn object<K: Conditioned + ResourceExt>(object: &K, now: Timestamp, registry: &mut Registry) {
    let Some(status) = status::of_kind(&K::kind(&())) else { return };
    let (group, kind, name) = (K::group(&()), K::kind(&()), object.name_any());
    let own = status.label_values(object.labels());
    // Objects of these kinds have no namespace.
    let object_labels = [&*group, &*kind, "", name.as_str()];
    let mut set = |metric: &'static Metric, kindless, values: &[&str], value: f64| {
        let labels = [&object_labels[2..], values, own.as_slice()].concat();
        registry.set(metric, &labels, value);
        if status.is_in_kindless {
            registry.set(kindless, &[&object_labels[..], values].concat(), value);
        }
    };
    if let Some(deleted) = &object.meta().deletion_timestamp {
        let time = now.duration_since(deleted.0).as_secs_f64();
        let metric = &status.termination_current_time_seconds;
        set(metric, &table::OBJECT_TERMINATION_SECONDS, &[], time);
    }
    for condition in object.conditions() {
        let labels: [&str; 3] = [&condition.type_, &condition.status, &condition.reason];
        set(&status.count, &table::CONDITION_COUNT, &labels, 1.0);
        if let Some(since) = condition.since {
            let time = now.duration_since(since).as_secs_f64();
            set(&status.current_status_seconds, &table::CONDITION_SECONDS, &labels, time);
        }
    }
}

fn utilization(index: &Index, registry: &mut Registry) {
    let (mut allocatable, mut requested) = (Resources::new(), Resources::new());
    for view in index.views().filter(|view| view.claim.is_some()) {
        let Some(node) = &view.node else { continue };
        let status = node.status.as_ref();
        allocatable.add(&pods::node_resources(status.and_then(|one| one.allocatable.as_ref())));
        let bound = index.pods_on(node.metadata.name.as_deref().unwrap_or_default());
        for pod in bound.filter(|pod| !pod.is_terminal()) {
            pod.occupies().into_iter().for_each(|requests| requested.add(requests));
        }
    }
    for (resource, total) in resources(&allocatable) {
        let used = resources(&requested);
        let used = used.iter().find(|(name, _)| *name == resource).map_or(0.0, |(_, used)| *used);
        if total > 0.0 {
            let percent = 100.0 * used / total;
            registry.set(&table::CLUSTER_UTILIZATION, &[&resource], percent);
        }
    }
}
