//! An embedded server with our definitions, and what it says to a manifest.

use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Error};
use nap_apiserver::{ApiServer, Config};
use serde_json::{Value, json};

/// A server with our definitions and nothing else.
pub(crate) async fn cluster() -> Client {
    let now: jiff::Timestamp = "2030-01-01T00:00:00Z".parse().unwrap();
    let config = Config { now: Arc::new(move || now), seed: 1, git_version: "v1.34.2".to_owned() };
    let client = Client::new(ApiServer::new(config), "default");
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in nap_api::crds::all() {
        definitions.create(&PostParams::default(), &definition).await.unwrap();
    }
    client
}

pub(crate) fn api(client: &Client, object: &Value) -> Api<DynamicObject> {
    let text = |key: &str| object[key].as_str().unwrap();
    let (group, version) = text("apiVersion").split_once('/').unwrap();
    let (plural, namespaced) = match text("kind") {
        "NodePool" => ("nodepools", false),
        "NodeClaim" => ("nodeclaims", false),
        "NodeOverlay" => ("nodeoverlays", false),
        "AKSNodeClass" => ("aksnodeclasses", false),
        "CapacityBuffer" => ("capacitybuffers", true),
        "Deployment" => ("deployments", true),
        other => panic!("no tests apply a {other}"),
    };
    let kind = GroupVersionKind::gvk(group, version, text("kind"));
    let resource = ApiResource::from_gvk_with_plural(&kind, plural);
    if namespaced {
        Api::namespaced_with(client.clone(), "default", &resource)
    } else {
        Api::all_with(client.clone(), &resource)
    }
}

/// Applies as `kubectl apply --server-side` does: fields that nobody knows are refused.
pub(crate) async fn apply(client: &Client, object: &Value, dry: bool) -> Result<Value, String> {
    let mut params = PatchParams::apply("tests").validation_strict();
    params.dry_run = dry;
    let name = object["metadata"]["name"].as_str().unwrap();
    match api(client, object).patch(name, &params, &Patch::Apply(object)).await {
        Ok(stored) => Ok(serde_json::to_value(stored).unwrap()),
        Err(Error::Api(status)) => Err(status.message.clone()),
        Err(other) => panic!("{other}"),
    }
}

/// Replaces what is stored, for show.
pub(crate) async fn replace(client: &Client, object: &Value) -> Result<(), String> {
    let api = api(client, object);
    let name = object["metadata"]["name"].as_str().unwrap();
    let mut object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    object.metadata.resource_version = api.get(name).await.unwrap().metadata.resource_version;
    match api.replace(name, &PostParams { dry_run: true, ..PostParams::default() }, &object).await {
        Ok(_) => Ok(()),
        Err(Error::Api(status)) => Err(status.message.clone()),
        Err(other) => panic!("{other}"),
    }
}

/// A JSON merge patch.
pub(crate) fn merged(mut object: Value, change: &Value) -> Value {
    fn merge(into: &mut Value, from: &Value) {
        match (into, from) {
            (Value::Object(into), Value::Object(from)) => {
                for (key, value) in from {
                    if value.is_null() {
                        into.remove(key);
                    } else {
                        merge(into.entry(key.clone()).or_insert(Value::Null), value);
                    }
                }
            }
            (into, from) => *into = from.clone(),
        }
    }
    merge(&mut object, change);
    object
}

/// A NodePool in the current spelling.
pub(crate) fn pool() -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": { "name": "pool" },
        "spec": { "template": { "spec": {
            "requirements": [],
            "nodeClassRef": { "group": "karpenter.azure.com", "kind": "AKSNodeClass", "name": "default" },
        } } },
    })
}
