//! The rest of the synthetic cluster: NodePools, and nodes that are up and quiet.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use nap_api::{AKSNodeClass, NodeClaim, NodePool, PlanRecord, hash, labels};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bench::controllers::{parsed, pods};

/// Creates the node class.
pub(super) async fn create_class(client: &Client) -> anyhow::Result<()> {
    let api: Api<AKSNodeClass> = Api::all(client.clone());
    let class = parsed(json!({
        "apiVersion": "karpenter.azure.com/v1beta1", "kind": "AKSNodeClass",
        "metadata": { "name": "default" }, "spec": {},
    }))?;
    api.create(&PostParams::default(), &class).await?;
    Ok(())
}

/// Creates a NodePool of the D family whose nodes carry the label `bench: <name>`.
pub(super) async fn create_pool(client: &Client, name: &str) -> anyhow::Result<NodePool> {
    let class = json!({ "group": labels::AZURE_GROUP, "kind": "AKSNodeClass", "name": "default" });
    let pool = parsed(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": name },
        "spec": {
            "disruption": { "consolidateAfter": "Never" },
            "template": { "metadata": { "labels": { "bench": name } }, "spec": {
                "nodeClassRef": class, "expireAfter": "Never",
                "requirements": [
                    { "key": labels::CAPACITY_TYPE, "operator": "In", "values": ["on-demand"] },
                    { "key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"] },
                    { "key": "karpenter.azure.com/sku-family", "operator": "In", "values": ["D"] },
                ],
            } },
        },
    }))?;
    let api: Api<NodePool> = Api::all(client.clone());
    Ok(api.create(&PostParams::default(), &pool).await?)
}

/// Creates nodes `node-0`, `node-1`, … of a NodePool with their NodeClaims, all initialized.
pub(super) async fn create_nodes(
    client: &Client,
    pool: &NodePool,
    count: usize,
    pods: usize,
) -> anyhow::Result<()> {
    let claims: Api<NodeClaim> = Api::all(client.clone());
    let nodes: Api<Node> = Api::all(client.clone());
    for number in 0..count {
        let planned = (number..pods).step_by(count.max(1)).map(pods::running_pod_key);
        let claim = parsed(claim(pool, number, planned.collect()))?;
        claims.create(&PostParams::default(), &claim).await?;
        let status = Patch::Merge(claim_status(number));
        claims.patch_status(&claim.name_any(), &PatchParams::default(), &status).await?;
        nodes.create(&PostParams::default(), &parsed(node(pool, number))?).await?;
    }
    Ok(())
}

/// Deletes the NodeClaims of a NodePool, and waits until the controllers have removed them.
pub(super) async fn delete_claims(
    client: &Client,
    pool: &str,
    patience: Duration,
) -> anyhow::Result<()> {
    let claims: Api<NodeClaim> = Api::all(client.clone());
    let of_pool = ListParams::default().labels(&format!("{}={pool}", labels::NODEPOOL));
    let begun = Instant::now();
    loop {
        let left = claims.list(&of_pool).await?.items;
        if left.is_empty() {
            return Ok(());
        }
        anyhow::ensure!(begun.elapsed() < patience, "`nap run` does not remove NodeClaims");
        // The controllers may have planned again for pods that they had not seen gone.
        if left.iter().any(|claim| claim.metadata.deletion_timestamp.is_none()) {
            claims.delete_collection(&DeleteParams::default(), &of_pool).await?;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn node_labels(pool: &NodePool, number: usize) -> Value {
    let zone = format!("eastus-{}", number % 3 + 1);
    json!({
        labels::NODEPOOL: pool.name_any(), "bench": pool.name_any(),
        labels::INSTANCE_TYPE: "Standard_D8s_v5", labels::CAPACITY_TYPE: "on-demand",
        labels::ZONE: zone, labels::REGION: "eastus", "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux", "karpenter.azure.com/sku-family": "D",
        labels::AKS_NODE_CLASS: "default",
    })
}

fn provider_id(number: usize) -> String {
    format!(
        "azure:///subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/MC_nap_nap_eastus/\
         providers/Microsoft.Compute/virtualMachines/aks-aksmanagedap-default-{number}-vm"
    )
}

fn claim(pool: &NodePool, number: usize, pods: BTreeSet<String>) -> Value {
    let plan = PlanRecord { pods, ..PlanRecord::default() };
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {
            "name": format!("default-{number}"), "labels": node_labels(pool, number),
            "finalizers": [labels::TERMINATION_FINALIZER],
            "annotations": {
                labels::NODEPOOL_HASH: hash::nodepool_hash(&pool.spec),
                labels::NODEPOOL_HASH_VERSION: hash::NODEPOOL_HASH_VERSION,
                labels::PLAN: plan.to_annotation(),
            },
        },
        "spec": {
            "nodeClassRef": pool.spec.template.spec.node_class_ref,
            "requirements": [
                { "key": labels::INSTANCE_TYPE, "operator": "In", "values": ["Standard_D8s_v5"] },
            ],
            "resources": { "requests": { "cpu": "6" } }, "expireAfter": "Never",
        },
    })
}

fn claim_status(number: usize) -> Value {
    let now = "2026-01-01T00:00:00Z";
    let conditions = ["Launched", "Registered", "Initialized", "Ready"].map(|type_| {
        json!({
            "type": type_, "status": "True", "reason": type_, "message": "",
            "lastTransitionTime": now, "observedGeneration": 1,
        })
    });
    json!({ "status": {
        "providerID": provider_id(number), "nodeName": format!("node-{number}"),
        "capacity": { "cpu": "8", "memory": "32Gi", "pods": "110" },
        "allocatable": { "cpu": "7820m", "memory": "28Gi", "pods": "110" },
        "conditions": conditions,
    } })
}

fn node(pool: &NodePool, number: usize) -> Value {
    let mut labels = node_labels(pool, number);
    labels["kubernetes.io/hostname"] = json!(format!("node-{number}"));
    labels["karpenter.sh/registered"] = json!("true");
    labels["karpenter.sh/initialized"] = json!("true");
    let images: Vec<Value> = (0..40)
        .map(|image| json!({ "names": [format!("registry.example.com/i@sha256:{image:064x}")], "sizeBytes": 1 }))
        .collect();
    json!({
        "metadata": {
            "name": format!("node-{number}"), "labels": labels,
            "finalizers": [labels::TERMINATION_FINALIZER],
        },
        "spec": { "providerID": provider_id(number) },
        "status": {
            "capacity": { "cpu": "8", "memory": "32Gi", "pods": "110" },
            "allocatable": { "cpu": "7820m", "memory": "28Gi", "pods": "110" },
            "images": images,
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "KubeletReady",
                "lastTransitionTime": "2026-01-01T00:00:00Z", "lastHeartbeatTime": "2026-01-01T00:00:00Z",
            }],
        },
    })
}
