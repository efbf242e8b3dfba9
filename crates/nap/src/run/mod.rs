//! `nap run`: the controllers against a cluster.

pub mod args;
pub mod logging;
mod profiling;
mod server;

use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, ResourceExt};
use nap_azure::{AzureConfig, AzureProvider};
use nap_clock::Clock;
use nap_controllers::{Context, LeaderElection, RateLimit, Settings};

use crate::cli::RunArgs;
use crate::connect::connect;
use crate::shutdown::interrupted;
use crate::user_error::UserError;
use server::Listeners;

/// The file in which a pod finds the name of its namespace.
const POD_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Runs the controllers until a shutdown signal.
pub async fn run(args: RunArgs) -> anyhow::Result<()> {
    args.operator.refuse_unsupported()?;
    let listeners = Listeners::bind(&args.operator).await?;
    let settings = Settings {
        batch_idle: args.batch_idle_duration,
        batch_max: args.batch_max_duration,
        engine: args.engine.options()?,
        solve_on_worker_thread: true,
        rate_limit: RateLimit { qps: args.kube_client_qps, burst: args.kube_client_burst },
        leader_election: (!args.disable_leader_election).then(|| leader_election(&args)),
        node_repair: args.gates.feature_gates.node_repair,
        dry_run: args.dry_run,
        avoid_surplus: args.avoid_surplus_nodes,
        observes_objects: !args.operator.disable_cluster_state_observability,
    };
    args.operator.warn();
    args.gates.feature_gates.warn();
    let client = connect(&args.cluster).await?;
    check_crds(&client).await?;
    let clock = if args.speed > 1 {
        Clock::starting_at(Clock::wall().now(), args.speed)
    } else {
        Clock::wall()
    };
    let azure = AzureConfig::from_variables(|name| std::env::var(name).ok()).map_err(|error| {
        UserError::new(
            error.to_string(),
            "set it as the AKS provider does; `docs/running.md` lists every variable",
        )
    })?;
    let location = azure.location.clone();
    let cloud = Arc::new(AzureProvider::connect(azure, clock.clone())?);
    // A dry run beside the incumbent is how to see what nap would do instead.
    if !args.take_over && !args.dry_run {
        refuse_beside_managed(&cloud).await?;
    }
    let context = Arc::new(Context::new(client, cloud, clock, settings));
    context.metrics.set_commit(logging::COMMIT);
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        location,
        dry_run = args.dry_run,
        "starting"
    );
    let served = Arc::clone(&context);
    tokio::select! {
        biased;
        () = nap_controllers::run(&context, interrupted()?) => {}
        () = listeners.serve(served) => {}
    }
    tracing::info!("stopped");
    Ok(())
}

/// Fails if AKS itself runs node auto-provisioning in the cluster: both would act on the same
/// NodeClaims. What cannot be read refuses nothing, or a restart during an outage of Azure would
/// leave the cluster alone.
async fn refuse_beside_managed(cloud: &AzureProvider) -> anyhow::Result<()> {
    match cloud.is_managed_provisioning_on().await {
        Ok(true) => Err(UserError::new(
            "AKS runs node auto-provisioning in this cluster (`nodeProvisioningProfile.mode` is `Auto`)",
            "disable it with `az aks update --node-provisioning-mode Manual`, or take its nodes over with `--take-over`",
        )
        .into()),
        Ok(false) => Ok(()),
        Err(error) => {
            tracing::warn!(%error, "cannot tell whether AKS runs node auto-provisioning itself");
            Ok(())
        }
    }
}

/// The Lease to compete for. A dry run has one of its own, so that it never keeps a replica that
/// acts from leading. The holder is `<pod>_<id>`, by which tools find the pod that leads.
fn leader_election(args: &RunArgs) -> LeaderElection {
    let set = |value: &String| !value.is_empty();
    let own = || std::fs::read_to_string(POD_NAMESPACE).ok();
    let namespace = args.leader_election_namespace.clone().filter(set);
    let namespace = namespace.or_else(|| own().map(|name| name.trim().to_owned()).filter(set));
    let variable = |name: &str| std::env::var(name).ok().filter(set);
    let pod = variable("POD_NAME").or_else(|| variable("HOSTNAME"));
    let id = format!("{:x}-{:x}", Clock::wall().now().as_nanosecond(), std::process::id());
    let suffix = if args.dry_run { "-dry-run" } else { "" };
    LeaderElection {
        namespace: namespace.unwrap_or_else(|| "kube-system".to_owned()),
        name: format!("{}{suffix}", args.leader_election_name),
        identity: format!("{}_{id}", pod.as_deref().unwrap_or("nap")),
    }
}

/// Fails if the cluster lacks nap's definitions: the controllers could watch nothing.
async fn check_crds(client: &Client) -> anyhow::Result<()> {
    let missing = missing_crds(client).await?;
    anyhow::ensure!(
        missing.is_empty(),
        UserError::new(
            format!("the cluster lacks the custom resource definitions {}", missing.join(", ")),
            "install them with `nap crds install`",
        )
    );
    Ok(())
}

/// Names of nap's definitions that the cluster lacks.
pub async fn missing_crds(client: &Client) -> anyhow::Result<Vec<String>> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut missing = Vec::new();
    for crd in nap_api::crds::all() {
        let name = crd.name_any();
        let found = api.get_opt(&name).await.map_err(|error| {
            UserError::new(
                format!("cannot reach the cluster: {error}"),
                "check the server address in your kubeconfig",
            )
        })?;
        if found.is_none() {
            missing.push(name);
        }
    }
    Ok(missing)
}
