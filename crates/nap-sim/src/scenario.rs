//! A seeded workload: Deployments that come, grow, shrink and go, and checkers that watch the world
//! from outside.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use nap_api::NodeClaim;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::Serialize;
use serde_json::json;

use crate::world::{World, WorldError};

/// How often the checkers look.
const LOOK: Duration = Duration::from_mins(5);
/// A pod that could run and does not for this long is a fault.
const PATIENCE: SignedDuration = SignedDuration::from_mins(30);
/// A machine without a NodeClaim for this long is a leak.
const LEAK: SignedDuration = SignedDuration::from_mins(15);
/// After the last hour everything is scaled to zero, and this long is given for it to vanish.
const WIND_DOWN: Duration = Duration::from_hours(1);

/// What happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Hours that were simulated, the last one for winding down.
    pub hours: u32,
    /// The seed.
    pub seed: u64,
    /// Scalings of Deployments.
    pub scalings: u64,
    /// Machines that were made.
    pub machines: usize,
    /// The most machines at one time that a checker saw.
    pub peak_machines: usize,
    /// The most pods at one time that a checker saw.
    pub peak_pods: usize,
    /// What the machines cost, in micro-dollars.
    pub cost_micros: i64,
    /// What the checkers found wrong, each with the time it was seen.
    pub faults: Vec<String>,
    /// The hash of everything that happened.
    pub trace_hash: String,
}

/// Runs a seeded workload for some hours, then scales everything to zero.
pub async fn run(world: &World, seed: u64, hours: u32) -> Result<Report, WorldError> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let mut report = Report { hours: hours + 1, seed, ..Report::default() };
    let mut checker = Checker::default();
    let deployments = create(world, &mut rng).await?;
    let clock = world.clock();
    let start = clock.now();
    let end =
        start.checked_add(SignedDuration::from_hours(i64::from(hours))).unwrap_or(Timestamp::MAX);
    let mut next_scaling = start;
    while clock.now() < end {
        if clock.now() >= next_scaling {
            let name = &deployments[rng.random_range(0..deployments.len())];
            scale(world, name, rng.random_range(0..=20)).await?;
            report.scalings += 1;
            let pause = SignedDuration::from_secs(rng.random_range(60..2400));
            next_scaling = clock.now().checked_add(pause).unwrap_or(Timestamp::MAX);
        }
        checker.look(world, &mut report).await?;
        let pause =
            Duration::try_from(next_scaling.duration_since(clock.now())).unwrap_or_default();
        clock.sleep(pause.min(LOOK).max(Duration::from_millis(1))).await;
    }
    for name in &deployments {
        scale(world, name, 0).await?;
    }
    clock.sleep(WIND_DOWN).await;
    checker.look(world, &mut report).await?;
    let left = world.azure().machines().len();
    if left > 0 {
        report.faults.push(format!("{left} machine(s) are left although nothing runs"));
    }
    report.machines = world.azure().bill().len();
    report.cost_micros = world.azure().total_cost_micros(clock.now());
    report.trace_hash = format!("{:016x}", world.trace_hash());
    Ok(report)
}

async fn create(world: &World, rng: &mut Pcg64Mcg) -> Result<Vec<String>, WorldError> {
    let api: Api<Deployment> = Api::namespaced(world.client(), "default");
    let mut names = Vec::new();
    for index in 0..6 {
        let name = format!("app-{index}");
        let milli = [100, 250, 500, 1000, 2000, 4000][rng.random_range(0..6)];
        let mebibytes = [128, 512, 1024, 2048, 8192][rng.random_range(0..5)];
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": name },
            "spec": {
                "replicas": 0,
                "selector": { "matchLabels": { "app": name } },
                "template": {
                    "metadata": { "labels": { "app": name } },
                    "spec": { "containers": [{
                        "name": "app", "image": "example.com/app:1",
                        "resources": { "requests": { "cpu": format!("{milli}m"), "memory": format!("{mebibytes}Mi") } },
                    }]},
                },
            },
        });
        let Ok(deployment) = serde_json::from_value(deployment) else { continue };
        let created = api.create(&PostParams::default(), &deployment).await;
        created.map_err(|source| WorldError::Kube { doing: "creating a Deployment", source })?;
        names.push(name);
    }
    Ok(names)
}

async fn scale(world: &World, name: &str, replicas: u32) -> Result<(), WorldError> {
    let api: Api<Deployment> = Api::namespaced(world.client(), "default");
    let patch = json!({ "spec": { "replicas": replicas } });
    let scaled = api.patch_scale(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    scaled.map(|_| ()).map_err(|source| WorldError::Kube { doing: "scaling a Deployment", source })
}

/// Watches from outside: it knows the API and the cloud, and nothing of how nap decides.
#[derive(Default)]
struct Checker {
    unclaimed: BTreeMap<String, Timestamp>,
}

impl Checker {
    async fn look(&mut self, world: &World, report: &mut Report) -> Result<(), WorldError> {
        let now = world.clock().now();
        let all = ListParams::default();
        let failed = |source| WorldError::Kube { doing: "looking at the cluster", source };
        let pods: Vec<Pod> =
            Api::<Pod>::all(world.client()).list(&all).await.map_err(failed)?.items;
        let claims: Vec<NodeClaim> =
            Api::<NodeClaim>::all(world.client()).list(&all).await.map_err(failed)?.items;
        let nodes: Vec<Node> =
            Api::<Node>::all(world.client()).list(&all).await.map_err(failed)?.items;
        let machines = world.azure().machines();
        report.peak_pods = report.peak_pods.max(pods.len());
        report.peak_machines = report.peak_machines.max(machines.len());
        for pod in &pods {
            let created = pod.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
            let waits =
                pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Pending");
            if waits && now.duration_since(created) > PATIENCE {
                report
                    .faults
                    .push(format!("{now}: pod {} is pending for too long", pod.name_any()));
            }
        }
        let claimed = |id: &str| {
            claims.iter().any(|claim| {
                claim.status.as_ref().and_then(|status| status.provider_id.as_deref()) == Some(id)
            })
        };
        self.unclaimed.retain(|id, _| {
            machines.iter().any(|machine| machine.provider_id == *id) && !claimed(id)
        });
        for machine in machines.iter().filter(|machine| !claimed(&machine.provider_id)) {
            let since = *self.unclaimed.entry(machine.provider_id.clone()).or_insert(now);
            if now.duration_since(since) > LEAK {
                report.faults.push(format!("{now}: machine {} has no NodeClaim", machine.name));
            }
        }
        self.check_capacity(&nodes, &pods, now, report);
        Ok(())
    }

    /// No node runs more than it has.
    #[expect(clippy::unused_self, reason = "a checker like the others")]
    fn check_capacity(&self, nodes: &[Node], pods: &[Pod], now: Timestamp, report: &mut Report) {
        for node in nodes {
            let name = node.name_any();
            let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
            let has = nap_controllers::cluster::pods::node_resources(allocatable);
            let mut used = nap_units::Resources::new();
            let here = |pod: &&Pod| {
                pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&name)
            };
            for pod in pods.iter().filter(here) {
                let requests = pod.spec.as_ref().map(nap_controllers::cluster::pods::requests);
                used.add(&requests.and_then(Result::ok).unwrap_or_default());
            }
            if !used.fits(&has) {
                report.faults.push(format!("{now}: node {name} runs more than it has"));
            }
        }
    }
}
