//! `nap plan disruption`, `nap explain node` and `nap what-if` on dumped clusters.

use std::fmt::Write as _;

use serde_json::Value;

use super::{folder, output, said, text};

pub(super) const POOL: &str = r#"
apiVersion: karpenter.sh/v1
kind: NodePool
metadata:
  name: default
spec:
  disruption: { consolidationPolicy: WhenEmptyOrUnderutilized, consolidateAfter: 0s, budgets: [{ nodes: "100%" }] }
  template:
    spec:
      nodeClassRef: { group: karpenter.azure.com, kind: AKSNodeClass, name: default }
      requirements:
      - { key: node.kubernetes.io/instance-type, operator: In, values: [Standard_D4s_v5, Standard_D8s_v5] }
      - { key: topology.kubernetes.io/zone, operator: In, values: [eastus-1, eastus-2] }
      - { key: karpenter.sh/capacity-type, operator: In, values: [on-demand] }
"#;

/// A node with pods that ask for one vCPU each.
pub(super) fn node(name: &str, size: &str, vcpus: u32, pods: usize, annotation: &str) -> String {
    let labels = format!(
        "{{ karpenter.sh/nodepool: default, karpenter.sh/capacity-type: on-demand, \
         topology.kubernetes.io/zone: eastus-1, node.kubernetes.io/instance-type: {size}, \
         kubernetes.io/hostname: {name}, karpenter.sh/registered: \"true\", \
         karpenter.sh/initialized: \"true\", kubernetes.io/arch: amd64, \
         kubernetes.io/os: linux, karpenter.azure.com/sku-family: D }}"
    );
    let condition = |kind: &str| {
        format!(
            "{{ type: {kind}, status: \"True\", reason: {kind}, message: \"\", \
             lastTransitionTime: \"2026-01-01T00:00:00Z\" }}"
        )
    };
    let conditions: Vec<String> =
        ["Launched", "Registered", "Initialized", "Consolidatable"].map(condition).to_vec();
    let capacity = format!("{{ cpu: \"{vcpus}\", memory: {}Gi, pods: \"250\" }}", vcpus * 4);
    let mut yaml = format!(
        "---
apiVersion: karpenter.sh/v1
kind: NodeClaim
metadata: {{ name: claim-{name}, creationTimestamp: \"2026-01-01T00:00:00Z\", labels: {labels} }}
spec:
  nodeClassRef: {{ group: karpenter.azure.com, kind: AKSNodeClass, name: default }}
  requirements: []
  expireAfter: Never
status:
  providerID: azure:///{name}
  nodeName: {name}
  capacity: {capacity}
  allocatable: {capacity}
  conditions: [{}]
---
apiVersion: v1
kind: Node
metadata: {{ name: {name}, labels: {labels} }}
spec: {{ providerID: azure:///{name} }}
status:
  capacity: {capacity}
  allocatable: {capacity}
  conditions: [{{ type: Ready, status: \"True\", reason: KubeletReady, message: \"\", lastTransitionTime: \"2026-01-01T00:00:00Z\", lastHeartbeatTime: \"2026-01-01T00:00:00Z\" }}]
",
        conditions.join(", ")
    );
    for number in 0..pods {
        let _ = write!(
            yaml,
            "---
apiVersion: v1
kind: Pod
metadata:
  name: web-{name}-{number}
  namespace: default
  annotations: {{ {annotation} }}
  ownerReferences: [{{ apiVersion: apps/v1, kind: ReplicaSet, name: web, uid: u, controller: true }}]
spec:
  nodeName: {name}
  containers: [{{ name: app, image: example.com/app:1, resources: {{ requests: {{ cpu: \"1\", memory: 1Gi }} }} }}]
status: {{ phase: Running, conditions: [{{ type: Ready, status: \"True\" }}] }}
"
        );
    }
    yaml
}

const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt: \"true\"";

fn two_nodes(annotation: &str) -> String {
    let small = node("small", "Standard_D4s_v5", 4, 1, annotation);
    let large = node("large", "Standard_D8s_v5", 8, 7, "");
    [POOL, &small, &large].concat()
}

#[test]
fn the_next_steps_are_shown_with_savings_and_moves() {
    let (said, _) = said(&["plan", "disruption"], "disruption", &two_nodes(""));
    assert!(said.contains("1 step would save $0.192/h"), "{said}");
    let step = said.lines().find(|line| line.starts_with("1  ")).unwrap();
    assert!(step.contains("Underutilized") && step.contains("small Standard_D4s_v5"), "{said}");
    assert!(said.contains("takes pods of nodes that are removed"), "{said}");
}

#[test]
fn the_document_has_every_node_and_step() {
    let (said, _) = said(&["plan", "disruption", "-o", "json"], "disruption-json", &two_nodes(""));
    let document: Value = serde_json::from_str(&said).unwrap();
    let step = &document["steps"][0];
    assert_eq!(step["remove"], serde_json::json!(["small"]));
    assert_eq!(step["moves"]["default/web-small-0"], "large");
    assert_eq!(step["savingMicroUsdPerHour"], 192_000);
    assert_eq!(document["nodes"].as_array().unwrap().len(), 2);
}

#[test]
fn what_blocks_a_node_is_named_with_what_it_costs() {
    let yaml = two_nodes(DO_NOT_DISRUPT);
    let (plan, _) = said(&["plan", "disruption"], "disruption-blocked", &yaml);
    assert!(plan.contains("Nothing to disrupt now"), "{plan}");
    assert!(plan.contains("Without what blocks them: $140.16 a month"), "{plan}");
    let (node, _) = said(&["explain", "node", "small"], "explain-node-blocked", &yaml);
    assert!(node.contains("default/web-small-0"), "{node}");
    assert!(node.contains("would save $140.16 a month"), "{node}");
}

#[test]
fn blockers_are_priced_whatever_the_budget_and_grouped() {
    let blocked =
        |number: usize| node(&format!("small-{number}"), "Standard_D4s_v5", 4, 1, DO_NOT_DISRUPT);
    let pool = POOL.replace("100%", "10%");
    let large = node("large", "Standard_D8s_v5", 8, 2, "");
    let nodes: String = (0..5).map(blocked).collect();
    let yaml = [pool.as_str(), &large, &nodes].concat();
    let (said, _) = super::said(&["plan", "disruption", "-o", "json"], "held-10", &yaml);
    let document: Value = serde_json::from_str(&said).unwrap();
    let blockers = document["blockers"].as_array().unwrap();
    // Seven pods fit two small nodes. The large one can be removed as it is, three small ones not.
    let total: i64 =
        blockers.iter().map(|one| one["heldSavingMicroUsdPerHour"].as_i64().unwrap()).sum();
    assert_eq!(total, 3 * 192_000, "{said}");
    assert_eq!(blockers[0]["nodes"].as_array().unwrap().len(), 1, "{said}");
    let named = blockers[0]["blocker"].as_str().unwrap();
    assert!(named.starts_with("Pod default/web-small-"), "{said}");
    // One PodDisruptionBudget over all of them is one blocker.
    let budget = "---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: { name: web, namespace: default }
spec: { maxUnavailable: 0, selector: {} }
status: { disruptionsAllowed: 0, currentHealthy: 7, desiredHealthy: 7, expectedPods: 7 }
";
    let yaml = [&yaml.replace(DO_NOT_DISRUPT, ""), budget].concat();
    let (said, _) = super::said(&["plan", "disruption"], "held-pdb", &yaml);
    assert!(said.contains("4 nodes: PodDisruptionBudget default/web"), "{said}");
}

#[test]
fn a_pod_without_a_controller_keeps_its_node_and_is_named() {
    let yaml = two_nodes("");
    let owner = "  ownerReferences: [{ apiVersion: apps/v1, kind: ReplicaSet, name: web, uid: u, controller: true }]\n";
    assert!(yaml.contains(owner));
    let (plan, _) = said(&["plan", "disruption"], "bare", &yaml.replace(owner, ""));
    assert!(plan.contains("Nothing to disrupt now"), "{plan}");
    assert!(plan.contains("$140.16 a month") && plan.contains("small: Pod default/web"), "{plan}");
    let (node, _) = said(&["explain", "node", "small"], "explain-bare", &yaml.replace(owner, ""));
    assert!(node.contains("Pod has no controller and would not come back"), "{node}");
}

#[test]
fn a_node_that_stays_says_why_and_one_that_goes_says_where_its_pods_go() {
    let (large, _) = said(&["explain", "node", "large"], "explain-node-stays", &two_nodes(""));
    assert!(large.contains("It stays") && large.contains("takes pods"), "{large}");
    let (small, _) = said(&["explain", "node", "claim-small"], "explain-node", &two_nodes(""));
    assert!(small.contains("It would be removed, saving $0.192/h"), "{small}");
    assert!(small.contains("1 pod to large"), "{small}");
}

#[test]
fn estimated_prices_are_marked_in_every_form() {
    let spot = |yaml: &str| yaml.replace("on-demand", "spot");
    let yaml = spot(&two_nodes(""));
    let note = "~ marks estimated prices: list prices times the spot ratio of 2024.";
    let note = |said: &str| said.replace('\n', " ").contains(note);
    let (table, _) = said(&["plan", "disruption"], "disruption-spot", &yaml);
    assert!(table.starts_with("2 nodes for ~$") && table.contains("would save ~$"), "{table}");
    let step = table.lines().find(|line| line.starts_with("1  ")).unwrap();
    assert!(step.split_whitespace().last().unwrap().starts_with("~$") && note(&table), "{table}");
    let (document, _) = said(&["plan", "disruption", "-o", "json"], "disruption-spot-json", &yaml);
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["prices"]["estimates"], serde_json::json!(["spotPrices", "zones"]));
    assert_eq!(document["nodes"][0]["priceIsEstimate"], true);
    assert_eq!(document["steps"][0]["savingIsEstimate"], true);
    let (node, _) = said(&["explain", "node", "small"], "explain-node-spot", &yaml);
    assert!(node.contains("at ~$") && node.contains("saving ~$") && note(&node), "{node}");
    let blocked = spot(&two_nodes(DO_NOT_DISRUPT));
    let (table, _) = said(&["plan", "disruption"], "disruption-spot-blocked", &blocked);
    assert!(table.contains("Without what blocks them: ~$") && table.contains("  ~$"), "{table}");
    let (node, _) = said(&["explain", "node", "small"], "explain-spot-blocked", &blocked);
    assert!(node.contains("would save ~$"), "{node}");

    // List prices are certain, zones are not.
    let (listed, _) = said(&["plan", "disruption"], "disruption-listed", &two_nodes(""));
    assert!(
        !listed.contains('~') && listed.contains("zones of a size are an estimate"),
        "{listed}"
    );
    let (document, _) = said(&["plan", "disruption", "-o", "json"], "listed-json", &two_nodes(""));
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["nodes"][0]["priceIsEstimate"], false);
    assert_eq!(document["steps"][0]["savingIsEstimate"], false);
}

#[test]
fn an_unknown_node_is_one_clear_line() {
    let file = folder("explain-node-unknown", &[("m.yaml", &two_nodes(""))]).join("m.yaml");
    let output = output(&["explain", "node", "no-such", "-f", &file.display().to_string()]);
    let error = text(&output.stderr);
    assert!(!output.status.success());
    assert!(error.contains("no node with a NodeClaim is named `no-such`"), "{error}");
    assert!(error.contains("large, small"), "{error}");
}

#[test]
fn a_changed_nodepool_shows_what_would_drift() {
    let changed = POOL.replace("[eastus-1, eastus-2]", "[eastus-2]");
    let files = [("state.yaml", two_nodes("")), ("pool.yaml", changed), ("same.yaml", POOL.into())];
    let files: Vec<(&str, &str)> =
        files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let folder = folder("what-if", &files);
    let path = |name: &str| folder.join(name).display().to_string();
    let run = |change: &str| {
        let (change, state) = (path(change), path("state.yaml"));
        output(&["what-if", "-f", &change, "--state", &state, "--exit-code"])
    };
    let drifts = run("pool.yaml");
    let said = text(&drifts.stdout);
    assert_eq!(drifts.status.code(), Some(2), "{said} {}", text(&drifts.stderr));
    assert!(said.contains("2 of 2 nodes would drift"), "{said}");
    assert!(said.contains("nodepool \"default\": RequirementsDrifted"), "{said}");
    assert!(said.contains("2 nodes would be replaced by 2, and 8 pods would move"), "{said}");
    assert!(said.contains("2 at a time, about 5 min in 1 round\n"), "{said}");
    assert!(!said.contains('~') && said.contains("zones of a size are an estimate"), "{said}");
    let spot = folder.join("spot");
    std::fs::create_dir_all(&spot).unwrap();
    for name in ["state.yaml", "pool.yaml"] {
        let yaml = std::fs::read_to_string(path(name)).unwrap().replace("on-demand", "spot");
        std::fs::write(spot.join(name), yaml).unwrap();
    }
    let file = |name: &str| spot.join(name).display().to_string();
    let spot = output(&["what-if", "-f", &file("pool.yaml"), "--state", &file("state.yaml")]);
    let spot = text(&spot.stdout);
    assert!(spot.contains("\n~$") && spot.contains("/h before, ~$"), "{spot}");
    assert!(spot.contains("~ marks estimated prices"), "{spot}");
    let same = run("same.yaml");
    assert_eq!(same.status.code(), Some(0), "{}", text(&same.stderr));
    assert!(text(&same.stdout).contains("No node drifts by this change"));
}

#[test]
fn windows_and_waves_delay_what_drifts_and_do_not_hide_it() {
    let versioned = |yaml: &str| {
        let versions = "uid: u-1, resourceVersion: \"7\", name: claim-";
        yaml.replace("metadata: { name: claim-", &format!("metadata: {{ {versions}"))
    };
    let annotated = |annotation: &str| {
        let changed = POOL.replace("[eastus-1, eastus-2]", "[eastus-2]");
        changed.replace(
            "  name: default\n",
            &format!("  name: default\n  annotations: {annotation}\n"),
        )
    };
    let never = "- {action: deny, schedule: \"* * * * *\", duration: 1h}";
    let closed = annotated(&format!("{{ nap.karpenter.sh/disruption-windows: '{never}' }}"));
    let waves = annotated("{ nap.karpenter.sh/drift-waves: 30m }");
    let state = versioned(&two_nodes(""));
    let files = [("state.yaml", &state), ("closed.yaml", &closed), ("waves.yaml", &waves)];
    let files = files.map(|(name, text)| (name, text.as_str()));
    let folder = folder("what-if-windows", &files);
    let path = |name: &str| folder.join(name).display().to_string();
    for (change, pace) in [
        ("closed.yaml", "its budgets and windows allow no drift within"),
        ("waves.yaml", "up to 1 at a time, about 40 min in 2 rounds"),
    ] {
        let said = output(&["what-if", "-f", &path(change), "--state", &path("state.yaml")]);
        let (said, error) = (text(&said.stdout), text(&said.stderr));
        assert!(said.contains("2 nodes would be replaced by 2"), "{change}: {said} {error}");
        assert!(said.contains(pace), "{change}: {said}");
    }
}

#[test]
fn what_if_takes_only_nodepools_and_classes() {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: { name: web }\nspec: { containers: [{ name: c, image: i }] }\n";
    let folder = folder("what-if-kind", &[("pod.yaml", pod)]);
    let file = folder.join("pod.yaml").display().to_string();
    let output = output(&["what-if", "-f", &file, "--state", &file]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("Pod is no change that nap looks at"));
}
