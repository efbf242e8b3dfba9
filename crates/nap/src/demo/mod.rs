//! `nap demo`: scale up, consolidate and scale to zero on the embedded cluster, then a stock-out
//! and an eviction, with assertions.
//!
//! It acts through the API server as a user with kubectl would, and observes the result. A failed
//! expectation ends the demo with an error.

mod observe;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kube::ResourceExt as _;
use nap_api::{NodeClaim, labels};
use nap_sim::world::{World, WorldConfig};
use nap_units::UsdPerHour;
use observe::{Fleet, Observer};

use crate::cli::DemoArgs;
use crate::manifests;

/// Maximum duration of one step, in simulated time.
const PATIENCE: Duration = Duration::from_mins(90);

/// Start of the story, so that every run tells the same.
const EPOCH: &str = "2026-01-01T00:00:00Z";

/// Runs the demo in virtual time, so that it is the same on every machine; only its lines are
/// printed at the pace of the speed.
pub fn demo(args: DemoArgs) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    let config = WorldConfig {
        region: args.world.region,
        seed: args.world.seed,
        speed: 1,
        epoch: EPOCH.parse().context("the start of the demo")?,
        vm_delays: 1.0,
        system_nodes: 0,
        sizes: BTreeSet::new(),
        retired_sizes: false,
    };
    runtime.block_on(async {
        let world = World::new(&config).map_err(crate::try_cluster::explain_region)?;
        let world = world.with_marked_estimates();
        println!(
            "nap demo: an embedded Kubernetes and an emulated Azure ({}), at {}x speed.\n",
            config.region, args.speed
        );
        tokio::select! {
            biased;
            result = tell(&world, args.speed) => result,
            result = world.run(true) => Err(result.map_or_else(anyhow::Error::from, |()| anyhow::anyhow!("the embedded cluster stopped"))),
        }
    })
}

async fn tell(world: &World, speed: u32) -> anyhow::Result<()> {
    let observer = Observer::new(world, speed);
    world.install_crds().await?;
    manifests::apply(observer.client(), manifests::DEFAULT_NODEPOOL).await?;
    observer
        .until("the default NodePool is ready", PATIENCE, |fleet| {
            fleet.ready_pools().contains("default")
        })
        .await?;
    observer.say("The default NodePool is ready: on-demand Linux nodes of the D family.");

    observe::command("kubectl apply -f examples/inflate.yaml");
    manifests::apply(observer.client(), manifests::INFLATE).await?;
    let fleet =
        observer.until("10 pods are pending", PATIENCE, |fleet| fleet.pending() == 10).await?;
    observer.say(&format!("{} pods are pending: no node has room for them.", fleet.pending()));

    let grown = scale_up(&observer).await?;
    let two = shrink(&observer, &grown, 2, None).await?;
    let wait =
        "Half the size would do. The NodePool has grown a short while ago, so nap waits an hour.";
    shrink(&observer, &two, 1, Some(wait)).await?;
    let replaced =
        observer.events("DisruptionTerminating").await?.iter().any(|text| text.contains("replace"));
    ensure!(replaced, "no node was replaced by a smaller one");
    to_zero(&observer).await?;
    observer.say("No pods, no nodes, no VMs: nothing costs anything.");
    stock_out(world, &observer, &two).await?;
    to_zero(&observer).await?;
    eviction(world, &observer).await?;
    to_zero(&observer).await?;
    observe::bill(world)?;
    Ok(())
}

/// Azure has no VM left of a size: the pods get another one.
async fn stock_out(world: &World, observer: &Observer<'_>, before: &Fleet) -> anyhow::Result<()> {
    let size = before.claims.first().map(size_of).unwrap_or_default();
    println!();
    observer.say(&format!("Azure runs out of {size}."));
    let fault = format!("stockOut: {{size: {size}}}");
    world.azure().schedule_fault(&fault).map_err(anyhow::Error::msg)?;
    observe::command("kubectl scale deployment inflate --replicas=3");
    observer.scale("inflate", 3).await?;
    let fleet = observer
        .until("3 pods run", PATIENCE, |fleet| fleet.running() == 3 && fleet.settled())
        .await?;
    observer.say("3 pods run on another size.");
    observe::table(&fleet);
    let refused = observer.events("AsyncProvisioningError").await?;
    ensure!(!refused.is_empty(), "no machine met the stock-out of {size}");
    ensure!(fleet.claims.iter().all(|claim| size_of(claim) != size), "a node is of size {size}");
    world.azure().clear_faults();
    Ok(())
}

/// Azure takes a spot VM back: its pods move before it goes.
async fn eviction(world: &World, observer: &Observer<'_>) -> anyhow::Result<()> {
    observe::command("kubectl apply -f examples/spot-nodepool.yaml");
    manifests::apply(observer.client(), manifests::SPOT_NODEPOOL).await?;
    observe::command("kubectl scale deployment inflate --replicas=3");
    observer.scale("inflate", 3).await?;
    let fleet = observer
        .until("3 pods run on spot", PATIENCE, |fleet| fleet.running() == 3 && fleet.settled())
        .await?;
    observe::table(&fleet);
    let spot = fleet.claims.iter().find(|claim| {
        claim.labels().get(labels::CAPACITY_TYPE).is_some_and(|capacity| capacity == "spot")
    });
    let spot = spot.context("no node is on spot")?.name_any();
    let fault = format!("evict: {{machine: {spot}}}");
    world.azure().schedule_fault(&fault).map_err(anyhow::Error::msg)?;
    observer.say(&format!("Azure announces that it takes {spot} back in 30 s."));
    let fleet = observer
        .until("3 pods run elsewhere", PATIENCE, |fleet| {
            fleet.claims.iter().all(|claim| claim.name_any() != spot)
                && fleet.running() == 3
                && fleet.settled()
        })
        .await?;
    observer.say("3 pods run on the node that was launched at the notice.");
    observe::table(&fleet);
    Ok(())
}

fn size_of(claim: &NodeClaim) -> String {
    claim.labels().get(labels::INSTANCE_TYPE).cloned().unwrap_or_default()
}

async fn scale_up(observer: &Observer<'_>) -> anyhow::Result<Fleet> {
    observer.until("NodeClaims exist", PATIENCE, |fleet| !fleet.claims.is_empty()).await?;
    observer
        .until("every NodeClaim is launched", PATIENCE, |fleet| {
            fleet.launched() == fleet.claims.len()
        })
        .await?;
    observer.say("Azure has accepted the VMs; they are created and boot.");
    observer
        .until("every node is ready", PATIENCE, |fleet| fleet.ready_nodes() == fleet.claims.len())
        .await?;
    let fleet = observer.until("10 pods run", PATIENCE, |fleet| fleet.running() == 10).await?;
    observer.say(&format!(
        "{} node(s) joined, {} pods run. The fleet costs {}{}/h.",
        fleet.nodes.len(),
        fleet.running(),
        fleet.mark(),
        fleet.price()
    ));
    observe::table(&fleet);
    let offered = fleet.offered_cpu_milli();
    ensure!(offered >= 10_000, "the fleet offers {offered}m CPU for 10 pods of one CPU");
    Ok(fleet)
}

/// Scales the Deployment down and waits until the fleet is cheaper and settled.
async fn shrink(
    observer: &Observer<'_>,
    before: &Fleet,
    replicas: usize,
    comment: Option<&str>,
) -> anyhow::Result<Fleet> {
    observe::command(&format!("kubectl scale deployment inflate --replicas={replicas}"));
    observer.scale("inflate", replicas).await?;
    if let Some(comment) = comment {
        observer.say(comment);
    }
    let old = before.price();
    let what = format!("{replicas} pod(s) run on a cheaper fleet");
    let fleet = observer
        .until_quiet(&what, PATIENCE, |fleet| {
            fleet.running() == replicas
                && fleet.pods.len() == replicas
                && fleet.settled()
                && fleet.price() < old
        })
        .await?;
    let saved = old - fleet.price();
    let mark = before.mark().max(fleet.mark());
    observer.say(&format!(
        "Settled: {} node(s) at {mark}{}/h instead of {mark}{old}/h. That saves {mark}{saved}/h.",
        fleet.nodes.len(),
        fleet.price()
    ));
    observe::table(&fleet);
    Ok(fleet)
}

async fn to_zero(observer: &Observer<'_>) -> anyhow::Result<()> {
    observe::command("kubectl scale deployment inflate --replicas=0");
    observer.scale("inflate", 0).await?;
    let fleet = observer
        .until("nothing is left", PATIENCE, |fleet| {
            fleet.pods.is_empty()
                && fleet.claims.is_empty()
                && fleet.nodes.is_empty()
                && fleet.machines == 0
        })
        .await?;
    ensure!(fleet.price() == UsdPerHour::ZERO, "an empty fleet costs {}/h", fleet.price());
    Ok(())
}
