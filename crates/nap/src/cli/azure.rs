//! Options of `nap azure`, and of access to the live Azure APIs.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{CatalogueArgs, ClusterArgs, region};
use crate::azure;

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
    /// Manifest, folder or `-` with NodePools whose quota is checked; may be repeated. Default: the
    /// NodePools of the current context, else the default NodePool
    #[arg(short = 'f', long = "file", value_name = "FILE", conflicts_with_all = ["kubeconfig", "context"])]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub kubernetes: ClusterArgs,
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
