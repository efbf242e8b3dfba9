//! Edits of a node class while its status is out of date: machines are of one generation, never of
//! the old status and the new spec.

use std::time::Duration;

use futures::StreamExt as _;
use kube::api::{WatchEvent, WatchParams};
use nap_api::{AKSNodeClass, conditions};
use serde_json::{Value, json};

use crate::harness::User;

/// Properties of all machines, as the API returns them.
async fn machines(user: &User) -> Vec<Value> {
    let provider = user.world.provider();
    let pool = provider.config().agent_pool_path();
    let path = format!("{pool}/machines?api-version=2026-05-02-preview");
    let list = provider.arm().get("list the machines", &path).await.unwrap();
    let machines = list["value"].as_array().unwrap().iter();
    machines.map(|machine| machine["properties"].clone()).collect()
}

/// Whether each machine runs Azure Linux, and has a virtual TPM. Fails if its image is of another
/// generation of the class.
fn kinds(machines: &[Value]) -> Vec<(bool, bool)> {
    let kind = |machine| {
        let text = |pointer| Value::pointer(machine, pointer).and_then(Value::as_str).unwrap();
        let (image, system) = (text("/nodeImageVersion"), text("/operatingSystem/osSKU"));
        let is_linux = system.starts_with("AzureLinux");
        assert_eq!(image.contains("AzureLinux"), is_linux, "image {image} with osSKU {system}");
        let has_tpm = machine["security"]["enableVTPM"] == true;
        assert_eq!(image.contains("TL"), has_tpm, "image {image} with a virtual TPM: {has_tpm}");
        (is_linux, has_tpm)
    };
    machines.iter().map(kind).collect()
}

async fn is_ready(user: &User) -> bool {
    let class: AKSNodeClass = user.api().get("default").await.unwrap();
    let conditions = class.status.map(|status| status.conditions).unwrap_or_default();
    let ready = conditions::get(&conditions, conditions::READY);
    ready.is_some_and(|ready| {
        ready.status == "True" && ready.observed_generation == class.metadata.generation
    })
}

/// A world with a pool whose nodes stay, and a class that is ready.
async fn prepare(user: &User) {
    let disruption = json!({ "consolidateAfter": "Never", "budgets": [{ "nodes": "0" }] });
    user.default_pool(json!({ "spec": { "disruption": disruption } })).await;
    user.until("the class is ready", async || is_ready(user).await).await;
    // What a launch needs of Azure beside the class is known.
    user.deploy("first", 1, json!({})).await;
    user.until_running(1).await;
}

/// Lets each of the next reads of Azure wait for seven seconds.
fn throttle(user: &User, reads: u32) {
    user.world.azure().set_faults(|faults| faults.throttle_next = reads);
}

/// The fields of the class that are edited, and what the machines are after it.
fn edits() -> [(Value, (bool, bool)); 2] {
    [
        (json!({ "imageFamily": "AzureLinux" }), (true, false)),
        (json!({ "security": { "trustedLaunch": { "vtpm": true } } }), (false, true)),
    ]
}

#[tokio::test(start_paused = true)]
async fn an_edit_of_the_class_is_launched_with_the_status_of_its_generation() {
    for (edit, expected) in edits() {
        let user = User::new().await;
        user.run(async {
            prepare(&user).await;
            // The images of the new generation are read late.
            throttle(&user, 5);
            user.patch::<AKSNodeClass>("default", json!({ "spec": edit })).await;
            user.deploy("second", 6, json!({})).await;
            user.pass(15).await;
            assert!(!is_ready(&user).await, "the status of the new generation is late");
            assert_eq!(user.machines(), 1, "no machine without it");
            throttle(&user, 0);
            user.until_running(7).await;
            let machines = machines(&user).await;
            let mut kinds = kinds(&machines);
            let first = kinds.iter().position(|kind| *kind == (false, false));
            kinds.remove(first.expect("the machine from before the edit"));
            assert!(kinds.len() < 7 && kinds.iter().all(|kind| *kind == expected), "{kinds:?}");
        })
        .await;
    }
}

/// Images of a class that is ready at its generation; `None` if it is not.
fn images_when_ready(class: &AKSNodeClass) -> Option<Vec<&str>> {
    let status = class.status.as_ref()?;
    let ready = conditions::get(&status.conditions, conditions::READY)?;
    let is_current = ready.observed_generation == class.metadata.generation;
    let images = status.images.iter().map(|image| image.id.as_str());
    (is_current && ready.status == "True").then(|| images.collect())
}

#[tokio::test(start_paused = true)]
async fn an_edit_during_an_inspection_does_not_get_the_status_of_the_spec_before() {
    for (edit, (is_linux, has_tpm)) in edits() {
        let user = User::new().await;
        user.run(async {
            prepare(&user).await;
            // The class is inspected for its first edit when the second one comes.
            throttle(&user, 2);
            user.patch::<AKSNodeClass>("default", json!({ "spec": { "maxPods": 60 } })).await;
            user.pass(3).await;
            user.patch::<AKSNodeClass>("default", json!({ "spec": edit })).await;
            let edited: AKSNodeClass = user.api().get("default").await.unwrap();
            let version = edited.metadata.resource_version.unwrap();
            let api = user.api::<AKSNodeClass>();
            let mut seen = api.watch(&WatchParams::default(), &version).await.unwrap().boxed();
            user.until("the class is ready", async || is_ready(&user).await).await;
            let mut was_ready = false;
            while let Ok(event) = tokio::time::timeout(Duration::from_secs(1), seen.next()).await {
                let Some(Ok(WatchEvent::Modified(class))) = event else { continue };
                for image in images_when_ready(&class).into_iter().flatten() {
                    was_ready = true;
                    assert_eq!(image.contains("AzureLinux"), is_linux, "{image}");
                    assert!(!has_tpm || image.contains("TL"), "{image}");
                }
            }
            assert!(was_ready);
        })
        .await;
    }
}
