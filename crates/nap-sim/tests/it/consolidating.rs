//! Consolidation of a whole fleet: many nodes at once, several by fewer, and then quiet.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use nap_api::NodePool;
use nap_units::UsdPerHour;
use serde_json::{Value, json};

use crate::harness::User;

/// A NodePool of one VM size whose nodes may all be disrupted at once.
fn one_size(size: &str) -> Value {
    json!({ "spec": {
        "disruption": { "consolidateAfter": "0s", "budgets": [{ "nodes": "100%" }] },
        "template": { "spec": { "requirements": [
            { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] },
            { "key": "node.kubernetes.io/instance-type", "operator": "In", "values": [size] },
        ] } },
    } })
}

fn asks(cpu: &str) -> Value {
    json!({ "spec": { "containers": [{
        "name": "app", "image": "example.com/app:1",
        "resources": { "requests": { "cpu": cpu, "memory": "512Mi" } },
    }] } })
}

fn price(user: &User) -> UsdPerHour {
    user.world.azure().machines().iter().map(|machine| machine.price).sum()
}

#[tokio::test(start_paused = true)]
async fn a_half_empty_fleet_reaches_its_packing_within_five_minutes() {
    let user = User::with_quick_vms().await;
    user.run(async {
        user.default_pool(one_size("Standard_D4s_v5")).await;
        user.deploy("stays", 30, asks("1500m")).await;
        user.deploy("goes", 30, asks("1500m")).await;
        user.until_running(60).await;
        assert_eq!(user.machines(), 30, "two pods to a node");
        user.scale("goes", 0).await;
        user.pass(300).await;
        assert_eq!(user.machines(), 15, "thirty pods fit fifteen nodes");
        user.until_running(30).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_workload_is_moved_no_more_often_in_a_day_than_it_says() {
    let user = User::with_quick_vms().await;
    user.run(async {
        user.default_pool(one_size("Standard_D4s_v5")).await;
        let mut template = asks("1500m");
        let limit = json!({ "nap.karpenter.sh/max-evictions-per-day": "2" });
        template["metadata"] = json!({ "annotations": limit });
        // Each node has one of either.
        user.deploy("goes", 10, asks("2300m")).await;
        user.until_running(10).await;
        user.deploy("stays", 10, template).await;
        user.until_running(20).await;
        assert_eq!(user.machines(), 10);
        let names = async || {
            let pods = user.list::<Pod>().await;
            let names = pods.iter().filter_map(|pod| pod.metadata.name.clone());
            names.filter(|name| name.starts_with("stays")).collect::<BTreeSet<_>>()
        };
        let before = names().await;
        user.scale("goes", 0).await;
        user.pass(12 * 3600).await;
        let moved = before.difference(&names().await).count();
        assert_eq!(moved, 2, "ten pods would fit five nodes");
        assert_eq!(user.machines(), 8);
        let told = user.events("Unconsolidatable").await;
        let text = "the pods of Deployment default/stays have been moved as often";
        assert!(told.iter().any(|one| one.contains(text)), "{told:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn several_nodes_are_replaced_by_fewer() {
    let user = User::with_quick_vms().await;
    user.run(async {
        user.default_pool(one_size("Standard_D4s_v5")).await;
        // Too large for two of them to share a node.
        user.deploy("big", 3, asks("2300m")).await;
        user.until_running(3).await;
        assert_eq!(user.machines(), 3);
        user.until_no_pool_grows().await;
        let before = price(&user);
        // Now a node of eight vCPUs, which holds all three, can be bought too.
        let sizes = ["Standard_D4s_v5", "Standard_D8s_v5"];
        let requirements = json!([
            { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] },
            { "key": "node.kubernetes.io/instance-type", "operator": "In", "values": sizes },
        ]);
        let spec = json!({ "template": { "spec": { "requirements": requirements } } });
        user.patch::<NodePool>("default", json!({ "spec": spec })).await;
        user.until("one node is left", async || user.machines() == 1).await;
        user.until_running(3).await;
        assert!(price(&user) < before);
        let told = user.events("DisruptionTerminating").await;
        let three = "replace Standard_D4s_v5";
        assert!(told.iter().any(|text| text.contains(three) && text.contains(", ")), "{told:?}");
        user.pass(3600).await;
        assert_eq!(user.machines_ever(), 4, "nothing is moved again");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_blocked_node_does_not_keep_the_others_from_being_consolidated() {
    let user = User::with_quick_vms().await;
    user.run(async {
        user.default_pool(one_size("Standard_D4s_v5")).await;
        user.deploy("stays", 10, asks("1500m")).await;
        user.deploy("goes", 10, asks("1500m")).await;
        user.until_running(20).await;
        let pods = user.list::<Pod>().await;
        let held = pods.iter().find(|pod| pod.metadata.labels.as_ref().unwrap()["app"] == "stays");
        let held = held.unwrap().metadata.name.clone().unwrap();
        let label = json!({ "metadata": { "labels": { "held": "true" } } });
        let api: kube::Api<Pod> = kube::Api::namespaced(user.client.clone(), "default");
        let (params, patch) = (kube::api::PatchParams::default(), kube::api::Patch::Merge(&label));
        api.patch(&held, &params, &patch).await.unwrap();
        let budget: PodDisruptionBudget = serde_json::from_value(json!({
            "metadata": { "name": "held", "namespace": "default" },
            "spec": { "maxUnavailable": 0, "selector": { "matchLabels": { "held": "true" } } },
        }))
        .unwrap();
        let budgets: kube::Api<PodDisruptionBudget> =
            kube::Api::namespaced(user.client.clone(), "default");
        budgets.create(&kube::api::PostParams::default(), &budget).await.unwrap();
        user.scale("goes", 0).await;
        user.pass(600).await;
        assert_eq!(user.machines(), 5, "ten pods fit five nodes");
        let pod = api.get(&held).await.unwrap();
        assert!(pod.metadata.deletion_timestamp.is_none(), "the held pod was not evicted");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_a_controller_is_not_evicted_to_save_money_and_says_so() {
    let user = User::with_quick_vms().await;
    user.run(async {
        user.default_pool(one_size("Standard_D4s_v5")).await;
        user.deploy("stays", 1, asks("1500m")).await;
        user.until_running(1).await;
        // It does not fit beside the other two, so that it gets a node.
        user.deploy("goes", 1, asks("2300m")).await;
        user.until_running(2).await;
        let mut bare = asks("1500m");
        bare["metadata"] = json!({ "name": "bare", "namespace": "default" });
        let bare: Pod = serde_json::from_value(bare).unwrap();
        let pods: kube::Api<Pod> = kube::Api::namespaced(user.client.clone(), "default");
        pods.create(&kube::api::PostParams::default(), &bare).await.unwrap();
        user.until_running(3).await;
        assert_eq!(user.machines(), 2);
        let node_of_bare = pods.get("bare").await.unwrap().spec.unwrap().node_name;
        user.scale("goes", 0).await;
        user.until("one node is left", async || user.machines() == 1).await;
        user.until_running(2).await;
        let left = user.nodes().await[0].metadata.name.clone();
        assert_eq!(left, node_of_bare, "the pod that comes back was moved to the other");
        user.pass(600).await;
        assert!(pods.get("bare").await.is_ok());
        let told = user.events("Unconsolidatable").await;
        let text = "Pod has no controller and would not come back (Pod=default/bare)";
        assert!(told.iter().any(|one| one.contains(text)), "{told:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_comes_back_to_spot_after_a_fallback_and_stays_there() {
    let user = User::with_quick_vms().await;
    let capacity_types = async || {
        let claims = user.claims().await;
        let of_claim = |claim: &nap_api::NodeClaim| {
            claim.metadata.labels.as_ref().unwrap()["karpenter.sh/capacity-type"].clone()
        };
        claims.iter().map(of_claim).collect::<Vec<_>>()
    };
    user.world.azure().set_faults(|faults| faults.spot_quota = Some(0));
    user.run(async {
        let mut pool = one_size("Standard_D4s_v5");
        pool["spec"]["template"]["spec"]["requirements"][0]["values"] =
            json!(["spot", "on-demand"]);
        user.default_pool(pool).await;
        user.deploy("web", 2, asks("1500m")).await;
        user.until_running(2).await;
        assert_eq!(capacity_types().await, ["on-demand"], "there is no quota for spot");
        user.world.azure().set_faults(|faults| faults.spot_quota = None);
        user.pass(2 * 3600).await;
        assert_eq!(capacity_types().await, ["spot"]);
        user.until_running(2).await;
        let bought = user.machines_ever();
        user.pass(6 * 3600).await;
        assert_eq!((capacity_types().await, user.machines_ever()), (vec!["spot".into()], bought));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_with_the_balanced_policy_makes_only_moves_that_are_worth_their_disruption() {
    let user = User::with_quick_vms().await;
    user.run(async {
        let mut pool = one_size("Standard_D4s_v5");
        pool["spec"]["disruption"]["consolidationPolicy"] = json!("Balanced");
        user.default_pool(pool).await;
        user.deploy("stays", 8, asks("1500m")).await;
        user.deploy("goes", 8, asks("1500m")).await;
        user.until_running(16).await;
        user.scale("goes", 0).await;
        // The removal of a node with one pod of two saves as large a share as it disrupts.
        user.until("four nodes are left", async || user.machines() == 4).await;
        user.until_running(8).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_with_the_balanced_policy_keeps_a_node_whose_move_disrupts_more_than_it_saves() {
    let user = User::with_quick_vms().await;
    user.run(async {
        let mut pool = one_size("Standard_D4s_v5");
        pool["spec"]["disruption"]["consolidationPolicy"] = json!("Balanced");
        user.default_pool(pool).await;
        user.deploy("small", 8, asks("100m")).await;
        user.until_running(8).await;
        user.deploy("large", 3, asks("3300m")).await;
        user.until_running(11).await;
        assert_eq!(user.machines(), 4);
        // A quarter of the cost for nine fifteenths of the disruption.
        user.pass(2 * 3600).await;
        assert_eq!(user.machines(), 4, "the small pods would fit beside the large ones");
        let told = user.events("Unconsolidatable").await;
        let text = "policy Balanced: saving over disruption scores 0.41";
        assert!(told.iter().any(|one| one.contains(text)), "{told:?}");
        let policy = json!({ "consolidationPolicy": "WhenEmptyOrUnderutilized" });
        user.patch::<NodePool>("default", json!({ "spec": { "disruption": policy } })).await;
        user.until("the small pods have moved", async || user.machines() == 3).await;
        user.until_running(11).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_moved_to_a_size_that_is_known_to_be_out_of_stock() {
    let user = User::with_quick_vms().await;
    let zones = ["0", "eastus-1", "eastus-2", "eastus-3"];
    let short: BTreeSet<_> =
        zones.map(|zone| ("Standard_D2s_v5".to_owned(), zone.to_owned())).into();
    user.run(async {
        user.default_pool(one_size("Standard_D8s_v5")).await;
        user.deploy("web", 1, asks("1500m")).await;
        user.until_running(1).await;
        user.world.azure().set_faults(|faults| faults.capacity_errors = short);
        let mut both = one_size("Standard_D2s_v5");
        let values = &mut both["spec"]["template"]["spec"]["requirements"][1]["values"];
        *values = json!(["Standard_D2s_v5", "Standard_D8s_v5"]);
        // A pod that asks for the size learns that it is out of stock, before it is on offer to
        // consolidation: the node of the other is protected meanwhile.
        let hold =
            |held: &str| json!({ "spec": { "disruption": { "budgets": [{ "nodes": held }] } } });
        user.patch::<NodePool>("default", hold("0")).await;
        both["spec"]["disruption"] = hold("0")["spec"]["disruption"].clone();
        user.patch::<NodePool>("default", both).await;
        let mut picky = asks("1");
        picky["spec"]["nodeSelector"] =
            json!({ "node.kubernetes.io/instance-type": "Standard_D2s_v5" });
        user.deploy("picky", 1, picky).await;
        user.pass(300).await;
        assert_eq!((user.running().await, user.machines()), (1, 1));
        user.scale("picky", 0).await;
        user.patch::<NodePool>("default", hold("100%")).await;
        user.pass(1500).await;
        let launched = user.events("DisruptionLaunching").await;
        assert_eq!(launched, [""; 0], "the size is known to be out of stock");
        assert_eq!(user.machines_ever(), 1);
        user.world.azure().set_faults(|faults| faults.capacity_errors.clear());
        user.pass(3 * 3600).await;
        assert_eq!(user.machines_ever(), 2, "it is in stock again");
    })
    .await;
}
