//! Reads the user's cluster; writes nothing.

use std::fmt::Debug;

use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{
    ConfigMap, LimitRange, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    ReplicationController, ResourceQuota, Service,
};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Client, Resource, ResourceExt};
use nap_api::{AKSNodeClass, NodeClaim, NodeOverlay, NodePool, labels};
use nap_controllers::capacity_memory;
use nap_controllers::cluster::{Index, Indexed};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::asked::KnownWorkload;
use super::cluster::Cluster;
use crate::cli::ClusterArgs;
use crate::connect::{connect_to, unreachable};
use crate::manifests::read::Document;

/// Page size of lists.
const PAGE: u32 = 500;

/// An API server.
struct Server {
    client: Client,
    url: String,
}

/// Reads every object that a decision depends on. With `keep_ties`, also the workload selectors
/// that default spread constraints need.
pub async fn from_cluster(args: &ClusterArgs, keep_ties: bool) -> anyhow::Result<Cluster> {
    let (client, url) = connect_to(args).await?;
    let server = &Server { client, url };
    let mut cluster = Cluster::default();
    let state = &mut cluster.state;
    index::<Pod>(server, state).await?;
    index::<Node>(server, state).await?;
    index::<NodeClaim>(server, state).await?;
    index::<NodePool>(server, state).await?;
    index::<AKSNodeClass>(server, state).await?;
    index::<DaemonSet>(server, state).await?;
    index::<PodDisruptionBudget>(server, state).await?;
    index::<Namespace>(server, state).await?;
    index::<PersistentVolumeClaim>(server, state).await?;
    index::<PersistentVolume>(server, state).await?;
    index::<StorageClass>(server, state).await?;
    index::<CSINode>(server, state).await?;
    index::<NodeOverlay>(server, state).await?;
    // Pods of DaemonSets without requests get its defaults.
    index::<LimitRange>(server, state).await?;
    if keep_ties {
        index::<Service>(server, state).await?;
        index::<ReplicationController>(server, state).await?;
        index::<ReplicaSet>(server, state).await?;
        index::<StatefulSet>(server, state).await?;
    }
    cluster.add_default_pool()?;
    cluster.make_ready();
    read_capacity_memory(&server.client, &mut cluster).await;
    Ok(cluster)
}

/// Autoscalers that a cluster has only if it runs their controller: group, version, kind, plural.
const AUTOSCALERS: [[&str; 4]; 3] = [
    ["keda.sh", "v1alpha1", "ScaledObject", "scaledobjects"],
    ["keda.sh", "v1alpha1", "ScaledJob", "scaledjobs"],
    ["autoscaling.k8s.io", "v1", "VerticalPodAutoscaler", "verticalpodautoscalers"],
];

/// The objects of a cluster as they are.
#[derive(Default)]
pub struct LiveObjects {
    /// Every object that a change may touch.
    pub documents: Vec<Document>,
    /// What the controllers have learnt about the capacity of Azure; `None` if nothing is known.
    pub capacity_memory: Option<String>,
    /// Notes for the user about what could not be read.
    pub notes: Vec<String>,
}

/// Reads the objects of a cluster.
pub async fn objects(args: &ClusterArgs) -> anyhow::Result<LiveObjects> {
    let (client, url) = connect_to(args).await?;
    let server = &Server { client, url };
    let mut found = Vec::new();
    raw::<Pod>(server, &mut found).await?;
    raw::<Node>(server, &mut found).await?;
    raw::<NodeClaim>(server, &mut found).await?;
    raw::<NodePool>(server, &mut found).await?;
    raw::<AKSNodeClass>(server, &mut found).await?;
    raw::<NodeOverlay>(server, &mut found).await?;
    raw::<Deployment>(server, &mut found).await?;
    raw::<ReplicaSet>(server, &mut found).await?;
    raw::<StatefulSet>(server, &mut found).await?;
    raw::<DaemonSet>(server, &mut found).await?;
    raw::<ReplicationController>(server, &mut found).await?;
    raw::<Job>(server, &mut found).await?;
    raw::<CronJob>(server, &mut found).await?;
    raw::<Service>(server, &mut found).await?;
    raw::<LimitRange>(server, &mut found).await?;
    raw::<ResourceQuota>(server, &mut found).await?;
    raw::<PriorityClass>(server, &mut found).await?;
    raw::<RuntimeClass>(server, &mut found).await?;
    raw::<PodDisruptionBudget>(server, &mut found).await?;
    raw::<Namespace>(server, &mut found).await?;
    raw::<PersistentVolumeClaim>(server, &mut found).await?;
    raw::<PersistentVolume>(server, &mut found).await?;
    raw::<StorageClass>(server, &mut found).await?;
    raw::<CSINode>(server, &mut found).await?;
    // Those that KEDA makes are before its own objects, which have the last word.
    raw::<HorizontalPodAutoscaler>(server, &mut found).await?;
    let mut cluster = Cluster::default();
    for [group, version, kind, plural] in AUTOSCALERS {
        let kind = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, plural);
        let api = Api::<DynamicObject>::all_with(server.client.clone(), &resource);
        match pages(&api).await {
            Ok(objects) => append(objects, &resource.api_version, &resource.kind, &mut found)?,
            // Few may read kinds of others, and a plan can be made without.
            Err(kube::Error::Api(status)) if status.code == 403 => cluster.notes.push(format!(
                "workloads count as if there were no {}: {}",
                resource.kind, status.message
            )),
            Err(error) => return Err(unreachable(&server.url, "list", plural, &error)),
        }
    }
    read_capacity_memory(&server.client, &mut cluster).await;
    let Cluster { capacity_memory, notes, .. } = cluster;
    Ok(LiveObjects { documents: found, capacity_memory, notes })
}

/// The workloads of a namespace that create pods; empty where they may not be read, as their pods
/// say enough in most cases.
pub async fn workloads(args: &ClusterArgs, namespace: &str) -> anyhow::Result<Vec<KnownWorkload>> {
    let (client, _) = connect_to(args).await?;
    let mut found = Vec::new();
    known::<Deployment>(&client, namespace, &mut found).await?;
    known::<StatefulSet>(&client, namespace, &mut found).await?;
    known::<ReplicaSet>(&client, namespace, &mut found).await?;
    known::<Job>(&client, namespace, &mut found).await?;
    known::<CronJob>(&client, namespace, &mut found).await?;
    Ok(found.iter().map(KnownWorkload::read).collect())
}

async fn known<K>(client: &Client, namespace: &str, found: &mut Vec<Document>) -> anyhow::Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + DeserializeOwned + Serialize + Debug,
{
    let api = Api::<K>::namespaced(client.clone(), namespace);
    append(pages(&api).await.unwrap_or_default(), &K::api_version(&()), &K::kind(&()), found)
}

/// Appends every object of a kind as it is.
async fn raw<K>(server: &Server, documents: &mut Vec<Document>) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + Debug,
{
    append(list::<K>(server).await?, &K::api_version(&()), &K::kind(&()), documents)
}

fn append(
    objects: Vec<impl Serialize>,
    api_version: &str,
    kind: &str,
    documents: &mut Vec<Document>,
) -> anyhow::Result<()> {
    for object in objects {
        let mut value = serde_json::to_value(object)?;
        value["apiVersion"] = json!(api_version);
        value["kind"] = json!(kind);
        documents.push(Document::of_cluster(value, documents.len() + 1));
    }
    Ok(())
}

/// Reads what the controllers have learnt about the capacity of Azure. A plan can be made without.
async fn read_capacity_memory(client: &Client, cluster: &mut Cluster) {
    let api: Api<ConfigMap> = Api::all(client.clone());
    let named = ListParams::default().fields(&format!("metadata.name={}", capacity_memory::NAME));
    match api.list(&named).await {
        Ok(found) => {
            let mut texts = found.items.into_iter().filter_map(|map| map.data);
            cluster.capacity_memory = texts.find_map(|mut data| data.remove(capacity_memory::KEY));
        }
        Err(error) => cluster.notes.push(format!(
            "offerings that Azure lately refused are not left out: ConfigMap `{}` cannot be read: {}",
            capacity_memory::NAME,
            match &error {
                kube::Error::Api(status) => status.message.clone(),
                _ => error.to_string(),
            }
        )),
    }
}

/// Indexes every object of a kind.
async fn index<K: Indexed>(server: &Server, index: &mut Index) -> anyhow::Result<()> {
    for object in list::<K>(server).await? {
        index.apply(object, Timestamp::UNIX_EPOCH);
    }
    Ok(())
}

/// All objects of a kind; empty if the server does not serve the kind, which every Kubernetes does
/// for those of the first version of its API.
async fn list<K>(server: &Server) -> anyhow::Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api = Api::<K>::all(server.client.clone());
    let found =
        if K::api_version(&()) == "v1" { pages_of_served(&api).await } else { pages(&api).await };
    found.map_err(|error| unreachable(&server.url, "list", &K::plural(&()), &error))
}

/// All objects, page by page; empty if the server does not serve the kind.
async fn pages<K>(api: &Api<K>) -> Result<Vec<K>, kube::Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    match pages_of_served(api).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        found => found,
    }
}

/// All objects, page by page.
async fn pages_of_served<K>(api: &Api<K>) -> Result<Vec<K>, kube::Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut found = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        match api.list(&params).await {
            Ok(page) => {
                found.extend(page.items);
                match page.metadata.continue_.filter(|token| !token.is_empty()) {
                    Some(token) => params = params.continue_token(&token),
                    None => return Ok(found),
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// The region of the nodes; `None` if no node has one.
pub fn region_of(cluster: &Cluster) -> Option<String> {
    cluster.state.nodes().find_map(|(_, node)| node.labels().get(labels::REGION).cloned())
}
