//! `nap bench controllers`: memory, start-up, latency and CPU of `nap run` on a synthetic cluster.
//!
//! `nap run` is a process of its own and talks HTTP, as in production; only the other side is
//! synthetic.

mod cluster;
mod pods;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use nap_clock::Clock;
use nap_sim::world::{World, WorldConfig};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::args::ControllersArgs;
use super::process;
use crate::serve;
use crate::try_cluster::files::{self, Folder};
use crate::user_error::UserError;
use pods::{Log, SyntheticServer};

/// Longest wait for the controllers to take in the cluster or to plan for a burst.
const PATIENCE: Duration = Duration::from_mins(10);
/// Time without a further create after which a burst counts as planned.
const SETTLED: Duration = Duration::from_secs(5);
/// The default of `--batch-idle-duration`: the wait that is no latency.
const BATCH_IDLE: Duration = Duration::from_secs(1);

/// What one size of cluster costs.
struct Row {
    nodes: usize,
    pods: usize,
    resident_mib: f64,
    peak_mib: f64,
    taken_in: Duration,
    rest_percent: f64,
    bursts: Vec<Burst>,
}

/// One burst of pending pods.
struct Burst {
    pods: usize,
    claims: usize,
    /// From the last pod to the last create, without the batch window.
    latency: Duration,
}

/// Measures each size and prints a table, or one JSON object per size.
pub(super) fn measure(args: &ControllersArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    if !args.json {
        println!(
            "| nodes | pods | RSS | peak | taken in | CPU at rest | bursts: pods → claims, latency |"
        );
        println!("|---:|---:|---:|---:|---:|---:|---|");
    }
    for nodes in &args.nodes {
        let row = runtime.block_on(measure_one(args, *nodes))?;
        println!("{}", if args.json { row.json().to_string() } else { row.markdown() });
    }
    Ok(())
}

async fn measure_one(args: &ControllersArgs, nodes: usize) -> anyhow::Result<Row> {
    let config = WorldConfig {
        region: args.region.clone(),
        seed: 1,
        speed: 1,
        epoch: Clock::wall().now(),
        vm_delays: 1.0,
        sizes: std::collections::BTreeSet::new(),
        retired_sizes: false,
    };
    let world = World::new(&config).map_err(crate::try_cluster::explain_region)?;
    world.install_crds().await?;
    eprintln!("creating {nodes} nodes …");
    let client = world.client();
    cluster::create_class(&client).await?;
    let pool = cluster::create_pool(&client, "default").await?;
    let pods = nodes * args.pods_per_node;
    cluster::create_nodes(&client, &pool, nodes, pods).await?;
    let server = SyntheticServer::new(world.server().clone(), nodes, pods);
    let kubernetes = serve::bind(([127, 0, 0, 1], 0).into()).await?;
    let azure = serve::bind(([127, 0, 0, 1], 0).into()).await?;
    let address = kubernetes.local_addr()?;
    let folder = Folder::create(address.port())?;
    let kubeconfig =
        folder.write("kubeconfig", &files::kubeconfig(&format!("http://{address}")))?;
    let endpoint = format!("http://{}", azure.local_addr()?);
    let env = folder.write_env(world.azure(), Some(&kubeconfig), &endpoint, 1)?;
    let measured = async {
        let mut nap = Nap::start(&env, &args.run_log)?;
        let mut row = rest(args, &server, &mut nap, (nodes, pods)).await?;
        let pools = (0..args.burst.len()).map(|round| format!("burst-{round}"));
        let pools: Vec<String> = pools.collect();
        for name in &pools {
            cluster::create_pool(&client, name).await?;
        }
        for (name, count) in pools.iter().zip(&args.burst) {
            eprintln!("{nodes} nodes: a burst of {count} pods …");
            tokio::time::sleep(Duration::from_secs(3)).await;
            row.bursts.push(burst(&server, &mut nap, name, *count).await?);
        }
        row.peak_mib = nap.memory_mib("VmHWM:")?;
        anyhow::Ok(row)
    };
    tokio::select! {
        biased;
        row = measured => row,
        result = serve::serve(kubernetes, server.clone()) => Err(ended(result)),
        result = serve::serve(azure, world.azure().clone()) => Err(ended(result)),
    }
}

fn ended(result: anyhow::Result<()>) -> anyhow::Error {
    result.err().unwrap_or_else(|| anyhow::anyhow!("the synthetic server ended"))
}

/// Waits until the controllers have taken in the cluster, and measures them at rest.
async fn rest(
    args: &ControllersArgs,
    server: &SyntheticServer,
    nap: &mut Nap,
    (nodes, pods): (usize, usize),
) -> anyhow::Result<Row> {
    eprintln!("{nodes} nodes, {pods} pods: taking in …");
    let log = nap.wait(server, |log| log.listed_at.is_some()).await?;
    let taken_in = match (log.listing_since, log.listed_at) {
        (Some(since), Some(at)) => at.duration_since(since),
        _ => Duration::ZERO,
    };
    eprintln!("{nodes} nodes: settling …");
    nap.settle().await?;
    eprintln!("{nodes} nodes: at rest for {} s …", args.rest);
    let (cpu, since) = (nap.cpu_seconds()?, Instant::now());
    tokio::time::sleep(Duration::from_secs(args.rest)).await;
    let rest_percent = 100.0 * (nap.cpu_seconds()? - cpu) / since.elapsed().as_secs_f64();
    let resident_mib = nap.memory_mib("VmRSS:")?;
    let (peak_mib, bursts) = (0.0, Vec::new());
    Ok(Row { nodes, pods, resident_mib, peak_mib, taken_in, rest_percent, bursts })
}

async fn burst(
    server: &SyntheticServer,
    nap: &mut Nap,
    pool: &str,
    count: usize,
) -> anyhow::Result<Burst> {
    server.add_pending(pool, count);
    let last_pod = Instant::now();
    let created = |log: &Log| log.creates.get(pool).copied();
    nap.wait(server, |log| created(log).is_some()).await?;
    let (claims, last) = loop {
        tokio::time::sleep(SETTLED).await;
        let now = created(&server.log().borrow());
        if let Some((claims, last)) = now.filter(|(_, last)| last.elapsed() >= SETTLED) {
            break (claims, last);
        }
    };
    let latency = last.duration_since(last_pod).saturating_sub(BATCH_IDLE);
    Ok(Burst { pods: count, claims, latency })
}

/// A `nap run` that is measured from outside. It ends with this value.
struct Nap(Child);

impl Nap {
    fn start(env: &Path, log: &Path) -> anyhow::Result<Self> {
        let log = std::fs::File::create(log)
            .with_context(|| format!("--run-log: creating {}", log.display()))?;
        let mut command = Command::new(std::env::current_exe()?);
        for line in std::fs::read_to_string(env)?.lines() {
            if let Some((name, value)) = line.split_once('=') {
                command.env(name, value);
            }
        }
        let child = command.arg("run").stdout(Stdio::null()).stderr(log).spawn()?;
        Ok(Self(child))
    }

    /// Waits until the controllers have asked for something.
    async fn wait(
        &mut self,
        server: &SyntheticServer,
        holds: impl Fn(&Log) -> bool,
    ) -> anyhow::Result<Log> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let log = server.log().borrow().clone();
            if holds(&log) {
                return Ok(log);
            }
            if let Some(status) = self.0.try_wait()? {
                let message = format!("`nap run` ended with {status}");
                return Err(UserError::new(message, "see the file of `--run-log`").into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let message = format!("`nap run` did nothing for {} s", PATIENCE.as_secs());
        Err(UserError::new(message, "see the file of `--run-log`").into())
    }

    /// Waits until the controllers have written what they write once after a start.
    async fn settle(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        tokio::time::sleep(SETTLED).await;
        while begun.elapsed() < PATIENCE {
            let before = self.cpu_seconds()?;
            tokio::time::sleep(SETTLED).await;
            if self.cpu_seconds()? - before < SETTLED.as_secs_f64() / 50.0 {
                break;
            }
        }
        Ok(())
    }

    fn memory_mib(&self, name: &str) -> anyhow::Result<f64> {
        process::status_mib_of(self.0.id(), name).context("reading /proc: Linux only")
    }

    fn cpu_seconds(&self) -> anyhow::Result<f64> {
        process::cpu_seconds_of(self.0.id()).context("reading /proc: Linux only")
    }
}

impl Drop for Nap {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Row {
    fn markdown(&self) -> String {
        let one = |burst: &Burst| {
            let milliseconds = burst.latency.as_millis();
            format!("{} → {}, {milliseconds} ms", burst.pods, burst.claims)
        };
        let bursts: Vec<String> = self.bursts.iter().map(one).collect();
        format!(
            "| {} | {} | {:.0} MiB | {:.0} MiB | {:.1} s | {:.2} % | {} |",
            self.nodes,
            self.pods,
            self.resident_mib,
            self.peak_mib,
            self.taken_in.as_secs_f64(),
            self.rest_percent,
            bursts.join("; ")
        )
    }

    fn json(&self) -> Value {
        let bursts: Vec<Value> = self
            .bursts
            .iter()
            .map(|burst| {
                json!({
                    "pods": burst.pods, "nodeClaims": burst.claims,
                    "latencySeconds": burst.latency.as_secs_f64(),
                })
            })
            .collect();
        json!({
            "nodes": self.nodes, "pods": self.pods, "residentMiB": self.resident_mib,
            "peakMiB": self.peak_mib, "takenInSeconds": self.taken_in.as_secs_f64(),
            "restPercent": self.rest_percent, "bursts": bursts,
        })
    }
}

fn parsed<T: DeserializeOwned>(value: Value) -> anyhow::Result<T> {
    Ok(serde_json::from_value(value)?)
}
