//! Turning nap off without leaving a pod behind: no NodePool launches anything more, and the pods
//! of its nodes move to nodes that nap does not manage as far as those have room.
//!
//! The steps are those of AKS: a CPU limit of 0 and the taint `karpenter.azure.com/disable` on
//! every NodePool. The taint makes the nodes drift, and drift moves their pods within budgets and
//! PodDisruptionBudgets. Both steps can be repeated.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use nap_api::{Effect, NodeClaim, NodePool, Taint, labels};
use serde_json::json;

use crate::context::{Doing, Error};
use crate::events::COMPONENT;

/// The taint that keeps pods off the nodes of a NodePool that is being disabled.
pub const DISABLE: &str = "karpenter.azure.com/disable";
/// Resource whose limit is 0 in a NodePool that is being disabled.
const CPU: &str = "cpu";
/// Events that say what holds up the removal of a node, and what they are about.
const HOLDING: [&str; 4] =
    ["DisruptionBlocked", "FailedDraining", "AwaitingVolumeDetachment", "NodeRepairBlocked"];

/// A NodePool, and whether a step has changed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disabled {
    /// Name of the NodePool.
    pub nodepool: String,
    /// Whether it was changed; `false` if it was disabled before.
    pub changed: bool,
}

/// A node of a NodePool that is still there, or a NodeClaim that has none: its VM may exist or be
/// on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// Kind and name of the Node or NodeClaim, such as `node aks-default-x`.
    pub object: String,
    /// Name of its NodePool.
    pub nodepool: String,
    /// Number of pods on it, without those of DaemonSets.
    pub pods: usize,
    /// What it is in, for people: draining or waiting for its turn; without a node, launching or
    /// ending.
    pub state: &'static str,
    /// What holds it up, as nap's last event about it says; `None` if nothing was said.
    pub holds: Option<String>,
}

/// Keeps every NodePool of this provider from launching anything, and its nodes from taking pods.
/// Nothing that runs is disturbed by this call itself.
pub async fn disable_nodepools(client: &Client) -> Result<Vec<Disabled>, Error> {
    let api: Api<NodePool> = Api::all(client.clone());
    let pools = api.list(&ListParams::default()).await.doing("listing", "NodePools")?;
    let ours = pools
        .items
        .into_iter()
        .filter(|pool| pool.spec.template.spec.node_class_ref.group == labels::AZURE_GROUP);
    let mut disabled = Vec::new();
    for pool in ours {
        let nodepool = pool.name_any();
        let changed = !is_disabled(&pool);
        if changed {
            let mut taints = pool.spec.template.spec.taints.clone();
            if !taints.iter().any(|taint| taint.key == DISABLE) {
                taints.push(Taint::new(DISABLE, Effect::NoSchedule));
            }
            let patch = json!({
                "metadata": { "resourceVersion": pool.resource_version() },
                "spec": {
                    "limits": { CPU: "0" },
                    "template": { "spec": { "taints": taints } },
                },
            });
            let patch = Patch::Merge(patch);
            let written = api.patch(&nodepool, &PatchParams::default(), &patch).await;
            written.doing("disabling NodePool", &nodepool)?;
        }
        disabled.push(Disabled { nodepool, changed });
    }
    Ok(disabled)
}

fn is_disabled(pool: &NodePool) -> bool {
    let limit = pool.spec.limits.as_ref().and_then(|limits| limits.get(CPU));
    let has_taint = pool.spec.template.spec.taints.iter().any(|taint| taint.key == DISABLE);
    limit.is_some_and(|limit| limit.to_string() == "0") && has_taint
}

/// The nodes of NodePools that are still there, in the order of their names, with what holds each,
/// and then the NodeClaims without a node.
pub async fn remaining(client: &Client) -> Result<Vec<Remaining>, Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    let managed = ListParams::default().labels(labels::NODEPOOL);
    let mut nodes = nodes.list(&managed).await.doing("listing", "Nodes")?.items;
    nodes.sort_by_key(ResourceExt::name_any);
    let pods: Api<Pod> = Api::all(client.clone());
    let pods = pods.list(&ListParams::default()).await.doing("listing", "Pods")?.items;
    let mut by_node: BTreeMap<String, usize> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !is_daemon(pod)) {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        *by_node.entry(node.unwrap_or_default()).or_default() += 1;
    }
    let events: Api<Event> = Api::all(client.clone());
    let of_nodes = ListParams::default().fields("involvedObject.kind=Node");
    let events = events.list(&of_nodes).await.doing("listing", "Events")?.items;
    let claims: Api<NodeClaim> = Api::all(client.clone());
    let mut claims =
        claims.list(&ListParams::default()).await.doing("listing", "NodeClaims")?.items;
    claims.retain(|claim| is_without_node(claim, &nodes));
    claims.sort_by_key(ResourceExt::name_any);
    let remaining = nodes.iter().map(|node| {
        let name = node.name_any();
        let leaving = node.metadata.deletion_timestamp.is_some();
        Remaining {
            nodepool: node.labels().get(labels::NODEPOOL).cloned().unwrap_or_default(),
            pods: by_node.get(&name).copied().unwrap_or(0),
            state: if leaving { "draining" } else { "waiting" },
            holds: holds(&events, &name),
            object: format!("node {name}"),
        }
    });
    let without_node = claims.iter().map(|claim| {
        let leaving = claim.metadata.deletion_timestamp.is_some();
        Remaining {
            object: format!("nodeclaim {}", claim.name_any()),
            nodepool: claim.labels().get(labels::NODEPOOL).cloned().unwrap_or_default(),
            pods: 0,
            state: if leaving { "ending" } else { "launching" },
            holds: None,
        }
    });
    Ok(remaining.chain(without_node).collect())
}

/// Whether a NodeClaim of a NodePool of this provider has none of the nodes.
fn is_without_node(claim: &NodeClaim, nodes: &[Node]) -> bool {
    let status = claim.status.as_ref();
    let id = status.and_then(|status| status.provider_id.as_deref());
    let has_id =
        |node: &Node| node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()) == id;
    claim.spec.node_class_ref.group == labels::AZURE_GROUP
        && claim.labels().contains_key(labels::NODEPOOL)
        && (id.is_none() || !nodes.iter().any(has_id))
}

/// The last event about a node that says what holds it up.
fn holds(events: &[Event], node: &str) -> Option<String> {
    let about = events.iter().filter(|event| {
        let source = event.source.as_ref().and_then(|source| source.component.as_deref());
        event.involved_object.name.as_deref() == Some(node)
            && source == Some(COMPONENT)
            && event.reason.as_deref().is_some_and(|reason| HOLDING.contains(&reason))
    });
    let last = about.max_by_key(|event| event.last_timestamp.as_ref().map(|time| time.0));
    last.and_then(|event| event.message.clone())
}

fn is_daemon(pod: &Pod) -> bool {
    pod.owner_references().iter().any(|owner| matches!(owner.kind.as_str(), "DaemonSet" | "Node"))
}
