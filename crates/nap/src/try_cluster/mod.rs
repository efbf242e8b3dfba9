//! `nap try`: a cluster with an Azure emulator, for kubectl.
//!
//! The cluster is embedded, a real control plane on this computer, or one that the user has.

mod ages;
mod args;
mod beside;
mod faults;
pub(crate) mod files;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use nap_clock::Clock;
use nap_controllers::Settings;
use nap_kubelets::Heartbeats;
use nap_sim::azure::Emulator;
use nap_sim::world::{World, WorldConfig, WorldError};
use nap_units::UsdPerHour;

use crate::catalogue::SPOT_NOTE;
use crate::cli::{ControlPlane, TryArgs};
use crate::shutdown::interrupted;
use crate::user_error::UserError;
use crate::{manifests, serve};
use ages::ByWallClock;
pub use args::EmbeddedArgs;
use files::Folder;

/// Runs the cluster until a shutdown signal.
pub async fn try_cluster(args: TryArgs) -> anyhow::Result<()> {
    crate::output::outlive_reader();
    anyhow::ensure!(
        args.listen.ip().is_loopback(),
        UserError::new(
            format!("--listen {} is not a loopback address", args.listen),
            "the cluster and the emulator have no authentication: listen on 127.0.0.1 or [::1]",
        )
    );
    if args.control_plane == ControlPlane::Embedded && args.kubeconfig.is_none() {
        return embedded(&args).await;
    }
    args.embedded.refuse_beside_real()?;
    beside::run(&args).await
}

async fn embedded(args: &TryArgs) -> anyhow::Result<()> {
    let config = WorldConfig {
        region: args.world.region.clone(),
        seed: args.world.seed,
        speed: args.embedded.speed,
        epoch: Clock::wall().now(),
        vm_delays: args.vm_delays,
        system_nodes: args.embedded.system_nodes,
        sizes: BTreeSet::new(),
        retired_sizes: args.retired_sizes,
    };
    // Heartbeats at the intervals of real kubelets by the wall clock, whatever the speed.
    let every = |seconds: u64| Duration::from_secs(seconds * u64::from(args.embedded.speed));
    let world = World::new(&config)
        .map_err(explain_region)?
        .with_marked_estimates()
        .with_settings(settings(args))
        .with_workload_events()
        .with_heartbeats(Heartbeats { lease: every(10), status: every(300) });
    faults::schedule_file(world.azure(), args.faults.as_deref())?;
    let kubernetes = serve::bind(args.listen).await?;
    let azure = serve::bind(std::net::SocketAddr::new(args.listen.ip(), 0)).await?;
    let (kubernetes_address, azure_address) = (kubernetes.local_addr()?, azure.local_addr()?);
    let folder = Folder::create(kubernetes_address.port())?;
    let kubeconfig =
        folder.write("kubeconfig", &files::kubeconfig(&format!("http://{kubernetes_address}")))?;
    let endpoint = format!("http://{azure_address}");
    let env = folder.write_env(world.azure(), Some(&kubeconfig), &endpoint, args.embedded.speed)?;
    world.install_crds().await?;
    if args.default_nodepool.unwrap_or(true) {
        manifests::apply(&world.client(), manifests::DEFAULT_NODEPOOL).await?;
    }
    let shutdown = interrupted()?;
    println!(
        "A Kubernetes cluster with an emulated Azure ({}) is up, at {}x speed. In another terminal:\n",
        config.region, args.embedded.speed
    );
    announce(Some(&kubeconfig), args, &env);
    println!("Ctrl-C ends it.");
    let for_kubectl = ByWallClock::new(world.server().clone(), world.clock().clone());
    tokio::select! {
        biased;
        () = shutdown => {}
        result = serve::serve(kubernetes, for_kubectl) => result?,
        result = serve::serve(azure, world.azure().clone()) => result?,
        result = world.run(!args.no_controllers) => result?,
        never = faults::typed(world.azure()) => match never {},
    }
    farewell(world.azure(), world.clock());
    Ok(())
}

/// Settings of the controllers.
fn settings(args: &TryArgs) -> Settings {
    args.gates.feature_gates.warn();
    let gates = &args.gates.feature_gates;
    let (node_repair, spot_to_spot) = (gates.node_repair, gates.spot_to_spot);
    Settings { node_repair, spot_to_spot, keeps_inputs: true, ..Settings::default() }
}

/// Prints the number and the cost of the VMs.
fn farewell(azure: &Emulator, clock: &Clock) {
    let (made, left) = (azure.bill().len(), azure.machines().len());
    let cost = UsdPerHour::from_micros(azure.total_cost_micros(clock.now()));
    let mark = azure.bill_mark();
    println!(
        "\nThe emulated Azure is gone: {made} VM(s) created, {left} left, \
         {mark}{cost} in all."
    );
    if !mark.is_empty() {
        println!("{SPOT_NOTE}");
    }
}

/// Prints what to type in another terminal; without a kubeconfig the user has one already.
fn announce(kubeconfig: Option<&Path>, args: &TryArgs, env: &Path) {
    if let Some(kubeconfig) = kubeconfig {
        println!("  export KUBECONFIG={}", kubeconfig.display());
    }
    println!("  kubectl get nodepools");
    println!("  kubectl apply -f examples/inflate.yaml");
    println!("  kubectl get nodeclaims -w\n");
    if args.no_controllers {
        println!("nap does not run in it. To start it from another terminal:\n");
        println!("  set -a; . {}; set +a", env.display());
        let context = args.context.iter().map(|name| format!(" --context {name}"));
        println!("  nap run{}\n", context.collect::<String>());
    }
    println!("Type a fault of Azure here, such as `notReady: {{count: 1}}` (docs/faults.md).");
}

/// Turns an unknown region into a user error with similar names as hint.
pub fn explain_region(error: WorldError) -> anyhow::Error {
    match error {
        WorldError::UnknownRegion { region, nearest } => {
            let hint = format!("did you mean {}?", nearest.join(", "));
            UserError::new(
                format!("--region: there is no region `{region}` in the catalogue"),
                hint,
            )
            .into()
        }
        other => other.into(),
    }
}
