//! NodePools that name sizes which Azure has retired, and NodePools with a price ceiling.

use nap_api::nodepool::{DISRUPTION_SETTINGS_VALID, INSTANCE_TYPES_OFFERED, VALIDATION_SUCCEEDED};
use nap_api::{NodePool, conditions};
use serde_json::{Value, json};

use crate::harness::User;

/// A NodePool of these sizes, tainted for GPU workloads.
fn gpu_pool(sizes: &[&str]) -> Value {
    let class =
        json!({ "group": "karpenter.azure.com", "kind": "AKSNodeClass", "name": "default" });
    json!({
        "metadata": { "name": "gpu-workloads" },
        "spec": {
            "limits": { "cpu": "24", "memory": "448Gi" },
            "template": { "spec": {
                "nodeClassRef": class,
                "expireAfter": "Never",
                "taints": [{ "key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule" }],
                "requirements": [
                    { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] },
                    { "key": "node.kubernetes.io/instance-type", "operator": "In", "values": sizes },
                ],
            } },
        },
    })
}

const RETIRED: [&str; 3] = ["Standard_NC6s_v3", "Standard_NC12s_v3", "Standard_NC24s_v3"];

async fn deploy(user: &User) {
    let resources = json!({ "limits": { "nvidia.com/gpu": "1" }, "requests": { "cpu": "1" } });
    let container = json!({ "name": "app", "image": "example.com/app:1", "resources": resources });
    let toleration = json!({ "key": "nvidia.com/gpu", "operator": "Exists" });
    let spec = json!({ "tolerations": [toleration], "containers": [container] });
    user.deploy("train", 1, json!({ "spec": spec })).await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_of_retired_sizes_says_so_until_it_names_another() {
    let user = User::new().await;
    user.run(async {
        user.create::<NodePool>(gpu_pool(&RETIRED)).await;
        deploy(&user).await;
        let condition = async || {
            let pool: NodePool = user.api().get("gpu-workloads").await.unwrap();
            let list = pool.status.unwrap_or_default().conditions;
            conditions::get(&list, INSTANCE_TYPES_OFFERED).cloned()
        };
        user.until("the condition is set", async || condition().await.is_some()).await;
        let found = condition().await.unwrap();
        let says =
            "Standard_NC6s_v3 is retired since 2025-09-30, instead serve Standard_NC4as_T4_v3";
        assert_eq!(
            (found.status.as_str(), found.reason.as_str()),
            ("False", "NoInstanceTypeOffered")
        );
        assert!(found.message.contains(says), "{}", found.message);
        let events = user.events("NoCompatibleInstanceTypes").await;
        assert!(events.iter().any(|message| message.contains(says)), "{events:?}");
        assert_eq!(user.machines_ever(), 0);

        let pool = gpu_pool(&["Standard_NC6s_v3", "Standard_NC4as_T4_v3"]);
        user.patch::<NodePool>("gpu-workloads", json!({ "spec": pool["spec"] })).await;
        user.until_running(1).await;
        assert!(condition().await.is_none());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_says_which_field_is_wrong_and_not_ready_if_it_can_make_no_node() {
    let user = User::new().await;
    user.run(async {
        let mut pool = gpu_pool(&["Standard_NC4as_T4_v3"]);
        pool["spec"]["limits"] = json!({ "cpu": "-5" });
        let budget = json!({ "nodes": "1", "schedule": "61 * * * *", "duration": "1h" });
        pool["spec"]["disruption"]["budgets"] = json!([budget]);
        user.create::<NodePool>(pool).await;
        let condition = async |kind: &str| {
            let pool: NodePool = user.api().get("gpu-workloads").await.unwrap();
            let list = pool.status.unwrap_or_default().conditions;
            conditions::get(&list, kind).cloned()
        };
        let is_false =
            async |kind: &str| condition(kind).await.is_some_and(|it| it.status == "False");
        user.until("it is refused", async || is_false(VALIDATION_SUCCEEDED).await).await;
        let said = condition(VALIDATION_SUCCEEDED).await.unwrap().message;
        assert!(said.contains("spec.limits[cpu]: `-5` is negative"), "{said}");
        user.until("it is not ready", async || is_false("Ready").await).await;
        user.patch::<NodePool>("gpu-workloads", json!({ "spec": { "limits": { "cpu": "100" } } }))
            .await;
        user.until("it is ready", async || !is_false("Ready").await).await;
        let said = condition(DISRUPTION_SETTINGS_VALID).await.unwrap().message;
        let expected = "spec.disruption.budgets[0].schedule: `61 * * * *` cannot be read";
        assert!(said.contains(expected), "{said}");

        let family =
            json!({ "key": "karpenter.azure.com/sku-family", "operator": "In", "values": ["ZZ"] });
        let change = json!({
            "disruption": { "budgets": [{ "nodes": "1" }] },
            "template": { "spec": { "requirements": [family] } },
        });
        user.patch::<NodePool>("gpu-workloads", json!({ "spec": change })).await;
        user.until("no size has it", async || is_false(INSTANCE_TYPES_OFFERED).await).await;
        let said = condition(INSTANCE_TYPES_OFFERED).await.unwrap().message;
        let expected = "no instance type of the region has `karpenter.azure.com/sku-family` ";
        assert!(said.starts_with(expected) && said.contains("ZZ"), "{said}");
        let events = user.events("NoCompatibleInstanceTypes").await;
        assert!(events.iter().any(|message| message.contains("ZZ")), "{events:?}");
        let settled = async || condition(DISRUPTION_SETTINGS_VALID).await.is_none();
        user.until("its schedules can be read", settled).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_region_with_retired_sizes_sells_them() {
    let user = User::with_retired_sizes().await;
    user.run(async {
        user.create::<NodePool>(gpu_pool(&RETIRED)).await;
        deploy(&user).await;
        user.until_running(1).await;
        let nodes = user.nodes().await;
        let size = &nodes[0].metadata.labels.as_ref().unwrap()["node.kubernetes.io/instance-type"];
        assert_eq!(size, "Standard_NC6s_v3");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_price_ceiling_holds_in_the_controllers() {
    let user = User::new().await;
    user.run(async {
        let key = "nap.karpenter.sh/max-price-per-node-hour";
        user.default_pool(json!({ "metadata": { "annotations": { key: "0.1" } } })).await;
        user.deploy("inflate", 6, json!({})).await;
        user.until_running(6).await;
        let micros = user.world.azure().bill().iter().map(|one| one.price.micros()).max();
        assert!(micros.unwrap() <= 100_000, "{micros:?}");
        assert!(user.machines() >= 3, "one node for all pods would be cheaper to manage");

        user.patch::<NodePool>("default", json!({ "metadata": { "annotations": { key: "x" } } }))
            .await;
        let message = async || {
            let pool: NodePool = user.api().get("default").await.unwrap();
            let list = pool.status.unwrap_or_default().conditions;
            let found = conditions::get(&list, "ValidationSucceeded").cloned();
            found.map(|one| one.message).unwrap_or_default()
        };
        user.until("the ceiling is refused", async || message().await.contains(key)).await;
        assert!(message().await.contains("`x` is not a price in dollars per hour"));
    })
    .await;
}
