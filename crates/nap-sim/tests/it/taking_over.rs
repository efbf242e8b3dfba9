//! Migration from the incumbent or an older nap replaces no node.

use kube::ResourceExt;
use nap_api::nodeclaim::condition::DRIFTED;
use nap_api::{AKSNodeClass, NodeClaim, NodePool, conditions, hash, labels};
use serde_json::json;

use crate::harness::User;

/// Writes of nap keep every field of a node class, including unknown ones.
#[tokio::test(start_paused = true)]
async fn node_class_spec_is_not_rewritten() {
    let user = User::new().await;
    user.run(async {
        user.patch::<AKSNodeClass>("default", json!({ "spec": { "tags": {} } })).await;
        user.pass(60).await;
        let class: kube::api::DynamicObject = {
            let resource = kube::core::ApiResource::erase::<AKSNodeClass>(&());
            kube::Api::all_with(user.client.clone(), &resource).get("default").await.unwrap()
        };
        assert!(!class.finalizers().is_empty());
        assert_eq!(class.data["spec"]["tags"], json!({}));
    })
    .await;
}

/// Objects with another hash version get the new hash, and so do their NodeClaims; a drifted claim
/// stays drifted.
#[tokio::test(start_paused = true)]
async fn hash_version_change_replaces_no_node() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({ "spec": { "disruption": { "budgets": [{ "nodes": "0" }] } } })).await;
        // Two pods with mutual anti-affinity: two nodes.
        let apart = json!({ "spec": { "affinity": { "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{
                "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": "apart" } },
            }],
        } } } });
        user.deploy("apart", 2, apart).await;
        user.until_running(2).await;
        let names: Vec<String> = user.claims().await.iter().map(ResourceExt::name_any).collect();
        let [fresh, drifted] = names.as_slice() else { panic!("{names:?}") };
        user.patch::<NodeClaim>(drifted, json!({ "metadata": { "annotations": { (labels::NODEPOOL_HASH): "1" } } })).await;
        let is_drifted = async |name: &str| {
            let claim: NodeClaim = user.api().get(name).await.unwrap();
            conditions::is_true(&claim.status.unwrap_or_default().conditions, DRIFTED)
        };
        user.until("one claim has drifted", async || is_drifted(drifted).await).await;

        let old = json!({ "metadata": { "annotations": {
            (labels::NODEPOOL_HASH): "2", (labels::NODEPOOL_HASH_VERSION): "v2",
            (labels::AKS_NODE_CLASS_HASH): "2", (labels::AKS_NODE_CLASS_HASH_VERSION): "v2",
        } } });
        user.patch::<NodeClaim>(fresh, old.clone()).await;
        let version = json!({ "metadata": { "annotations": { (labels::NODEPOOL_HASH_VERSION): "v2" } } });
        user.patch::<NodeClaim>(drifted, version).await;
        user.patch::<NodePool>("default", old.clone()).await;
        user.patch::<AKSNodeClass>("default", old).await;
        user.pass(600).await;

        let pool: NodePool = user.api().get("default").await.unwrap();
        assert_eq!(pool.annotations()[labels::NODEPOOL_HASH_VERSION], hash::NODEPOOL_HASH_VERSION);
        assert_eq!(pool.annotations()[labels::NODEPOOL_HASH], hash::nodepool_hash(&pool.spec));
        let class: AKSNodeClass = user.api().get("default").await.unwrap();
        let claim: NodeClaim = user.api().get(fresh).await.unwrap();
        assert_eq!(claim.annotations()[labels::NODEPOOL_HASH], pool.annotations()[labels::NODEPOOL_HASH]);
        assert_eq!(claim.annotations()[labels::AKS_NODE_CLASS_HASH], class.annotations()[labels::AKS_NODE_CLASS_HASH]);
        assert!(!is_drifted(fresh).await);
        assert!(is_drifted(drifted).await);
        let claim: NodeClaim = user.api().get(drifted).await.unwrap();
        assert_eq!(claim.annotations()[labels::NODEPOOL_HASH], "1");
        assert_eq!(claim.annotations()[labels::NODEPOOL_HASH_VERSION], hash::NODEPOOL_HASH_VERSION);
    })
    .await;
}
