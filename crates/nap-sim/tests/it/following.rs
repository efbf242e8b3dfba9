//! Following AKS: upgrades of the control plane, new node images and their windows, tags, notices
//! of evictions.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use nap_api::aksnodeclass::condition::IMAGES_READY;
use nap_api::nodeclaim::condition::DRIFTED;
use nap_api::{AKSNodeClass, NodeClaim, conditions, labels};
use serde_json::{Value, json};

use crate::harness::User;

/// Version of the images that nodes get at first.
const FIRST_IMAGE: &str = "202610.12.0";
/// Version of images that are published later.
const NEW_IMAGE: &str = "202611.2.0";

/// A pool whose nodes are replaced by drift only, with one node.
async fn one_node(user: &User) -> NodeClaim {
    let disruption = json!({ "consolidateAfter": "Never", "budgets": [{ "nodes": "100%" }] });
    user.default_pool(json!({ "spec": { "disruption": disruption } })).await;
    user.deploy("inflate", 1, json!({})).await;
    user.until_running(1).await;
    user.claims().await.remove(0)
}

/// A machine as the API returns it.
async fn machine(user: &User, claim: &NodeClaim) -> Value {
    let provider = user.world.provider();
    let path = format!(
        "{}/machines/{}?api-version=2026-05-02-preview",
        provider.config().agent_pool_path(),
        claim.name_any()
    );
    provider.arm().get("get the machine", &path).await.unwrap()["properties"].clone()
}

fn image_of(machine: &Value) -> String {
    machine["nodeImageVersion"].as_str().unwrap().rsplit_once('-').unwrap().1.to_owned()
}

/// Reason and message of the `Drifted` condition of a NodeClaim; `None` without one.
async fn drift_of(user: &User, name: &str) -> Option<(String, String)> {
    let claims = user.claims().await;
    let claim = claims.iter().find(|claim| claim.name_any() == name)?;
    let drifted = conditions::get(&claim.status.as_ref()?.conditions, DRIFTED)?;
    Some((drifted.reason.clone(), drifted.message.clone()))
}

/// Waits until a NodeClaim drifts, then until another has taken its place. Returns the reason and
/// the message of the drift, and the new NodeClaim.
async fn replaced(user: &User, old: &NodeClaim) -> (String, String, NodeClaim) {
    let name = old.name_any();
    user.until("the node drifts", async || drift_of(user, &name).await.is_some()).await;
    let (reason, message) = drift_of(user, &name).await.unwrap();
    user.until("the node is replaced", async || {
        let claims = user.claims().await;
        claims.len() == 1 && claims[0].name_any() != name && user.running().await == 1
    })
    .await;
    (reason, message, user.claims().await.remove(0))
}

async fn images_message(user: &User) -> String {
    let class: AKSNodeClass = user.api().get("default").await.unwrap();
    let conditions = class.status.unwrap().conditions;
    conditions::get(&conditions, IMAGES_READY).unwrap().message.clone()
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_of_the_control_plane_replaces_nodes() {
    let user = User::new().await;
    user.run(async {
        let old = one_node(&user).await;
        let before = machine(&user, &old).await["kubernetes"]["orchestratorVersion"].clone();
        user.world.azure().schedule_fault("upgrade: {version: 1.99.0}").unwrap();
        let (reason, message, new) = replaced(&user, &old).await;
        assert_eq!(reason, "K8sVersionDrift");
        let before = before.as_str().unwrap();
        assert_eq!(message, format!("Kubernetes version is {before}, and new nodes get 1.99.0"));
        let after = machine(&user, &new).await;
        assert_eq!(after["kubernetes"]["orchestratorVersion"], "1.99.0");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn without_a_window_a_new_image_is_taken_at_once() {
    let user = User::new().await;
    user.run(async {
        let old = one_node(&user).await;
        assert_eq!(image_of(&machine(&user, &old).await), FIRST_IMAGE);
        let fault = format!("newImage: {{version: {NEW_IMAGE}}}");
        user.world.azure().schedule_fault(&fault).unwrap();
        let (reason, message, new) = replaced(&user, &old).await;
        assert_eq!(reason, "ImageDrift");
        assert!(message.contains(FIRST_IMAGE) && message.contains(NEW_IMAGE), "{message}");
        assert_eq!(image_of(&machine(&user, &new).await), NEW_IMAGE);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_new_image_waits_for_the_window() {
    let user = User::new().await;
    // The world begins at midnight; the window is from 4 to 8 in the morning.
    let window = json!({
        "schedule": { "daily": { "intervalDays": 1 } }, "durationHours": 4, "utcOffset": "+02:00",
        "startDate": "2026-01-01", "startTime": "06:00",
    });
    let set = user.world.azure().set_maintenance_configuration(
        "aksManagedNodeOSUpgradeSchedule",
        json!({ "maintenanceWindow": window }),
    );
    assert!(set);
    user.run(async {
        let old = one_node(&user).await;
        user.world.azure().publish_image(NEW_IMAGE);
        user.pass(3 * 3600).await;
        assert_eq!(drift_of(&user, &old.name_any()).await, None);
        assert_eq!(user.machines_ever(), 1);
        let told = images_message(&user).await;
        let expected = "newer images wait for the maintenance window at 2026-01-01T04:00:00Z";
        assert_eq!(told, expected);
        let (reason, _, new) = replaced(&user, &old).await;
        assert_eq!(reason, "ImageDrift");
        assert_eq!(image_of(&machine(&user, &new).await), NEW_IMAGE);
        assert_eq!(images_message(&user).await, "");
        let opens = "2026-01-01T04:00:00Z".parse().unwrap();
        assert!(user.world.clock().now() >= opens, "replaced before the window");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pin_holds_an_image_and_rolls_it_back() {
    let user = User::new().await;
    user.run(async {
        let old = one_node(&user).await;
        let pin = |version: Value| {
            json!({ "metadata": { "annotations": {
            labels::PIN_IMAGE_VERSION: version,
        } } })
        };
        user.patch::<AKSNodeClass>("default", pin(json!(FIRST_IMAGE))).await;
        user.world.azure().publish_image(NEW_IMAGE);
        user.pass(3600).await;
        assert_eq!(user.machines_ever(), 1, "the pinned image stays");
        user.patch::<AKSNodeClass>("default", pin(json!("202601.5.0"))).await;
        let (reason, message, older) = replaced(&user, &old).await;
        assert_eq!(reason, "ImageDrift");
        assert!(message.contains(FIRST_IMAGE) && message.contains("202601.5.0"), "{message}");
        assert_eq!(image_of(&machine(&user, &older).await), "202601.5.0");
        user.patch::<AKSNodeClass>("default", pin(Value::Null)).await;
        let (_, _, newest) = replaced(&user, &older).await;
        assert_eq!(image_of(&machine(&user, &newest).await), NEW_IMAGE);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_aks_wants_recreated_is_replaced() {
    let user = User::new().await;
    user.run(async {
        let old = one_node(&user).await;
        let reason = "the kubelet identity has changed";
        assert!(user.world.azure().set_drift_action(&old.name_any(), "Recreate", reason));
        let (reason, message, _) = replaced(&user, &old).await;
        assert_eq!(reason, "ClusterConfigDrift");
        let expected = "AKS asks for the action Recreate: the kubelet identity has changed";
        assert_eq!(message, expected);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_change_of_tags_reaches_the_machine_without_a_new_one() {
    let user = User::new().await;
    user.run(async {
        let claim = one_node(&user).await;
        let tags = json!({ "team/name": "a", "cost": "7" });
        user.patch::<AKSNodeClass>("default", json!({ "spec": { "tags": tags } })).await;
        user.pass(30).await;
        let changed = machine(&user, &claim).await;
        assert_eq!(changed["tags"]["team_name"], "a");
        assert_eq!(changed["tags"]["cost"], "7");
        assert_eq!(changed["tags"]["karpenter.sh_nodepool"], "default");
        user.patch::<AKSNodeClass>("default", json!({ "spec": { "tags": { "cost": null } } }))
            .await;
        user.pass(30).await;
        assert_eq!(machine(&user, &claim).await["tags"].get("cost"), None);
        user.pass(900).await;
        assert_eq!(drift_of(&user, &claim.name_any()).await, None);
        assert_eq!(user.machines_ever(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn every_field_of_a_node_class_reaches_the_machine() {
    let user = User::new().await;
    user.run(async {
        let zone = |name: &str| {
            json!({
                "zone": name, "queryLogging": "Error", "protocol": "PreferUDP",
                "forwardDestination": "ClusterCoreDNS", "forwardPolicy": "Sequential",
                "maxConcurrent": 100, "cacheDuration": "1h", "serveStaleDuration": "30m",
                "serveStale": "Verify",
            })
        };
        let mut outside = zone(".");
        outside["forwardDestination"] = json!("VnetDNS");
        let spec = json!({
            "fipsMode": "FIPS", "maxPods": 60, "artifactStreaming": { "enabled": true },
            "security": { "trustedLaunch": { "vtpm": true } },
            "kubelet": { "podPidsLimit": 100, "failSwapOn": false },
            "linuxOSConfig": { "swapFileSize": "1Gi", "sysctls": { "vmSwappiness": 10 } },
            "localDNS": {
                "mode": "Required",
                "vnetDNSOverrides": [outside, zone("cluster.local")],
                "kubeDNSOverrides": [zone("."), zone("cluster.local")],
            },
        });
        user.patch::<AKSNodeClass>("default", json!({ "spec": spec })).await;
        let claim = one_node(&user).await;
        let machine = machine(&user, &claim).await;
        let at = |pointer: &str| machine.pointer(pointer).cloned().unwrap_or_default();
        for (pointer, expected) in [
            ("/operatingSystem/enableFIPS", json!(true)),
            ("/kubernetes/maxPods", json!(60)),
            ("/kubernetes/artifactStreamingProfile/enabled", json!(true)),
            ("/security/enableVTPM", json!(true)),
            ("/kubernetes/kubeletConfig/podMaxPids", json!(100)),
            ("/operatingSystem/linuxProfile/linuxOSConfig/swapFileSizeMB", json!(1024)),
            ("/operatingSystem/linuxProfile/linuxOSConfig/sysctls/vmSwappiness", json!(10)),
            ("/localDNSProfile/mode", json!("Required")),
        ] {
            assert_eq!(at(pointer), expected, "{pointer}");
        }
        assert!(at("/nodeImageVersion").as_str().unwrap().contains("2204gen2fipsTLcontainerd"));
        assert_eq!(claim.labels()[labels::AKS_FIPS_ENABLED], "true");
        let cpus: i64 = claim.labels()[labels::SKU_CPU].parse().unwrap();
        assert!(cpus >= 4, "a DNS cache needs 4 vCPUs");
    })
    .await;
}

/// Announces the eviction of a Node's VM, as the node problem detector does.
async fn announce(user: &User, node: &str, seconds: i64) {
    let deadline = user.world.clock().now() + SignedDuration::from_secs(seconds);
    let time = deadline.strftime("%a, %d %b %Y %H:%M:%S GMT");
    let condition = json!({
        "type": "PreemptionScheduled", "status": "True", "reason": "SpotEvictionIncoming",
        "message": format!("Preempt Scheduled: {time}. For more information, see the documents"),
    });
    let patch = Patch::Strategic(json!({ "status": { "conditions": [condition] } }));
    user.api::<Node>().patch_status(node, &PatchParams::default(), &patch).await.unwrap();
}

/// A PodDisruptionBudget that allows no eviction.
async fn forbid_evictions(user: &User) {
    let budget: PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": { "name": "inflate", "namespace": "default" },
        "spec": { "maxUnavailable": 0, "selector": { "matchLabels": { "app": "inflate" } } },
    }))
    .unwrap();
    let api: Api<PodDisruptionBudget> = Api::namespaced(user.client.clone(), "default");
    api.create(&PostParams::default(), &budget).await.unwrap();
}

/// Number of pods on a node.
async fn pods_on(user: &User, node: &str) -> usize {
    let pods = user.list::<Pod>().await;
    let is_on = |pod: &&Pod| pod.spec.as_ref().unwrap().node_name.as_deref() == Some(node);
    pods.iter().filter(is_on).count()
}

#[tokio::test(start_paused = true)]
async fn a_notice_ends_a_drain_that_is_stuck() {
    let user = User::new().await;
    user.run(async {
        let claim = one_node(&user).await;
        let node = claim.status.as_ref().unwrap().node_name.clone().unwrap();
        forbid_evictions(&user).await;
        user.delete::<NodeClaim>(&claim.name_any()).await;
        user.pass(300).await;
        assert_eq!(pods_on(&user, &node).await, 1, "the drain waits for the budget");
        announce(&user, &node, 60).await;
        user.pass(60).await;
        assert_eq!(pods_on(&user, &node).await, 0, "a pod is still there at the deadline");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn pods_leave_before_a_spot_vm_is_evicted_and_its_offering_is_avoided() {
    let user = User::new().await;
    user.run(async {
        let spot = json!([
            { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"] },
            { "key": "karpenter.azure.com/sku-family", "operator": "In", "values": ["D"] },
        ]);
        let template = json!({ "spec": { "requirements": spot } });
        user.default_pool(json!({ "spec": { "template": template } })).await;
        user.deploy("inflate", 1, json!({})).await;
        user.until_running(1).await;
        forbid_evictions(&user).await;
        let old = user.claims().await.remove(0);
        let node = old.status.as_ref().unwrap().node_name.clone().unwrap();
        announce(&user, &node, 30).await;
        // The replacement is on its way while the old node still runs.
        user.pass(15).await;
        let claims = user.claims().await;
        assert_eq!(claims.len(), 2, "the replacement is launched at the notice");
        user.pass(15).await;
        assert_eq!(pods_on(&user, &node).await, 0, "a pod is still there at the deadline");
        user.until_running(1).await;
        user.until("the old NodeClaim is gone", async || user.claims().await.len() == 1).await;
        let new = user.claims().await.remove(0);
        let offering = |claim: &NodeClaim| {
            [labels::INSTANCE_TYPE, labels::ZONE].map(|key| claim.labels()[key].clone())
        };
        assert_ne!(offering(&new), offering(&old));
        let told = user.events("SpotInterrupted").await;
        assert!(told[0].contains("will be lost at 2026-01-01T00:"), "{told:?}");
        assert_eq!(user.moves_of("inflate").await, 1, "it counts as a move of the workload");
    })
    .await;
}
