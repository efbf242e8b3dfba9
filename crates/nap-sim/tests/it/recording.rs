//! Decision records: what was decided, and what came of it, in a ConfigMap that survives restarts.

use std::io::Read as _;

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use nap_api::NodePool;
use nap_controllers::Settings;
use nap_controllers::decisions::{
    DecisionRecord, Digests, Document, Kind, Outcome, RecordedNode, inputs, store,
};
use nap_engine::{ConsolidationCache, ConsolidationOptions, Fleet, consolidate};
use serde_json::{Value, json};

use crate::harness::User;

fn maps(user: &User) -> Api<ConfigMap> {
    Api::namespaced(user.client.clone(), "kube-system")
}

async fn text(user: &User) -> String {
    let map = maps(user).get_opt(store::NAME).await.unwrap();
    map.and_then(|map| map.data?.remove(store::KEY)).unwrap_or_default()
}

pub async fn records(user: &User) -> Vec<DecisionRecord> {
    Document::parse(&text(user).await).map(|document| document.records).unwrap_or_default()
}

/// Kind, reason and outcome of each record.
async fn outcomes(user: &User) -> Vec<(Kind, String, Outcome)> {
    let records = records(user).await;
    records.into_iter().map(|one| (one.kind, one.reason, one.outcome)).collect()
}

fn cost(nodes: &[RecordedNode]) -> i64 {
    nodes.iter().map(|node| node.micro_usd_per_hour.unwrap()).sum()
}

#[tokio::test(start_paused = true)]
async fn decisions_are_recorded_with_their_outcome_and_survive_a_restart() {
    let user = User::new().await;
    let script = async {
        user.default_pool(json!({})).await;
        user.deploy("inflate", 3, json!({})).await;
        let first = async {
            user.until_running(3).await;
            user.until_no_pool_grows().await;
            let provisioned = (Kind::Provisioning, "Pending".to_owned(), Outcome::Realised);
            assert_eq!(outcomes(&user).await, [provisioned]);
            user.scale("inflate", 1).await;
            user.until("the replacement is recorded", async || {
                records(&user).await.iter().any(|one| one.kind == Kind::Disruption)
            })
            .await;
        };
        // Killed while the replacement is being created.
        user.world.run_nap(first).await;
        let before = records(&user).await;
        assert_eq!(before[1].outcome, Outcome::Pending);
        let machines = user.world.azure().machines();
        let old = machines.iter().map(|one| one.price.micros()).max().unwrap();
        let rest = async {
            user.until("both are settled", async || {
                records(&user).await.iter().all(|one| one.outcome != Outcome::Pending)
            })
            .await;
            let after = records(&user).await;
            assert_eq!(after.len(), 2, "{after:?}");
            assert_eq!(after[0], before[0], "the restart lost or changed a record");
            let (bought, replaced) = (&after[0], &after[1]);
            let claims = user.claims().await;
            assert_eq!((bought.pods, bought.launched.len()), (3, 1));
            assert_eq!(bought.launched[0].node_claim, replaced.removed[0].node_claim);
            assert_eq!(replaced.launched[0].node_claim, claims[0].name_any());
            assert_eq!(cost(&replaced.removed), old);
            assert_eq!(replaced.pods, 1);
            let new = user.world.azure().machines()[0].price.micros();
            assert_eq!(replaced.predicted_saving_micro_usd_per_hour, Some(old - new));
            assert_eq!(replaced.realised_saving_micro_usd_per_hour, Some(old - new));
            assert_eq!(replaced.outcome, Outcome::Realised);
            assert!(replaced.why[0].starts_with("Underutilized: replace "), "{replaced:?}");
            assert!(replaced.settled > Some(replaced.time));
            for record in &after {
                assert_eq!(record.input.len(), 16, "{record:?}");
            }
        };
        user.world.run_nap(rest).await;
    };
    user.run_without_nap(script).await;
}

#[tokio::test(start_paused = true)]
async fn malformed_records_are_replaced_and_stop_no_decision() {
    let user = User::new().await;
    let map = json!({
        "metadata": { "name": store::NAME, "namespace": "kube-system" },
        "data": { store::KEY: "{\"version\":1,\"records\":[{\"id\":" },
    });
    let map: ConfigMap = serde_json::from_value(map).unwrap();
    maps(&user).create(&PostParams::default(), &map).await.unwrap();
    user.run(async {
        user.default_pool(json!({})).await;
        user.deploy("inflate", 1, json!({})).await;
        user.until_running(1).await;
        user.pass(30).await;
        assert_eq!(records(&user).await.len(), 1, "{}", text(&user).await);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn records_that_somebody_else_wrote_or_deleted_meanwhile_are_merged() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.deploy("inflate", 1, json!({})).await;
        user.until_running(1).await;
        user.pass(30).await;
        let mut document = Document::parse(&text(&user).await).unwrap();
        let mut foreign = document.records[0].clone();
        foreign.id -= 1;
        "foreign".clone_into(&mut foreign.reason);
        document.records.insert(0, foreign);
        let data = json!({ "data": { store::KEY: serde_json::to_string(&document).unwrap() } });
        let params = PatchParams::default();
        maps(&user).patch(store::NAME, &params, &Patch::Merge(data)).await.unwrap();
        user.scale("inflate", 0).await;
        user.until("a further decision is stored", async || records(&user).await.len() == 3).await;
        assert_eq!(records(&user).await[0].reason, "foreign");
        maps(&user).delete(store::NAME, &kube::api::DeleteParams::default()).await.unwrap();
        user.deploy("more", 1, json!({})).await;
        user.until_running(1).await;
        user.until("all are stored again", async || records(&user).await.len() == 4).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn replacement_that_does_not_come_up_is_recorded_as_rolled_back() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.deploy("inflate", 3, json!({})).await;
        user.until_running(3).await;
        // Nothing removes this taint from new nodes, so that they are never initialized.
        let taint = json!([{ "key": "example.com/starting", "effect": "NoSchedule" }]);
        let patch = json!({ "spec": { "template": { "spec": { "startupTaints": taint } } } });
        user.patch::<NodePool>("default", patch).await;
        let drifted = (Kind::Disruption, "Drifted".to_owned(), Outcome::RolledBack);
        user.until("it is rolled back", async || outcomes(&user).await.get(1) == Some(&drifted))
            .await;
        assert_eq!(user.running().await, 3);
        assert_eq!(records(&user).await[1].realised_saving_micro_usd_per_hour, None);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn consolidation_whose_pods_need_a_new_node_again_is_recorded_as_undone() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.deploy("inflate", 3, json!({})).await;
        user.until_running(3).await;
        user.until_no_pool_grows().await;
        user.scale("inflate", 1).await;
        user.until("it is realised", async || {
            let all = outcomes(&user).await;
            all.len() == 2 && all[1].2 == Outcome::Realised
        })
        .await;
        let moved_to = user.nodes().await[0].name_any();
        user.delete::<Node>(&moved_to).await;
        user.until("the pod runs on a third node", async || {
            user.machines_ever() == 3 && user.running().await == 1
        })
        .await;
        user.pass(30).await;
        let all = outcomes(&user).await;
        assert_eq!(all[1], (Kind::Disruption, "Underutilized".to_owned(), Outcome::Undone));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_input_of_a_consolidation_is_kept_and_gives_the_same_decision() {
    let user = User::with(Settings { keeps_inputs: true, ..Settings::default() }).await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.deploy("inflate", 3, json!({})).await;
        user.until_running(3).await;
        user.until_no_pool_grows().await;
        user.scale("inflate", 1).await;
        user.until("it is realised", async || {
            let all = outcomes(&user).await;
            all.len() == 2 && all[1].2 == Outcome::Realised
        })
        .await;
        let all = records(&user).await;
        assert_eq!(all[0].replay, "", "plans for pending pods are not kept");
        assert_eq!(all[1].replay, inputs::NAMES[0]);
        let map = maps(&user).get(&all[1].replay).await.unwrap();
        assert!(inputs::file_of(map.clone(), "another").is_none());
        let packed = inputs::file_of(map, &all[1].input).unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(packed.as_slice()).read_to_string(&mut text).unwrap();
        let file: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(file["kind"], "nap plan disruption");
        let fleet: Fleet = serde_json::from_value(file["fleet"].clone()).unwrap();
        let options: ConsolidationOptions =
            serde_json::from_value(file["options"].clone()).unwrap();
        assert_eq!(Digests::default().fleet(&fleet), all[1].input);
        let again = consolidate(&fleet, &options, &mut ConsolidationCache::default());
        let bytes = serde_json::to_string(&again).unwrap();
        assert!(text.ends_with(&format!("\"decision\":{bytes}}}")), "{bytes}");
        let removed: Vec<&str> = again.steps[0].remove.iter().map(String::as_str).collect();
        assert_eq!(removed, [all[1].removed[0].node.as_str()], "the decision that was carried out");
    })
    .await;
}
