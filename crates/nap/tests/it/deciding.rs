//! `nap decisions`, and `nap replay` of a decision about running nodes.

use std::time::Duration;

use serde_json::Value;

use crate::process::{Cluster, output, text, unpacked};

const INFLATE: &str = include_str!("../../../../examples/inflate.yaml");
const RUNNING: [&str; 5] = ["get", "pods", "--field-selector=status.phase=Running", "-o", "name"];
const DRY_RUN: &str = "nap.karpenter.sh/dry-run";

/// Output of `nap` on a cluster, which succeeds.
fn nap_on(cluster: &Cluster, arguments: &[&str]) -> String {
    let kubeconfig = cluster.kubeconfig.to_str().unwrap();
    let done = output(&[arguments, &["--kubeconfig", kubeconfig]].concat());
    assert!(done.status.success(), "{arguments:?}: {}", text(&done.stderr));
    text(&done.stdout)
}

/// Total price in an answer of `nap decisions -o json`.
fn micros(document: &Value, field: &str) -> i64 {
    document[field].as_i64().unwrap()
}

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn decisions_are_shown_and_a_disruption_is_replayed() {
    let cluster = Cluster::start(&[]);
    assert!(nap_on(&cluster, &["decisions"]).starts_with("No decisions are recorded"));
    cluster.ok(&["annotate", "nodepool", "default", &format!("{DRY_RUN}=true")]);
    let budget = r#"{"spec":{"disruption":{"budgets":[{"nodes":"100%"}]}}}"#;
    cluster.ok(&["patch", "nodepool", "default", "--type=merge", "-p", budget]);
    cluster.apply(INFLATE);
    cluster.until("10 pods run", &RUNNING, |text| text.lines().count() == 10);
    cluster.ok(&["scale", "deployment", "inflate", "--replicas=1"]);
    let events = ["get", "events", "-A", "-o", "jsonpath={.items[*].reason}"];
    cluster.until("a dry run is reported", &events, |text| text.contains("DisruptionDryRun"));

    let folder = std::env::temp_dir().join(format!("nap-deciding-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("decision.json");
    let path = file.to_str().unwrap();
    // A node is decided about once it is consolidatable, which each event of a pod delays.
    let mut stored = Value::Null;
    for _ in 0..60 {
        nap_on(&cluster, &["plan", "disruption", "--offline", "--save", path]);
        stored = serde_json::from_str(&unpacked(&file)).unwrap();
        if stored["decision"]["steps"].as_array().is_some_and(|steps| !steps.is_empty()) {
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    assert_eq!(stored["kind"], "nap plan disruption");
    let replayed = output(&["replay", path]);
    let said = text(&replayed.stdout);
    assert!(replayed.status.success(), "{}", text(&replayed.stderr));
    assert!(said.contains("identical to the stored decision"), "{said}");
    assert!(said.contains("\n1     "), "there is a step: {said}");
    stored["fleet"]["candidates"][0]["price"] = 1.into();
    std::fs::write(&file, stored.to_string()).unwrap();
    let replayed = output(&["replay", path]);
    let said = text(&replayed.stderr);
    assert!(!replayed.status.success() && said.contains("the decision differs"), "{said}");

    // What a change of the NodePool would do to the nodes of the cluster.
    let release = r#"{"spec":{"template":{"metadata":{"labels":{"release":"2"}}}}}"#;
    let patch = ["patch", "nodepool", "default", "--type=merge", "--dry-run=client"];
    let changed = cluster.ok(&[&patch[..], &["-o", "yaml", "-p", release]].concat());
    let change = folder.join("pool.yaml");
    std::fs::write(&change, changed).unwrap();
    let said = nap_on(&cluster, &["what-if", "-f", change.to_str().unwrap(), "--offline"]);
    assert!(said.contains("would drift") && said.contains("would be replaced by"), "{said}");
    let labels = cluster.ok(&["get", "nodepool", "default", "-o", "yaml"]);
    assert!(!labels.contains("release:"), "nothing was changed: {labels}");

    cluster.ok(&["annotate", "nodepool", "default", &format!("{DRY_RUN}-")]);
    let map = ["get", "configmap", "nap-decisions", "-n", "kube-system"];
    let records = [&map[..], &["-o", r"jsonpath={.data.decisions\.json}"]].concat();
    cluster.until("a disruption is realised", &records, |text| {
        text.contains("realisedSavingMicroUsdPerHour")
    });
    let document: Value =
        serde_json::from_str(&nap_on(&cluster, &["decisions", "-o", "json"])).unwrap();
    let all = document["records"].as_array().unwrap();
    assert_eq!(all[0]["kind"], "Provisioning");
    let realised = all.iter().find(|one| one["outcome"] == "Realised" && one["removed"].is_array());
    let realised = realised.unwrap();
    assert!(micros(realised, "realisedSavingMicroUsdPerHour") > 0, "{realised}");
    let total = micros(&document, "realisedSavingMicroUsdPerHour");
    assert!(total >= micros(realised, "realisedSavingMicroUsdPerHour"), "{document}");

    // What was carried out is decided again from what is kept of it.
    let is_kept = |one: &Value| one["replay"].as_str().is_some_and(|it| it.starts_with("nap-"));
    let look = || -> Value {
        serde_json::from_str(&nap_on(&cluster, &["decisions", "-o", "json"])).unwrap()
    };
    let find = |document: &Value| {
        document["records"].as_array()?.iter().rfind(|one| is_kept(one)).cloned()
    };
    // One size down waits for an hour after the NodePool grew: two minutes at this speed.
    let patience = Duration::from_mins(4);
    let document =
        cluster.eventually_within(patience, "a consolidation is carried out", look, |it| {
            find(it).is_some()
        });
    let kept = find(&document).unwrap();
    let (id, input) = (kept["id"].to_string(), kept["input"].as_str().unwrap());
    nap_on(&cluster, &["decisions", "--save", &id, path]);
    let replayed = output(&["replay", path]);
    let said = text(&replayed.stdout);
    assert!(replayed.status.success(), "{}", text(&replayed.stderr));
    assert!(said.contains("identical to the stored decision") && said.contains(input), "{said}");
    let plan = all[0]["id"].to_string();
    let kubeconfig = cluster.kubeconfig.to_str().unwrap();
    let refused = output(&["decisions", "--kubeconfig", kubeconfig, "--save", &plan, path]);
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && said.contains("is not kept"), "{said}");
    std::fs::remove_dir_all(&folder).unwrap();

    let node = realised["removed"][0]["node"].as_str().unwrap();
    let table = nap_on(&cluster, &["decisions", "--node", node]);
    assert!(table.contains("Pending pods") && table.contains("Realised"), "{table}");
    assert!(table.contains("Predicted saving of disruption $"), "{table}");
    assert!(table.contains(", saving $"), "the words: {table}");
    let last = nap_on(&cluster, &["decisions", "-n", "1"]);
    assert!(!last.contains("Pending pods") && last.lines().count() >= 4, "{last}");
    let none = nap_on(&cluster, &["decisions", "--node", "elsewhere"]);
    assert!(none.contains("removed or launched `elsewhere`"), "{none}");
    cluster.stop();
}
