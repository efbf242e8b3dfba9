//! The command line of `nap bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use nap_problem::generate::deployments;

/// Options of `nap bench`.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub(super) command: Option<BenchCommand>,
    /// The problem files to solve; without any, plain pods and the incumbent's mix are generated
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(super) problem: Vec<PathBuf>,
    /// Where the plan goes; with several problems, the folder where plans go
    #[arg(long, value_name = "OUT")]
    pub(super) plan: Option<PathBuf>,
    /// How many times each problem is solved
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) repeat: u32,
    /// Print one JSON object for each problem instead of a table
    #[arg(long)]
    pub(super) json: bool,
    /// The Azure region whose VM sizes and prices generated problems have
    #[arg(long, default_value = "eastus")]
    pub(super) region: String,
}

#[derive(Clone, Debug, Subcommand)]
pub(super) enum BenchCommand {
    /// Write a problem file
    Gen(GenArgs),
    /// Say what is wrong with a plan for a problem, and what it costs
    Judge(JudgeArgs),
    /// Run nap and another solver in turn on one core, judge and price both plans, print one table
    Compare(CompareArgs),
}

/// Options of `nap bench gen`.
#[derive(Clone, Debug, Args)]
pub(super) struct GenArgs {
    /// What kind of problem
    #[arg(value_enum)]
    pub(super) kind: Kind,
    /// How many pods, where the kind does not say
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) pods: u32,
    /// Where chance comes from: the same seed gives the same file
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Which machines are on offer; each kind has its own default
    #[arg(long, value_enum)]
    pub(super) catalogue: Option<CatalogueKind>,
    /// Keep so many types of the catalogue, evenly from small to large
    #[arg(long, value_name = "COUNT")]
    pub(super) types: Option<usize>,
    /// The Azure region of the catalogue
    #[arg(long, default_value = "eastus")]
    pub(super) region: String,
    /// Which deployments, for `deployments`
    #[arg(long, value_enum, default_value = "basic")]
    pub(super) case: Case,
    /// Whether preferences count, for `preferences`
    #[arg(long, value_enum, default_value = "ignore")]
    pub(super) policy: Policy,
    /// A file with the columns `cpu_milli` and `memory_mib`, and perhaps `replicas` and `gpu`, for
    /// `trace`
    #[arg(long, value_name = "FILE")]
    pub(super) csv: Option<PathBuf>,
    /// How many times each pod of the trace occurs
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) times: u32,
    /// Run eight small daemons on every node
    #[arg(long)]
    pub(super) daemons: bool,
    /// Where the file goes; default: standard output
    #[arg(short, long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
}

/// The kinds of problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// The mix of the incumbent's own benchmark: plain, zone spread, host spread, zone affinity,
    /// host exclusion
    Mix,
    /// The plain pods of that mix only
    Plain,
    /// The preference pods of that benchmark, with preferences ignored
    Preferences,
    /// The deployments of the incumbent's performance suite
    Deployments,
    /// Cluster Autoscaler's packing case: 51,000 pods that need exactly 2,595 nodes
    Golden,
    /// Pods from a CSV file
    Trace,
    /// Every pod asks for something else
    Distinct,
    /// All pods are alike
    OneClass,
    /// Pods that fill large parts of the largest machines
    Giants,
    /// A hundred pools with taints and labels of their own
    Pools,
    /// Three pools whose limits hold about two thirds of the pods
    Limits,
    /// A thousand pods that fit nowhere, among pods that do
    Unschedulable,
}

/// The machines on offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum CatalogueKind {
    /// The 400 made-up types of the incumbent's benchmark
    Fake400,
    /// 1,500 such types in three ratios of memory, in four zones, on demand and spot
    Fake1500,
    /// The 144 made-up types of the incumbent's performance suite
    Kwok,
    /// Azure's D family, version 5 or later, on demand
    D,
    /// Azure's D, E and F families up to 64 vCPUs, on demand
    Def64,
    /// Every type that Azure has in the region, on demand and spot
    Azure,
}

impl From<Case> for deployments::Case {
    fn from(case: Case) -> Self {
        match case {
            Case::Basic => Self::Basic,
            Case::HostSpread => Self::HostSpread,
            Case::HostSpreadXl => Self::HostSpreadXl,
            Case::DoNotDisrupt => Self::DoNotDisrupt,
            Case::Drift => Self::Drift,
            Case::Interference => Self::Interference,
            Case::Wide => Self::Wide,
        }
    }
}

/// The cases of the performance suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Case {
    /// 500 small and 500 large pods
    Basic,
    /// The same, the small ones spread over hosts
    HostSpread,
    /// Twice as many
    HostSpreadXl,
    /// The same as host-spread, with 100 protected pods
    DoNotDisrupt,
    /// 300 of each
    Drift,
    /// 500 of each, each kind one to a host
    Interference,
    /// 30 deployments of 30 shapes, all spread over zones
    Wide,
}

/// What becomes of preferences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Policy {
    /// They are kept as long as possible
    Respect,
    /// They decide nothing
    Ignore,
}

/// Options of `nap bench judge`.
#[derive(Clone, Debug, Args)]
pub(super) struct JudgeArgs {
    /// The problem file
    pub(super) problem: PathBuf,
    /// The plan file
    pub(super) plan: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(super) json: bool,
}

/// Options of `nap bench compare`.
#[derive(Clone, Debug, Args)]
pub(super) struct CompareArgs {
    /// The problem files
    #[arg(required = true)]
    pub(super) problems: Vec<PathBuf>,
    /// The other solver: a program that takes `--problem`, `--plan` and `--repeat`, such as that of
    /// `bench/karpenter`. Without it only nap is measured
    #[arg(long, value_name = "BINARY")]
    pub(super) peer: Option<PathBuf>,
    /// How many times both take their turn
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) rounds: u32,
    /// How many times each solves the problem in its turn
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) repeat: u32,
    /// The other solver is left out where there are more pods than this
    #[arg(long, default_value_t = 5000, value_name = "PODS")]
    pub(super) peer_up_to: usize,
    /// The core that both are pinned to
    #[arg(long, default_value_t = 0)]
    pub(super) core: u32,
    /// Write the table with its commands to this file too
    #[arg(long, value_name = "FILE")]
    pub(super) write: Option<PathBuf>,
    /// Where plans are kept; default: a folder for temporary files
    #[arg(long, value_name = "FOLDER")]
    pub(super) plans: Option<PathBuf>,
}
