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

/// Objects as the incumbent's controllers leave them: no annotation of nap, whatever else the
/// incumbent writes.
async fn become_the_incumbents(user: &User) {
    for claim in user.claims().await {
        let annotations = claim.annotations().keys().filter(|key| key.starts_with("nap."));
        let mut removed: serde_json::Map<String, serde_json::Value> =
            annotations.map(|key| (key.clone(), serde_json::Value::Null)).collect();
        removed.insert("karpenter.sh/nodeclaim-min-values-relaxed".to_owned(), json!("false"));
        let patch = json!({ "metadata": { "annotations": removed } });
        user.patch::<NodeClaim>(&claim.name_any(), patch).await;
    }
}

/// nap finds nodes of the incumbent, under load and without, and neither replaces nor loses any.
#[tokio::test(start_paused = true)]
async fn objects_of_the_incumbent_are_taken_over_as_they_are() {
    let user = User::new().await;
    let names = async || -> Vec<String> {
        let claims = user.claims().await;
        assert!(claims.iter().all(|claim| claim.metadata.deletion_timestamp.is_none()));
        claims.iter().map(ResourceExt::name_any).collect()
    };
    let script = async {
        user.default_pool(json!({ "spec": { "disruption": { "consolidateAfter": "1h" } } })).await;
        user.deploy("web", 6, json!({})).await;
        user.world.run_nap(user.pass(600)).await;
        assert_eq!(user.running().await, 6);
        let before = names().await;
        become_the_incumbents(&user).await;
        user.pass(600).await;
        user.world.run_nap(user.pass(7200)).await;
        assert_eq!(names().await, before, "a NodeClaim was replaced or lost");
        assert_eq!((user.machines_ever(), user.running().await), (before.len(), 6));
        let drifted = |claim: &NodeClaim| {
            let conditions = claim.status.as_ref().map(|status| status.conditions.clone());
            conditions::is_true(&conditions.unwrap_or_default(), DRIFTED)
        };
        assert!(!user.claims().await.iter().any(drifted));
        // They are nap's from now on: it removes them when they are empty.
        user.scale("web", 0).await;
        user.world.run_nap(user.pass(7200)).await;
        assert_eq!((user.machines(), user.claims().await.len()), (0, 0));
    };
    user.run_without_nap(script).await;
}
