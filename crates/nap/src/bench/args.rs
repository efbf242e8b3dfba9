//! Command line of `nap bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use nap_problem::generate::deployments::Case;
use nap_problem::generate::fleets::FleetKind;

/// Options of `nap bench`.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub(super) command: Option<BenchCommand>,
    /// Problem files to solve; default: generated plain pods and the incumbent's mix
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(super) problem: Vec<PathBuf>,
    /// Output file of the plan; with several problems, output folder
    #[arg(long, value_name = "OUT")]
    pub(super) plan: Option<PathBuf>,
    /// Number of solves per problem
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) repeat: u32,
    /// Print one JSON object per problem instead of a table
    #[arg(long)]
    pub(super) json: bool,
    /// Azure region of generated problems
    #[arg(long, default_value = "eastus", value_parser = crate::cli::region)]
    pub(super) region: String,
}

#[derive(Clone, Debug, Subcommand)]
pub(super) enum BenchCommand {
    /// Generate a problem file
    Gen(GenArgs),
    /// Check a plan for a problem: violations and cost
    Judge(JudgeArgs),
    /// Run nap and another solver alternately on one core, judge both plans, print one table
    Compare(CompareArgs),
    /// Measure memory, start-up, latency and CPU of `nap run` on a synthetic cluster
    Controllers(ControllersArgs),
    /// Launch a burst of machines on the emulated Azure with tight quotas, in virtual time
    Launches(LaunchesArgs),
    /// Consolidate fleets until nothing is left to save: times, savings, moves, distance to the
    /// lower bound
    Disruption(DisruptionArgs),
    /// Simulate the week of a cluster under several policies: dollars, evictions, pods without a
    /// node, and checks that must hold at every instant
    Week(WeekArgs),
    /// Measure the embedded API server: requests per CPU second, memory, watch fan-out
    Apiserver(super::apiserver::ApiServerArgs),
}

/// Options of `nap bench week`.
#[derive(Clone, Debug, Args)]
pub(super) struct WeekArgs {
    /// Number of days
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(i64).range(1..=28))]
    pub(super) days: i64,
    /// Approximate number of nodes at the peak
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(i64).range(5..=2000))]
    pub(super) nodes: i64,
    /// Policies to compare
    #[arg(long, value_enum, num_args = 1.., default_values = ["nap-when-empty", "nap-underutilized", "nap-balanced", "model-underutilized", "model-balanced"])]
    pub(super) policy: Vec<WeekPolicy>,
    /// Random seed of the week
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Azure region of the VM sizes and prices
    #[arg(long, default_value = "eastus", value_parser = crate::cli::region)]
    pub(super) region: String,
    /// Print one JSON object per policy instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

/// Policies of `nap bench week`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum WeekPolicy {
    /// nap with `consolidationPolicy: WhenEmpty`
    NapWhenEmpty,
    /// nap with `consolidationPolicy: WhenEmptyOrUnderutilized`
    NapUnderutilized,
    /// nap with `consolidationPolicy: Balanced`
    NapBalanced,
    /// A model of the incumbent's rules for `WhenEmptyOrUnderutilized`
    ModelUnderutilized,
    /// A model of the incumbent's rules for `Balanced`
    ModelBalanced,
}

impl WeekPolicy {
    /// Whether nap's rules against churn apply.
    pub(super) fn is_governed(self) -> bool {
        !matches!(self, Self::ModelUnderutilized | Self::ModelBalanced)
    }
}

/// Options of `nap bench disruption`.
#[derive(Clone, Debug, Args)]
pub(super) struct DisruptionArgs {
    /// Problem files with nodes and no pending pods; default: generated fleets
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(super) problem: Vec<PathBuf>,
    /// Kinds of generated fleets
    #[arg(long, value_enum, num_args = 1.., default_values = ["plain"])]
    pub(super) fleet: Vec<FleetKind>,
    /// Numbers of nodes of generated fleets
    #[arg(long, value_name = "N", num_args = 1.., default_values_t = [100, 500, 1000, 5000, 15_000], value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) nodes: Vec<u32>,
    /// Percents of the pods that are removed from packed fleets
    #[arg(long, value_name = "PERCENT", num_args = 1.., default_values_t = [20, 40, 60], value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(super) churn: Vec<u32>,
    /// Disruption budgets, in percent of the nodes of a pool
    #[arg(long, value_name = "PERCENT", num_args = 1.., default_values_t = [10, 100], value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) budget: Vec<u32>,
    /// Random seed of generated fleets
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Azure region of generated fleets
    #[arg(long, default_value = "eastus", value_parser = crate::cli::region)]
    pub(super) region: String,
    /// Seconds after which a fleet is left as it is, although more could be saved
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(super) limit: u32,
    /// Maximum number of nodes of fleets whose steps are all judged
    #[arg(long, value_name = "N", default_value_t = 5000)]
    pub(super) judge_up_to: usize,
    /// The other consolidation: a program with the options `--problem`, `--budget`, `--limit` and
    /// `--steps`, such as `bench/karpenter`; both then run pinned to one core, in turn
    #[arg(long, value_name = "BINARY")]
    pub(super) peer: Option<PathBuf>,
    /// Maximum number of nodes for the other consolidation
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub(super) peer_up_to: usize,
    /// CPU core that both are pinned to
    #[arg(long, default_value_t = 0)]
    pub(super) core: u32,
    /// Output file of the steps of the last fleet
    #[arg(long, value_name = "FILE")]
    pub(super) steps: Option<PathBuf>,
    /// Print one JSON object per fleet and budget instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

/// Options of `nap bench launches`.
#[derive(Clone, Debug, Args)]
pub(super) struct LaunchesArgs {
    /// Number of machines
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(super) machines: usize,
    /// Region
    #[arg(long, value_name = "REGION", default_value = "eastus")]
    pub(super) region: String,
    /// vCPUs of quota of each VM family; by default those of the published mix of failures
    #[arg(long, value_name = "VCPUS", value_parser = clap::value_parser!(i64).range(2..))]
    pub(super) family_quota: Option<i64>,
    /// Number of waves in which the machines are wanted, a minute apart
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) waves: u32,
    /// Seed of the emulated Azure
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
}

/// Options of `nap bench controllers`.
#[derive(Clone, Debug, Args)]
pub(super) struct ControllersArgs {
    /// Numbers of nodes, one measurement each
    #[arg(long, value_name = "N", num_args = 1.., default_values_t = [1000, 5000])]
    pub(super) nodes: Vec<usize>,
    /// Running pods on each node
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub(super) pods_per_node: usize,
    /// Sizes of bursts of pending pods
    #[arg(long, value_name = "N", num_args = 0.., default_values_t = [1000])]
    pub(super) burst: Vec<usize>,
    /// Number of bursts of each size, one after the other; a p99 needs a hundred
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(super) repeat: usize,
    /// Seconds over which CPU time at rest is measured
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(super) rest: u64,
    /// Azure region of the VM sizes and prices
    #[arg(long, default_value = "eastus", value_parser = crate::cli::region)]
    pub(super) region: String,
    /// The `nap` whose controllers are measured; default: this one
    #[arg(long, value_name = "BINARY")]
    pub(super) nap: Option<PathBuf>,
    /// Log file of `nap run`
    #[arg(long, value_name = "FILE", default_value = "/dev/null")]
    pub(super) run_log: PathBuf,
    /// Print one JSON object per measurement instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

/// Options of `nap bench gen`.
#[derive(Clone, Debug, Args)]
pub(super) struct GenArgs {
    /// ProblemKind of problem
    #[arg(value_enum)]
    pub(super) kind: ProblemKind,
    /// Number of pods, for kinds without a fixed number
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) pods: u32,
    /// Random seed; the same arguments give the same file
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Catalogue of instance types; the default depends on the kind
    #[arg(long, value_enum)]
    pub(super) catalogue: Option<CatalogueKind>,
    /// Keep this many instance types, evenly from small to large
    #[arg(long, value_name = "COUNT")]
    pub(super) types: Option<usize>,
    /// Azure region of the catalogue
    #[arg(long, default_value = "eastus", value_parser = crate::cli::region)]
    pub(super) region: String,
    /// Case of the performance suite, for `deployments`
    #[arg(long, value_enum, default_value = "basic")]
    pub(super) case: Case,
    /// Handling of preferences, for `preferences`
    #[arg(long, value_enum, default_value = "ignore")]
    pub(super) policy: Policy,
    /// CSV file with the columns `cpu_milli` and `memory_mib`, optionally `replicas` and `gpu`, for
    /// `trace`
    #[arg(long, value_name = "FILE")]
    pub(super) csv: Option<PathBuf>,
    /// Number of repetitions of each pod, for `trace`
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) times: u32,
    /// Add eight small daemons to every node
    #[arg(long)]
    pub(super) daemons: bool,
    #[command(flatten)]
    pub(super) fleet: FleetArgs,
    /// Output file; default: standard output
    #[arg(short, long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
}

/// Options of `nap bench gen fleet`.
#[derive(Clone, Debug, Args)]
pub(super) struct FleetArgs {
    /// Kind of fleet, for `fleet`
    #[arg(long, value_enum, default_value = "plain")]
    pub(super) fleet: FleetKind,
    /// Number of nodes, for `fleet`; default: as many as `--pods` pods need
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) nodes: Option<u32>,
    /// Percent of the pods that are removed again, for `fleet`; default: 40 for packed fleets
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(super) churn: Option<u32>,
    /// Leave out larger instance types, for `fleet`
    #[arg(long, value_name = "VCPUS", default_value_t = 16)]
    pub(super) max_cpu: u32,
    /// Solver whose plan packs the pods, such as `bench/karpenter`, for `fleet`; default: first fit
    /// in the incumbent's order
    #[arg(long, value_name = "BINARY")]
    pub(super) packer: Option<PathBuf>,
}

impl Default for FleetArgs {
    fn default() -> Self {
        Self { fleet: FleetKind::Plain, nodes: None, churn: None, max_cpu: 16, packer: None }
    }
}

/// Kinds of problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ProblemKind {
    /// Pods of the incumbent's benchmark: plain, zone spread, host spread, zone affinity, host
    /// anti-affinity
    Mix,
    /// Only the plain pods of the mix
    Plain,
    /// Preference pods of the incumbent's benchmark, with preferences ignored
    Preferences,
    /// Deployments of the incumbent's performance suite
    Deployments,
    /// Cluster Autoscaler's packing case: 51,000 pods that need exactly 2,595 nodes
    Golden,
    /// Pods from a CSV file
    Trace,
    /// Pods of which no two have equal requests
    Distinct,
    /// Equal pods
    OneClass,
    /// Pods of a tenth to nine tenths of the largest instance type
    Giants,
    /// A hundred NodePools with taints and labels of their own
    Pools,
    /// Three NodePools whose limits hold about two thirds of the pods
    Limits,
    /// Plain pods and a thousand unschedulable ones
    Unschedulable,
    /// Nodes with pods on them and no pending pods, for `nap bench disruption`
    Fleet,
}

/// Catalogues of instance types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum CatalogueKind {
    /// The 400 synthetic types of the incumbent's benchmark
    Fake400,
    /// 1,500 synthetic types in three memory ratios, in four zones, on demand and spot
    Fake1500,
    /// The 144 synthetic types of the incumbent's performance suite
    Kwok,
    /// Azure's D family, version 5 or later, on demand
    D,
    /// Azure's D, E and F families up to 64 vCPUs, on demand
    Def64,
    /// Every Azure type of the region, on demand and spot
    Azure,
}

/// Handling of preferences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Policy {
    /// Honor preferences as long as possible; not supported by the format
    Respect,
    /// Ignore preferences
    Ignore,
}

/// Options of `nap bench judge`.
#[derive(Clone, Debug, Args)]
pub(super) struct JudgeArgs {
    /// Problem file
    pub(super) problem: PathBuf,
    /// Plan file
    pub(super) plan: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(super) json: bool,
}

/// Options of `nap bench compare`.
#[derive(Clone, Debug, Args)]
pub(super) struct CompareArgs {
    /// Problem files
    #[arg(required = true)]
    pub(super) problems: Vec<PathBuf>,
    /// The other solver: a program with the options `--problem`, `--plan` and `--repeat`, such as
    /// `bench/karpenter`; default: only nap is measured
    #[arg(long, value_name = "BINARY")]
    pub(super) peer: Option<PathBuf>,
    /// Number of rounds, in each of which both solvers run
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) rounds: u32,
    /// Number of solves per round
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) repeat: u32,
    /// Maximum number of pods for the other solver; larger problems are measured with nap only
    #[arg(long, default_value_t = 5000, value_name = "PODS")]
    pub(super) peer_up_to: usize,
    /// CPU core that both solvers are pinned to
    #[arg(long, default_value_t = 0)]
    pub(super) core: u32,
    /// Also write the table with its commands to this file
    #[arg(long, value_name = "FILE")]
    pub(super) write: Option<PathBuf>,
    /// Folder of the plan files; default: a temporary folder
    #[arg(long, value_name = "FOLDER")]
    pub(super) plans: Option<PathBuf>,
}
