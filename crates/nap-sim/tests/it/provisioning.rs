//! Provisioning: pending pods get nodes.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use nap_api::{AKSNodeClass, NodePool, PlanRecord, Requirement, conditions, labels};
use nap_cloud::CloudProvider as _;
use nap_controllers::Settings;
use nap_engine::{
    CapacityType, DefaultSpread, InstanceType, MinValuesPolicy, Options, PreferencePolicy,
    Selector, Spread,
};
use nap_units::{Resources, Rounding, UsdPerHour};
use serde_json::{Value, json};

use crate::harness::User;

#[tokio::test(start_paused = true)]
async fn ten_equal_pods_run_on_the_cheapest_nodes_of_the_catalogue() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.deploy("inflate", 10, json!({})).await;
        user.until_running(10).await;
        let claims = user.claims().await;
        assert_eq!(user.machines(), claims.len());
        assert_eq!(user.nodes().await.len(), claims.len());
        for claim in &claims {
            assert_eq!(claim.labels()[labels::SKU_FAMILY], "D", "{claim:?}");
            let status = claim.status.as_ref().unwrap();
            assert!(conditions::is_true(&status.conditions, conditions::READY), "{status:?}");
        }
        let pool: NodePool = user.api().get("default").await.unwrap();
        let status = pool.status.unwrap();
        assert_eq!(status.nodes, i64::try_from(claims.len()).unwrap());
        let list = status.resources.iter().map(|(name, quantity)| (name.as_str(), quantity));
        assert!(
            Resources::from_quantities(list, Rounding::Down).get("cpu") >= 10_000,
            "{:?}",
            status.resources
        );
        let provisioned = user.events("Provisioned").await;
        assert_eq!(provisioned.len(), claims.len(), "{provisioned:?}");
        let paid: UsdPerHour =
            user.world.azure().machines().iter().map(|machine| machine.price).sum();
        assert_eq!(paid, cheapest_for_equal_pods(&user, 10).await);
        assert!(!user.events("Nominated").await.is_empty());
    })
    .await;
}

/// The lowest price of on-demand amd64 D nodes for pods of one CPU and 1 Gi, by dynamic programming
/// over the number of pods: equal pods make the packing a covering problem in one dimension.
async fn cheapest_for_equal_pods(user: &User, pods: usize) -> UsdPerHour {
    let class: AKSNodeClass = user.api().get("default").await.unwrap();
    let types = user.world.provider().instance_types(&class).await.unwrap();
    let label = |kind: &InstanceType, key: &str| {
        kind.requirements.get(key).and_then(Requirement::single).unwrap_or_default().to_owned()
    };
    let mut nodes: Vec<(usize, UsdPerHour)> = Vec::new();
    for kind in types.types() {
        let wanted = label(kind, labels::SKU_FAMILY) == "D" && label(kind, labels::ARCH) == "amd64";
        let on_demand = kind.offerings.iter().filter(|offering| {
            offering.available && offering.capacity_type == CapacityType::OnDemand
        });
        let price = on_demand.map(|offering| offering.price).min().filter(|_| wanted);
        let room = [("cpu", 1000), ("memory", 1 << 30), ("pods", 1)]
            .map(|(name, amount)| kind.allocatable.get(name) / amount);
        let room = usize::try_from(room.into_iter().min().unwrap()).unwrap();
        nodes.extend(price.filter(|_| room > 0).map(|price| (room, price)));
    }
    assert!(nodes.len() > 20, "{} sizes", nodes.len());
    let mut cheapest = vec![UsdPerHour::ZERO];
    for count in 1..=pods {
        let with = nodes.iter().map(|(room, price)| {
            UsdPerHour::from_micros(cheapest[count.saturating_sub(*room)].micros() + price.micros())
        });
        let best = with.min().unwrap();
        cheapest.push(best);
    }
    cheapest[pods]
}

#[tokio::test(start_paused = true)]
async fn existing_nodes_are_filled_before_new_ones_are_launched() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({ "spec": { "disruption": { "consolidateAfter": "Never" } } }))
            .await;
        user.deploy("first", 3, json!({})).await;
        user.until_running(3).await;
        let before = user.machines_ever();
        user.scale("first", 1).await;
        user.until_running(1).await;
        user.deploy("second", 2, json!({})).await;
        user.until_running(3).await;
        user.pass(60).await;
        assert_eq!(user.machines_ever(), before);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn nodepool_limits_hold_and_unplaced_pods_get_an_event() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({ "spec": { "limits": { "cpu": "8" } } })).await;
        user.deploy("inflate", 20, json!({})).await;
        user.until("some pods run", async || user.running().await > 0).await;
        user.pass(600).await;
        let capacity: i64 = user
            .claims()
            .await
            .iter()
            .map(|claim| claim.status.as_ref().unwrap().capacity["cpu"].to_milli(Rounding::Down))
            .sum();
        assert!(capacity <= 8000, "{capacity}m CPU under a limit of 8");
        assert!(user.running().await >= 6, "{} pods run within 8 CPUs", user.running().await);
        let told = user.events("FailedScheduling").await;
        assert!(told.iter().any(|text| text.contains("limit on cpu")), "{told:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn pods_choose_pools_by_taints_and_labels() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.default_pool(json!({
            "metadata": { "name": "special" },
            "spec": { "template": {
                "metadata": { "labels": { "team": "red" } },
                "spec": { "taints": [{ "key": "team", "value": "red", "effect": "NoSchedule" }] },
            } },
        }))
        .await;
        user.deploy("plain", 1, json!({})).await;
        let wants = json!({ "spec": {
            "nodeSelector": { "team": "red" },
            "tolerations": [{ "key": "team", "operator": "Equal", "value": "red", "effect": "NoSchedule" }],
        } });
        user.deploy("red", 1, wants).await;
        user.deploy("lost", 1, json!({ "spec": { "nodeSelector": { "team": "blue" } } })).await;
        user.until_running(2).await;
        user.pass(120).await;
        assert_eq!(user.running().await, 2);
        let mut pools: Vec<String> =
            user.claims().await.iter().map(|claim| claim.labels()[labels::NODEPOOL].clone()).collect();
        pools.sort();
        assert_eq!(pools, ["default", "special"]);
        let told = user.events("FailedScheduling").await;
        assert!(told.iter().any(|text| text.contains("team")), "{told:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn pod_with_resource_claims_launches_nothing() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        let device = json!({ "spec": { "resourceClaims": [{
            "name": "device", "resourceClaimTemplateName": "device",
        }] } });
        user.deploy("device", 1, device).await;
        user.pass(120).await;
        assert_eq!(user.machines_ever(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn zone_spread_keeps_the_skew_within_one() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        let spread = json!({ "spec": { "topologySpreadConstraints": [{
            "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": { "matchLabels": { "app": "spread" } },
        }] } });
        user.deploy("spread", 6, spread).await;
        user.until_running(6).await;
        let nodes = user.nodes().await;
        let zone_of = |name: &str| {
            let node = nodes.iter().find(|node| node.name_any() == name).unwrap();
            node.labels()[labels::ZONE].clone()
        };
        let mut zones: BTreeMap<String, usize> = BTreeMap::new();
        for pod in user.list::<Pod>().await {
            let node = pod.spec.unwrap().node_name.unwrap();
            *zones.entry(zone_of(&node)).or_default() += 1;
        }
        // The region has three zones; one without pods would be missing.
        assert_eq!(zones.len(), 3, "{zones:?}");
        let skew = zones.values().max().unwrap() - zones.values().min().unwrap();
        assert!(skew <= 1, "{zones:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn host_anti_affinity_gives_each_pod_a_node() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        let apart = json!({ "spec": { "affinity": { "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{
                "topologyKey": "kubernetes.io/hostname",
                "labelSelector": { "matchLabels": { "app": "apart" } },
            }],
        } } } });
        user.deploy("apart", 3, apart).await;
        user.until_running(3).await;
        assert_eq!(user.machines_ever(), 3);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn zone_affinity_puts_all_pods_into_one_zone() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        let together = json!({ "spec": {
            "containers": [{ "name": "main", "image": "pause", "resources": { "requests": { "cpu": "3" } } }],
            "affinity": { "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{
                "topologyKey": "topology.kubernetes.io/zone",
                "labelSelector": { "matchLabels": { "app": "together" } },
            }] } },
        } });
        user.deploy("together", 4, together).await;
        user.until_running(4).await;
        let nodes = user.nodes().await;
        let zones: std::collections::BTreeSet<String> =
            nodes.iter().map(|node| node.labels()[labels::ZONE].clone()).collect();
        assert_eq!(zones.len(), 1, "{zones:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn nodepool_without_node_class_is_not_ready_and_launches_nothing() {
    let user = User::new().await;
    user.run(async {
        let class = json!({ "spec": { "template": { "spec": { "nodeClassRef": { "name": "missing" } } } } });
        user.default_pool(class).await;
        user.deploy("inflate", 1, json!({})).await;
        user.pass(60).await;
        let pool: NodePool = user.api().get("default").await.unwrap();
        let conditions = pool.status.unwrap().conditions;
        let ready = conditions::get(&conditions, "NodeClassReady").unwrap();
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "NodeClassNotFound"));
        assert_eq!(user.machines_ever(), 0);
    })
    .await;
}

/// Small pods are not bound to nodes that were launched for large ones, so nothing is launched
/// twice. Pods that the scheduler tries in the moment in which a node opens can lose their place
/// all the same (ADR 1): one order of boots in sixteen does.
#[tokio::test(start_paused = true)]
async fn tight_plan_is_bound_without_further_launches() {
    let mut again = 0;
    for seed in 1..=5 {
        let user = User::with_seed(seed).await;
        user.run(async {
            pool_of_two_sizes(&user).await;
            // The embedded scheduler tries pods of the same second in name order.
            user.deploy("a-small", 40, sized("590m")).await;
            user.deploy("b-large", 8, sized("3100m")).await;
            user.until("everything was planned", async || !user.claims().await.is_empty()).await;
            user.pass(5).await;
            let planned = user.claims().await.len();
            user.until_running(48).await;
            user.pass(120).await;
            again += user.machines_ever() - planned;
        })
        .await;
    }
    assert!(again <= 1, "{again} machines were launched again in five runs");
}

/// The urgent pods have anti-affinity to all others and fit on any node, so theirs must be released
/// first.
#[tokio::test(start_paused = true)]
async fn pods_that_arrive_while_a_node_comes_up_join_its_plan() {
    let user = User::in_region_with(Settings::default(), &["Standard_D8as_v5"]).await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.deploy("first", 4, json!({})).await;
        let launched = async || {
            let claims = user.claims().await;
            claims.iter().any(|claim| {
                claim.status.as_ref().is_some_and(|status| status.provider_id.is_some())
            })
        };
        user.until("a VM is launched", launched).await;
        user.deploy("late", 2, json!({})).await;
        let planned = async || {
            let claims = user.claims().await;
            assert_eq!(claims.len(), 1, "there is room for all of them");
            let record = PlanRecord::of(&claims[0].metadata).unwrap().unwrap();
            assert!(user.nodes().await.is_empty(), "the node has joined: {record:?}");
            record.pods.len() == 6
        };
        user.until("the plan names all pods", planned).await;
        user.until_running(6).await;
        assert_eq!(user.machines_ever(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn nodes_of_high_priority_pods_are_released_first() {
    // A node waits for its slot for at most 20 s.
    let user = User::with_quick_vms().await;
    user.run(async {
        pool_of_two_sizes(&user).await;
        user.create::<PriorityClass>(json!({ "metadata": { "name": "urgent" }, "value": 1000 })).await;
        let mut urgent = sized("1");
        urgent["spec"]["priorityClassName"] = json!("urgent");
        urgent["spec"]["affinity"] = json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": { "matchExpressions": [{ "key": "app", "operator": "Exists" }] },
        }] } });
        user.deploy("batch", 4, sized("3")).await;
        user.deploy("urgent", 4, urgent).await;
        user.until_running(8).await;
        user.pass(120).await;
        assert_eq!(user.machines_ever(), 8);
    })
    .await;
}

/// The embedded scheduler never binds pods with disks; the node is launched nevertheless.
#[tokio::test(start_paused = true)]
async fn pod_with_nine_disks_gets_a_node_that_can_attach_them() {
    let disks = 9;
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.create::<StorageClass>(json!({
            "metadata": { "name": "disk" },
            "provisioner": "disk.csi.azure.com", "volumeBindingMode": "WaitForFirstConsumer",
        }))
        .await;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(user.client.clone(), "default");
        for number in 0..disks {
            let claim = json!({
                "metadata": { "name": format!("data-{number}") },
                "spec": {
                    "storageClassName": "disk", "accessModes": ["ReadWriteOnce"],
                    "resources": { "requests": { "storage": "1Gi" } },
                },
            });
            claims
                .create(&PostParams::default(), &serde_json::from_value(claim).unwrap())
                .await
                .unwrap();
        }
        let volumes: Vec<_> = (0..disks)
            .map(|number| {
                let claim = json!({ "claimName": format!("data-{number}") });
                json!({ "name": format!("data-{number}"), "persistentVolumeClaim": claim })
            })
            .collect();
        user.deploy("database", 1, json!({ "spec": { "volumes": volumes } })).await;
        user.until("a machine is ready", async || {
            user.claims().await.iter().any(|claim| {
                claim.status.as_ref().is_some_and(|status| {
                    conditions::is_true(&status.conditions, conditions::READY)
                })
            })
        })
        .await;
        let claims = user.claims().await;
        let status = claims[0].status.as_ref().unwrap();
        let can_attach = status.allocatable["attachable-volumes-csi-disk.csi.azure.com"]
            .to_units(Rounding::Down);
        assert!(can_attach >= disks, "{can_attach} disks");
        assert_eq!(user.machines_ever(), 1);
    })
    .await;
}

/// A NodePool of nodes with 2 or 4 vCPUs and without consolidation.
async fn pool_of_two_sizes(user: &User) {
    let sizes = json!([{
        "key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["Standard_D2als_v6", "Standard_D4als_v6"],
    }]);
    user.default_pool(json!({ "spec": {
        "disruption": { "consolidateAfter": "Never" }, "template": { "spec": { "requirements": sizes } },
    } }))
    .await;
}

/// A pod template with this CPU request and little memory.
fn sized(cpu: &str) -> Value {
    let requests = json!({ "cpu": cpu, "memory": "256Mi" });
    json!({ "spec": { "containers": [{ "name": "app", "image": "example.com/app:1", "resources": { "requests": requests } }] } })
}

fn with_options(engine: Options) -> Settings {
    Settings { engine, ..Settings::default() }
}

#[tokio::test(start_paused = true)]
async fn default_spread_constraints_apply_to_pods_without_their_own() {
    let spread = Spread {
        topology_key: labels::ZONE.to_owned(),
        max_skew: 1,
        min_domains: None,
        selector: Selector::nothing(),
        honor_affinity: true,
        honor_taints: false,
    };
    let default_spread = vec![DefaultSpread { spread, must_hold: true }];
    let user = User::with(with_options(Options { default_spread, ..Options::default() })).await;
    user.run(async {
        user.default_pool(json!({ "spec": { "disruption": { "consolidateAfter": "Never" } } }))
            .await;
        user.deploy("web", 3, json!({})).await;
        user.until_running(3).await;
        let nodes = user.nodes().await;
        let zones: BTreeSet<&String> =
            nodes.iter().map(|node| &node.labels()[labels::ZONE]).collect();
        assert_eq!(zones.len(), 3, "{zones:?}");
    })
    .await;
}

/// Number of nodes for three pods with preferred anti-affinity.
async fn machines_for_pods_that_prefer_to_be_apart(preferences: PreferencePolicy) -> usize {
    let user = User::with(with_options(Options { preferences, ..Options::default() })).await;
    user.run(async {
        user.default_pool(json!({ "spec": { "disruption": { "consolidateAfter": "Never" } } })).await;
        let apart = json!({ "spec": { "affinity": { "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 100, "podAffinityTerm": {
                "topologyKey": "kubernetes.io/hostname",
                "labelSelector": { "matchLabels": { "app": "web" } },
            } }],
        } } } });
        user.deploy("web", 3, apart).await;
        user.until_running(3).await;
    })
    .await;
    user.machines_ever()
}

#[tokio::test(start_paused = true)]
async fn preferences_are_respected_unless_the_policy_is_ignore() {
    assert_eq!(machines_for_pods_that_prefer_to_be_apart(PreferencePolicy::Respect).await, 3);
    assert_eq!(machines_for_pods_that_prefer_to_be_apart(PreferencePolicy::Ignore).await, 1);
}

/// Number of nodes of a NodePool whose `minValues` exceeds the allowed types.
async fn machines_with_too_few_types(min_values: MinValuesPolicy) -> usize {
    let user = User::with(with_options(Options { min_values, ..Options::default() })).await;
    user.run(async {
        let types = json!([{
            "key": labels::INSTANCE_TYPE, "operator": "In", "values": ["Standard_D2s_v5", "Standard_D2s_v99"], "minValues": 2,
        }]);
        user.default_pool(json!({ "spec": { "template": { "spec": { "requirements": types } } } })).await;
        user.deploy("web", 1, json!({})).await;
        user.pass(300).await;
    })
    .await;
    user.machines_ever()
}

#[tokio::test(start_paused = true)]
async fn min_values_hold_unless_the_policy_is_best_effort() {
    assert_eq!(machines_with_too_few_types(MinValuesPolicy::Strict).await, 0);
    assert_eq!(machines_with_too_few_types(MinValuesPolicy::BestEffort).await, 1);
}

#[tokio::test(start_paused = true)]
async fn nodes_that_the_scheduler_refuses_are_not_bought_for_ever() {
    let user = User::new().await;
    user.run(async {
        // As a policy controller does that taints every new node.
        let spoil = async |seconds: u64| {
            for _ in 0..seconds {
                for node in user.nodes().await {
                    let mut taints = node.spec.unwrap_or_default().taints.unwrap_or_default();
                    if !taints.iter().any(|taint| taint.key == "example.com/policy") {
                        taints.push(
                            serde_json::from_value(json!({
                                "key": "example.com/policy", "effect": "NoSchedule",
                            }))
                            .unwrap(),
                        );
                        let patch = json!({ "spec": { "taints": taints } });
                        user.patch::<Node>(&node.metadata.name.unwrap(), patch).await;
                    }
                }
                user.pass(1).await;
            }
        };
        user.default_pool(json!({})).await;
        user.deploy("inflate", 1, json!({})).await;
        spoil(1800).await;
        let ever = user.machines_ever();
        assert!((2..=4).contains(&ever), "{ever} machines in half an hour");
        let told = user.events("FailedScheduling").await;
        let says_why = |text: &&String| {
            text.contains("the scheduler refuses") && text.contains("example.com/policy")
        };
        assert!(told.iter().any(|text| says_why(&text)), "{told:?}");
        // Without the policy, the next attempt succeeds.
        user.until_running(1).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_must_not_be_disrupted_share_a_node() {
    let user = User::in_region_with(Settings::default(), &["Standard_D4als_v6"]).await;
    user.run(async {
        user.default_pool(json!({})).await;
        let requests = |cpu: &str| {
            let requests = json!({ "requests": { "cpu": cpu, "memory": "1Gi" } });
            json!([{ "name": "app", "image": "example.com/app:1", "resources": requests }])
        };
        let small = || json!({ "spec": { "containers": requests("500m") } });
        let mut protected = small();
        protected["metadata"] = json!({ "annotations": { labels::DO_NOT_DISRUPT: "true" } });
        user.deploy("api", 1, small()).await;
        user.deploy("big", 2, json!({ "spec": { "containers": requests("2400m") } })).await;
        user.deploy("job", 2, protected).await;
        user.deploy("web", 1, small()).await;
        user.until_running(6).await;
        assert_eq!(user.machines(), 2);
        let pods: Vec<Pod> = user.list().await;
        let jobs = pods.iter().filter(|pod| pod.labels()["app"] == "job");
        let nodes: BTreeSet<&str> =
            jobs.filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref()).collect();
        assert_eq!(nodes.len(), 1, "both jobs run on one of the two nodes: {nodes:?}");
    })
    .await;
}
