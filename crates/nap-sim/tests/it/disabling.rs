//! `nap disable`: the nodes of NodePools go as other nodes have room, within budgets.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use nap_api::{NodeClaim, NodePool};
use nap_controllers::disable::{Disabled, disable_nodepools, remaining};
use serde_json::json;

use crate::harness::User;

/// A node outside of every NodePool, in place of a fixed agent pool.
async fn add_fixed_node(user: &User) {
    let class =
        json!({ "group": "karpenter.azure.com", "kind": "AKSNodeClass", "name": "default" });
    let size = json!({
        "key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["Standard_D16s_v5"],
    });
    let claim = json!({
        "metadata": { "name": "fixed" },
        "spec": { "nodeClassRef": class, "requirements": [size] },
    });
    user.create::<NodeClaim>(claim).await;
}

async fn held(user: &User) -> String {
    let left = remaining(&user.client).await.unwrap();
    left.into_iter().filter_map(|one| one.holds).collect::<Vec<_>>().join("\n")
}

#[tokio::test(start_paused = true)]
async fn nodes_go_when_others_have_room_and_budgets_allow_it() {
    let user = User::new().await;
    user.run(async {
        let all = json!({ "spec": { "disruption": { "budgets": [{ "nodes": "100%" }] } } });
        user.default_pool(all).await;
        user.deploy("web", 4, json!({})).await;
        user.until("a VM is launched", async || user.machines() > 0).await;
        let left = remaining(&user.client).await.unwrap();
        assert!(!left.is_empty(), "VMs that have not joined are left too");
        for one in left {
            let object = one.object.starts_with("nodeclaim default-");
            assert!(object && one.state == "launching" && one.nodepool == "default", "{one:?}");
        }
        user.until_running(4).await;
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(user.client.clone(), "default");
        let budget = json!({
            "metadata": { "name": "web" },
            "spec": { "minAvailable": 4, "selector": { "matchLabels": { "app": "web" } } },
        });
        let budget = serde_json::from_value(budget).unwrap();
        budgets.create(&PostParams::default(), &budget).await.unwrap();

        let disabled = disable_nodepools(&user.client).await.unwrap();
        assert_eq!(disabled, [Disabled { nodepool: "default".to_owned(), changed: true }]);
        let again = disable_nodepools(&user.client).await.unwrap();
        assert!(!again[0].changed, "a second time changes nothing");
        let pool: NodePool = user.api().get("default").await.unwrap();
        assert_eq!(pool.spec.limits.unwrap()["cpu"].to_string(), "0");
        let nodes: Vec<String> = user.nodes().await.iter().map(ResourceExt::name_any).collect();
        user.pass(600).await;
        let left: Vec<String> =
            remaining(&user.client).await.unwrap().into_iter().map(|one| one.object).collect();
        let nodes: Vec<String> = nodes.iter().map(|node| format!("node {node}")).collect();
        assert_eq!(left, nodes, "there is no room elsewhere");
        assert_eq!(user.running().await, 4, "nothing that runs is disturbed");

        add_fixed_node(&user).await;
        user.until("the budget is named", async || held(&user).await.contains("default/web")).await;
        user.pass(600).await;
        assert_eq!(remaining(&user.client).await.unwrap().len(), nodes.len(), "it holds the nodes");
        assert_eq!(user.running().await, 4);

        budgets.delete("web", &DeleteParams::default()).await.unwrap();
        user.until("the nodes are gone", async || {
            remaining(&user.client).await.unwrap().is_empty()
        })
        .await;
        user.until_running(4).await;
        user.deploy("more", 40, json!({})).await;
        user.pass(600).await;
        assert_eq!(user.machines(), 1, "nothing is launched any more");
    })
    .await;
}
