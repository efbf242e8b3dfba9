//! `nap bench apiserver`: requests per CPU second, memory and watch fan-out of the embedded API
//! server, in process and on one thread.

use anyhow::Context as _;
use clap::Args;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams, WatchParams};
use kube::{Client, ResourceExt as _};
use nap_apiserver::{ApiServer, Config};
use nap_clock::Clock;
use serde_json::json;

use super::process::{cpu_seconds, resident_mib};

/// Objects that are read and patched for the rates.
const SAMPLE: usize = 2000;
/// Page size of lists, as clients ask for it.
const PAGE: u32 = 500;
/// Maximum number of pods.
const MAX_PODS: i64 = 1_000_000;

/// Options of `nap bench apiserver`.
#[derive(Clone, Debug, Args)]
pub(super) struct ApiServerArgs {
    /// Number of nodes
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    nodes: u32,
    /// Number of pods
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=MAX_PODS))]
    pods: u32,
    /// Number of watches of all pods
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    watchers: u32,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
pub(super) fn measure(args: &ApiServerArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let rows = runtime.block_on(run(args))?;
    if args.json {
        let object: serde_json::Map<String, serde_json::Value> =
            rows.into_iter().map(|(name, value, _)| (name.to_owned(), json!(value))).collect();
        println!("{}", serde_json::Value::Object(object));
        return Ok(());
    }
    println!("| what | value |\n|---|---:|");
    for (name, value, unit) in rows {
        println!("| {name} | {value:.0} {unit} |");
    }
    Ok(())
}

type Row = (&'static str, f64, &'static str);

async fn run(args: &ApiServerArgs) -> anyhow::Result<Vec<Row>> {
    let clock = Clock::wall();
    let server = ApiServer::new(Config { clock, seed: 1, git_version: "v1.34.2".to_owned() });
    let client = Client::new(server, "default");
    let before = resident_mib().context("memory is read from /proc")?;
    let mut rows = Vec::new();
    let nodes: Api<Node> = Api::all(client.clone());
    for number in 0..args.nodes {
        nodes.create(&PostParams::default(), &node(number)?).await?;
    }
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let spent = Spent::begin()?;
    for number in 0..args.pods {
        pods.create(&PostParams::default(), &pod(number, number % args.nodes)?).await?;
    }
    rows.push(("creates of pods", spent.rate(args.pods as usize)?, "per CPU second"));
    rows.push(("memory of all objects", resident_mib().unwrap_or(before) - before, "MiB"));
    let sample = SAMPLE.min(args.pods as usize);
    let spent = Spent::begin()?;
    for number in 0..sample {
        pods.get(&format!("pod-{number}")).await?;
    }
    rows.push(("reads of a pod", spent.rate(sample)?, "per CPU second"));
    let spent = Spent::begin()?;
    let mut listed = 0;
    let mut parameters = ListParams::default().limit(PAGE);
    loop {
        let page = pods.list(&parameters).await?;
        listed += page.items.len();
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => break,
        }
    }
    rows.push(("pods listed in pages of 500", spent.rate(listed)?, "per CPU second"));
    let changes = sample;
    rows.push(("status patches", patches(&pods, changes).await?, "per CPU second"));
    // Watches that all see every change.
    let version = pods.list(&ListParams::default().limit(1)).await?.metadata.resource_version;
    let version = version.unwrap_or_default();
    let mut watches = Vec::new();
    for _ in 0..args.watchers {
        watches.push(pods.watch(&WatchParams::default(), &version).await?.boxed());
    }
    let spent = Spent::begin()?;
    let seen = async {
        let all = watches
            .into_iter()
            .map(|watch| watch.take(changes).try_fold(0, async |seen, _| Ok(seen + 1)));
        futures::future::try_join_all(all).await
    };
    let (seen, _) = futures::try_join!(
        async { seen.await.map_err(anyhow::Error::from) },
        patches(&pods, changes)
    )?;
    let events: usize = seen.iter().sum();
    rows.push(("events to all watches", spent.rate(events)?, "per CPU second"));
    Ok(rows)
}

async fn patches(pods: &Api<Pod>, count: usize) -> anyhow::Result<f64> {
    let spent = Spent::begin()?;
    for number in 0..count {
        let message = format!("change {number} at {}", spent.began);
        let patch = Patch::Merge(json!({ "status": { "message": message } }));
        let name = format!("pod-{number}");
        let patched = pods.patch_status(&name, &PatchParams::default(), &patch).await?;
        anyhow::ensure!(patched.name_any() == name, "another pod was patched");
    }
    spent.rate(count)
}

/// CPU time since a moment.
struct Spent {
    began: f64,
}

impl Spent {
    fn begin() -> anyhow::Result<Self> {
        Ok(Self { began: cpu_seconds().context("CPU time is read from /proc")? })
    }

    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    fn rate(&self, count: usize) -> anyhow::Result<f64> {
        let now = cpu_seconds().context("CPU time is read from /proc")?;
        Ok(count as f64 / (now - self.began).max(1e-9))
    }
}

fn node(number: u32) -> serde_json::Result<Node> {
    let amounts = json!({ "cpu": "8", "memory": "32Gi", "pods": "110" });
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("node-{number}"),
            "labels": { "topology.kubernetes.io/zone": format!("eastus-{}", number % 3 + 1) },
        },
        "status": { "capacity": amounts, "allocatable": amounts },
    }))
}

fn pod(number: u32, node: u32) -> serde_json::Result<Pod> {
    serde_json::from_value(json!({
        "metadata": { "name": format!("pod-{number}"), "labels": { "app": format!("app-{}", number % 200) } },
        "spec": {
            "nodeName": format!("node-{node}"),
            "containers": [{ "name": "main", "image": "example.com/app:1",
                "resources": { "requests": { "cpu": "100m", "memory": "128Mi" } } }],
        },
    }))
}
