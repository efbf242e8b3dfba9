//! `nap run` as an operator sees it: flags, metrics, health and logs.

use std::io::Write;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use nap_controllers::metrics;
use serde_json::Value;

use crate::process::{Cluster, Process, get, nap, output, ports, text};

/// The incumbent's options: flag, variable, a value to try, and what nap says to it: nothing if it
/// is accepted, else a part of the refusal.
const OPTIONS: [(&str, &str, &str, &str); 24] = [
    ("--karpenter-service", "KARPENTER_SERVICE", "karpenter", ""),
    ("--metrics-port", "METRICS_PORT", "0", ""),
    ("--health-probe-port", "HEALTH_PROBE_PORT", "0", ""),
    ("--kube-client-qps", "KUBE_CLIENT_QPS", "100", ""),
    ("--kube-client-burst", "KUBE_CLIENT_BURST", "100", ""),
    ("--enable-profiling", "ENABLE_PROFILING", "true", ""),
    ("--disable-controller-warmup", "DISABLE_CONTROLLER_WARMUP", "false", ""),
    ("--disable-leader-election", "DISABLE_LEADER_ELECTION", "true", ""),
    ("--disable-cluster-state-observability", "DISABLE_CLUSTER_STATE_OBSERVABILITY", "true", ""),
    ("--leader-election-name", "LEADER_ELECTION_NAME", "other", ""),
    ("--leader-election-namespace", "LEADER_ELECTION_NAMESPACE", "karpenter", ""),
    ("--memory-limit", "MEMORY_LIMIT", "1073741824", ""),
    ("--cpu-requests", "CPU_REQUESTS", "2000", ""),
    ("--log-level", "LOG_LEVEL", "error", ""),
    ("--log-output-paths", "LOG_OUTPUT_PATHS", "stdout,stderr", ""),
    ("--log-error-output-paths", "LOG_ERROR_OUTPUT_PATHS", "stderr", ""),
    ("--batch-max-duration", "BATCH_MAX_DURATION", "20s", ""),
    ("--batch-idle-duration", "BATCH_IDLE_DURATION", "2s", ""),
    ("--preference-policy", "PREFERENCE_POLICY", "Ignore", ""),
    ("--min-values-policy", "MIN_VALUES_POLICY", "BestEffort", ""),
    ("--ignore-dra-requests", "IGNORE_DRA_REQUESTS", "false", "dynamic resource claims"),
    ("--feature-gates", "FEATURE_GATES", "NodeRepair=true,StaticCapacity=true", ""),
    ("--scheduler-config", "SCHEDULER_CONFIG", "{}", ""),
    ("--legacy-node-repair", "LEGACY_NODE_REPAIR", "true", "within budgets only"),
];

/// Error of a `nap run` that has no cluster: accepted options get as far as that.
fn refusal(command: &mut Command) -> String {
    command.env("METRICS_PORT", "0").env("HEALTH_PROBE_PORT", "0");
    let output = command.env("KUBECONFIG", "/nowhere").output().expect("nap starts");
    assert!(!output.status.success());
    text(&output.stderr)
}

#[test]
fn every_option_of_the_incumbent_is_accepted_or_refused_by_its_name() {
    for (flag, variable, value, refused) in OPTIONS {
        let by_flag = refusal(&mut nap(&["run", &format!("{flag}={value}")]));
        let mut command = nap(&["run"]);
        let by_variable = refusal(command.env("METRICS_PORT", "0").env(variable, value));
        for said in [by_flag, by_variable] {
            if refused.is_empty() {
                assert!(said.contains("no cluster to run on"), "{flag}: {said}");
            } else {
                assert!(said.contains(refused) && said.contains(flag), "{flag}: {said}");
                assert!(said.contains("hint: "), "{flag}: {said}");
            }
        }
    }
}

#[test]
fn a_bad_value_of_an_option_is_named() {
    for (arguments, said) in [
        (["--log-level=loud", "--metrics-port=0"], "`loud` is not `debug`, `info` or `error`"),
        (["--log-output-paths=/nowhere/log", "--metrics-port=0"], "cannot write to `/nowhere/log`"),
        (["--metrics-port=70000", "--log-level=info"], "--metrics-port"),
    ] {
        let error = refusal(&mut nap(&["run", arguments[0], arguments[1]]));
        assert!(error.contains(said), "{error}");
    }
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let error = text(&output(&["run", "--metrics-port", &port, "--health-probe-port=0"]).stderr);
    let expected = format!("--metrics-port: cannot listen on 127.0.0.1:{port}");
    assert!(error.contains(&expected) && error.contains("hint: "), "{error}");
}

#[test]
fn help_is_grouped_by_headings() {
    let help = text(&output(&["run", "--help"]).stdout);
    let headings = ["Cluster:", "Decisions:", "Replicas:", "Metrics and health:", "Logs:"];
    let positions: Vec<Option<usize>> =
        headings.iter().map(|one| help.find(&format!("\n{one}\n"))).collect();
    assert!(positions.iter().all(Option::is_some), "{positions:?}\n{help}");
    // Only what every command has is left under the general heading.
    let general = help.split_once("\nOptions:\n").expect("it has one").1;
    let general = general.split("\n\n").next().unwrap_or_default();
    assert!(!general.contains("--metrics"), "{general}");
}

/// Sum over the series of a metric whose labels contain a text; `None` if there are none.
fn value(scrape: &str, metric: &str, labels: &str) -> Option<f64> {
    let lines = scrape.lines().filter(|line| {
        let name = line.split(['{', ' ']).next();
        name == Some(metric) && line.contains(labels)
    });
    let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}

const INFLATE: &str = include_str!("../../../../examples/inflate.yaml");

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl")]
fn a_scale_up_and_down_shows_in_metrics_health_and_json_logs() {
    // Slow enough that a busy computer does not cost nap its Lease, and with it some counts.
    let arguments = ["--no-controllers", "--speed", "8", "--vm-delays", "0.2"];
    let cluster = Cluster::start_in_real_time(&arguments);
    let [metrics_port, health_port] = ports();
    let mut command = nap(&["run"]);
    command.envs(cluster.environment()).env_remove("NAP_LOG").stdout(Stdio::piped());
    command.env("METRICS_PORT", metrics_port.to_string());
    command.env("HEALTH_PROBE_PORT", health_port.to_string());
    let nap = Process::start(&mut command);
    let ready = || get(health_port, "/readyz");
    cluster.eventually("it is ready", ready, |answer| {
        answer.as_ref().is_some_and(|(code, _)| *code == 200)
    });
    assert_eq!(get(health_port, "/healthz"), Some((200, "ok".to_owned())));
    assert_eq!(get(health_port, "/metrics").map(|(code, _)| code), Some(404));

    cluster.apply(INFLATE);
    let scrape = || get(metrics_port, "/metrics").map(|(_, body)| body).unwrap_or_default();
    let has = |scrape: &str, metric: &str, labels: &str, least: f64| {
        value(scrape, metric, labels).is_some_and(|value| value >= least)
    };
    let runs = || {
        let scrape = scrape();
        has(&scrape, "karpenter_nodes_created_total", "nodepool=\"default\"", 2.0)
            && has(&scrape, "karpenter_pods_startup_duration_seconds_count", "", 10.0)
    };
    cluster.eventually("the nodes run", runs, |runs| *runs);
    let up = scrape();
    for (metric, labels, least) in [
        ("karpenter_build_info", "version=\"0.1.0\"", 1.0),
        ("karpenter_nodeclaims_created_total", "reason=\"provisioned\"", 2.0),
        ("karpenter_cluster_state_synced", "", 1.0),
        ("karpenter_cluster_state_node_count", "", 2.0),
        ("karpenter_nodepools_usage", "resource_type=\"cpu\",nodepool=\"default\"", 10.0),
        ("karpenter_nodes_allocatable", "resource_type=\"cpu\"", 1.0),
        ("karpenter_nodes_total_pod_requests", "resource_type=\"cpu\"", 1.0),
        ("karpenter_pods_state", "phase=\"Running\"", 1.0),
        ("karpenter_pods_bound_duration_seconds_count", "", 10.0),
        ("karpenter_pods_provisioning_bound_duration_seconds_count", "", 10.0),
        ("karpenter_scheduler_scheduling_duration_seconds_count", "", 1.0),
        ("karpenter_cloudprovider_duration_seconds_count", "method=\"Create\"", 2.0),
        ("karpenter_cluster_utilization_percent", "resource_type=\"cpu\"", 50.0),
        ("operator_status_condition_transitions_total", "type=\"Registered\",status=\"True\"", 2.0),
        ("operator_status_condition_count", "kind=\"NodeClaim\"", 1.0),
        (
            "operator_nodeclaim_status_condition_transitions_total",
            "type=\"Registered\",status=\"True\",reason=\"Registered\",\
             karpenter_azure_com_aksnodeclass=\"default\",karpenter_sh_nodepool=\"default\"",
            2.0,
        ),
        (
            "operator_nodeclaim_status_condition_transition_seconds_count",
            "type=\"Registered\",status=\"Unknown\",to_status=\"True\"",
            2.0,
        ),
        (
            "operator_node_status_condition_count",
            "type=\"Ready\",status=\"True\",reason=\"KubeletReady\",\
             karpenter_azure_com_aksnodeclass=\"default\",karpenter_sh_nodepool=\"default\",\
             karpenter_sh_initialized=\"true\"",
            1.0,
        ),
        ("operator_nodepool_status_condition_current_status_seconds", "type=\"Ready\"", 0.0),
        ("operator_aksnodeclass_status_condition_count", "type=\"Ready\",status=\"True\"", 1.0),
        ("client_go_request_total", "code=\"201\",method=\"POST\"", 2.0),
        ("nap_fleet_cost", "nodepool=\"default\",capacity_type=\"on-demand\"", 0.1),
        ("nap_plan_gap_ratio", "", 0.0),
        ("nap_prices_estimated", "capacity_type=\"spot\"", 0.0),
        ("nap_quota_left_vcpus", "", 1.0),
        ("nap_leader", "", 1.0),
        ("nap_reconcile_duration_seconds_count", "controller=\"provisioner\"", 1.0),
    ] {
        let seen = value(&up, metric, labels);
        let lines: Vec<&str> = up.lines().filter(|line| line.contains(metric)).take(5).collect();
        assert!(seen >= Some(least), "{metric} {labels}: {seen:?} {lines:#?}");
    }

    cluster.ok(&["scale", "deployment", "inflate", "--replicas=0"]);
    let gone =
        || has(&scrape(), "karpenter_nodeclaims_terminated_total", "nodepool=\"default\"", 2.0);
    cluster.eventually("the nodes are gone", gone, |gone| *gone);
    let down = scrape();
    for (metric, labels, least) in [
        ("karpenter_nodeclaims_disrupted_total", "reason=\"empty\"", 1.0),
        (
            "karpenter_voluntary_disruption_decisions_total",
            "decision=\"delete\",reason=\"empty\"",
            1.0,
        ),
        ("karpenter_nodes_terminated_total", "nodepool=\"default\"", 2.0),
        ("karpenter_nodes_drained_total", "nodepool=\"default\"", 2.0),
        ("karpenter_nodeclaims_termination_duration_seconds_count", "", 2.0),
        ("karpenter_nodes_lifetime_duration_seconds_count", "", 2.0),
        (
            "operator_nodeclaim_termination_duration_seconds_count",
            "karpenter_sh_nodepool=\"default\"",
            2.0,
        ),
        ("operator_node_termination_duration_seconds_count", "karpenter_sh_nodepool", 2.0),
    ] {
        let seen = value(&down, metric, labels);
        let lines: Vec<&str> = down.lines().filter(|line| line.contains(metric)).take(5).collect();
        assert!(seen >= Some(least), "{metric} {labels}: {seen:?} {lines:#?}");
    }
    assert_eq!(value(&down, "karpenter_pods_state", "name=\"inflate"), None, "no series outlives");
    // As with the incumbent, whose alerts on these would see conditions such as MemoryPressure.
    assert_eq!(value(&up, "operator_status_condition_count", "kind=\"Node\""), None);

    let log = nap.stop();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
        .collect();
    for line in &lines {
        for key in ["level", "time", "logger", "message", "commit"] {
            assert!(line[key].is_string(), "{key}: {line}");
        }
    }
    let launched = lines.iter().find(|line| line["message"] == "launched nodeclaim");
    let launched = launched.unwrap_or_else(|| panic!("{log}"));
    assert_eq!(launched["controller"], "nodeclaim.lifecycle");
    assert_eq!(launched["NodeClaim"]["name"], launched["name"], "{launched}");
    assert!(launched["reconcileID"].is_string() && launched["level"] == "INFO", "{launched}");
}

/// What Prometheus' linter says of names that are the incumbent's.
const NAMES_OF_THE_INCUMBENT: [&str; 10] = [
    "karpenter_nodepools_cost_total non-counter metrics should not have \"_total\" suffix",
    "karpenter_scheduler_ignored_pods_count non-histogram and non-summary metrics should not have \"_count\" suffix",
    "karpenter_scheduler_pending_pods_by_effective_zone_count non-histogram and non-summary metrics should not have \"_count\" suffix",
    "karpenter_scheduler_unschedulable_pods_count non-histogram and non-summary metrics should not have \"_count\" suffix",
    "karpenter_cluster_state_node_count non-histogram and non-summary metrics should not have \"_count\" suffix",
    "operator_status_condition_count non-histogram and non-summary metrics should not have \"_count\" suffix",
    "operator_nodeclaim_status_condition_count non-histogram and non-summary metrics should not have \"_count\" suffix",
    "operator_nodepool_status_condition_count non-histogram and non-summary metrics should not have \"_count\" suffix",
    "operator_node_status_condition_count non-histogram and non-summary metrics should not have \"_count\" suffix",
    "operator_aksnodeclass_status_condition_count non-histogram and non-summary metrics should not have \"_count\" suffix",
];

#[test]
#[cfg_attr(no_tools, ignore = "promlint is missing; `make controlplane` builds it")]
fn promlint_finds_nothing_but_names_of_the_incumbent() {
    let tools = nap_controlplane_build::tools().expect("the test is ignored without it");
    let mut lint = Command::new(tools.join("promlint"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("promlint starts");
    lint.stdin.take().expect("piped").write_all(metrics::sample().as_bytes()).expect("it reads");
    let said = text(&lint.wait_with_output().expect("it ends").stdout);
    let mut said: Vec<&str> = said.lines().collect();
    said.sort_unstable();
    let mut expected = NAMES_OF_THE_INCUMBENT;
    expected.sort_unstable();
    assert_eq!(said, expected);
}

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl")]
fn disable_launches_nothing_more_and_names_what_is_left() {
    let cluster = Cluster::start_in_real_time(&["--speed", "8", "--vm-delays", "0.2"]);
    let kubeconfig = cluster.kubeconfig.to_str().expect("text").to_owned();
    cluster.apply(INFLATE);
    let running = ["get", "pods", "-o=jsonpath={.items[*].status.phase}"];
    cluster.until("ten pods run", &running, |seen| seen.matches("Running").count() == 10);
    let disabled = output(&["disable", "--kubeconfig", &kubeconfig]);
    let (said, error) = (text(&disabled.stdout), text(&disabled.stderr));
    assert_eq!(disabled.status.code(), Some(2), "{said}{error}");
    assert!(said.contains("nodepool default: limits.cpu is 0 and nodes are tainted"), "{said}");
    assert!(said.contains("(default): waiting, "), "{said}");
    assert!(error.contains("2 node(s) of NodePools are left"), "{error}");
    cluster.ok(&["scale", "deployment", "inflate", "--replicas=0"]);
    let waited = output(&["disable", "--wait", "--timeout=2m", "--kubeconfig", &kubeconfig]);
    let said = text(&waited.stdout);
    assert!(waited.status.success(), "{said}{}", text(&waited.stderr));
    for part in ["disabled before", ": gone", "no node of a NodePool is left"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    cluster.ok(&["scale", "deployment", "inflate", "--replicas=3"]);
    let told = ["get", "events", "--field-selector=reason=FailedScheduling", "-o=name"];
    cluster.until("the pods are refused", &told, |seen| !seen.is_empty());
    assert!(cluster.ok(&["get", "nodeclaims", "-o=name"]).is_empty());
}
