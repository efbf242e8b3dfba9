//! Test harness: scripts of a kubectl user against a world on a paused clock.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use nap_api::{AKSNodeClass, NodeClaim, NodePool};
use nap_controllers::Settings;
use nap_sim::world::{World, WorldConfig};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A world and its client.
pub struct User {
    pub world: World,
    pub client: Client,
}

impl User {
    /// A world with nap's definitions and a node class.
    pub async fn new() -> Self {
        Self::with(Settings::default()).await
    }

    /// A world with these settings of the controllers.
    pub async fn with(settings: Settings) -> Self {
        Self::in_region_with(settings, &[]).await
    }

    /// A world whose VMs come up within a few seconds of each other.
    pub async fn with_quick_vms() -> Self {
        Self::build(Settings::default(), |config| config.vm_delays = 0.2).await
    }

    /// A world whose VMs take several minutes to come up.
    pub async fn with_slow_vms() -> Self {
        Self::build(Settings::default(), |config| config.vm_delays = 6.0).await
    }

    /// A world whose region still sells the sizes that Azure has retired.
    pub async fn with_retired_sizes() -> Self {
        Self::build(Settings::default(), |config| config.retired_sizes = true).await
    }

    /// A world in which VMs boot in another order.
    pub async fn with_seed(seed: u64) -> Self {
        Self::build(Settings::default(), |config| config.seed = seed).await
    }

    /// A world with these settings whose region sells only these VM sizes, if any are named.
    pub async fn in_region_with(settings: Settings, sizes: &[&str]) -> Self {
        let sizes = sizes.iter().map(|size| (*size).to_owned());
        Self::build(settings, |config| config.sizes = sizes.collect()).await
    }

    async fn build(settings: Settings, change: impl FnOnce(&mut WorldConfig)) -> Self {
        let epoch = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut config = WorldConfig {
            region: "eastus".to_owned(),
            seed: 7,
            speed: 1,
            epoch,
            vm_delays: 1.0,
            system_nodes: 0,
            sizes: std::collections::BTreeSet::default(),
            retired_sizes: false,
        };
        change(&mut config);
        let world = World::new(&config).unwrap().with_settings(settings);
        let client = world.client();
        world.install_crds().await.unwrap();
        let user = Self { world, client };
        user.create::<AKSNodeClass>(json!({ "metadata": { "name": "default" }, "spec": {} })).await;
        user
    }

    /// Runs a script while the cluster and nap run. The invariants must hold at its end.
    pub async fn run(&self, script: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = script => {}
            result = self.world.run(true) => panic!("the world stopped: {result:?}"),
        }
        assert_eq!(self.world.violations(), [""; 0]);
    }

    /// Runs a script while the cluster runs, without nap or with what the script runs of it.
    pub async fn run_without_nap(&self, script: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = script => {}
            result = self.world.run(false) => panic!("the world stopped: {result:?}"),
        }
        assert_eq!(self.world.violations(), [""; 0]);
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = ()>,
    {
        Api::all(self.client.clone())
    }

    pub async fn create<K>(&self, mut object: Value) -> K
    where
        K: Resource<DynamicType = ()> + serde::Serialize + DeserializeOwned + Clone + Debug,
    {
        object["apiVersion"] = json!(K::api_version(&()));
        object["kind"] = json!(K::kind(&()));
        let object: K = serde_json::from_value(object).unwrap();
        self.api::<K>().create(&PostParams::default(), &object).await.unwrap()
    }

    /// The NodePool of the managed product, with changes merged in.
    pub async fn default_pool(&self, changes: Value) -> NodePool {
        let mut pool = json!({
            "metadata": { "name": "default" },
            "spec": {
                "disruption": { "consolidateAfter": "0s" },
                "template": { "spec": {
                    "nodeClassRef": { "group": "karpenter.azure.com", "kind": "AKSNodeClass", "name": "default" },
                    "expireAfter": "Never",
                    "requirements": [
                        { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] },
                        { "key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"] },
                        { "key": "karpenter.azure.com/sku-family", "operator": "In", "values": ["D"] },
                    ],
                } },
            },
        });
        json_patch::merge(&mut pool, &changes);
        self.create(pool).await
    }

    /// A NodeClaim without a NodePool.
    pub async fn standalone(&self, name: &str) -> NodeClaim {
        let class =
            json!({ "group": "karpenter.azure.com", "kind": "AKSNodeClass", "name": "default" });
        let on_demand = json!({
            "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"],
        });
        self.create(json!({
            "metadata": { "name": name },
            "spec": { "nodeClassRef": class, "requirements": [on_demand] },
        }))
        .await
    }

    /// A Deployment of pods of one CPU and 1 Gi each, with changes merged into the pod template.
    pub async fn deploy(&self, name: &str, replicas: usize, template: Value) -> Deployment {
        let mut deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": name, "namespace": "default" },
            "spec": {
                "replicas": replicas,
                "selector": { "matchLabels": { "app": name } },
                "template": {
                    "metadata": { "labels": { "app": name } },
                    "spec": { "containers": [{
                        "name": "app", "image": "example.com/app:1",
                        "resources": { "requests": { "cpu": "1", "memory": "1Gi" } },
                    }] },
                },
            },
        });
        json_patch::merge(&mut deployment["spec"]["template"], &template);
        let object: Deployment = serde_json::from_value(deployment).unwrap();
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), "default");
        api.create(&PostParams::default(), &object).await.unwrap()
    }

    pub async fn scale(&self, name: &str, replicas: usize) {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), "default");
        let patch = json!({ "spec": { "replicas": replicas } });
        api.patch_scale(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub async fn patch<K>(&self, name: &str, patch: Value)
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
    {
        self.api::<K>().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub async fn delete<K>(&self, name: &str)
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
    {
        self.api::<K>().delete(name, &DeleteParams::default()).await.unwrap();
    }

    pub async fn list<K>(&self) -> Vec<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
    {
        self.api::<K>().list(&ListParams::default()).await.unwrap().items
    }

    /// Number of running pods that are not terminating.
    pub async fn running(&self) -> usize {
        let pods = self.list::<Pod>().await;
        let runs = |pod: &&Pod| {
            pod.metadata.deletion_timestamp.is_none()
                && pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
        };
        pods.iter().filter(runs).count()
    }

    pub async fn claims(&self) -> Vec<NodeClaim> {
        self.list().await
    }

    pub async fn nodes(&self) -> Vec<Node> {
        self.list().await
    }

    /// Messages of events from `karpenter` with this reason.
    pub async fn events(&self, reason: &str) -> Vec<String> {
        let selector = format!("source=karpenter,reason={reason}");
        let events: Vec<Event> =
            self.api().list(&ListParams::default().fields(&selector)).await.unwrap().items;
        events.into_iter().filter_map(|event| event.message).collect()
    }

    /// Moves of the pods of a Deployment that nap has stored, over all reasons.
    pub async fn moves_of(&self, deployment: &str) -> u64 {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), "kube-system");
        let stored = api.get("nap-decisions").await.unwrap().data.unwrap();
        let stored: Value = serde_json::from_str(&stored["evictions.json"]).unwrap();
        let workloads = stored["workloads"].as_array().unwrap();
        let of_deployment =
            workloads.iter().filter(|it| it["kind"] == "Deployment" && it["name"] == deployment);
        let hours = of_deployment.flat_map(|it| it["hours"].as_object().unwrap().values());
        hours.filter_map(Value::as_u64).sum()
    }

    /// Number of VMs that Azure has.
    pub fn machines(&self) -> usize {
        self.world.azure().machines().len()
    }

    /// Number of VMs that Azure ever created.
    pub fn machines_ever(&self) -> usize {
        self.world.azure().bill().len()
    }

    pub async fn pass(&self, seconds: u64) {
        self.world.clock().sleep(Duration::from_secs(seconds)).await;
    }

    /// Lets the hour pass in which NodePools count as growing after a launch, so that a replacement
    /// that saves half is worth it.
    pub async fn until_no_pool_grows(&self) {
        self.pass(3600).await;
    }

    /// Waits until `holds`, for at most one simulated hour.
    pub async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        for _ in 0..3600 {
            if holds().await {
                return;
            }
            self.pass(1).await;
        }
        let claims: Vec<String> = self.claims().await.iter().map(ResourceExt::name_any).collect();
        panic!(
            "never: {what}; claims {claims:?}, {} machines, {} pods run",
            self.machines(),
            self.running().await
        );
    }

    pub async fn until_running(&self, pods: usize) {
        self.until(&format!("{pods} pods run"), async || self.running().await == pods).await;
    }
}
