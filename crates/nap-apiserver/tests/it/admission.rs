//! Policies, limits, quotas and reviews.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::{v1, v2};
use k8s_openapi::api::core::v1::{ConfigMap, LimitRange, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::support::{client, refusal, typed};

fn deployment(replicas: i64) -> Deployment {
    typed(json!({
        "metadata": { "name": "web" },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "main", "image": "pause:3.9" }] },
            },
        },
    }))
}

async fn policy(client: &Client, actions: Value) {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let policy = typed(json!({
        "metadata": { "name": "small" },
        "spec": {
            "paramKind": { "apiVersion": "v1", "kind": "ConfigMap" },
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
                "resources": ["deployments"],
            }] },
            "variables": [{ "name": "most", "expression": "int(params.data.most)" }],
            "validations": [{
                "expression": "object.spec.replicas <= variables.most",
                "messageExpression": "'at most ' + string(variables.most) + ' replicas'",
            }],
        },
    }));
    policies.create(&PostParams::default(), &policy).await.unwrap();
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let binding = typed(json!({
        "metadata": { "name": "small" },
        "spec": {
            "policyName": "small", "validationActions": actions,
            "paramRef": {
                "name": "limits", "namespace": "default", "parameterNotFoundAction": "Allow",
            },
        },
    }));
    bindings.create(&PostParams::default(), &binding).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn policy_denies_by_its_parameters_on_create_and_update() {
    let client = client();
    policy(&client, json!(["Deny"])).await;
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    // Without its parameters the policy says nothing.
    deployments.create(&PostParams::default(), &deployment(9)).await.unwrap();
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let limits = typed(json!({ "metadata": { "name": "limits" }, "data": { "most": "5" } }));
    maps.create(&PostParams::default(), &limits).await.unwrap();
    let scaled = |replicas: i64| Patch::Merge(json!({ "spec": { "replicas": replicas } }));
    let refused = deployments.patch("web", &PatchParams::default(), &scaled(6)).await;
    let (code, reason, message) = refusal(refused);
    assert_eq!((code, reason.as_str()), (422, "Invalid"));
    assert_eq!(
        message,
        "deployments.apps \"web\" is forbidden: ValidatingAdmissionPolicy 'small' with binding \
         'small' denied request: at most 5 replicas"
    );
    deployments.patch("web", &PatchParams::default(), &scaled(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn limit_range_fills_defaults_and_refuses_what_is_beyond() {
    let client = client();
    let ranges: Api<LimitRange> = Api::default_namespaced(client.clone());
    let range = typed(json!({ "metadata": { "name": "r" }, "spec": { "limits": [{
        "type": "Container", "default": { "cpu": "500m" }, "defaultRequest": { "cpu": "200m" },
        "max": { "cpu": "1" },
    }] } }));
    ranges.create(&PostParams::default(), &range).await.unwrap();
    let pods: Api<Pod> = Api::default_namespaced(client);
    let pod = |name: &str, resources: Value| -> Pod {
        typed(json!({ "metadata": { "name": name }, "spec": { "containers": [
            { "name": "main", "image": "pause:3.9", "resources": resources },
        ] } }))
    };
    let made = pods.create(&PostParams::default(), &pod("plain", json!({}))).await.unwrap();
    let resources = serde_json::to_value(&made.spec.unwrap().containers[0].resources).unwrap();
    assert_eq!(resources["requests"]["cpu"], "200m");
    assert_eq!(resources["limits"]["cpu"], "500m");
    assert_eq!(made.status.unwrap().qos_class.as_deref(), Some("Burstable"));
    let large = pod("large", json!({ "limits": { "cpu": "2" } }));
    let (code, _, message) = refusal(pods.create(&PostParams::default(), &large).await);
    assert_eq!(code, 403);
    assert!(message.contains("maximum cpu usage per Container is 1, but limit is 2"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn claim_gets_the_default_class_and_is_protected() {
    let client = client();
    let classes: Api<StorageClass> = Api::all(client.clone());
    let class = typed(json!({
        "metadata": {
            "name": "disk",
            "annotations": { "storageclass.kubernetes.io/is-default-class": "true" },
        },
        "provisioner": "disk.csi.azure.com",
    }));
    classes.create(&PostParams::default(), &class).await.unwrap();
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client);
    let claim = typed(json!({ "metadata": { "name": "data" }, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
    } }));
    let made = claims.create(&PostParams::default(), &claim).await.unwrap();
    assert_eq!(made.finalizers(), ["kubernetes.io/pvc-protection"]);
    assert_eq!(made.spec.unwrap().storage_class_name.as_deref(), Some("disk"));
}

#[tokio::test(start_paused = true)]
async fn autoscaler_is_the_same_object_in_both_versions() {
    let client = client();
    let old: Api<v1::HorizontalPodAutoscaler> = Api::default_namespaced(client.clone());
    let made = typed(json!({ "metadata": { "name": "web" }, "spec": {
        "maxReplicas": 4, "targetCPUUtilizationPercentage": 60,
        "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
    } }));
    old.create(&PostParams::default(), &made).await.unwrap();
    let new: Api<v2::HorizontalPodAutoscaler> = Api::default_namespaced(client);
    let found = serde_json::to_value(new.get("web").await.unwrap().spec).unwrap();
    assert_eq!(found["metrics"][0]["resource"]["target"]["averageUtilization"], 60);
    let patch = json!({ "spec": { "maxReplicas": 7 } });
    new.patch("web", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let spec = old.get("web").await.unwrap().spec.unwrap();
    assert_eq!((spec.max_replicas, spec.target_cpu_utilization_percentage), (7, Some(60)));
}

#[tokio::test(start_paused = true)]
async fn cluster_starts_with_the_service_and_the_accounts_of_every_cluster() {
    let client = client();
    let services: Api<Service> = Api::default_namespaced(client.clone());
    assert!(services.get("kubernetes").await.is_ok());
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let team = typed(json!({ "metadata": { "name": "team" } }));
    namespaces.create(&PostParams::default(), &team).await.unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "team");
    assert_eq!(accounts.list(&ListParams::default()).await.unwrap().items.len(), 1);
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": { "resourceAttributes": { "verb": "get", "resource": "pods" } },
    });
    let request = http::Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
        .header("Content-Type", "application/json")
        .body(review.to_string().into_bytes())
        .unwrap();
    let answer: Value = client.request(request).await.unwrap();
    assert_eq!(answer["status"]["allowed"], true);
}

#[tokio::test(start_paused = true)]
async fn server_side_apply_conflicts_over_the_api_and_update_takes_fields() {
    let client = client();
    let deployments: Api<Deployment> = Api::default_namespaced(client);
    let applied = |replicas: i64| {
        let mut object = serde_json::to_value(deployment(replicas)).unwrap();
        object["apiVersion"] = json!("apps/v1");
        object["kind"] = json!("Deployment");
        Patch::Apply(object)
    };
    let ann = PatchParams::apply("ann");
    deployments.patch("web", &ann, &applied(2)).await.unwrap();
    let scale = Patch::Merge(json!({ "spec": { "replicas": 4 } }));
    deployments.patch_scale("web", &PatchParams::default(), &scale).await.unwrap();
    let (code, reason, message) = refusal(deployments.patch("web", &ann, &applied(2)).await);
    assert_eq!((code, reason.as_str()), (409, "Conflict"));
    assert!(message.contains(".spec.replicas"), "{message}");
    let forced = deployments.patch("web", &ann.clone().force(), &applied(2)).await.unwrap();
    assert_eq!(forced.spec.unwrap().replicas, Some(2));
    let again = deployments.patch("web", &ann, &applied(2)).await.unwrap();
    assert_eq!(again.metadata.resource_version, forced.metadata.resource_version);
}
