//! A server on the paused tokio clock, and short ways to make objects.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Error};
use nap_apiserver::{ApiServer, Config};
use nap_clock::Clock;
use serde_json::{Value, json};

pub(crate) const EPOCH: &str = "2030-01-01T00:00:00Z";

/// A server whose clock follows tokio's.
pub(crate) fn server() -> ApiServer {
    ApiServer::new(Config {
        clock: Clock::starting_at(EPOCH.parse().unwrap(), 1),
        seed: 1,
        git_version: "v1.34.2".to_owned(),
    })
}

pub(crate) fn client() -> Client {
    Client::new(server(), "default")
}

pub(crate) fn typed<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

pub(crate) fn pod(name: &str) -> Pod {
    typed(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": { "containers": [{ "name": "main", "image": "pause:3.9",
            "resources": { "requests": { "cpu": "500m" }, "limits": { "cpu": 1, "memory": "1024Mi" } } }] },
    }))
}

/// The status of a refused request.
pub(crate) fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> (u16, String, String) {
    match result {
        Err(Error::Api(status)) => (status.code, status.reason.clone(), status.message.clone()),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// A definition of `widgets.example.com`, which exercises what definitions can say.
pub(crate) fn widget_definition() -> Value {
    let schema = json!({
        "type": "object",
        "required": ["spec"],
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "x-kubernetes-validations": [
                    { "rule": "self.size <= self.limit", "message": "size must not exceed limit" },
                ],
                "properties": {
                    "size": { "type": "integer", "minimum": 1 },
                    "limit": { "type": "integer", "default": 10 },
                    "replicas": { "type": "integer" },
                    "class": {
                        "type": "string", "default": "small", "enum": ["small", "large"],
                        "x-kubernetes-validations": [{ "rule": "self == oldSelf", "message": "class is immutable" }],
                    },
                    "policy": {
                        "type": "object", "default": {},
                        "properties": { "mode": { "type": "string", "default": "Gentle" } },
                    },
                },
            },
            "status": {
                "type": "object",
                "properties": {
                    "replicas": { "type": "integer" },
                    "requests": { "type": "object", "additionalProperties": { "type": "string" }, "description": "text" },
                    "phase": { "type": "string" },
                    "selector": { "type": "string" },
                },
            },
        },
    });
    let subresources = json!({
        "status": {},
        "scale": { "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
                   "labelSelectorPath": ".status.selector" },
    });
    let columns = json!([
        { "name": "Size", "type": "integer", "jsonPath": ".spec.size" },
        { "name": "Mode", "type": "string", "jsonPath": ".spec.policy.mode", "priority": 1 },
        { "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" },
    ]);
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "widgets.example.com" },
        "spec": {
            "group": "example.com", "scope": "Cluster",
            "names": { "plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["toys"] },
            "versions": [
                { "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema },
                  "subresources": subresources, "additionalPrinterColumns": columns },
                { "name": "v1beta1", "served": true, "storage": false, "deprecated": true,
                  "schema": { "openAPIV3Schema": schema }, "subresources": subresources },
            ],
        },
    })
}

pub(crate) async fn define_widgets(client: &Client) -> Api<DynamicObject> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.create(&PostParams::default(), &typed(widget_definition())).await.unwrap();
    widgets(client, "v1")
}

pub(crate) fn widgets(client: &Client, version: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("example.com", version, "Widget");
    Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&kind, "widgets"))
}

pub(crate) fn widget(name: &str, spec: &Value) -> DynamicObject {
    typed(json!({
        "apiVersion": "example.com/v1", "kind": "Widget",
        "metadata": { "name": name }, "spec": spec,
    }))
}
