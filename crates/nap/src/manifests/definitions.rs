//! Definitions of the autoscalers that plans count with: KEDA's and the vertical one. They have the
//! fields of the published definitions, so that a misspelt one is refused and not left out.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

/// The definitions.
pub fn autoscalers() -> anyhow::Result<Vec<CustomResourceDefinition>> {
    let keda = ("keda.sh", &["v1alpha1"][..]);
    let vertical = ("autoscaling.k8s.io", &["v1", "v1beta2"][..]);
    let all = [
        definition(keda, "ScaledObject", "scaledobjects", &scaled_object()),
        definition(keda, "ScaledJob", "scaledjobs", &scaled_job()),
        definition(vertical, "VerticalPodAutoscaler", "verticalpodautoscalers", &vertical_spec()),
    ];
    all.into_iter().map(|one| Ok(serde_json::from_value(one)?)).collect()
}

fn definition((group, versions): (&str, &[&str]), kind: &str, plural: &str, spec: &Value) -> Value {
    let versions = versions.iter().enumerate().map(|(index, name)| {
        json!({
            "name": name, "served": true, "storage": index == 0,
            "schema": { "openAPIV3Schema": {
                "type": "object", "required": ["spec"],
                "properties": {
                    "apiVersion": text(), "kind": text(), "metadata": { "type": "object" },
                    "spec": spec, "status": anything(),
                },
            } },
        })
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": { "kind": kind, "listKind": format!("{kind}List"), "plural": plural,
                "singular": kind.to_lowercase() },
            "versions": versions.collect::<Vec<_>>(),
        },
    })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn one_of(values: &[&str]) -> Value {
    json!({ "type": "string", "enum": values })
}

fn number() -> Value {
    json!({ "type": "integer", "format": "int32" })
}

fn flag() -> Value {
    json!({ "type": "boolean" })
}

/// An object whose fields are not looked at.
fn anything() -> Value {
    json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

fn list(items: &Value) -> Value {
    json!({ "type": "array", "items": items })
}

fn object(required: &[&str], properties: &Value) -> Value {
    let mut schema = json!({ "type": "object", "properties": properties });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn triggers() -> Value {
    let trigger = json!({
        "type": text(), "name": text(), "useCachedMetrics": flag(), "metadata": anything(),
        "metricType": one_of(&["AverageValue", "Utilization", "Value"]),
        "authenticationRef": object(&["name"], &json!({ "name": text(), "kind": text() })),
    });
    list(&object(&["metadata", "type"], &trigger))
}

fn scaled_object() -> Value {
    let target = json!({
        "apiVersion": text(), "kind": text(), "name": text(), "envSourceContainerName": text(),
    });
    object(
        &["scaleTargetRef", "triggers"],
        &json!({
            "scaleTargetRef": object(&["name"], &target),
            "pollingInterval": number(), "initialCooldownPeriod": number(),
            "cooldownPeriod": number(), "idleReplicaCount": number(),
            "minReplicaCount": number(), "maxReplicaCount": number(),
            "advanced": anything(), "fallback": anything(), "triggers": triggers(),
        }),
    )
}

fn scaled_job() -> Value {
    object(
        &["jobTargetRef", "triggers"],
        &json!({
            // The plan reads it as the spec of a Job.
            "jobTargetRef": anything(),
            "pollingInterval": number(), "envSourceContainerName": text(),
            "successfulJobsHistoryLimit": number(), "failedJobsHistoryLimit": number(),
            "minReplicaCount": number(), "maxReplicaCount": number(),
            "rolloutStrategy": text(), "rollout": anything(), "scalingStrategy": anything(),
            "triggers": triggers(),
        }),
    )
}

fn vertical_spec() -> Value {
    let target = json!({ "apiVersion": text(), "kind": text(), "name": text() });
    let modes = ["Off", "Initial", "Recreate", "InPlaceOrRecreate", "Auto"];
    let update = json!({
        "updateMode": one_of(&modes), "minReplicas": number(),
        "evictionRequirements": list(&anything()), "evictAfterOOMSeconds": number(),
    });
    let of_container = json!({
        "containerName": text(), "mode": one_of(&["Auto", "Off"]), "minAllowed": anything(),
        "maxAllowed": anything(), "controlledResources": list(&text()),
        "controlledValues": one_of(&["RequestsAndLimits", "RequestsOnly"]),
        "startupBoost": anything(), "oomBumpUpRatio": anything(), "oomMinBumpUp": anything(),
    });
    let policies = json!({ "containerPolicies": list(&object(&[], &of_container)) });
    object(
        &["targetRef"],
        &json!({
            "targetRef": object(&["kind", "name"], &target),
            "updatePolicy": object(&[], &update),
            "resourcePolicy": object(&[], &policies),
            "recommenders": list(&object(&["name"], &json!({ "name": text() }))),
            "startupBoost": anything(),
        }),
    )
}
