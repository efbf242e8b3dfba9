//! `nap bench controllers`: memory, start-up, latency and CPU of `nap run` on a synthetic cluster.
//!
//! `nap run` is a process of its own and talks HTTP, as in production; only the other side is
//! synthetic.

mod cluster;
mod pod_text;
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
use super::measure::Seconds;
use super::process;
use crate::serve;
use crate::try_cluster::files::{self, Folder};
use crate::user_error::UserError;
use pods::{Log, Pending, SyntheticServer};

/// Longest wait for the controllers to take in the cluster or to plan for a burst.
const PATIENCE: Duration = Duration::from_mins(10);
/// Time over which CPU time shows whether the controllers have settled after their start.
const SETTLED: Duration = Duration::from_secs(5);
/// Time without a further create after which a burst counts as planned.
const PLANNED: Duration = Duration::from_secs(2);
/// Time between two bursts.
const PAUSE: Duration = Duration::from_secs(1);
/// Factor on the times that emulated VMs take: bursts come one after the other on the same cluster,
/// without the nodes of the one before.
const VM_DELAYS: f64 = 0.01;
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
    bursts: Vec<Bursts>,
}

/// Bursts of the same number of pending pods.
struct Bursts {
    pods: usize,
    /// Most NodeClaims that one of them was given.
    claims: usize,
    /// From the last pod to the last create, without the batch window, in seconds.
    latencies: Vec<f64>,
}

/// Measures each size and prints a table, or one JSON object per size.
pub(super) fn measure(args: &ControllersArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    if !args.json {
        println!(
            "| nodes | pods | RSS | peak | taken in | CPU at rest | bursts: pods → claims, median and p99 latency |"
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
        vm_delays: VM_DELAYS,
        system_nodes: 0,
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
        let mut nap = Nap::start(args, &env)?;
        let mut row = rest(args, &server, &mut nap, (nodes, pods)).await?;
        let pools = (0..args.burst.len()).map(|round| format!("burst-{round}"));
        let pools: Vec<String> = pools.collect();
        for name in &pools {
            cluster::create_pool(&client, name).await?;
        }
        for (name, count) in pools.iter().zip(&args.burst) {
            eprintln!("{nodes} nodes: {} bursts of {count} pods …", args.repeat);
            let mut bursts = Bursts { pods: *count, claims: 0, latencies: Vec::new() };
            for round in 0..args.repeat {
                tokio::time::sleep(PAUSE).await;
                let burst = Pending { pool: name.clone(), round, pods: *count };
                let (claims, latency) = measure_burst(&server, &mut nap, &burst).await?;
                bursts.claims = bursts.claims.max(claims);
                bursts.latencies.push(latency.as_secs_f64());
                server.remove_pending(&burst);
                tokio::time::sleep(PAUSE).await;
                cluster::delete_claims(&client, name, PATIENCE).await?;
            }
            row.bursts.push(bursts);
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

/// The number of NodeClaims that a burst is given, and the time that it takes.
async fn measure_burst(
    server: &SyntheticServer,
    nap: &mut Nap,
    burst: &Pending,
) -> anyhow::Result<(usize, Duration)> {
    server.add_pending(burst);
    let last_pod = Instant::now();
    let created = |log: &Log| log.creates.get(&burst.pool).copied();
    nap.wait(server, |log| created(log).is_some()).await?;
    let (claims, last) = loop {
        tokio::time::sleep(PLANNED).await;
        let now = created(&server.log().borrow());
        if let Some((claims, last)) = now.filter(|(_, last)| last.elapsed() >= PLANNED) {
            break (claims, last);
        }
    };
    Ok((claims, last.duration_since(last_pod).saturating_sub(BATCH_IDLE)))
}

/// A `nap run` that is measured from outside. It ends with this value.
struct Nap(Child);

impl Nap {
    fn start(args: &ControllersArgs, env: &Path) -> anyhow::Result<Self> {
        let log = std::fs::File::create(&args.run_log)
            .with_context(|| format!("--run-log: creating {}", args.run_log.display()))?;
        let program = args.nap.clone().map_or_else(std::env::current_exe, Ok)?;
        let mut command = Command::new(&program);
        for line in std::fs::read_to_string(env)?.lines() {
            if let Some((name, value)) = line.split_once('=') {
                command.env(name, value);
            }
        }
        let child = command
            .env("LOG_OUTPUT_PATHS", "stderr")
            .arg("run")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        let child = child.with_context(|| format!("--nap: starting {}", program.display()))?;
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
        let one = |bursts: &Bursts| {
            let seconds = Seconds::of(bursts.latencies.clone());
            let (median, p99) = (seconds.median * 1e3, seconds.p99 * 1e3);
            let times = bursts.latencies.len();
            format!("{times} × {} → {}, {median:.0} ms, {p99:.0} ms", bursts.pods, bursts.claims)
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
            .map(|bursts| {
                json!({
                    "pods": bursts.pods, "nodeClaims": bursts.claims,
                    "latencySeconds": Seconds::of(bursts.latencies.clone()),
                    "latencies": bursts.latencies,
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
