//! When nodes may be disrupted: windows of a NodePool, and the maintenance windows of AKS.

use jiff::Timestamp;
use kube::ResourceExt;
use nap_api::nodeclaim::condition::{DISRUPTION_REASON, DRIFTED};
use nap_api::nodepool::DISRUPTION_SETTINGS_VALID;
use nap_api::{NodePool, conditions, labels};
use serde_json::{Value, json};

use crate::harness::User;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn annotated(windows: &str) -> Value {
    json!({ "metadata": { "annotations": { labels::DISRUPTION_WINDOWS: windows } } })
}

/// A NodePool with windows and no other limit on disruption.
fn pool(windows: &str, consolidate_after: &str) -> Value {
    let mut pool = annotated(windows);
    let budgets = json!([{ "nodes": "100%" }]);
    pool["spec"] =
        json!({ "disruption": { "consolidateAfter": consolidate_after, "budgets": budgets } });
    pool
}

async fn drift(user: &User) {
    let wave = json!({ "spec": { "template": { "metadata": { "labels": { "wave": "two" } } } } });
    user.patch::<NodePool>("default", wave).await;
}

async fn names(user: &User) -> Vec<String> {
    user.claims().await.iter().map(ResourceExt::name_any).collect()
}

/// Lets time pass until a moment.
async fn until(user: &User, moment: &str) {
    let left = at(moment).duration_since(user.world.clock().now());
    user.pass(u64::try_from(left.as_secs()).unwrap()).await;
}

#[tokio::test(start_paused = true)]
async fn drift_waits_for_the_window_in_the_time_zone_of_the_pool() {
    let user = User::new().await;
    user.run(async {
        // 06:00 in Berlin is 05:00 UTC; the world begins at midnight UTC.
        let window = "- action: allow\n  reasons: [Drifted]\n  schedule: 0 6 * * *\n  \
                      duration: 2h\n  timeZone: Europe/Berlin\n";
        user.default_pool(pool(window, "Never")).await;
        user.deploy("inflate", 1, json!({})).await;
        user.until_running(1).await;
        let old = names(&user).await;
        drift(&user).await;
        until(&user, "2026-01-01T04:59:50Z").await;
        assert_eq!((names(&user).await, user.machines_ever()), (old.clone(), 1));
        let said = user.events("DisruptionBlocked").await.join("\n");
        let expected = "reason Drifted due to disruption windows: no window allows it, until \
                        2026-01-01T05:00:00Z";
        assert!(said.contains(expected), "{said}");
        user.until("the node is replaced", async || {
            names(&user).await.iter().all(|name| !old.contains(name)) && user.running().await == 1
        })
        .await;
        let now = user.world.clock().now();
        assert!(now > at("2026-01-01T05:00:00Z") && now < at("2026-01-01T05:15:00Z"), "{now}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_denying_window_keeps_empty_nodes() {
    let user = User::new().await;
    user.run(async {
        let window = "- {action: deny, schedule: 0 0 * * *, duration: 6h}";
        user.default_pool(pool(window, "0s")).await;
        user.deploy("inflate", 1, json!({})).await;
        user.until_running(1).await;
        user.scale("inflate", 0).await;
        until(&user, "2026-01-01T05:59:50Z").await;
        assert_eq!(user.machines(), 1);
        user.until("the node is removed", async || user.machines() == 0).await;
        assert!(user.world.clock().now() < at("2026-01-01T06:15:00Z"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn no_replacement_is_launched_in_the_last_minutes_of_a_window() {
    let user = User::new().await;
    user.run(async {
        let window = "- {action: allow, schedule: 0 0 * * *, duration: 1h}";
        user.default_pool(pool(window, "Never")).await;
        user.deploy("inflate", 1, json!({})).await;
        user.until_running(1).await;
        until(&user, "2026-01-01T00:55:10Z").await;
        drift(&user).await;
        until(&user, "2026-01-01T01:30:00Z").await;
        assert_eq!(user.machines_ever(), 1);
        let told = user.events("DisruptionBlocked").await;
        assert!(told.iter().any(|text| text.contains("close within 5 minutes")), "{told:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_replacement_comes_after_the_window_stays() {
    let user = User::with_slow_vms().await;
    user.run(async {
        let window = "- {action: allow, schedule: 0 0 * * *, duration: 1h}";
        user.default_pool(pool(window, "Never")).await;
        user.deploy("inflate", 1, json!({})).await;
        user.until_running(1).await;
        let old = names(&user).await.remove(0);
        until(&user, "2026-01-01T00:54:00Z").await;
        drift(&user).await;
        user.pass(60).await;
        assert_eq!(user.claims().await.len(), 2, "the replacement was launched in the window");
        until(&user, "2026-01-01T02:00:00Z").await;
        assert!(names(&user).await.contains(&old), "deleted outside of the window");
        let claims = user.claims().await;
        let claim = claims.iter().find(|claim| claim.name_any() == old).unwrap();
        let all = &claim.status.as_ref().unwrap().conditions;
        assert!(!conditions::is_true(all, DISRUPTION_REASON), "the command is given up");
        assert_eq!(user.running().await, 1);
    })
    .await;
}

async fn invalid(user: &User) -> Option<String> {
    let pool: NodePool = user.api().get("default").await.unwrap();
    let all = pool.status?.conditions;
    let condition = conditions::get(&all, DISRUPTION_SETTINGS_VALID)?;
    assert_eq!(
        (condition.status.as_str(), condition.reason.as_str()),
        ("False", "InvalidAnnotation")
    );
    Some(condition.message.clone())
}

#[tokio::test(start_paused = true)]
async fn windows_that_cannot_be_read_stop_disruption_and_nothing_else() {
    let user = User::new().await;
    user.run(async {
        let windows = "- {action: allow, schedule: 0 0 * * *, duration: 24h, timeZone: Berlin}";
        user.default_pool(pool(windows, "Never")).await;
        user.deploy("inflate", 1, json!({})).await;
        user.until_running(1).await;
        let old = names(&user).await;
        drift(&user).await;
        user.pass(1800).await;
        assert_eq!(names(&user).await, old);
        let message = invalid(&user).await.unwrap();
        let expected = "metadata.annotations[nap.karpenter.sh/disruption-windows][0].timeZone: \
                        `Berlin` is not an IANA time zone";
        assert!(message.starts_with(expected), "{message}");
        assert_eq!(user.events("InvalidAnnotation").await.first(), Some(&message));
        let windows = windows.replace("Berlin", "Europe/Berlin");
        user.patch::<NodePool>("default", annotated(&windows)).await;
        user.until("the node is replaced", async || {
            names(&user).await.iter().all(|name| !old.contains(name))
        })
        .await;
        assert_eq!(invalid(&user).await, None);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_follows_the_maintenance_window_is_consolidated_inside_only() {
    let user = User::new().await;
    user.run(async {
        let windows = "- {action: allow, schedule: aksManagedNodeOSUpgradeSchedule}";
        user.default_pool(pool(windows, "0s")).await;
        user.deploy("inflate", 1, json!({})).await;
        user.until_running(1).await;
        user.scale("inflate", 0).await;
        user.pass(1800).await;
        assert_eq!(user.machines(), 1);
        let said = user.events("DisruptionBlocked").await.join("\n");
        assert!(said.contains("has no aksManagedNodeOSUpgradeSchedule"), "{said}");
        let window = json!({
            "schedule": { "daily": { "intervalDays": 1 } }, "durationHours": 4,
            "utcOffset": "+02:00", "startDate": "2026-01-01", "startTime": "06:00",
        });
        let set = user.world.azure().set_maintenance_configuration(
            "aksManagedNodeOSUpgradeSchedule",
            json!({ "maintenanceWindow": window }),
        );
        assert!(set);
        until(&user, "2026-01-01T03:59:50Z").await;
        assert_eq!(user.machines(), 1);
        let said = user.events("DisruptionBlocked").await.join("\n");
        assert!(said.contains("until 2026-01-01T04:00:00Z"), "{said}");
        user.until("the node is removed", async || user.machines() == 0).await;
        assert!(user.world.clock().now() < at("2026-01-01T04:15:00Z"));
    })
    .await;
}

/// A daily window of four hours from an hour of UTC on.
fn daily(hour: u8) -> Value {
    json!({ "maintenanceWindow": {
        "schedule": { "daily": { "intervalDays": 1 } }, "durationHours": 4, "utcOffset": "+00:00",
        "startDate": "2026-01-01", "startTime": format!("{hour:02}:00"),
    } })
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_of_kubernetes_replaces_nodes_in_its_own_window_only() {
    let user = User::new().await;
    let azure = user.world.azure();
    // The window for images comes first, and must not count.
    assert!(azure.set_maintenance_configuration("aksManagedNodeOSUpgradeSchedule", daily(2)));
    assert!(azure.set_maintenance_configuration("aksManagedAutoUpgradeSchedule", daily(8)));
    user.run(async {
        let windows =
            "- {action: allow, reasons: [Drifted], schedule: aksManagedAutoUpgradeSchedule}";
        user.default_pool(pool(windows, "Never")).await;
        user.deploy("inflate", 1, json!({})).await;
        user.until_running(1).await;
        let old = user.claims().await.remove(0);
        user.world.azure().schedule_fault("upgrade: {version: 1.99.0}").unwrap();
        user.until("the node drifts", async || {
            let claim = &user.claims().await[0];
            let drifted = conditions::get(&claim.status.as_ref().unwrap().conditions, DRIFTED);
            drifted.is_some_and(|condition| condition.reason == "K8sVersionDrift")
        })
        .await;
        assert!(user.world.clock().now() < at("2026-01-01T01:00:00Z"), "it drifts at once");
        until(&user, "2026-01-01T07:59:50Z").await;
        assert_eq!((names(&user).await, user.machines_ever()), (vec![old.name_any()], 1));
        let said = user.events("DisruptionBlocked").await.join("\n");
        assert!(said.contains("until 2026-01-01T08:00:00Z"), "{said}");
        user.until("the node is replaced", async || {
            !names(&user).await.contains(&old.name_any()) && user.running().await == 1
        })
        .await;
        assert!(user.world.clock().now() < at("2026-01-01T08:15:00Z"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn without_an_upgrade_window_a_pool_that_follows_it_stays_and_says_so() {
    let user = User::new().await;
    // The other schedule is always open; it is not the one that the pool names.
    let mut always = daily(0);
    always["maintenanceWindow"]["durationHours"] = 24.into();
    let azure = user.world.azure();
    assert!(azure.set_maintenance_configuration("aksManagedNodeOSUpgradeSchedule", always));
    user.run(async {
        let windows = "- {action: allow, schedule: aksManagedAutoUpgradeSchedule}";
        user.default_pool(pool(windows, "Never")).await;
        user.deploy("inflate", 1, json!({})).await;
        user.until_running(1).await;
        let old = names(&user).await;
        user.world.azure().upgrade_control_plane("1.99.0");
        user.pass(6 * 3600).await;
        assert_eq!(names(&user).await, old);
        let said = user.events("DisruptionBlocked").await.join("\n");
        assert!(
            said.contains("the managed cluster has no aksManagedAutoUpgradeSchedule"),
            "{said}"
        );
    })
    .await;
}
