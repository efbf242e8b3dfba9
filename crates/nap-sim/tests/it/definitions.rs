//! nap's own definitions, as the embedded server understands them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::cluster::World;

async fn node_pools(world: &World) -> Api<DynamicObject> {
    let definitions: Api<CustomResourceDefinition> = Api::all(world.client.clone());
    for definition in nap_api::crds::all() {
        definitions.create(&PostParams::default(), &definition).await.unwrap();
    }
    let kind = GroupVersionKind::gvk("karpenter.sh", "v1", "NodePool");
    Api::all_with(world.client.clone(), &ApiResource::from_gvk_with_plural(&kind, "nodepools"))
}

fn pool(change: fn(&mut Value)) -> DynamicObject {
    let mut pool = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "default" },
        "spec": { "template": { "spec": {
            "nodeClassRef": { "group": "karpenter.azure.com", "kind": "AKSNodeClass", "name": "default" },
            "requirements": [{ "key": "kubernetes.io/os", "operator": "In", "values": ["linux"] }],
        } } },
    });
    change(&mut pool);
    serde_json::from_value(pool).unwrap()
}

#[tokio::test(start_paused = true)]
async fn node_pools_are_defaulted_and_mistakes_refused() {
    let world = World::start();
    let pools = node_pools(&world).await;
    let made = pools.create(&PostParams::default(), &pool(|_| {})).await.unwrap();
    let disruption = &made.data["spec"]["disruption"];
    assert_eq!(disruption["consolidationPolicy"], "WhenEmptyOrUnderutilized", "{disruption}");
    assert_eq!(disruption["budgets"], json!([{ "nodes": "10%" }]));

    for (what, change) in [
        (
            "budgets",
            (|p| {
                p["spec"]["disruption"] =
                    json!({ "consolidateAfter": "0s", "budgets": [{ "nodes": "10%", "schedule": "@daily" }] })
            }) as fn(&mut Value),
        ),
        ("operator", |p| p["spec"]["template"]["spec"]["requirements"][0]["operator"] = json!("Maybe")),
        ("restricted", |p| {
            p["spec"]["template"]["metadata"] = json!({ "labels": { "karpenter.sh/nodepool": "x" } })
        }),
        ("nodeClassRef", |p| {
            p["spec"]["template"]["spec"].as_object_mut().unwrap().remove("nodeClassRef");
        }),
    ] {
        let mut wrong = pool(change);
        wrong.metadata.name = Some("wrong".to_owned());
        let refused = pools.create(&PostParams::default(), &wrong).await;
        assert!(
            matches!(&refused, Err(kube::Error::Api(status)) if status.code == 422),
            "{what}: {refused:?}"
        );
    }
    let other = json!({ "spec": { "template": { "spec": { "nodeClassRef": { "kind": "Other" } } } } });
    let refused = pools.patch("default", &PatchParams::default(), &Patch::Merge(other)).await;
    assert!(matches!(&refused, Err(kube::Error::Api(status)) if status.code == 422), "{refused:?}");
}
