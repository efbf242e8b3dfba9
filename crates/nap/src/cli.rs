//! Command line of `nap`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;

use crate::engine_args::EngineArgs;
use crate::feature_gates::FeatureGateArgs;
use crate::{azure, bench, crds, decisions, demo, lint, plan, run, sim, try_cluster, windows};

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
    /// Demonstrate scale-up, consolidation and scale to zero on an embedded cluster, with the bill
    Demo(DemoArgs),
    /// Start a cluster with an Azure emulator for kubectl, until Ctrl-C
    Try(TryArgs),
    /// Run the controllers against a cluster
    Run(RunArgs),
    /// Simulate hours of a cluster deterministically, check invariants, and print a trace hash
    Sim(sim::SimArgs),
    /// Measure solve times and plan costs on problem files or generated problems
    Bench(bench::BenchArgs),
    /// Show the VMs that would be created for manifests or a cluster, with prices; creates nothing
    Plan(Box<PlanArgs>),
    /// Explain the placement of a pod, or the smallest change that would make it schedulable
    Explain(ExplainArgs),
    /// Show what a changed NodePool or AKSNodeClass would do to running nodes: which drift, the
    /// pods that move, the cost before and after
    WhatIf(WhatIfArgs),
    /// Decide a saved input of `nap plan --save` or `nap plan disruption --save` again, and compare
    Replay(ReplayArgs),
    /// Show what the controllers have decided lately, why, what it was to save and what came of it
    Decisions(decisions::DecisionsArgs),
    /// Validate manifests without a cluster: errors, deprecated fields, probable mistakes
    Lint(LintArgs),
    /// Show when the nodes of each NodePool may be disrupted, and for which reason
    Windows(windows::WindowsArgs),
    /// Check a cluster's prerequisites, try one machine, or show what Azure sells
    Azure(AzureArgs),
    /// Print the CustomResourceDefinitions as YAML, or install them in a cluster
    Crds(CrdsArgs),
    /// Print the version
    Version,
}

/// Options of the Azure emulator.
#[derive(Clone, Debug, Args)]
pub struct WorldArgs {
    /// Azure region of the VM sizes and prices
    #[arg(long, default_value = "eastus", value_parser = region)]
    pub region: String,
    /// Seed of names, ids and delays
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Options of `nap demo`.
#[derive(Clone, Debug, Args)]
pub struct DemoArgs {
    #[command(flatten)]
    pub world: WorldArgs,
    /// Speed relative to real time
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub speed: u32,
}

/// Control planes of `nap try`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ControlPlane {
    /// nap's in-memory API server, scheduler and workload controllers
    Embedded,
    /// etcd, kube-apiserver, kube-controller-manager and kube-scheduler, from `make controlplane`
    Real,
}

/// Options of `nap try`.
#[derive(Clone, Debug, Args)]
pub struct TryArgs {
    #[command(flatten)]
    pub world: WorldArgs,
    /// Control plane to start
    #[arg(long, value_enum, default_value = "embedded", conflicts_with = "kubeconfig")]
    pub control_plane: ControlPlane,
    /// Kubeconfig of a cluster to run beside: only the Azure emulator and the kubelets of its VMs
    /// are started
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    pub context: Option<String>,
    /// Accept a cluster that has AKS nodes: they are not in the emulated Azure, so nap takes the
    /// VMs of nodes with a NodeClaim for deleted
    #[arg(long, requires = "kubeconfig")]
    pub force: bool,
    /// Create the default NodePool and AKSNodeClass; default: true, and false with --kubeconfig
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub default_nodepool: Option<bool>,
    /// Factor on the time that VMs take to be created, to boot and to be deleted; 0.1 is enough for
    /// a node within 10 s
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor)]
    pub vm_delays: f64,
    /// Let the emulated region still sell sizes that Azure has retired, for guides that name them
    #[arg(long)]
    pub retired_sizes: bool,
    /// Faults of the emulated Azure, as a plan file (docs/faults.md); further ones can be typed
    /// while it runs
    #[arg(long, value_name = "FILE")]
    pub faults: Option<PathBuf>,
    #[command(flatten)]
    pub embedded: try_cluster::EmbeddedArgs,
    /// Address of the API server, or of the Azure emulator if the API server is another; port 0
    /// picks a free one
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// Start the cluster without the controllers, for a `nap run` in another terminal
    #[arg(long)]
    pub no_controllers: bool,
    #[command(flatten)]
    pub gates: FeatureGateArgs,
}

/// Options that select a cluster.
#[derive(Clone, Debug, Args)]
pub struct ClusterArgs {
    /// Kubeconfig file; default: $KUBECONFIG, then ~/.kube/config, then the pod's service account
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
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

/// Subcommands of `nap crds`; it prints the definitions without one.
#[derive(Clone, Debug, Subcommand)]
pub enum CrdsCommand {
    /// Apply the definitions, replacing the incumbent's, and wait until they are served
    Install(ClusterArgs),
}

/// Options of `nap run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub gates: FeatureGateArgs,
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
    /// Start although AKS runs node auto-provisioning in the cluster, and act on its nodes
    #[arg(long, env = "NAP_TAKE_OVER", value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub take_over: bool,
    /// Speed of timers relative to real time, to match `nap try --speed`
    #[arg(long, env = "NAP_SPEED", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), hide = true)]
    pub speed: u32,
}

/// Source of the pods: manifests or a cluster.
#[derive(Clone, Debug, Args)]
pub struct SourceArgs {
    /// Manifests: files, folders, or `-` for standard input; default: the cluster of the current
    /// context
    #[arg(short = 'f', long = "file", value_name = "FILE", num_args = 1.., conflicts_with_all = ["kubeconfig", "context"])]
    pub files: Vec<PathBuf>,
    /// Azure region of the VM sizes and prices; default: the region of the nodes, or eastus
    #[arg(long, value_parser = region)]
    pub region: Option<String>,
    /// Use the built-in VM sizes and prices even if the environment names a subscription
    #[arg(long, conflicts_with = "subscription")]
    pub offline: bool,
    #[command(flatten)]
    pub live: LiveArgs,
    #[command(flatten)]
    pub catalogue: CatalogueArgs,
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// Source of VM sizes and prices.
#[derive(Clone, Debug, Default, Args)]
pub struct CatalogueArgs {
    /// Folder of `nap azure catalogue refresh` with the VM sizes and prices to use instead of the
    /// built-in ones
    #[arg(long, value_name = "FOLDER", env = "NAP_CATALOGUE")]
    pub catalogue: Option<PathBuf>,
}

/// Output formats of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One row for equal VMs
    Table,
    /// One block per VM, with its pods and the reason of its choice
    Wide,
    /// JSON document, described in docs/plan.md
    Json,
    /// The JSON document as YAML
    Yaml,
}

/// Options of `nap plan`.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct PlanArgs {
    #[command(subcommand)]
    pub what: Option<PlanCommand>,
    #[command(flatten)]
    pub source: SourceArgs,
    /// Output format
    #[arg(short = 'o', long, value_enum, default_value = "table")]
    pub output: Format,
    /// Also save the snapshot and the plan to this file, for `nap replay`
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
}

/// Subcommands of `nap plan`.
#[derive(Clone, Debug, Subcommand)]
pub enum PlanCommand {
    /// Show the nodes that would be removed or replaced now, step by step, with what each step
    /// saves and the pods that it moves; does nothing
    Disruption {
        #[command(flatten)]
        source: SourceArgs,
        /// Output format
        #[arg(short = 'o', long, value_enum, default_value = "table")]
        output: Format,
        /// Also save the fleet and the engine's decision about underutilized nodes to this file,
        /// for `nap replay`
        #[arg(long, value_name = "FILE")]
        save: Option<PathBuf>,
    },
}

/// Options of `nap explain`.
#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    #[command(subcommand)]
    pub what: ExplainCommand,
}

/// Subcommands of `nap explain`.
#[derive(Clone, Debug, Subcommand)]
pub enum ExplainCommand {
    /// Explain a pod: the offerings that each NodePool has for it, filter by filter, and the
    /// smallest change that would make it schedulable
    Pod {
        /// The pod, or the Deployment, StatefulSet or Job that creates it
        #[arg(value_name = "NAMESPACE/NAME")]
        name: String,
        #[command(flatten)]
        source: SourceArgs,
    },
    /// Explain a node: the step that would remove or replace it, or every reason that it stays
    Node {
        /// The Node or its NodeClaim
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        source: SourceArgs,
    },
}

/// Options of `nap what-if`.
#[derive(Clone, Debug, Args)]
pub struct WhatIfArgs {
    /// The changes (`-f`: NodePools and AKSNodeClasses); the cluster is read, or is `--state`
    #[command(flatten)]
    pub source: SourceArgs,
    /// Manifests of the cluster instead of a live one, such as `kubectl get
    /// nodes,pods,nodeclaims,nodepools,aksnodeclasses,pdb -A -o yaml` prints
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub state: Vec<PathBuf>,
    /// Exit with 2 if any node would be replaced or removed because of the change
    #[arg(long)]
    pub exit_code: bool,
}

/// Options of `nap replay`.
#[derive(Clone, Debug, Args)]
pub struct ReplayArgs {
    /// File of `nap plan --save`
    pub file: PathBuf,
    /// Output format
    #[arg(short = 'o', long, value_enum, default_value = "table")]
    pub output: Format,
}

/// Options of `nap lint`.
#[derive(Clone, Debug, Args)]
pub struct LintArgs {
    /// Files to check; `-` is standard input
    #[arg(short = 'f', long = "file", value_name = "FILE", required = true, num_args = 1..)]
    pub files: Vec<PathBuf>,
    /// Azure region of the VM sizes that requirements are checked against
    #[arg(long, default_value = "eastus", value_parser = region)]
    pub region: String,
    #[command(flatten)]
    pub catalogue: CatalogueArgs,
    /// Fail on warnings too
    #[arg(long)]
    pub deny_warnings: bool,
}

/// Options of `nap azure`.
#[derive(Clone, Debug, Args)]
pub struct AzureArgs {
    #[command(subcommand)]
    pub command: AzureCommand,
}

/// Subcommands of `nap azure`.
#[derive(Clone, Debug, Subcommand)]
pub enum AzureCommand {
    /// Check every prerequisite of a cluster; each row has its fix. Exits with 1 if a row fails or
    /// is unknown, with 2 if the cluster cannot be read
    Check(CheckArgs),
    /// Check the cluster, create one machine, see its node join, delete it, and write a transcript
    Smoke(SmokeArgs),
    /// Show the VM sizes that would be considered, and why others are excluded
    Skus(SkusArgs),
    /// Manage the catalogue of VM sizes and prices
    Catalogue {
        #[command(subcommand)]
        command: CatalogueCommand,
    },
}

/// Subcommands of `nap azure catalogue`.
#[derive(Clone, Debug, Subcommand)]
pub enum CatalogueCommand {
    /// Rebuild regions of the catalogue from the live APIs, and print what changed
    Refresh(RefreshArgs),
}

/// Options that select a managed cluster.
#[derive(Clone, Debug, Args)]
pub struct ManagedClusterArgs {
    /// Id of the subscription; default: $AZURE_SUBSCRIPTION_ID, then $ARM_SUBSCRIPTION_ID
    #[arg(long, value_name = "ID")]
    pub subscription: Option<String>,
    /// Resource group of the managed cluster; default: $ARM_RESOURCE_GROUP
    #[arg(short = 'g', long, value_name = "NAME")]
    pub resource_group: Option<String>,
    /// Name of the managed cluster; default: $CLUSTER_NAME
    #[arg(short = 'n', long, value_name = "NAME")]
    pub name: Option<String>,
    /// Machines-mode agent pool; default: $AKS_MACHINES_POOL_NAME, then aksmanagedap
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
}

/// Output formats of `nap azure check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CheckFormat {
    /// One line per row, with fix and document where something is to be done
    Table,
    /// The table with the document of every row
    Wide,
    /// JSON document, described in docs/azure-check.md
    Json,
}

/// Options of `nap azure check`.
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    pub cluster: ManagedClusterArgs,
    /// Create the Machines-mode agent pool if it does not exist
    #[arg(long)]
    pub create_pool: bool,
    /// Exit with 0 although rows are unknown
    #[arg(long)]
    pub allow_unknown: bool,
    /// Output format
    #[arg(short = 'o', long, value_enum, default_value = "table")]
    pub output: CheckFormat,
}

/// Options of `nap azure smoke`.
#[derive(Clone, Debug, Args)]
pub struct SmokeArgs {
    #[command(flatten)]
    pub cluster: ManagedClusterArgs,
    /// Kubeconfig file, to see the node join; default: $KUBECONFIG. Without one only the machine is
    /// waited for
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// Go on although rows of the check fail
    #[arg(long)]
    pub force: bool,
    /// File for the transcript, in which ids, names and addresses are masked
    #[arg(long, value_name = "FILE", default_value = "nap-azure-smoke.txt")]
    pub transcript: PathBuf,
    /// Speed of timers relative to real time, to match `nap try --speed`
    #[arg(long, env = "NAP_SPEED", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), hide = true)]
    pub speed: u32,
}

/// Access to the live Azure APIs.
#[derive(Clone, Debug, Default, Args)]
pub struct LiveArgs {
    /// Id of the subscription; default: $AZURE_SUBSCRIPTION_ID, then $ARM_SUBSCRIPTION_ID
    #[arg(long, value_name = "ID")]
    pub subscription: Option<String>,
    /// URL of ARM; default: $NAP_ARM_ENDPOINT, then that of $ARM_CLOUD or
    /// $AZURE_ENVIRONMENT_FILEPATH
    #[arg(long, value_name = "URL", value_parser = azure::endpoint)]
    pub arm_endpoint: Option<String>,
    /// URL of the retail price API
    #[arg(long, env = "NAP_PRICES_ENDPOINT", value_name = "URL", default_value = nap_azure::DEFAULT_PRICES_ENDPOINT, value_parser = azure::endpoint)]
    pub prices_endpoint: String,
}

/// Output formats of `nap azure skus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SkusFormat {
    /// Considered sizes by price, then the reasons of exclusion
    Table,
    /// JSON document
    Json,
}

/// Options of `nap azure skus`.
#[derive(Clone, Debug, Args)]
pub struct SkusArgs {
    /// Azure region
    #[arg(long, default_value = "eastus", value_parser = region)]
    pub region: String,
    /// Requirements as `key=value`, with `|` between the values of one key
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',')]
    pub requirements: Vec<String>,
    /// Manifest with a NodePool whose requirements count, and perhaps its AKSNodeClass
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub catalogue: CatalogueArgs,
    #[command(flatten)]
    pub live: LiveArgs,
    /// Output format
    #[arg(short = 'o', long, value_enum, default_value = "table")]
    pub output: SkusFormat,
}

/// Options of `nap azure catalogue refresh`.
#[derive(Clone, Debug, Args)]
pub struct RefreshArgs {
    /// Azure region to rebuild; may be repeated
    #[arg(long = "region", value_name = "REGION", required = true, value_parser = region)]
    pub regions: Vec<String>,
    /// Folder for the files of the catalogue
    #[arg(long, value_name = "FOLDER")]
    pub folder: PathBuf,
    #[command(flatten)]
    pub catalogue: CatalogueArgs,
    #[command(flatten)]
    pub live: LiveArgs,
}

/// The short spelling of a region, such as `eastus` for `East US`.
pub fn region(text: &str) -> Result<String, String> {
    let name = nap_azure::canonical_region(text);
    if name.is_empty() { Err("name a region such as `eastus`".to_owned()) } else { Ok(name) }
}

fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| (0.0..=100.0).contains(factor));
    factor.ok_or_else(|| format!("`{text}` is not a number from 0 to 100"))
}

fn duration(text: &str) -> Result<Duration, String> {
    let problem = || format!("`{text}` is not a duration such as `1s` or `1m30s`");
    nap_api::duration::parse_go_duration(text).ok_or_else(problem)
}

/// Parses the command line and runs the subcommand.
pub fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let default = match &cli.command {
        // The client reports every refusal as an error: an eviction that a budget blocks, each
        // attempt while a control plane starts.
        Command::Run(_) => "info,kube=warn,kube_client=off",
        Command::Try(_) => "warn,kube_client=off",
        _ => "error",
    };
    log_to_stderr(cli.log.as_deref().unwrap_or(default))?;
    match cli.command {
        Command::Demo(args) => block_on(demo::demo(args)),
        Command::Try(args) => block_on(try_cluster::try_cluster(args)),
        Command::Run(args) => block_on(run::run(args)),
        Command::Sim(args) => sim::sim(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Plan(args) => block_on(plan::plan(*args)),
        Command::Explain(ExplainArgs { what: ExplainCommand::Pod { name, source } }) => {
            block_on(plan::explain_pod(name, source))
        }
        Command::WhatIf(args) => block_on(plan::what_if(args)),
        Command::Explain(ExplainArgs { what: ExplainCommand::Node { name, source } }) => {
            block_on(plan::explain_node(name, source))
        }
        Command::Replay(args) => plan::replay(&args),
        Command::Decisions(args) => block_on(decisions::decisions(args)),
        Command::Lint(args) => block_on(lint::lint(args)),
        Command::Windows(args) => block_on(windows::windows(args)),
        Command::Azure(AzureArgs { command }) => match command {
            AzureCommand::Check(args) => block_on(azure::check(args)),
            AzureCommand::Smoke(args) => block_on(azure::smoke(args)),
            AzureCommand::Skus(args) => block_on(azure::skus(args)),
            AzureCommand::Catalogue { command: CatalogueCommand::Refresh(args) } => {
                block_on(azure::refresh(args))
            }
        },
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
