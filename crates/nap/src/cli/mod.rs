//! Command line of `nap`.

mod azure;
mod plan;
mod run;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};

pub use self::azure::{
    AzureArgs, AzureCommand, CatalogueCommand, CheckArgs, CheckFormat, LiveArgs,
    ManagedClusterArgs, RefreshArgs, SkusArgs, SkusFormat, SmokeArgs,
};
pub use self::plan::{
    ExplainArgs, ExplainCommand, ExplainFormat, Format, LintArgs, LintFormat, MaxCost, PlanArgs,
    PlanCommand, ReplayArgs, Replicas, SourceArgs, SystemDaemons, WhatIfArgs,
};
pub use self::run::RunArgs;
use crate::feature_gates::FeatureGateArgs;
use crate::user_error::UserError;
use crate::{bench, crds, decisions, demo, disable, lint, rbac, sim, try_cluster, windows};

/// Node auto-provisioning for Kubernetes on Azure: pending pods in, exactly the VMs they need out.
#[derive(Debug, Parser)]
#[command(name = "nap", version = VERSION, about, arg_required_else_help = true)]
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
    /// Turn nap off: launch nothing more, move the pods to other nodes as these have room, and show
    /// what holds each node. Exits with 2 while nodes are left
    Disable(disable::DisableArgs),
    /// Print the service account and the roles that `nap run` needs, as YAML
    Rbac(rbac::RbacArgs),
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write man pages, one for each command
    Man {
        /// Folder for the pages
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
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

/// Source of VM sizes and prices.
#[derive(Clone, Debug, Default, Args)]
pub struct CatalogueArgs {
    /// Folder of `nap azure catalogue refresh` with the VM sizes and prices to use instead of the
    /// built-in ones
    #[arg(long, value_name = "FOLDER", env = "NAP_CATALOGUE")]
    pub catalogue: Option<PathBuf>,
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

/// Parses the command line and runs the subcommand.
pub fn main() -> anyhow::Result<()> {
    let matches = crate::run::args::group(Cli::command()).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let default = match &cli.command {
        Command::Try(_) => "warn,kube_client=off,rustls_platform_verifier=off",
        _ => "error,kube_client=off,rustls_platform_verifier=off",
    };
    match &cli.command {
        Command::Run(args) => crate::run::logging::start(&args.operator, cli.log.as_deref())?,
        _ => crate::run::logging::to_stderr(cli.log.as_deref().unwrap_or(default))?,
    }
    match cli.command {
        Command::Demo(args) => demo::demo(args),
        Command::Try(args) => block_on(try_cluster::try_cluster(args)),
        Command::Run(args) => block_on(crate::run::run(args)),
        Command::Sim(args) => sim::sim(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Plan(args) => block_on(crate::plan::plan(*args)),
        Command::Explain(ExplainArgs {
            what: ExplainCommand::Pod { name, namespace, output, source },
        }) => block_on(crate::plan::explain_pod(&name, namespace, output, *source)),
        Command::WhatIf(args) => block_on(crate::plan::what_if(args)),
        Command::Explain(ExplainArgs { what: ExplainCommand::Node { name, source } }) => {
            block_on(crate::plan::explain_node(name, *source))
        }
        Command::Replay(args) => crate::plan::replay(&args),
        Command::Decisions(args) => block_on(decisions::decisions(args)),
        Command::Lint(args) => lint::lint(&args),
        Command::Windows(args) => block_on(windows::windows(args)),
        Command::Azure(AzureArgs { command }) => match command {
            AzureCommand::Check(args) => block_on(crate::azure::check(args)),
            AzureCommand::Smoke(args) => block_on(crate::azure::smoke(args)),
            AzureCommand::Skus(args) => block_on(crate::azure::skus(args)),
            AzureCommand::Catalogue { command: CatalogueCommand::Refresh(args) } => {
                block_on(crate::azure::refresh(args))
            }
        },
        Command::Crds(CrdsArgs { command: None }) => crds::print(),
        Command::Crds(CrdsArgs { command: Some(CrdsCommand::Install(cluster)) }) => {
            block_on(crds::install(cluster))
        }
        Command::Disable(args) => block_on(disable::disable(args)),
        Command::Rbac(args) => rbac::rbac(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "nap", &mut script);
            crate::output::write(format_args!("{}", String::from_utf8_lossy(&script)));
            Ok(())
        }
        Command::Man { folder } => man(&folder),
        Command::Version => {
            println!("nap {VERSION}");
            Ok(())
        }
    }
}

/// Version, commit and day of this build.
const VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (", env!("NAP_COMMIT"), ", ", env!("NAP_DATE"), ")");

fn man(folder: &Path) -> anyhow::Result<()> {
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), folder));
    written.map_err(|error| {
        let message = format!("{}: man pages cannot be written: {error}", folder.display());
        UserError::new(message, "name a folder that can be written to").into()
    })
}

fn block_on<F: Future<Output = anyhow::Result<()>>>(future: F) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(future);
    runtime.shutdown_background();
    result
}
