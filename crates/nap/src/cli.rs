//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;

use crate::engine_args::EngineArgs;
use crate::{bench, crds, demo, lint, plan, run, sim, try_cluster};

/// Node auto-provisioning for Kubernetes on Azure: pending pods in, exactly the VMs they need out.
#[derive(Debug, Parser)]
#[command(name = "nap", version, about, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Log more: `info`, `debug`, or a filter such as `nap_controllers=debug`. Logs go to stderr
    #[arg(long, global = true, env = "NAP_LOG", value_name = "FILTER")]
    log: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Tell the whole story on an embedded cluster: scale up, consolidate, scale to zero, bill
    Demo(DemoArgs),
    /// Start an embedded cluster with an emulated Azure to play with, until interrupted
    Try(TryArgs),
    /// Run the controllers on a cluster
    Run(RunArgs),
    /// Simulate a cluster for hours in seconds, repeatably, and print a hash of everything that
    /// happened
    Sim(SimArgs),
    /// Measure how long decisions take and what they cost, on problem files or generated ones
    Bench(bench::BenchArgs),
    /// Show which VMs would be created for manifests or for a cluster, at what price, without
    /// creating anything
    Plan(PlanArgs),
    /// Say why a pod goes where it goes, or what would have to change for it to have a place
    Explain(ExplainArgs),
    /// Decide again about a snapshot that `nap plan --save` wrote, and compare
    Replay(ReplayArgs),
    /// Check manifests without a cluster: what is refused, how old spellings are understood, what
    /// looks like a mistake
    Lint(LintArgs),
    /// Print the custom resource definitions as YAML, or install them in a cluster
    Crds(CrdsArgs),
    /// Print the version
    Version,
}

/// Options of the emulated Azure.
#[derive(Clone, Debug, Args)]
pub struct WorldArgs {
    /// The Azure region whose VM sizes and prices are used
    #[arg(long, default_value = "eastus")]
    pub region: String,
    /// Where names, ids and delays come from: the same seed gives the same ones
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Options of `nap demo`.
#[derive(Clone, Debug, Args)]
pub struct DemoArgs {
    #[command(flatten)]
    pub world: WorldArgs,
    /// How many times faster than real time the story runs
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub speed: u32,
}

/// Options of `nap try`.
#[derive(Clone, Debug, Args)]
pub struct TryArgs {
    #[command(flatten)]
    pub world: WorldArgs,
    /// How many times faster than real time machines boot and timers run
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub speed: u32,
    /// Where the API server listens; port 0 picks a free one
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// Start the cluster without nap in it, for a `nap run` in another terminal
    #[arg(long)]
    pub no_controllers: bool,
}

/// Which cluster is meant.
#[derive(Clone, Debug, Args)]
pub struct ClusterArgs {
    /// The kubeconfig to use; default: $KUBECONFIG, then ~/.kube/config, then the pod's own account
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

/// Options of `nap crds`.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct CrdsArgs {
    #[command(subcommand)]
    pub command: Option<CrdsCommand>,
}

/// What to do with the definitions, if not print them.
#[derive(Clone, Debug, Subcommand)]
pub enum CrdsCommand {
    /// Apply them to the cluster, over the incumbent's if they are there, and wait until they are
    /// served
    Install(ClusterArgs),
}

/// Options of `nap run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
    /// How long to wait for one more pending pod before deciding about all of them
    #[arg(long, env = "BATCH_IDLE_DURATION", value_name = "DURATION", default_value = "1s", value_parser = duration)]
    pub batch_idle_duration: Duration,
    /// How long to wait for pending pods at most
    #[arg(long, env = "BATCH_MAX_DURATION", value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub batch_max_duration: Duration,
    /// Run timers faster than real time, to match a `nap try --speed`
    #[arg(long, env = "NAP_SPEED", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), hide = true)]
    pub speed: u32,
}

/// Options of `nap sim`.
#[derive(Clone, Debug, Args)]
pub struct SimArgs {
    #[command(flatten)]
    pub world: WorldArgs,
    /// How many hours to simulate
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=8760))]
    pub hours: u32,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// What is planned for: manifests, or a cluster.
#[derive(Clone, Debug, Args)]
pub struct SourceArgs {
    /// Manifests: files, folders, or `-` for standard input; without any, the cluster of the
    /// current context is read
    #[arg(short = 'f', long = "file", value_name = "FILE", num_args = 1.., conflicts_with_all = ["kubeconfig", "context"])]
    pub files: Vec<PathBuf>,
    /// The Azure region whose VM sizes and prices are used; default: that of the nodes, or else
    /// eastus
    #[arg(long)]
    pub region: Option<String>,
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// How a plan is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One line for VMs that are alike
    Table,
    /// One block for each VM, with its pods and why it was chosen
    Wide,
    /// The document of `docs/plan.md`
    Json,
    /// The same as YAML
    Yaml,
}

/// Options of `nap plan`.
#[derive(Clone, Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub source: SourceArgs,
    /// How the plan is printed
    #[arg(short = 'o', long, value_enum, default_value = "table")]
    pub output: Format,
    /// Also write the snapshot and the plan to this file, for `nap replay`
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
}

/// Options of `nap explain`.
#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    #[command(subcommand)]
    pub what: ExplainCommand,
}

/// What is explained.
#[derive(Clone, Debug, Subcommand)]
pub enum ExplainCommand {
    /// A pod: how many offerings each pool has for it, step by step, and the smallest change that
    /// would give it a place
    Pod {
        /// The pod, or the Deployment, StatefulSet or Job that makes it
        #[arg(value_name = "NAMESPACE/NAME")]
        name: String,
        #[command(flatten)]
        source: SourceArgs,
    },
}

/// Options of `nap replay`.
#[derive(Clone, Debug, Args)]
pub struct ReplayArgs {
    /// What `nap plan --save` wrote
    pub file: PathBuf,
    /// How the plan is printed
    #[arg(short = 'o', long, value_enum, default_value = "table")]
    pub output: Format,
}

/// Options of `nap lint`.
#[derive(Clone, Debug, Args)]
pub struct LintArgs {
    /// The files to check; `-` is standard input
    #[arg(short = 'f', long = "file", value_name = "FILE", required = true, num_args = 1..)]
    pub files: Vec<PathBuf>,
    /// The Azure region whose VM sizes requirements are compared with
    #[arg(long, default_value = "eastus")]
    pub region: String,
    /// Fail at likely mistakes too
    #[arg(long)]
    pub deny_warnings: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    let problem = || format!("`{text}` is not a duration such as `1s` or `1m30s`");
    nap_api::duration::parse_go_duration(text).ok_or_else(problem)
}

/// Reads the command line and does what it says.
pub fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let default = match &cli.command {
        Command::Run(_) => "info,kube=warn",
        Command::Try(_) => "warn",
        _ => "error",
    };
    log_to_stderr(cli.log.as_deref().unwrap_or(default))?;
    match cli.command {
        Command::Demo(args) => block_on(demo::demo(args)),
        Command::Try(args) => block_on(try_cluster::try_cluster(args)),
        Command::Run(args) => block_on(run::run(args)),
        Command::Sim(args) => sim::sim(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Plan(args) => block_on(plan::plan(args)),
        Command::Explain(ExplainArgs { what: ExplainCommand::Pod { name, source } }) => {
            block_on(plan::explain_pod(name, source))
        }
        Command::Replay(args) => plan::replay(&args),
        Command::Lint(args) => block_on(lint::lint(args)),
        Command::Crds(CrdsArgs { command: None }) => crds::print(),
        Command::Crds(CrdsArgs { command: Some(CrdsCommand::Install(cluster)) }) => {
            block_on(crds::install(cluster))
        }
        Command::Version => {
            println!("nap {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
    }
}

fn log_to_stderr(filter: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter)
        .with_context(|| format!("--log: `{filter}` is not a log filter"))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .init();
    Ok(())
}

fn block_on<F: Future<Output = anyhow::Result<()>>>(future: F) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(future);
    runtime.shutdown_background();
    result
}
