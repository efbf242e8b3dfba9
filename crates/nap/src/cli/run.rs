//! Options of `nap run`.

use std::time::Duration;

use clap::Args;

use super::ClusterArgs;
use crate::engine_args::EngineArgs;
use crate::feature_gates::FeatureGateArgs;

/// Options of `nap run`.
#[derive(Clone, Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct RunArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub gates: FeatureGateArgs,
    #[command(flatten)]
    pub operator: crate::run::args::OperatorArgs,
    /// Time without a new pending pod after which a batch is solved
    #[arg(long, env = "BATCH_IDLE_DURATION", value_name = "DURATION", default_value = "1s", value_parser = duration)]
    pub batch_idle_duration: Duration,
    /// Maximum duration of a batch
    #[arg(long, env = "BATCH_MAX_DURATION", value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub batch_max_duration: Duration,
    /// Requests per second to the API server, in the long run
    #[arg(long, env = "KUBE_CLIENT_QPS", value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub kube_client_qps: u32,
    /// Requests to the API server at once, after a quiet time
    #[arg(long, env = "KUBE_CLIENT_BURST", value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub kube_client_burst: u32,
    /// Act without holding the leader election Lease; two such replicas buy everything twice
    #[arg(long, env = "DISABLE_LEADER_ELECTION", value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub disable_leader_election: bool,
    /// Name of the leader election Lease
    #[arg(
        long,
        env = "LEADER_ELECTION_NAME",
        value_name = "NAME",
        default_value = "karpenter-leader-election"
    )]
    pub leader_election_name: String,
    /// Namespace of the leader election Lease; default: the pod's own, or kube-system
    #[arg(long, env = "LEADER_ELECTION_NAMESPACE", value_name = "NAME")]
    pub leader_election_namespace: Option<String>,
    /// Decide and report by events, and write nothing else: no node is launched, changed or removed
    #[arg(long, env = "NAP_DRY_RUN", value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub dry_run: bool,
    /// Taint nodes that the fleet could do without with PreferNoSchedule, so that new pods go to
    /// other nodes and these become empty without evictions
    #[arg(long, env = "NAP_AVOID_SURPLUS_NODES", value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub avoid_surplus_nodes: bool,
    /// Start although AKS runs node auto-provisioning in the cluster, and act on its nodes
    #[arg(long, env = "NAP_TAKE_OVER", value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub take_over: bool,
    /// Speed of timers relative to real time, to match `nap try --speed`
    #[arg(long, env = "NAP_SPEED", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), hide = true)]
    pub speed: u32,
}

fn duration(text: &str) -> Result<Duration, String> {
    let problem = || format!("`{text}` is not a duration such as `1s` or `1m30s`");
    nap_api::duration::parse_go_duration(text).ok_or_else(problem)
}
