//! The Azure emulator and the kubelets of its VMs beside a real control plane: one that is started
//! here, or that of a cluster which the user has.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use nap_azure::embedded::EmbeddedCatalogue;
use nap_clock::Clock;
use nap_controllers::Context;
use nap_controllers::install::{self, Outcome};
use nap_controlplane::{Parts, Plane};
use nap_kubelets::KubeletConfig;
use nap_sim::azure::{Emulator, EmulatorConfig, SUBSCRIPTION};
use nap_sim::world::WorldError;

use super::files::Folder;
use super::{announce, explain_region, farewell, faults, settings};
use crate::cli::{ClusterArgs, TryArgs};
use crate::connect::{connect_to, unreachable};
use crate::shutdown::interrupted;
use crate::user_error::UserError;
use crate::{crds, manifests, run, serve};

/// Runs until a shutdown signal. A control plane that was started here ends with it.
pub(super) async fn run(args: &TryArgs) -> anyhow::Result<()> {
    check_region(&args.world.region)?;
    let plane = match args.kubeconfig {
        Some(_) => None,
        None => Some(start_plane().await?),
    };
    let kubeconfig = plane.as_ref().map(Plane::kubeconfig).or_else(|| args.kubeconfig.clone());
    let cluster = ClusterArgs { kubeconfig: kubeconfig.clone(), context: args.context.clone() };
    let (client, url) = connect_to(&cluster).await?;
    if plane.is_none() && !args.force {
        refuse_aks(&client, &url).await?;
    }
    install_crds(&client, &url, plane.is_none()).await?;
    if args.default_nodepool.unwrap_or(plane.is_some()) {
        manifests::apply(&client, manifests::DEFAULT_NODEPOOL).await?;
    }

    let version = client.apiserver_version().await?.git_version;
    let clock = Clock::wall();
    let mut config = EmulatorConfig::new(&args.world.region, args.world.seed, clock.clone())
        .with_vm_delays(args.vm_delays);
    config.kubernetes_version = plain_version(&version);
    config.any_subnet = true;
    config.retired_sizes = args.retired_sizes;
    let (emulator, vms) = Emulator::new(config)?;
    faults::schedule_file(&emulator, args.faults.as_deref())?;
    let listener = serve::bind(args.listen).await?;
    let address = listener.local_addr()?;
    let folder = Folder::create(address.port())?;
    let endpoint = format!("http://{address}");
    let env = folder.write_env(&emulator, kubeconfig.as_deref(), &endpoint, 1)?;

    let shutdown = interrupted()?;
    let region = &args.world.region;
    let what = if plane.is_some() { "A real control plane" } else { "Your cluster" };
    println!("{what} with an emulated Azure ({region}) is up. In another terminal:\n");
    announce(kubeconfig.as_deref(), args, &env);
    println!("Ctrl-C ends it.");
    let kubelets = nap_kubelets::run(
        client.clone(),
        clock.clone(),
        KubeletConfig {
            ready_after: Duration::from_secs(5).mul_f64(args.vm_delays.min(1.0)),
            version: format!("v{}", plain_version(&version)),
            ..KubeletConfig::default()
        },
        vms,
    );
    tokio::select! {
        biased;
        () = shutdown => {}
        result = serve::serve(listener, emulator.clone()) => result?,
        never = kubelets => match never {},
        () = controllers(args, client.clone(), &emulator, clock.clone()) => {}
        never = faults::typed(&emulator) => match never {},
    }
    farewell(&emulator, &clock);
    if plane.is_none() && !emulator.machines().is_empty() {
        println!("Their Nodes and NodeClaims stay in your cluster until nap runs there again.");
    }
    Ok(())
}

async fn controllers(args: &TryArgs, client: Client, emulator: &Emulator, clock: Clock) {
    if args.no_controllers {
        return std::future::pending().await;
    }
    let provider = Arc::new(emulator.provider());
    let context = Context::new(client, provider, clock, settings(args));
    nap_controllers::run(&context, std::future::pending()).await;
}

async fn start_plane() -> anyhow::Result<Plane> {
    eprintln!("starting etcd, kube-apiserver, kube-controller-manager and kube-scheduler");
    Plane::start(Parts::All).await.map_err(|error| match error {
        nap_controlplane::Error::Missing(why) => {
            let message = format!("there is no control plane to start: {why}");
            UserError::new(message, "run `make controlplane`").into()
        }
        other => anyhow::Error::from(other),
    })
}

fn check_region(region: &str) -> anyhow::Result<()> {
    let catalogue = EmbeddedCatalogue::embedded();
    if catalogue.region(region).is_ok() {
        return Ok(());
    }
    let nearest = catalogue.nearest_regions(region);
    Err(explain_region(WorldError::UnknownRegion { region: region.to_owned(), nearest }))
}

/// Fails if the cluster has AKS nodes: their VMs are not in the emulator, and nap would take
/// NodeClaims of such VMs for gone.
async fn refuse_aks(client: &Client, url: &str) -> anyhow::Result<()> {
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await;
    let nodes = nodes.map_err(|error| unreachable(url, "list", "nodes", &error))?;
    let aks = nodes.items.iter().find(|node| is_aks(node));
    match aks {
        Some(node) => Err(UserError::new(
            format!("node `{}` is an AKS node: this cluster has a real Azure", node.name_any()),
            "use another cluster, or pass --force if its nodes may be lost",
        )
        .into()),
        None => Ok(()),
    }
}

/// Nodes of an earlier emulator do not count: it is the one cloud that they had.
fn is_aks(node: &Node) -> bool {
    let provider_id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
    let provider_id = provider_id.unwrap_or_default();
    let emulated = provider_id.starts_with(&format!("azure:///subscriptions/{SUBSCRIPTION}/"));
    let aks = node.labels().contains_key("kubernetes.azure.com/agentpool")
        || provider_id.starts_with("azure://");
    aks && !emulated
}

/// Installs the definitions; a user's cluster keeps those that it has.
async fn install_crds(client: &Client, url: &str, users: bool) -> anyhow::Result<()> {
    if users && run::missing_crds(client, url).await?.is_empty() {
        return Ok(());
    }
    let installed = install::install(client, |kind, name, outcome| {
        if users && outcome == Outcome::Created {
            println!("{kind} {name}: created");
        }
    });
    installed.await.map_err(|error| crds::failed(url, &error))
}

/// `1.36.4` of `v1.36.4-gke.1` and `v1.36.4+k3s1`.
fn plain_version(git_version: &str) -> String {
    let plain = git_version.trim_start_matches('v').split(['-', '+']).next();
    plain.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aks_nodes_are_known_by_label_and_by_provider_id() {
        let node = |object| serde_json::from_value::<Node>(object).unwrap();
        let label = serde_json::json!({ "kubernetes.azure.com/agentpool": "system" });
        assert!(is_aks(&node(serde_json::json!({ "metadata": { "labels": &label } }))));
        assert!(is_aks(&node(serde_json::json!({ "spec": { "providerID": "azure:///x" } }))));
        assert!(!is_aks(&node(serde_json::json!({ "spec": { "providerID": "kind://x" } }))));
        let emulated = format!("azure:///subscriptions/{SUBSCRIPTION}/resourceGroups/x");
        let spec = serde_json::json!({ "providerID": emulated });
        assert!(!is_aks(&node(
            serde_json::json!({ "metadata": { "labels": label }, "spec": spec })
        )));
    }

    #[test]
    fn version_of_a_distribution_is_reduced_to_numbers() {
        assert_eq!(plain_version("v1.36.4"), "1.36.4");
        assert_eq!(plain_version("v1.33.1+k3s1"), "1.33.1");
        assert_eq!(plain_version("v1.31.0-eks-1234"), "1.31.0");
    }
}
