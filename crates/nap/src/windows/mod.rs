//! `nap windows`: when the nodes of each NodePool may be disrupted, and for which reason.

mod report;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use jiff::{SignedDuration, Timestamp};
use kube::Api;
use kube::api::ListParams;
use nap_api::NodePool;
use nap_api::disruption::{MAX_SEARCH_DAYS, Span, followed_schedules};
use nap_api::duration::parse_go_duration;
use nap_clock::Clock;

use crate::azure;
use crate::cli::{ClusterArgs, ManagedClusterArgs};
use crate::connect::{connect_to, unreachable};
use crate::manifests::read;
use crate::user_error::UserError;
use report::Report;

/// Options of `nap windows`.
#[derive(Clone, Debug, Args)]
pub struct WindowsArgs {
    /// Manifests: files, folders, or `-` for standard input; default: the cluster of the current
    /// context
    #[arg(short = 'f', long = "file", value_name = "FILE", num_args = 1.., conflicts_with_all = ["kubeconfig", "context"])]
    pub files: Vec<PathBuf>,
    /// Time to show, such as `7d` or `36h`; at most 35d
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = next)]
    pub next: SignedDuration,
    /// Begin of the time to show, such as `2027-03-27T00:00:00Z`; default: now
    #[arg(long, value_name = "TIME")]
    pub from: Option<Timestamp>,
    /// Output format
    #[arg(short = 'o', long, value_enum, default_value = "text")]
    pub output: WindowsFormat,
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub managed: ManagedClusterArgs,
}

/// Output formats of `nap windows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WindowsFormat {
    /// One block per NodePool, in its time zone and UTC
    Text,
    /// JSON document, described in docs/windows.md
    Json,
}

/// Reads a time to show.
fn next(text: &str) -> Result<SignedDuration, String> {
    let days = text.strip_suffix('d').map(|days| days.parse().ok());
    let found = match days {
        Some(days) => days.map(|days: u32| SignedDuration::from_hours(24 * i64::from(days))),
        None => parse_go_duration(text).and_then(|it| SignedDuration::try_from(it).ok()),
    };
    let most = SignedDuration::from_hours(24 * MAX_SEARCH_DAYS);
    found
        .filter(|it| it.is_positive() && *it <= most)
        .ok_or_else(|| format!("`{text}` is not a time up to `{MAX_SEARCH_DAYS}d` such as `7d`"))
}

/// Prints when nodes may be disrupted. Fails if the settings of a NodePool cannot be read.
pub async fn windows(args: WindowsArgs) -> anyhow::Result<()> {
    let pools = match args.files.as_slice() {
        [] => from_cluster(&args.cluster).await?,
        files => from_files(files)?,
    };
    let from = args.from.unwrap_or_else(|| Clock::wall().now());
    let within = from.checked_add(args.next).ok().and_then(|until| Span::new(from, until));
    let within = within.ok_or_else(|| {
        UserError::new("--from: no calendar reaches that far", "name a time in this century")
    })?;
    let windows = azure::maintenance(&args.managed, followed_schedules(&pools), within).await;
    let report = Report::new(&pools, within, windows.into_iter().collect());
    let text = match args.output {
        WindowsFormat::Text => report.text(),
        WindowsFormat::Json => serde_json::to_string_pretty(&report.document())? + "\n",
    };
    crate::output::write(format_args!("{text}"));
    let unreadable = report.unreadable();
    if unreadable > 0 {
        let message = format!("{unreadable} NodePool(s) with settings that cannot be read");
        return Err(
            UserError::new(message, "each line above names the field and what to do").into()
        );
    }
    Ok(())
}

fn from_files(files: &[PathBuf]) -> anyhow::Result<Vec<NodePool>> {
    let documents = read::read(files)?;
    let pools = documents.iter().filter(|document| document.text("/kind") == "NodePool");
    let pools = pools.map(read::Document::read).collect::<anyhow::Result<Vec<_>>>()?;
    if pools.is_empty() {
        let hint = "name a manifest with a NodePool, or leave -f out to read the cluster";
        return Err(UserError::new("no NodePool in these files", hint).into());
    }
    Ok(pools)
}

async fn from_cluster(args: &ClusterArgs) -> anyhow::Result<Vec<NodePool>> {
    let (client, url) = connect_to(args).await?;
    let api: Api<NodePool> = Api::all(client);
    let pools = api.list(&ListParams::default()).await;
    let pools = pools.map_err(|error| match error {
        kube::Error::Api(status) if status.code == 404 => UserError::new(
            format!("{url} does not serve NodePools"),
            "`nap crds install` installs their definition",
        )
        .into(),
        other => unreachable(&url, "list", "nodepools", &other),
    })?;
    Ok(pools.items)
}
