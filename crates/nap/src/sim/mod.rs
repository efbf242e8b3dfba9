//! `nap sim`: a deterministic simulation on a paused clock, of a seeded workload or of the user's
//! own ([`own`]).

mod own;

use anyhow::{Context as _, ensure};
use clap::Args;
use nap_clock::Clock;
use nap_sim::simulation::{self, Report};
use nap_sim::world::{World, WorldConfig};
use nap_units::UsdPerHour;
use std::collections::BTreeSet;

use crate::cli::WorldArgs;
use crate::{manifests, try_cluster};
use std::path::PathBuf;

/// Options of `nap sim`.
#[derive(Clone, Debug, Args)]
pub struct SimArgs {
    #[command(flatten)]
    pub world: WorldArgs,
    /// Hours to simulate
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=8760))]
    pub hours: u32,
    /// About this many nodes of 8 vCPUs at the peak, instead of a few of any size
    #[arg(long, value_name = "COUNT", conflicts_with = "files",
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub nodes: Option<u32>,
    /// Manifests to simulate instead of a seeded workload: files, folders, or `-`
    #[arg(short = 'f', long = "file", value_name = "FILE", num_args = 1..)]
    pub files: Vec<PathBuf>,
    /// Scalings of these manifests: a YAML list such as `- {at: 1h, scale: shop/web, replicas: 20}`
    #[arg(long, value_name = "FILE", requires = "files")]
    pub schedule: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// Start time of every simulation, so that runs can be compared.
const EPOCH: &str = "2026-01-01T00:00:00Z";

/// Upper limit on the replicas of a Deployment. With `--nodes` it is their number: the six
/// Deployments then need about as many nodes of 8 vCPUs at the peak.
const MAX_REPLICAS: u32 = 20;

/// Requirement of the default NodePool, and one that keeps nodes small.
const FAMILY: &str = "        - key: karpenter.azure.com/sku-family
          operator: In
          values: [D]
";
const SMALL_SIZES: &str = "        - key: karpenter.azure.com/sku-cpu
          operator: In
          values: [\"8\"]
";

/// Runs the simulation and prints its report. Fails if the checkers found faults.
pub fn sim(args: &SimArgs) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    if !args.files.is_empty() {
        return runtime.block_on(async { own::simulate(args, &world(args)?).await });
    }
    let wall = Clock::wall();
    let started = wall.now();
    let report = runtime.block_on(simulate(args))?;
    let seconds = wall.now().duration_since(started).as_secs_f64();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&report);
    }
    eprintln!(
        "{} simulated hours in {seconds:.1} s: {:.1} hours per second",
        report.hours,
        f64::from(report.hours) / seconds
    );
    ensure!(report.faults.is_empty(), "the checkers found {} fault(s)", report.faults.len());
    Ok(())
}

/// Fails with the first violation of what must hold at every instant, if there is one.
fn no_violations(world: &World) -> anyhow::Result<()> {
    let violations = world.violations();
    match violations.first() {
        Some(first) => anyhow::bail!("{} violation(s), the first at {first}", violations.len()),
        None => Ok(()),
    }
}

fn world(args: &SimArgs) -> anyhow::Result<World> {
    let epoch = EPOCH.parse().context("the start of a simulation")?;
    let config = WorldConfig {
        region: args.world.region.clone(),
        seed: args.world.seed,
        speed: 1,
        epoch,
        vm_delays: 1.0,
        system_nodes: 0,
        sizes: BTreeSet::new(),
        retired_sizes: false,
    };
    Ok(World::new(&config).map_err(try_cluster::explain_region)?.with_marked_estimates())
}

async fn simulate(args: &SimArgs) -> anyhow::Result<Report> {
    let world = world(args)?;
    world.install_crds().await?;
    let pool = match args.nodes {
        None => manifests::DEFAULT_NODEPOOL.to_owned(),
        Some(_) => manifests::DEFAULT_NODEPOOL.replace(FAMILY, &format!("{FAMILY}{SMALL_SIZES}")),
    };
    manifests::apply(&world.client(), &pool).await?;
    let max_replicas = args.nodes.unwrap_or(MAX_REPLICAS);
    tokio::select! {
        biased;
        report = simulation::run(&world, args.world.seed, args.hours, max_replicas) => Ok(report?),
        result = world.run(true) => {
            result?;
            anyhow::bail!("the embedded cluster stopped")
        }
    }
}

fn print(report: &Report) {
    println!("seed           {}", report.seed);
    println!("hours          {}", report.hours);
    println!("scalings       {}", report.scalings);
    println!(
        "VMs created    {} (at most {} at once, for at most {} pods)",
        report.machines, report.peak_machines, report.peak_pods
    );
    let mark = if report.cost_is_estimate { "~" } else { "" };
    println!("cost           {mark}{}", UsdPerHour::from_micros(report.cost_micros));
    println!("faults         {}", report.faults.len());
    for fault in &report.faults {
        println!("  {fault}");
    }
    println!("trace hash     {}", report.trace_hash);
}
