//! Options of `nap run` that concern the process: what it serves, how it logs, and the incumbent's
//! options that make no difference to nap.
//!
//! Every option of the incumbent is accepted by its name and its environment variable. One that
//! asks for what nap cannot do is refused by its name; one that makes no difference is logged.

use std::net::IpAddr;

use clap::{ArgAction, Args, ValueEnum};

use crate::user_error::UserError;

/// Headings of `nap run --help`, with the ids of their options. What is not named here stays under
/// the general heading.
const HEADINGS: [(&str, &[&str]); 6] = [
    ("Cluster", &["kubeconfig", "context", "kube_client_qps", "kube_client_burst"]),
    (
        "Decisions",
        &[
            "preference_policy",
            "min_values_policy",
            "scheduler_config",
            "max_pods_per_node",
            "max_vcpus_per_node",
            "max_node_price",
            "node_cost",
            "slack_percent",
            "batch_idle_duration",
            "batch_max_duration",
            "feature_gates",
            "avoid_surplus_nodes",
            "dry_run",
            "take_over",
        ],
    ),
    ("Replicas", &["disable_leader_election", "leader_election_name", "leader_election_namespace"]),
    (
        "Metrics and health",
        &[
            "bind_address",
            "metrics_port",
            "health_probe_port",
            "enable_profiling",
            "disable_cluster_state_observability",
        ],
    ),
    ("Logs", &["log", "log_level", "log_format", "log_output_paths", "log_error_output_paths"]),
    (
        "Accepted for Karpenter's sake",
        &[
            "karpenter_service",
            "disable_controller_warmup",
            "memory_limit",
            "cpu_requests",
            "ignore_dra_requests",
            "legacy_node_repair",
        ],
    ),
];

/// Groups the options of `nap run` by headings.
pub fn group(command: clap::Command) -> clap::Command {
    command.mut_subcommand("run", |run| {
        run.mut_args(|argument| {
            let id = argument.get_id().as_str().to_owned();
            match HEADINGS.iter().find(|(_, ids)| ids.contains(&id.as_str())) {
                Some((heading, _)) => argument.help_heading(*heading),
                None => argument,
            }
        })
    })
}

/// Log levels of the incumbent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Everything
    Debug,
    /// Each decision, warnings and errors
    Info,
    /// Errors only
    Error,
}

/// Formats of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text on a terminal, else JSON
    Auto,
    /// One JSON object per line
    Json,
    /// Text
    Text,
}

/// Options of the process.
#[derive(Clone, Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct OperatorArgs {
    /// Address that metrics and health are served on; 0.0.0.0 in a pod
    #[arg(long, env = "NAP_BIND_ADDRESS", value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub bind_address: IpAddr,
    /// Port of `/metrics`; 0 serves none
    #[arg(long, env = "METRICS_PORT", value_name = "PORT", default_value_t = 8080)]
    pub metrics_port: u16,
    /// Port of `/healthz` and `/readyz`; 0 serves none
    #[arg(long, env = "HEALTH_PROBE_PORT", value_name = "PORT", default_value_t = 8081)]
    pub health_probe_port: u16,
    /// Serve CPU profiles for `go tool pprof` at `/debug/pprof/profile` on the metrics port
    #[arg(long, env = "ENABLE_PROFILING", value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    pub enable_profiling: bool,
    /// Leave out the metrics of single nodes, pods and conditions
    #[arg(long, env = "DISABLE_CLUSTER_STATE_OBSERVABILITY", value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    pub disable_cluster_state_observability: bool,
    /// Level of the log; `--log` is finer and wins
    #[arg(long, env = "LOG_LEVEL", value_name = "LEVEL", default_value = "info", value_parser = log_level)]
    pub log_level: LogLevel,
    /// Format of log lines
    #[arg(long, env = "NAP_LOG_FORMAT", value_name = "FORMAT", default_value = "auto")]
    pub log_format: LogFormat,
    /// Outputs of the log, separated by commas: `stdout`, `stderr` or files
    #[arg(
        long,
        env = "LOG_OUTPUT_PATHS",
        value_name = "PATHS",
        default_value = "stdout",
        value_delimiter = ','
    )]
    pub log_output_paths: Vec<String>,
    /// Outputs of what goes wrong with the log itself
    #[arg(
        long,
        env = "LOG_ERROR_OUTPUT_PATHS",
        value_name = "PATHS",
        default_value = "stderr",
        value_delimiter = ','
    )]
    pub log_error_output_paths: Vec<String>,
    /// Service of the old webhook, which nap does not have; makes no difference
    #[arg(
        long,
        env = "KARPENTER_SERVICE",
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    pub karpenter_service: String,
    /// Replicas that do not lead always keep their index up to date; makes no difference
    #[arg(long, env = "DISABLE_CONTROLLER_WARMUP", value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    pub disable_controller_warmup: bool,
    /// Memory limit for a garbage collector, which nap does not have; makes no difference
    #[arg(long, env = "MEMORY_LIMIT", value_name = "BYTES", default_value_t = -1, allow_negative_numbers = true)]
    pub memory_limit: i64,
    /// CPU of the container in thousandths; nap does not derive its concurrency from it; makes no
    /// difference
    #[arg(
        long,
        env = "CPU_REQUESTS",
        value_name = "MILLICORES",
        default_value_t = 1000,
        allow_negative_numbers = true
    )]
    pub cpu_requests: i64,
    /// Leave pods with dynamic resource claims alone; `false` is refused
    #[arg(long, env = "IGNORE_DRA_REQUESTS", value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    pub ignore_dra_requests: bool,
    /// Karpenter's older repair, which asks no budget; `true` is refused
    #[arg(long, env = "LEGACY_NODE_REPAIR", value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    pub legacy_node_repair: bool,
}

/// A log level; empty is `info`, as with the incumbent.
fn log_level(text: &str) -> Result<LogLevel, String> {
    match text {
        "debug" => Ok(LogLevel::Debug),
        "info" | "" => Ok(LogLevel::Info),
        "error" => Ok(LogLevel::Error),
        _ => Err(format!("`{text}` is not `debug`, `info` or `error`")),
    }
}

impl OperatorArgs {
    /// Fails if an option asks for what nap cannot do.
    pub fn refuse_unsupported(&self) -> anyhow::Result<()> {
        let refused = [
            (
                !self.ignore_dra_requests,
                "--ignore-dra-requests=false (IGNORE_DRA_REQUESTS): nap cannot plan for dynamic resource claims",
                "leave it out: pods with resource claims get an event and no node",
            ),
            (
                self.legacy_node_repair,
                "--legacy-node-repair (LEGACY_NODE_REPAIR): nap repairs within budgets only",
                "leave it out, and use `--feature-gates NodeRepair=true`",
            ),
        ];
        match refused.into_iter().find(|(asked, ..)| *asked) {
            Some((_, message, hint)) => Err(UserError::new(message, hint).into()),
            None => Ok(()),
        }
    }

    /// Logs the options that are set and make no difference.
    pub fn warn(&self) {
        for (is_set, option) in [
            (!self.karpenter_service.is_empty(), "karpenter-service"),
            (self.memory_limit > 0, "memory-limit"),
            (self.cpu_requests != 1000, "cpu-requests"),
        ] {
            if is_set {
                tracing::warn!(option, "this option makes no difference to nap");
            }
        }
    }
}
