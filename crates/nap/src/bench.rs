//! `nap bench`: how long decisions take and what they cost, on generated problems.
//!
//! The problems are plain pods of a few shapes on the embedded catalogue. Times are of the engine alone, on one core.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use nap_api::{AKSNodeClass, Requirement, Requirements, labels};
use nap_cloud::{Clock, CloudProvider};
use nap_engine::{Catalogue, Options, Pod, PodKey, Pool, Snapshot, solve, solve_first_fit};
use nap_sim::world::{World, WorldConfig};
use nap_units::{CPU, MEMORY, PODS, Resources};

use crate::cli::BenchArgs;
use crate::try_cluster;

/// Request shapes in milli-cores and MiB, and how often each occurs.
const SHAPES: [(i64, i64, usize); 12] = [
    (100, 128, 20),
    (100, 256, 12),
    (250, 512, 14),
    (250, 1024, 8),
    (500, 512, 10),
    (500, 2048, 8),
    (1000, 1024, 8),
    (1000, 4096, 6),
    (2000, 2048, 5),
    (2000, 8192, 4),
    (4000, 8192, 3),
    (4000, 32768, 2),
];

/// Prints the table.
pub fn bench(args: &BenchArgs) -> anyhow::Result<()> {
    let catalogue = catalogue(&args.region)?;
    println!(
        "region {}, {} instance types, {} shapes of pods, median of {} runs; `first fit` is the incumbent's order of packing\n",
        args.region,
        catalogue.len(),
        SHAPES.len(),
        args.repeat
    );
    println!(
        "{:<10} {:>8} {:>12} {:>7} {:>14} {:>14} {:>8}",
        "pool", "pods", "time", "nodes", "cost", "first fit", "saving"
    );
    let pools = [("D family", Some("D")), ("any family", None)];
    for (name, family) in pools {
        for pods in [100, 1_000, 10_000, 100_000] {
            let snapshot = snapshot(&catalogue, family, pods);
            measure(name, &snapshot, pods, args.repeat)?;
        }
    }
    Ok(())
}

fn measure(name: &str, snapshot: &Snapshot, pods: usize, repeat: u32) -> anyhow::Result<()> {
    let wall = Clock::wall();
    let options = Options::default();
    let mut times = Vec::new();
    let mut plan = solve(snapshot, &options);
    for _ in 0..repeat {
        let started = wall.now();
        plan = solve(snapshot, &options);
        times.push(wall.now().duration_since(started).as_micros());
    }
    times.sort_unstable();
    let median = times.get(times.len() / 2).context("--repeat must be at least 1")?;
    let guard = solve_first_fit(snapshot, &options);
    anyhow::ensure!(plan.unplaced.is_empty(), "{} pods of the benchmark have no place", plan.unplaced.len());
    let saving = 1000 - plan.cost.micros() * 1000 / guard.cost.micros().max(1);
    println!(
        "{name:<10} {pods:>8} {:>9}.{:02} ms {:>7} {:>12}/h {:>12}/h {:>5}.{} %",
        median / 1000,
        median % 1000 / 10,
        plan.launches.len(),
        plan.cost.to_string(),
        guard.cost.to_string(),
        saving / 10,
        saving % 10,
    );
    Ok(())
}

/// The instance types of a region, as the real provider reads them from the emulator.
fn catalogue(region: &str) -> anyhow::Result<Arc<Catalogue>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    runtime.block_on(async {
        let epoch = Clock::wall().now();
        let config = WorldConfig { region: region.to_owned(), seed: 1, speed: 1, epoch };
        let world = World::new(&config).map_err(try_cluster::explain_region)?;
        Ok(world.provider().instance_types(&AKSNodeClass::default()).await?)
    })
}

fn snapshot(catalogue: &Arc<Catalogue>, family: Option<&str>, pods: usize) -> Snapshot {
    let weights: usize = SHAPES.iter().map(|(_, _, weight)| weight).sum();
    let pods = (0..pods)
        .map(|index| {
            // A stride that is prime to the weights mixes the shapes evenly.
            let mut position = index * 37 % weights;
            let shape = SHAPES.iter().find(|(_, _, weight)| {
                let here = position < *weight;
                position = position.saturating_sub(*weight);
                here
            });
            let (milli, mebibytes, _) = shape.copied().unwrap_or(SHAPES[0]);
            Pod {
                key: PodKey::new("default", &format!("pod-{index}")),
                requests: Resources::new().with(CPU, milli).with(MEMORY, mebibytes << 20).with(PODS, 1),
                terms: vec![Requirements::new()],
                ..Pod::default()
            }
        })
        .collect();
    let mut requirements = Requirements::new();
    requirements.add(labels::CAPACITY_TYPE, Requirement::is_in(["on-demand"]));
    requirements.add(labels::ARCH, Requirement::is_in(["amd64"]));
    if let Some(family) = family {
        requirements.add(labels::SKU_FAMILY, Requirement::is_in([family]));
    }
    let pool = Pool {
        name: "default".to_owned(),
        weight: 0,
        requirements,
        taints: Vec::new(),
        headroom: Resources::new(),
        catalogue: "default".to_owned(),
    };
    let catalogues = BTreeMap::from([("default".to_owned(), Arc::clone(catalogue))]);
    Snapshot { pods, pools: vec![pool], catalogues, ..Snapshot::default() }
}
