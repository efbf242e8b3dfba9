//! Observation of the cluster for the demo, and its output.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use nap_api::nodeclaim::condition::{DISRUPTION_REASON, LAUNCHED};
use nap_api::{NodeClaim, NodePool, conditions, labels};
use nap_engine::{CapacityType, PriceEstimates};
use nap_sim::world::World;
use nap_units::{Rounding, UsdPerHour};
use serde_json::json;

use crate::catalogue::SPOT_NOTE;

/// Polling interval, in simulated time.
const STEP: Duration = Duration::from_secs(1);

/// Longest wait for one step that the reader takes part in, in simulated time; the rest is skipped.
const MAX_SHOWN_WAIT: Duration = Duration::from_mins(5);

/// A fleet without changes for this long is settled.
const QUIET: Duration = Duration::from_mins(1);

/// Polls the cluster and prints what changes.
pub struct Observer<'a> {
    world: &'a World,
    client: Client,
    started: Timestamp,
    told: Mutex<BTreeSet<String>>,
    /// Speed at which the story is told, relative to the simulated time.
    speed: u32,
}

/// State of the cluster at one time.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// All pods of the default namespace.
    pub pods: Vec<Pod>,
    /// All NodeClaims.
    pub claims: Vec<NodeClaim>,
    /// All Nodes.
    pub nodes: Vec<Node>,
    /// Number of VMs that Azure has.
    pub machines: usize,
    pools: Vec<NodePool>,
    prices: Vec<(String, UsdPerHour, CapacityType)>,
    estimates: PriceEstimates,
}

impl<'a> Observer<'a> {
    /// An observer that prints events from now on.
    pub fn new(world: &'a World, speed: u32) -> Self {
        let (client, started) = (world.client(), world.clock().now());
        Self { world, client, started, told: Mutex::new(BTreeSet::new()), speed }
    }

    /// Client of the cluster.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Prints a line with the simulated time before it.
    pub fn say(&self, text: &str) {
        let passed = self.world.clock().now().duration_since(self.started).as_secs();
        println!("[{:02}:{:02}] {text}", passed / 60, passed % 60);
    }

    /// Waits until the fleet is as expected.
    pub async fn until(
        &self,
        what: &str,
        patience: Duration,
        expected: impl Fn(&Fleet) -> bool,
    ) -> anyhow::Result<Fleet> {
        self.wait(what, patience, Duration::ZERO, expected).await
    }

    /// Waits until the fleet is as expected and unchanged for [`QUIET`].
    pub async fn until_quiet(
        &self,
        what: &str,
        patience: Duration,
        expected: impl Fn(&Fleet) -> bool,
    ) -> anyhow::Result<Fleet> {
        self.wait(what, patience, QUIET, expected).await
    }

    async fn wait(
        &self,
        what: &str,
        patience: Duration,
        quiet: Duration,
        expected: impl Fn(&Fleet) -> bool,
    ) -> anyhow::Result<Fleet> {
        let clock = self.world.clock();
        let start = clock.now();
        let mut since: Option<(Vec<String>, Timestamp)> = None;
        loop {
            self.tell_events("DisruptionTerminating", "nap consolidates").await?;
            self.tell_events("AsyncProvisioningError", "Azure refuses").await?;
            self.tell_events("SpotInterrupted", "nap drains").await?;
            self.tell_events("Launching", "nap chooses").await?;
            let fleet = self.look().await?;
            let names: Vec<String> = fleet.claims.iter().map(ResourceExt::name_any).collect();
            since = match since {
                _ if !expected(&fleet) => None,
                Some((same, when)) if same == names => Some((same, when)),
                _ => Some((names, clock.now())),
            };
            let held =
                since.as_ref().map(|(_, when)| clock.now().duration_since(*when).unsigned_abs());
            if held.is_some_and(|held| held >= quiet) {
                return Ok(fleet);
            }
            let waited = clock.now().duration_since(start).unsigned_abs();
            anyhow::ensure!(
                waited < patience,
                "expected that {what}, but after {} s there are {} pending and {} running pods, {} NodeClaims, {} nodes and {} VMs",
                waited.as_secs(),
                fleet.pending(),
                fleet.running(),
                fleet.claims.len(),
                fleet.nodes.len(),
                fleet.machines,
            );
            // The reader waits, the virtual time does not.
            if waited < MAX_SHOWN_WAIT {
                std::thread::sleep(STEP / self.speed);
            }
            clock.sleep(STEP).await;
        }
    }

    async fn look(&self) -> anyhow::Result<Fleet> {
        let all = ListParams::default();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "default");
        let machines = self.world.azure().machines();
        Ok(Fleet {
            pods: pods.list(&all).await?.items,
            claims: Api::all(self.client.clone()).list(&all).await?.items,
            nodes: Api::all(self.client.clone()).list(&all).await?.items,
            pools: Api::all(self.client.clone()).list(&all).await?.items,
            machines: machines.len(),
            prices: machines
                .into_iter()
                .map(|machine| (machine.provider_id, machine.price, machine.capacity_type))
                .collect(),
            estimates: self.world.azure().price_estimates(),
        })
    }

    /// Messages of events with this reason, oldest first.
    pub async fn events(&self, reason: &str) -> anyhow::Result<Vec<String>> {
        Ok(self.news(reason).await?.into_iter().filter_map(|event| event.message).collect())
    }

    /// Events with this reason. Of an event that a Node and its NodeClaim both get, the NodeClaim's
    /// counts.
    async fn news(&self, reason: &str) -> anyhow::Result<Vec<Event>> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let selector = format!("source=karpenter,reason={reason}");
        let mut events = api.list(&ListParams::default().fields(&selector)).await?.items;
        events.retain(|event| event.involved_object.kind.as_deref() == Some("NodeClaim"));
        events
            .sort_by_key(|event| (event.event_time.as_ref().map(|time| time.0), event.name_any()));
        Ok(events)
    }

    /// Prints the events of a reason, each once.
    async fn tell_events(&self, reason: &str, introduction: &str) -> anyhow::Result<()> {
        for event in self.news(reason).await? {
            let fresh = self
                .told
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .insert(event.name_any());
            if let Some(message) = event.message.as_deref().filter(|_| fresh) {
                let message = message.strip_prefix("Disrupting NodeClaim: ").unwrap_or(message);
                let message = message.split_once(" event: ").map_or(message, |(_, text)| text);
                self.say(&format!("{introduction}: {message}"));
            }
        }
        Ok(())
    }

    /// Scales a Deployment of the default namespace.
    pub async fn scale(&self, name: &str, replicas: usize) -> anyhow::Result<()> {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), "default");
        let patch = json!({ "spec": { "replicas": replicas } });
        api.patch_scale(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }
}

/// Prints the equivalent kubectl command.
pub fn command(text: &str) {
    println!("\n        $ {text}");
}

/// Prints the fleet like `kubectl get nodeclaims`, with prices.
pub fn table(fleet: &Fleet) {
    println!(
        "        {:<16} {:<24} {:<10} {:<12} {:>10}",
        "NODECLAIM", "TYPE", "ZONE", "CAPACITY", "PRICE"
    );
    for claim in &fleet.claims {
        let label = |key: &str| claim.labels().get(key).cloned().unwrap_or_default();
        println!(
            "        {:<16} {:<24} {:<10} {:<12} {:>10}",
            claim.name_any(),
            label(labels::INSTANCE_TYPE),
            label(labels::ZONE),
            label(labels::CAPACITY_TYPE),
            format!("{}/h", fleet.price_of(claim)),
        );
    }
}

/// Prints the cost of every VM, and fails if one is left.
pub fn bill(world: &World) -> anyhow::Result<()> {
    let now = world.clock().now();
    println!("\n        The bill:");
    let mut total = 0;
    for machine in world.azure().bill() {
        let end = machine.deleted.unwrap_or(now);
        let seconds = end.duration_since(machine.created).as_secs();
        let cost = machine.price.cost_micros(seconds);
        total += cost;
        let mark = world.azure().price_estimates().mark(machine.capacity_type);
        println!(
            "        {:<24} {:<10} {:>4} s at {mark}{}/h = {mark}{}",
            machine.size,
            machine.zone,
            seconds,
            machine.price,
            UsdPerHour::from_micros(cost),
        );
        anyhow::ensure!(machine.deleted.is_some(), "VM {} was never deleted", machine.name);
    }
    let mark = world.azure().bill_mark();
    println!("        {:<24} {:>41}", "total", format!("{mark}{}", UsdPerHour::from_micros(total)));
    if !mark.is_empty() {
        println!("        {SPOT_NOTE}");
    }
    Ok(())
}

impl Fleet {
    fn phase(&self, phase: &str) -> usize {
        let is = |pod: &&Pod| {
            pod.metadata.deletion_timestamp.is_none()
                && pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(phase)
        };
        self.pods.iter().filter(is).count()
    }

    /// Number of pending pods.
    pub fn pending(&self) -> usize {
        self.phase("Pending")
    }

    /// Number of running pods.
    pub fn running(&self) -> usize {
        self.phase("Running")
    }

    /// Number of NodeClaims with an instance.
    pub fn launched(&self) -> usize {
        let launched = |claim: &&NodeClaim| has(claim, LAUNCHED);
        self.claims.iter().filter(launched).count()
    }

    /// Number of ready nodes.
    pub fn ready_nodes(&self) -> usize {
        self.claims.iter().filter(|claim| has(claim, conditions::READY)).count()
    }

    /// Names of the ready NodePools.
    pub fn ready_pools(&self) -> BTreeSet<String> {
        let ready = |pool: &&NodePool| {
            pool.status
                .as_ref()
                .is_some_and(|status| conditions::is_true(&status.conditions, conditions::READY))
        };
        self.pools.iter().filter(ready).map(ResourceExt::name_any).collect()
    }

    /// Whether no pod is pending and no node is starting or terminating.
    pub fn settled(&self) -> bool {
        self.claims.iter().all(|claim| {
            claim.metadata.deletion_timestamp.is_none()
                && has(claim, conditions::READY)
                && !has(claim, DISRUPTION_REASON)
        }) && self.machines == self.claims.len()
            && self.nodes.len() == self.claims.len()
    }

    /// Price of the instance of a NodeClaim.
    pub fn price_of(&self, claim: &NodeClaim) -> String {
        let id =
            claim.status.as_ref().and_then(|status| status.provider_id.clone()).unwrap_or_default();
        self.prices
            .iter()
            .find(|(one, ..)| one.eq_ignore_ascii_case(&id))
            .map_or_else(String::new, |(_, price, capacity_type)| {
                format!("{}{price}", self.estimates.mark(*capacity_type))
            })
    }

    /// Price of all instances together.
    pub fn price(&self) -> UsdPerHour {
        self.prices.iter().map(|(_, price, _)| *price).sum()
    }

    /// `~` if one of the prices is an estimate.
    pub fn mark(&self) -> &'static str {
        self.estimates.mark_sum(self.prices.iter().map(|(.., capacity_type)| *capacity_type))
    }

    /// Allocatable CPU of all nodes, in milli-cores.
    pub fn offered_cpu_milli(&self) -> i64 {
        let cpu = |node: &Node| {
            let quantity = node.status.as_ref()?.allocatable.as_ref()?.get("cpu")?;
            Some(quantity.0.parse::<nap_units::Quantity>().ok()?.to_milli(Rounding::Down))
        };
        self.nodes.iter().filter_map(cpu).sum()
    }
}

fn has(claim: &NodeClaim, condition: &str) -> bool {
    claim.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, condition))
}
