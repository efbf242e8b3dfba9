//! Options of the commands that decide and carry nothing out: plan, explain, what-if, replay, lint.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use nap_units::UsdPerHour;

use super::{CatalogueArgs, ClusterArgs, LiveArgs, region};
use crate::engine_args::EngineArgs;
use crate::feature_gates::FeatureGateArgs;

/// Number of pods of workloads with an autoscaler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Replicas {
    /// The minimum of the autoscaler
    #[default]
    Min,
    /// The maximum of the autoscaler
    Max,
    /// What its status says, or the workload, within the minimum and the maximum
    Current,
}

/// Daemons on every node that manifests do not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SystemDaemons {
    /// Those of AKS.
    Aks,
    /// Those of AKS with the monitoring add-on.
    AksMonitoring,
    /// None.
    None,
    /// The DaemonSets of a manifest.
    File(PathBuf),
}

impl From<&str> for SystemDaemons {
    fn from(text: &str) -> Self {
        match text {
            "aks" => Self::Aks,
            "aks-monitoring" => Self::AksMonitoring,
            "none" => Self::None,
            file => Self::File(file.into()),
        }
    }
}

/// Source of the pods: manifests or a cluster.
#[derive(Clone, Debug, Args)]
pub struct SourceArgs {
    /// Manifests: files, folders, or `-` for standard input; default: the cluster of the current
    /// context. `nap plan` with --context or --kubeconfig too plans them on top of that cluster
    #[arg(short = 'f', long = "file", value_name = "FILE", num_args = 1..)]
    pub files: Vec<PathBuf>,
    /// Pods of workloads that a HorizontalPodAutoscaler or KEDA scales; default: min, and current
    /// on top of a cluster
    #[arg(long, value_enum)]
    pub hpa: Option<Replicas>,
    /// Daemons on every node, beside those of the manifests: `aks`, `aks-monitoring`, `none`, or a
    /// file with DaemonSets
    #[arg(long, value_name = "aks|none|FILE", default_value = "aks")]
    pub system_daemons: SystemDaemons,
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
    #[command(flatten)]
    pub gates: FeatureGateArgs,
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
    /// Manifests of a cluster on top of which `-f` is planned, instead of a live one
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "files", conflicts_with_all = ["kubeconfig", "context"])]
    pub state: Vec<PathBuf>,
    /// Exit with 2 if a VM would be created or removed, or a pod stays without a place
    #[arg(long)]
    pub exit_code: bool,
    /// Exit with 3 if the VMs cost more, such as `500/month` or `0.70/h`
    #[arg(long, value_name = "COST", value_parser = max_cost)]
    pub max_cost: Option<MaxCost>,
}

/// The most that a plan may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxCost {
    /// Dollars per hour.
    PerHour(UsdPerHour),
    /// Dollars per month, in the same unit.
    PerMonth(UsdPerHour),
}

fn max_cost(text: &str) -> Result<MaxCost, String> {
    let problem = || format!("`{text}` is not a cost such as `500/month` or `0.70/h`");
    let (amount, unit) = text.split_once('/').ok_or_else(problem)?;
    let amount = amount.trim().trim_start_matches('$').replace(',', "");
    let amount = UsdPerHour::parse(&amount).ok_or_else(problem)?;
    match unit.trim() {
        "h" | "hour" => Ok(MaxCost::PerHour(amount)),
        "month" => Ok(MaxCost::PerMonth(amount)),
        _ => Err(problem()),
    }
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
        /// The pod, or the Deployment, StatefulSet or Job that creates it; `pod/NAME` and the like
        /// are understood
        #[arg(value_name = "[NAMESPACE/]NAME")]
        name: String,
        /// Namespace, unless the name has one; default: default
        #[arg(short = 'n', long, value_name = "NAME")]
        namespace: Option<String>,
        /// Output format
        #[arg(short = 'o', long, value_enum, default_value = "text")]
        output: ExplainFormat,
        #[command(flatten)]
        source: Box<SourceArgs>,
    },
    /// Explain a node: the step that would remove or replace it, or every reason that it stays
    Node {
        /// The Node or its NodeClaim
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        source: Box<SourceArgs>,
    },
}

/// Output formats of `nap explain pod`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExplainFormat {
    /// Text
    Text,
    /// JSON document, described in docs/plan.md
    Json,
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

/// Output formats of `nap lint`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LintFormat {
    /// One line for each finding
    Text,
    /// JSON document, described in docs/lint.md
    Json,
    /// SARIF 2.1.0, for code scanning
    Sarif,
}

/// Options of `nap lint`.
#[derive(Clone, Debug, Args)]
pub struct LintArgs {
    /// Files and folders to check; `-` is standard input
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
    /// Output format
    #[arg(short = 'o', long, value_enum, default_value = "text")]
    pub output: LintFormat,
}
