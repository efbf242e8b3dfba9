//! The seeded workload: six Deployments of random requests, scaled at random times.

use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use serde_json::json;

use crate::world::{World, WorldError};

/// Creates the Deployments without replicas; returns their names.
pub(super) async fn create(world: &World, rng: &mut Pcg64Mcg) -> Result<Vec<String>, WorldError> {
    let api: Api<Deployment> = Api::namespaced(world.client(), "default");
    let mut names = Vec::new();
    for index in 0..6 {
        let name = format!("app-{index}");
        let milli = [100, 250, 500, 1000, 2000, 4000][rng.random_range(0..6)];
        let mebibytes = [128, 512, 1024, 2048, 8192][rng.random_range(0..5)];
        let requests = json!({ "cpu": format!("{milli}m"), "memory": format!("{mebibytes}Mi") });
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": name },
            "spec": {
                "replicas": 0,
                "selector": { "matchLabels": { "app": name } },
                "template": {
                    "metadata": { "labels": { "app": name } },
                    "spec": { "containers": [{
                        "name": "app", "image": "example.com/app:1",
                        "resources": { "requests": requests },
                    }]},
                },
            },
        });
        let Ok(deployment) = serde_json::from_value(deployment) else { continue };
        let created = api.create(&PostParams::default(), &deployment).await;
        created.map_err(|source| WorldError::Kube { doing: "creating a Deployment", source })?;
        names.push(name);
    }
    Ok(names)
}

/// Sets the replicas of a Deployment.
pub(super) async fn scale(world: &World, name: &str, replicas: u32) -> Result<(), WorldError> {
    let api: Api<Deployment> = Api::namespaced(world.client(), "default");
    let patch = json!({ "spec": { "replicas": replicas } });
    let scaled = api.patch_scale(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    scaled.map(|_| ()).map_err(|source| WorldError::Kube { doing: "scaling a Deployment", source })
}
