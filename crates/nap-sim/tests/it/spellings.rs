//! Deprecated fields of manifests, and values that no machine can have.

use kube::ResourceExt;
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use nap_api::nodeclaim::condition::DRIFTED;
use nap_api::nodepool::NORMALISED;
use nap_api::{AKSNodeClass, NodePool, conditions};
use serde_json::json;

use crate::harness::User;

#[tokio::test(start_paused = true)]
async fn deprecated_nodepool_works_and_its_migration_replaces_no_node() {
    let user = User::new().await;
    user.run(async {
        let kind = GroupVersionKind::gvk("karpenter.sh", "v1alpha5", "NodePool");
        let resource = ApiResource::from_gvk_with_plural(&kind, "nodepools");
        let pools: Api<DynamicObject> = Api::all_with(user.client.clone(), &resource);
        let written = json!({
            "apiVersion": "karpenter.sh/v1alpha5", "kind": "NodePool", "metadata": { "name": "default" },
            "spec": {
                "disruption": { "consolidationPolicy": "WhenUnderutilized", "expireAfter": "Never" },
                "template": { "spec": {
                    "nodeClassRef": { "name": "default" },
                    "requirements": [
                        { "key": "karpenter.azure.com/sku-family", "operator": "In", "values": ["D"] },
                        { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] },
                    ],
                } },
            },
        });
        pools.create(&PostParams::default(), &serde_json::from_value(written).unwrap()).await.unwrap();
        user.deploy("inflate", 3, json!({})).await;
        user.until_running(3).await;
        let claims = user.claims().await;
        assert!(claims.iter().all(|claim| claim.spec.expire_after.get().is_none()), "{claims:?}");
        let conditions = async || {
            let pool: NodePool = user.api().get("default").await.unwrap();
            pool.status.unwrap().conditions
        };
        let before = conditions().await;
        assert!(conditions::is_true(&before, conditions::READY), "{before:?}");
        let understood = conditions::get(&before, NORMALISED).unwrap();
        for part in ["`WhenUnderutilized` means", "`spec.template.spec.expireAfter: Never`", "AKSNodeClass"] {
            assert!(understood.message.contains(part), "{}", understood.message);
        }
        let stored = pools.get("default").await.unwrap();
        assert_eq!(stored.data["spec"]["disruption"]["consolidationPolicy"], "WhenUnderutilized");

        let current = json!({ "spec": {
            "disruption": { "consolidationPolicy": "WhenEmptyOrUnderutilized", "expireAfter": null },
            "template": { "spec": {
                "expireAfter": "Never",
                "nodeClassRef": { "group": "karpenter.azure.com", "kind": "AKSNodeClass" },
            } },
        } });
        user.patch::<NodePool>("default", current).await;
        user.pass(600).await;
        let names =
            |claims: &[nap_api::NodeClaim]| claims.iter().map(ResourceExt::name_any).collect::<Vec<_>>();
        let now = user.claims().await;
        assert_eq!(names(&now), names(&claims));
        let drifted = |claim: &nap_api::NodeClaim| {
            claim.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, DRIFTED))
        };
        assert!(!now.iter().any(drifted), "{now:?}");
        assert!(conditions::get(&conditions().await, NORMALISED).is_none());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn node_class_with_an_invalid_value_is_not_ready_and_launches_nothing() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        let kubelet = json!({ "cpuCFSQuotaPeriod": "2s" });
        user.patch::<AKSNodeClass>("default", json!({ "spec": { "kubelet": kubelet } })).await;
        user.pass(5).await;
        user.deploy("inflate", 1, json!({})).await;
        user.pass(300).await;
        assert_eq!(user.machines_ever(), 0);
        let class: AKSNodeClass = user.api().get("default").await.unwrap();
        let conditions = class.status.unwrap().conditions;
        let checked = conditions::get(&conditions, "ValidationSucceeded").unwrap();
        assert_eq!((checked.status.as_str(), checked.reason.as_str()), ("False", "InvalidField"));
        assert!(checked.message.contains("spec.kubelet.cpuCFSQuotaPeriod"), "{}", checked.message);
    })
    .await;
}
