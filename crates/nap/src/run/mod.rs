//! `nap run`: the controllers against a cluster.

pub mod args;
pub mod logging;
mod profiling;
mod server;

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, ResourceExt};
use nap_azure::{AzureConfig, AzureProvider};
use nap_clock::Clock;
use nap_cloud::ErrorClass;
use nap_controllers::{Context, LeaderElection, RateLimit, Settings};

use crate::cli::RunArgs;
use crate::connect::{connect_to, unreachable};
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
        spot_to_spot: args.gates.feature_gates.spot_to_spot,
        dry_run: args.dry_run,
        avoid_surplus: args.avoid_surplus_nodes,
        keeps_inputs: true,
        observes_objects: !args.operator.disable_cluster_state_observability,
    };
    args.operator.warn();
    args.gates.feature_gates.warn();
    let (client, url) = connect_to(&args.cluster).await?;
    check_crds(&client, &url).await?;
    let clock = if args.speed > 1 {
        Clock::starting_at(Clock::wall().now(), args.speed)
    } else {
        Clock::wall()
    };
    let azure = AzureConfig::from_env().and_then(|azure| azure.check().map(|()| azure));
    let azure = azure.map_err(|error| {
        let all = "`docs/running.md` lists every variable";
        let hint = match error.hint() {
            Some(hint) => format!("set it to {hint}; {all}"),
            None => format!("set it as the AKS provider does; {all}"),
        };
        UserError::new(error.to_string(), hint)
    })?;
    let location = azure.location.clone();
    let cloud = Arc::new(AzureProvider::connect(azure, clock.clone())?);
    // A dry run beside the incumbent is how to see what nap would do instead.
    let is_alone = !args.take_over && !args.dry_run;
    if is_alone {
        refuse_beside_managed(&cloud).await?;
    }
    let managed = {
        let (cloud, clock) = (Arc::clone(&cloud), clock.clone());
        async move { if is_alone { managed_turned_on(&cloud, &clock).await } else { pending().await } }
    };
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
        error = managed => return Err(error.into()),
        () = listeners.serve(served) => {}
    }
    tracing::info!("stopped");
    Ok(())
}

/// Interval at which a running nap asks whether AKS's own node auto-provisioning was turned on.
const MANAGED_CHECK: Duration = Duration::from_mins(5);

/// Fails if AKS itself runs node auto-provisioning in the cluster: both would act on the same
/// NodeClaims. An outage of Azure refuses nothing, or a restart during it would leave the cluster
/// alone; a cluster that may not be read or does not exist is a mistake in the settings.
async fn refuse_beside_managed(cloud: &AzureProvider) -> anyhow::Result<()> {
    match cloud.is_managed_provisioning_on().await {
        Ok(true) => Err(beside_managed().into()),
        Ok(false) => Ok(()),
        Err(error) if matches!(error.class, ErrorClass::Throttled | ErrorClass::Transient) => {
            tracing::warn!(%error, "cannot tell whether AKS runs node auto-provisioning itself");
            Ok(())
        }
        Err(error) => Err(UserError::new(
            format!("cannot tell whether AKS runs node auto-provisioning itself: {error}"),
            "`nap azure check` names the settings and roles that are missing; `--take-over` starts all the same",
        )
        .into()),
    }
}

/// Ends when AKS's own node auto-provisioning is turned on.
async fn managed_turned_on(cloud: &AzureProvider, clock: &Clock) -> UserError {
    loop {
        clock.sleep(MANAGED_CHECK).await;
        match cloud.is_managed_provisioning_on().await {
            Ok(true) => return beside_managed(),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot tell whether AKS runs node auto-provisioning itself");
            }
        }
    }
}

fn beside_managed() -> UserError {
    UserError::new(
        "AKS runs node auto-provisioning in this cluster (`nodeProvisioningProfile.mode` is `Auto`)",
        "disable it with `az aks update --node-provisioning-mode Manual`, or take its nodes over with `--take-over`",
    )
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
async fn check_crds(client: &Client, url: &str) -> anyhow::Result<()> {
    let missing = missing_crds(client, url).await?;
    anyhow::ensure!(
        missing.is_empty(),
        UserError::new(
            format!("the cluster lacks the custom resource definitions {}", missing.join(", ")),
            "install them with `nap crds install`",
        )
    );
    Ok(())
}

/// Names of nap's definitions that the cluster at a URL lacks.
pub async fn missing_crds(client: &Client, url: &str) -> anyhow::Result<Vec<String>> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut missing = Vec::new();
    for crd in nap_api::crds::all() {
        let name = crd.name_any();
        let found = api.get_opt(&name).await;
        let found =
            found.map_err(|error| unreachable(url, "get", "customresourcedefinitions", &error))?;
        if found.is_none() {
            missing.push(name);
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::Full;
    use jiff::Timestamp;
    use nap_azure::arm::{StaticToken, http_service};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nap_stops_when_managed_provisioning_is_turned_on_beside_it() {
        let asked = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&asked);
        let service = http_service(tower::service_fn(move |_: Request<Full<Bytes>>| {
            let number = counted.fetch_add(1, Ordering::Relaxed);
            let mode = if number < 3 { "Manual" } else { "Auto" };
            let body =
                format!(r#"{{"properties":{{"nodeProvisioningProfile":{{"mode":"{mode}"}}}}}}"#);
            async move { Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from(body)))) }
        }));
        let clock = Clock::starting_at(Timestamp::UNIX_EPOCH, 1);
        let (config, token) = (AzureConfig::new("s", "rg", "c", "eastus"), "t".to_owned());
        let token = Arc::new(StaticToken(token));
        let cloud = AzureProvider::new(config, clock.clone(), service, token);
        let error = managed_turned_on(&cloud, &clock).await;
        assert!(error.to_string().contains("AKS runs node auto-provisioning"), "{error}");
        assert_eq!(asked.load(Ordering::Relaxed), 4);
    }
}
