//! Compatibility with the incumbent's definitions: nap's replace them and accept what they accept.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt as _};
use nap_controllers::install::{Outcome, install};
use serde_json::{Value, json};

use crate::cases::{self, claim, class};
use crate::lifecycle::Holder;
use crate::manifests::MANIFESTS;
use crate::support::{How, Verdict, api, merged, pool, send};

/// On one plane, the incumbent's definitions judge every case and manifest; then nap's replace
/// them. At the end the process that holds the plane is killed, and the plane must be gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
#[cfg_attr(
    all(no_incumbent, not(no_control_plane)),
    ignore = "the incumbent's definitions are not there; `make controlplane` fetches them"
)]
async fn what_the_incumbent_accepts_nap_accepts() {
    let plane = Holder::start();
    let client = plane.client().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for entry in
        std::fs::read_dir(nap_controlplane_build::incumbent_definitions().unwrap()).unwrap()
    {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let definition = serde_saphyr::from_str(&text).unwrap();
        definitions.create(&PostParams::default(), &definition).await.unwrap();
    }
    served(&client, &["v1"]).await;

    let objects: Vec<Value> = cases::all()
        .into_iter()
        .flat_map(|group| {
            group.cases.into_iter().map(move |(change, _)| merged(group.object.clone(), &change))
        })
        .collect();
    let mut theirs = Vec::new();
    for object in &objects {
        theirs.push(send(&client, object, How::CreateDry).await);
    }
    for manifest in MANIFESTS {
        let said =
            match send_if_served(&client, &serde_saphyr::from_str(manifest.yaml).unwrap()).await {
                None => "no such version".to_owned(),
                Some(Verdict::Accepted(_)) => "accepted".to_owned(),
                Some(Verdict::Refused(refusal)) => refusal.message,
            };
        for part in manifest.incumbent {
            assert!(said.contains(part), "{}\nexpected: {part}\n  answer: {said}", manifest.title);
        }
    }
    let kept = [pool(), claim(), class()];
    for object in &kept {
        assert!(
            matches!(send(&client, object, How::Create).await, Verdict::Accepted(_)),
            "{object}"
        );
    }

    let mut outcomes = Vec::new();
    install(&client, |_, name, outcome| outcomes.push((name.to_owned(), outcome))).await.unwrap();
    let updated = outcomes.iter().filter(|(_, outcome)| *outcome == Outcome::Updated).count();
    let made = outcomes.iter().filter(|(_, outcome)| *outcome == Outcome::Created).count();
    assert_eq!((updated, made), (5, 2), "{outcomes:?}");
    served(&client, &["v1", "v1beta1", "v1alpha5"]).await;
    for object in &kept {
        let name = object["metadata"]["name"].as_str().unwrap();
        assert_eq!(api(&client, object).get(name).await.unwrap().name_any(), name);
        api(&client, object).delete(name, &kube::api::DeleteParams::default()).await.unwrap();
    }
    let mut differences = Vec::new();
    for (object, theirs) in objects.iter().zip(&theirs) {
        let Verdict::Accepted(theirs) = theirs else { continue };
        if is_placeholder(object) {
            assert!(
                matches!(send(&client, object, How::CreateDry).await, Verdict::Refused(_)),
                "{object}"
            );
            continue;
        }
        match send(&client, object, How::CreateDry).await {
            Verdict::Accepted(ours) if same_meaning(&ours, theirs) => {}
            ours => differences.push(format!("{object}\n      nap: {ours:?}\nincumbent: {theirs}")),
        }
    }
    assert!(
        differences.is_empty(),
        "{} differences:\n{}",
        differences.len(),
        differences.join("\n")
    );

    let mut again = Vec::new();
    install(&client, |_, _, outcome| again.push(outcome)).await.unwrap();
    assert!(again.iter().all(|outcome| *outcome == Outcome::Unchanged), "{again:?}");

    drop(client);
    plane.kill();
}

/// Waits until NodePools are served in exactly these versions; servers apply definitions with a
/// delay.
async fn served(client: &Client, versions: &[&str]) {
    for _ in 0..600 {
        let mut missing = 0;
        for version in versions {
            let object =
                json!({ "apiVersion": format!("karpenter.sh/{version}"), "kind": "NodePool" });
            let list = api(client, &object).list(&kube::api::ListParams::default()).await;
            missing += u32::from(list.is_err());
        }
        if missing == 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("NodePools are not served as {versions:?}");
}

/// The server's verdict on an object; `None` if it does not serve the version.
async fn send_if_served(client: &Client, object: &Value) -> Option<Verdict> {
    api(client, object).list(&kube::api::ListParams::default()).await.ok()?;
    Some(send(client, object, How::CreateDry).await)
}

/// The only object that nap refuses and the incumbent accepts: a placeholder subnet, with which no
/// node can be created.
fn is_placeholder(object: &Value) -> bool {
    object["spec"]["vnetSubnetID"].as_str().is_some_and(|subnet| subnet.contains('<'))
}

/// Whether objects are equal except for two defaults: nap sets `expireAfter` of NodePools when
/// reading instead of storing, and gives an AKSNodeClass without spec the defaults of an empty one.
fn same_meaning(ours: &Value, theirs: &Value) -> bool {
    let mut ours = ours.clone();
    if ours["kind"] == "NodePool" && ours["spec"]["template"]["spec"].get("expireAfter").is_none() {
        ours["spec"]["template"]["spec"]["expireAfter"] = json!("720h");
    }
    if ours["kind"] == "AKSNodeClass" && theirs.get("spec").is_none() {
        ours.as_object_mut().unwrap().remove("spec");
    }
    ours == *theirs
}
