//! nap's custom resource definitions on the embedded API server.

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

type Change = fn(&mut Value);

fn pool(change: Change) -> DynamicObject {
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

    let changes: [(&str, Change); 2] = [
        ("operator", |pool| {
            pool["spec"]["template"]["spec"]["requirements"][0]["operator"] = json!("Maybe");
        }),
        ("nodeClassRef", |pool| {
            pool["spec"]["template"]["spec"].as_object_mut().unwrap().remove("nodeClassRef");
        }),
    ];
    for (what, change) in changes {
        let mut wrong = pool(change);
        wrong.metadata.name = Some("wrong".to_owned());
        let refused = pools.create(&PostParams::default(), &wrong).await;
        assert!(
            matches!(&refused, Err(kube::Error::Api(status)) if status.code == 422 && status.message.contains(what)),
            "{what}: {refused:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn node_claims_are_immutable_but_their_status_is_not() {
    let world = World::start();
    node_pools(&world).await;
    let kind = GroupVersionKind::gvk("karpenter.sh", "v1", "NodeClaim");
    let claims: Api<DynamicObject> = Api::all_with(
        world.client.clone(),
        &ApiResource::from_gvk_with_plural(&kind, "nodeclaims"),
    );
    let claim = serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": { "name": "one" },
        "spec": {
            "nodeClassRef": { "group": "karpenter.azure.com", "kind": "AKSNodeClass", "name": "default" },
            "requirements": [{ "key": "kubernetes.io/os", "operator": "In", "values": ["linux"] }],
        },
    }))
    .unwrap();
    claims.create(&PostParams::default(), &claim).await.unwrap();
    let change = Patch::Merge(json!({ "spec": { "nodeClassRef": { "name": "other" } } }));
    let refused = claims.patch("one", &PatchParams::default(), &change).await.unwrap_err();
    assert!(refused.to_string().contains("spec is immutable"), "{refused}");
    let status = Patch::Merge(json!({ "status": { "providerID": "azure:///one" } }));
    claims.patch_status("one", &PatchParams::default(), &status).await.unwrap();
}
