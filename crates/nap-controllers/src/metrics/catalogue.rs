//! The table of metrics. `docs/metrics.md` is made from it.
//!
//! Names, types and labels with the prefixes `karpenter_`, `operator_` and `client_go_` are the
//! incumbent's, so that dashboards and alerts go on working; those with `nap_` are ours.

use super::registry::{Metric, MetricKind};
use super::status::{self, StatusMetrics};

/// Buckets of most durations, as the incumbent has them.
const DURATIONS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9,
    1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0,
    25.0, 30.0, 40.0, 50.0, 60.0, 120.0, 150.0, 300.0, 450.0, 600.0,
];
/// Default buckets of Prometheus clients.
const DEFAULT: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Powers of two up to 1,024 s, and up to 2,048 s.
const INSTANCE_TERMINATION: &[f64] =
    &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];
const TERMINATION: &[f64] =
    &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0];
/// From 15 minutes to 30 days.
const LIFETIMES: &[f64] = &[
    900.0,
    1800.0,
    2700.0,
    3600.0,
    7200.0,
    14400.0,
    21600.0,
    28800.0,
    36000.0,
    43200.0,
    57600.0,
    72000.0,
    86400.0,
    172_800.0,
    259_200.0,
    432_000.0,
    864_000.0,
    1_296_000.0,
    1_728_000.0,
    2_160_000.0,
    2_592_000.0,
];
/// From half a second, doubled fourteen times.
pub(super) const TRANSITIONS: &[f64] = &[
    0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0,
];

/// Labels of the gauges of one node, besides the resource: the last part of each well-known label,
/// and what is known of the node.
const NODE: &[&str] = &[
    "nodepool",
    "capacity_type",
    "zone",
    "region",
    "instance_type",
    "arch",
    "os",
    "windows_build",
    "sku_name",
    "sku_family",
    "sku_series",
    "sku_version",
    "sku_cpu",
    "sku_memory",
    "sku_gpu_name",
    "sku_gpu_manufacturer",
    "sku_gpu_count",
    "sku_networking_accelerated",
    "sku_storage_premium_capable",
    "sku_storage_ephemeralos_maxsize",
    "sku_storage_ultra_ssd",
    "sku_hyperv_generation",
    "placement_scope",
    "cluster",
    "mode",
    "scalesetpriority",
    "priority",
    "os_sku",
    "fips_enabled",
    "node_name",
    "phase",
    "managed",
];

/// [`NODE`] and the resource.
const NODE_RESOURCE: &[&str] = &concat();

const fn concat() -> [&'static str; NODE.len() + 1] {
    let mut all = [""; NODE.len() + 1];
    let mut position = 0;
    while position < NODE.len() {
        all[position] = NODE[position];
        position += 1;
    }
    all[NODE.len()] = "resource_type";
    all
}

/// Labels of a disruption.
const DISRUPTED: &[&str] =
    &["reason", "nodepool", "capacity_type", "consolidation_policy", "termination_mode"];
const DECISION: &[&str] = &["decision", "reason", "consolidation_type"];
const POD: &[&str] = &["name", "namespace"];

macro_rules! metrics {
    ($($constant:ident = $name:literal, $kind:expr, $labels:expr, $help:literal;)*) => {
        $(#[doc = $help] pub static $constant: Metric =
            Metric { name: $name, kind: $kind, labels: $labels, help: $help };)*
        static TABLE: &[&Metric] = &[$(&$constant),*];
    };
}

use MetricKind::{Counter, Gauge, Histogram, Summary};

/// Every metric, in the order of the documentation.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    let by_kind = status::KINDS.iter().flat_map(StatusMetrics::metrics);
    TABLE.iter().copied().chain(by_kind)
}

metrics! {
    BUILD_INFO = "karpenter_build_info", Gauge, &["version", "goversion", "goarch", "commit"],
        "Version, compiler, architecture and commit of the running binary; always 1";

    NODECLAIMS_CREATED = "karpenter_nodeclaims_created_total", Counter,
        &["reason", "nodepool", "min_values_relaxed"],
        "NodeClaims that were created, by reason";
    NODECLAIMS_TERMINATED = "karpenter_nodeclaims_terminated_total", Counter,
        &["nodepool", "capacity_type", "zone"],
        "NodeClaims whose deletion was completed";
    NODECLAIMS_DISRUPTED = "karpenter_nodeclaims_disrupted_total", Counter, DISRUPTED,
        "NodeClaims whose deletion was decided, by reason";
    NODECLAIMS_UNHEALTHY_DISRUPTED = "karpenter_nodeclaims_unhealthy_disrupted_total", Counter,
        &["condition", "nodepool", "capacity_type", "image_id", "termination_mode"],
        "NodeClaims whose node was repaired, by the condition of the node";
    NODECLAIMS_INSTANCE_TERMINATION_DURATION =
        "karpenter_nodeclaims_instance_termination_duration_seconds",
        Histogram(INSTANCE_TERMINATION), &["nodepool"],
        "Time from the request to delete an instance until it is gone";
    NODECLAIMS_TERMINATION_DURATION = "karpenter_nodeclaims_termination_duration_seconds",
        Histogram(TERMINATION), &["nodepool"],
        "Time from the deletion of a NodeClaim until it is gone";

    NODES_CREATED = "karpenter_nodes_created_total", Counter, &["nodepool", "zone"],
        "Nodes that were registered";
    NODES_TERMINATED = "karpenter_nodes_terminated_total", Counter, &["nodepool", "zone"],
        "Nodes whose deletion was completed";
    NODES_DRAINED = "karpenter_nodes_drained_total", Counter, &["nodepool"],
        "Nodes whose drain was completed";
    NODES_TERMINATION_DURATION = "karpenter_nodes_termination_duration_seconds", Summary,
        &["nodepool"],
        "Time from the deletion of a Node until it is gone";
    NODES_LIFETIME_DURATION = "karpenter_nodes_lifetime_duration_seconds", Histogram(LIFETIMES),
        &["nodepool"],
        "Age of Nodes when they are gone";
    NODES_ALLOCATABLE = "karpenter_nodes_allocatable", Gauge, NODE_RESOURCE,
        "Resources of a Node for pods";
    NODES_TOTAL_POD_REQUESTS = "karpenter_nodes_total_pod_requests", Gauge, NODE_RESOURCE,
        "Requests of the pods of a Node, without those of DaemonSets";
    NODES_TOTAL_DAEMON_REQUESTS = "karpenter_nodes_total_daemon_requests", Gauge, NODE_RESOURCE,
        "Requests of the DaemonSet pods of a Node";
    NODES_SYSTEM_OVERHEAD = "karpenter_nodes_system_overhead", Gauge, NODE_RESOURCE,
        "Capacity of a Node that is not allocatable";
    NODES_CURRENT_LIFETIME = "karpenter_nodes_current_lifetime_seconds", Gauge, NODE,
        "Age of a Node";

    PODS_EVICTION_REQUESTS = "karpenter_pods_eviction_requests_total", Counter, &["code"],
        "Requests to evict a pod, by HTTP status";
    PODS_DRAINED = "karpenter_pods_drained_total", Counter, &["reason"],
        "Pods that were evicted or deleted in a drain, by the reason of the disruption";
    PODS_DISRUPTION_INITIATED = "karpenter_pods_disruption_initiated_total", Counter, DISRUPTED,
        "Pods of nodes whose disruption was decided";
    PODS_STATE = "karpenter_pods_state", Gauge,
        &["name", "namespace", "owner", "node", "scheduled", "nodepool", "zone", "arch",
          "capacity_type", "instance_type", "phase", "ready", "managed"],
        "State of a pod; always 1";
    PODS_STARTUP_DURATION = "karpenter_pods_startup_duration_seconds", Summary, &[],
        "Time from the creation of a pod until it is ready";
    PODS_BOUND_DURATION = "karpenter_pods_bound_duration_seconds", Histogram(DURATIONS),
        &["dynamic_resources"],
        "Time from the creation of a pod until it is bound";
    PODS_PROVISIONING_BOUND_DURATION = "karpenter_pods_provisioning_bound_duration_seconds",
        Histogram(DURATIONS), &["dynamic_resources"],
        "Time from when a pod was first seen unschedulable until it is bound";
    PODS_PROVISIONING_STARTUP_DURATION = "karpenter_pods_provisioning_startup_duration_seconds",
        Histogram(DURATIONS), &[],
        "Time from when a pod was first seen unschedulable until it is ready";
    PODS_SCHEDULING_DECISION_DURATION = "karpenter_pods_scheduling_decision_duration_seconds",
        Histogram(DURATIONS), &[],
        "Time from when a pod was first seen unschedulable until it was first planned for";
    PODS_UNSTARTED_TIME = "karpenter_pods_unstarted_time_seconds", Gauge, POD,
        "Age of a pod that is not ready and was never";
    PODS_UNBOUND_TIME = "karpenter_pods_unbound_time_seconds", Gauge,
        &["name", "namespace", "dynamic_resources"],
        "Age of a pod that is not bound";
    PODS_PROVISIONING_UNBOUND_TIME = "karpenter_pods_provisioning_unbound_time_seconds", Gauge,
        &["name", "namespace", "dynamic_resources"],
        "Time since an unbound pod was first seen unschedulable";
    PODS_PROVISIONING_UNSTARTED_TIME = "karpenter_pods_provisioning_unstarted_time_seconds", Gauge,
        POD,
        "Time since a pod that is not ready was first seen unschedulable";
    PODS_SCHEDULING_UNDECIDED_TIME =
        "karpenter_pods_provisioning_scheduling_undecided_time_seconds", Gauge, POD,
        "Time since an unschedulable pod was first seen that was not planned for yet";

    SCHEDULING_DURATION = "karpenter_scheduler_scheduling_duration_seconds", Histogram(DURATIONS),
        &["controller"],
        "Time that a plan takes";
    QUEUE_DEPTH = "karpenter_scheduler_queue_depth", Gauge, &["controller", "scheduling_id"],
        "Pods of the plan that is being made";
    UNFINISHED_WORK = "karpenter_scheduler_unfinished_work_seconds", Gauge,
        &["controller", "scheduling_id"],
        "Time since the plan that is being made was begun";
    IGNORED_PODS = "karpenter_scheduler_ignored_pods_count", Gauge, &[],
        "Pending pods with a constraint that cannot be planned for";
    UNSCHEDULABLE_PODS = "karpenter_scheduler_unschedulable_pods_count", Gauge, &["controller"],
        "Pods that the last plan has no place for";
    PENDING_PODS_BY_ZONE = "karpenter_scheduler_pending_pods_by_effective_zone_count", Gauge,
        &["controller", "zone"],
        "Pods of the last plan by the zone that they must run in, or flexible";

    DECISION_EVALUATION_DURATION =
        "karpenter_voluntary_disruption_decision_evaluation_duration_seconds",
        Histogram(DURATIONS), &["reason", "consolidation_type"],
        "Time that a disruption pass takes, by what it found";
    DECISIONS = "karpenter_voluntary_disruption_decisions_total", Counter, DECISION,
        "Disruption commands that were started";
    DECISIONS_BY_NODEPOOL = "karpenter_voluntary_disruption_decisions_by_nodepool_total", Counter,
        &["nodepool", "decision", "reason", "consolidation_type"],
        "Nodes of a NodePool whose disruption was started";
    ELIGIBLE_NODES = "karpenter_voluntary_disruption_eligible_nodes", Gauge, &["reason"],
        "Nodes that could be disrupted for a reason, budgets aside";
    CONSOLIDATION_TIMEOUTS = "karpenter_voluntary_disruption_consolidation_timeouts_total", Counter,
        &["consolidation_type"],
        "Searches for a consolidation that were cut short; always 0, as they end by effort";
    FAILED_VALIDATIONS = "karpenter_voluntary_disruption_failed_validations_total", Counter,
        &["consolidation_type"],
        "Disruption commands that no longer stood when they were to start";
    QUEUE_FAILURES = "karpenter_voluntary_disruption_queue_failures_total", Counter, DECISION,
        "Nodes whose disruption was rolled back";
    ALLOWED_DISRUPTIONS = "karpenter_nodepools_allowed_disruptions", Gauge, &["nodepool", "reason"],
        "Nodes of a NodePool that may be disrupted now";
    NODES_CONSUMING_BUDGETS = "karpenter_nodepools_nodes_consuming_budgets", Gauge,
        &["nodepool", "reason"],
        "Nodes of a NodePool that use up its budgets: they leave, or are not ready";
    CONSOLIDATION_MOVES = "karpenter_consolidation_moves_total", Counter,
        &["decision", "nodepool", "policy"],
        "Consolidation commands that were started, by the policy of the NodePool";

    NODE_COUNT = "karpenter_cluster_state_node_count", Gauge, &[],
        "Nodes and NodeClaims in the index";
    STATE_SYNCED = "karpenter_cluster_state_synced", Gauge, &[],
        "1 once every kind was listed and while no watch is stale, else 0";
    STATE_UNSYNCED_TIME = "karpenter_cluster_state_unsynced_time_seconds", Gauge, &[],
        "Time since the index was last complete; 0 while it is";
    NODEPOOLS_LIMIT = "karpenter_nodepools_limit", Gauge, &["resource_type", "nodepool"],
        "Limits of a NodePool";
    NODEPOOLS_USAGE = "karpenter_nodepools_usage", Gauge, &["resource_type", "nodepool"],
        "Capacity of the NodeClaims of a NodePool";
    NODEPOOLS_COST = "karpenter_nodepools_cost_total", Gauge, &["nodepool"],
        "Price of the nodes of a NodePool in dollars per hour";
    COST_ERRORS = "karpenter_nodepools_cost_tracker_errors_total", Counter, &["nodepool"],
        "Nodes whose price was not known when the cost was read";
    CLUSTER_UTILIZATION = "karpenter_cluster_utilization_percent", Gauge, &["resource_type"],
        "Share of the allocatable resources of all nodes that pods request, in percent";

    CLOUD_DURATION = "karpenter_cloudprovider_duration_seconds", Histogram(DEFAULT),
        &["controller", "method", "provider"],
        "Time that calls of the cloud provider take";
    CLOUD_ERRORS = "karpenter_cloudprovider_errors_total", Counter,
        &["controller", "method", "provider", "error", "nodepool"],
        "Calls of the cloud provider that failed";

    CONDITION_COUNT = "operator_status_condition_count", Gauge,
        &["group", "kind", "namespace", "name", "type", "status", "reason"],
        "Conditions of an object; always 1";
    CONDITION_SECONDS = "operator_status_condition_current_status_seconds", Gauge,
        &["group", "kind", "namespace", "name", "type", "status", "reason"],
        "Time since the last transition of a condition";
    CONDITION_TRANSITIONS = "operator_status_condition_transitions_total", Counter,
        &["group", "kind", "type", "status", "reason"],
        "Transitions of a condition into a status";
    CONDITION_TRANSITION_SECONDS = "operator_status_condition_transition_seconds",
        Histogram(TRANSITIONS), &["group", "kind", "type", "status", "to_status"],
        "Time that a condition was in a status before it changed";
    OBJECT_TERMINATION_SECONDS = "operator_termination_current_time_seconds", Gauge,
        &["group", "kind", "namespace", "name"],
        "Time since the deletion of an object that is still there";
    OBJECT_TERMINATION_DURATION = "operator_termination_duration_seconds", Histogram(TRANSITIONS),
        &["group", "kind"],
        "Time from the deletion of an object until it is gone";

    CLIENT_DURATION = "client_go_request_duration_seconds", Histogram(DEFAULT),
        &["verb", "group", "version", "kind", "subresource"],
        "Time until the API server answers, without watches";
    CLIENT_REQUESTS = "client_go_request_total", Counter, &["code", "method"],
        "Requests to the API server";

    FLEET_COST = "nap_fleet_cost", Gauge, &["nodepool", "capacity_type"],
        "Price of the nodes in dollars per hour";
    PRICES_ESTIMATED = "nap_prices_estimated", Gauge, &["capacity_type"],
        "1 if prices of the capacity type are estimates, in every cost of these metrics";
    PLAN_COST = "nap_plan_cost", Gauge, &[],
        "Price of the nodes that the last plan launches in dollars per hour";
    PLAN_GAP = "nap_plan_gap_ratio", Gauge, &[],
        "Cost of the last plan above the proven lower bound, as a fraction of the bound";
    DECISION_OUTCOMES = "nap_decision_outcomes_total", Counter, &["kind", "reason", "outcome"],
        "Decisions by what came of them: Realised, RolledBack, Undone or Failed";
    EVICTIONS = "nap_evictions_total", Counter, &["nodepool", "reason"],
        "Pods that were evicted or deleted in a drain, by NodePool and reason of the disruption";
    QUOTA_LEFT = "nap_quota_left_vcpus", Gauge, &["quota"],
        "vCPUs that are left of a quota of the subscription, launches under way taken off";
    UNAVAILABLE = "nap_unavailable_offerings", Gauge, &["capacity_type", "cause"],
        "Offerings, and groups of them, that are not tried for a while after a failure";
    LEADER = "nap_leader", Gauge, &[],
        "1 while this replica acts, else 0";
    PENDING_PODS = "nap_pending_pods", Gauge, &[],
        "Pods that wait for a node";
    RECONCILE_DURATION = "nap_reconcile_duration_seconds", Histogram(DEFAULT), &["controller"],
        "Time that a reconcile takes, waits for the cloud included";
    RECONCILE_ERRORS = "nap_reconcile_errors_total", Counter, &["controller"],
        "Reconciles that failed and are retried";
    EVENTS = "nap_events_total", Counter, &["type", "reason"],
        "Kubernetes events that were queued to be posted";
    EVENTS_DROPPED = "nap_events_dropped_total", Counter, &[],
        "Kubernetes events that were dropped because too many wait";
    SERIES_DROPPED = "nap_metrics_series_dropped_total", Counter, &["metric"],
        "Series that were left out because their metric has too many";
}

/// Metrics of the incumbent that nap does not have, and why. `docs/compatibility.md` lists them.
pub const MISSING: &[(&str, &str)] = &[
    (
        "karpenter_nodes_total_pod_limits",
        "no decision reads limits, so the index does not keep them; kube-state-metrics has them",
    ),
    ("karpenter_nodes_total_daemon_limits", "as for pods"),
    (
        "karpenter_consolidation_score",
        "a decision is about the whole fleet and has no score per move; `nap decisions` has savings",
    ),
    (
        "karpenter_voluntary_disruption_terminate_first_decisions_total",
        "nap never terminates first",
    ),
    ("karpenter_nodes_reboots_total", "nap does not reboot nodes"),
    ("karpenter_nodes_reboot_duration_seconds", "nap does not reboot nodes"),
    ("karpenter_nodes_reboot_recovery_duration_seconds", "nap does not reboot nodes"),
    (
        "karpenter_pod_deletion_cost_nodes_with_pending_annotation_writes",
        "nap does not write pod deletion costs",
    ),
    (
        "karpenter_pod_deletion_cost_pod_annotation_writes_total",
        "nap does not write pod deletion costs",
    ),
    ("operator_capacitybuffer_*", "nap does not act on CapacityBuffers"),
    (
        "karpenter_instance_vm_create_start_total",
        "of VMs that the provider creates by itself; nap's are machines of AKS, counted in \
         `karpenter_nodeclaims_created_total`",
    ),
    (
        "karpenter_instance_vm_create_failure_total",
        "as above; failures are in `karpenter_nodeclaims_disrupted_total` and \
         `karpenter_cloudprovider_errors_total`",
    ),
    (
        "karpenter_image_selection_error_count",
        "a class without an image is not ready: `operator_aksnodeclass_status_condition_count`",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use nap_api::labels;

    /// The incumbent's metrics at v1.15.0: name, type, labels. `*` stands for the labels of nodes.
    const INCUMBENT: &str = include_str!("incumbent.txt");

    #[test]
    fn every_metric_of_the_incumbent_is_there_or_has_its_reason() {
        let missing: BTreeSet<&str> = MISSING.iter().map(|(name, _)| *name).collect();
        let lines = INCUMBENT.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let mut seen = 0;
        for line in lines {
            let mut words = line.split(' ');
            let (name, kind) = (words.next().unwrap(), words.next().unwrap());
            let labels: BTreeSet<&str> =
                words.next().unwrap_or_default().split(',').filter(|one| !one.is_empty()).collect();
            seen += 1;
            let Some(metric) = all().find(|metric| metric.name == name) else {
                assert!(missing.contains(name), "{name} is neither there nor excused");
                continue;
            };
            assert!(!missing.contains(name), "{name} is there and excused");
            assert_eq!(metric.kind.as_str(), kind, "{name}");
            let own: BTreeSet<&str> = metric.labels.iter().copied().collect();
            if labels.contains("*") {
                let fixed: BTreeSet<&str> = labels.into_iter().filter(|one| *one != "*").collect();
                assert!(fixed.is_subset(&own), "{name}: {own:?}");
            } else {
                assert_eq!(own, labels, "{name}");
            }
        }
        assert!(seen > 60, "the list was read: {seen}");
    }

    #[test]
    fn labels_of_nodes_are_the_last_parts_of_the_well_known_labels() {
        let parts = labels::WELL_KNOWN.iter().map(|label| {
            let (_, part) = label.split_once('/').unwrap();
            part.replace('-', "_")
        });
        let mut expected: Vec<String> = Vec::new();
        for part in parts {
            if !expected.contains(&part) {
                expected.push(part);
            }
        }
        expected.extend(["node_name", "phase", "managed"].map(str::to_owned));
        assert_eq!(NODE, expected);
    }

    #[test]
    fn names_are_unique_and_sentences_plain() {
        let names: BTreeSet<&str> = all().map(|metric| metric.name).collect();
        assert_eq!(names.len(), all().count());
        for metric in all() {
            assert!(!metric.help.ends_with('.') && metric.help.len() > 10, "{}", metric.name);
            let ours = metric.name.starts_with("nap_");
            let is_counter = metric.kind == MetricKind::Counter;
            assert!(!ours || is_counter == metric.name.ends_with("_total"), "{}", metric.name);
        }
    }
}
