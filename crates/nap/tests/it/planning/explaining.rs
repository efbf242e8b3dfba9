//! `nap explain node`: the reason that a node stays, and none that does not concern it.

use super::disruption::{POOL, node};
use super::said;

/// A node of a size that its one pod, of this many millicores, cannot do without.
fn full_node(name: &str) -> String {
    let node = node(name, "Standard_D4s_v5", 4, 1, "");
    node.replace("requests: { cpu: \"1\"", "requests: { cpu: \"3500m\"")
}

/// A node of four cores with one pod.
fn spare_node(name: &str) -> String {
    node(name, "Standard_D4s_v5", 4, 1, "")
}

/// What `nap explain node` says about a node, in one line.
fn explained(test: &str, name: &str, yaml: &str) -> String {
    let (text, _) = said(&["explain", "node", name], test, yaml);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn saves_too_little(said: &str) -> bool {
    said.contains("no cheaper nodes hold its pods") || said.contains("a replacement would save")
}

#[test]
fn a_full_node_has_the_same_reason_whatever_the_budget() {
    let fleet = [full_node("full1"), full_node("full2"), spare_node("a"), spare_node("b")].concat();
    let with = |budget: &str| [&POOL.replace("100%", budget), fleet.as_str()].concat();
    let (one, all) = (with("1"), with("100%"));
    for name in ["full1", "full2"] {
        let said = explained(&format!("budget-1-{name}"), name, &one);
        assert!(saves_too_little(&said) && !said.contains("budget"), "{said}");
        assert_eq!(said, explained(&format!("budget-all-{name}"), name, &all));
    }
    // Two of three could go: the budget holds the second.
    let more = [one.as_str(), &spare_node("c")].concat();
    let all = ["a", "b", "c"].map(|name| explained(&format!("budget-spare-{name}"), name, &more));
    let waits =
        "it would pay, but the disruption budgets of its NodePool allow no further disruption";
    assert_eq!(all.iter().filter(|said| said.contains(waits)).count(), 1, "{all:?}");
}

#[test]
fn a_closed_window_is_named_for_the_nodes_that_would_go_and_for_no_others() {
    let never = "- {action: deny, schedule: \"* * * * *\", duration: 1h}";
    let annotation =
        format!("  annotations: {{ nap.karpenter.sh/disruption-windows: '{never}' }}\n");
    let pool = POOL.replace("  name: default\n", &format!("  name: default\n{annotation}"));
    let empty = node("empty", "Standard_D4s_v5", 4, 0, "");
    let yaml = [pool.as_str(), &full_node("full"), &spare_node("a"), &spare_node("b")].concat();
    let full = explained("closed-full", "full", &yaml);
    assert!(saves_too_little(&full), "{full}");
    assert!(!full.contains("window") && !full.contains("budget"), "{full}");
    let spare = explained("closed-a", "a", &yaml);
    let window = |reason: &str| {
        format!("No allowed disruptions for disruption reason {reason} due to disruption windows")
    };
    assert!(spare.contains(&window("Underutilized")), "{spare}");
    assert!(!spare.contains(&window("Empty")) && !spare.contains(&window("Drifted")), "{spare}");
    assert!(!spare.contains("used up"), "{spare}");
    let empty = explained("closed-empty", "empty", &[pool.as_str(), &empty].concat());
    assert!(empty.contains(&window("Empty")) && !empty.contains("Underutilized"), "{empty}");
}

#[test]
fn a_budget_that_is_used_up_keeps_an_empty_node_and_says_so() {
    let empty = |name: &str| node(name, "Standard_D4s_v5", 4, 0, "");
    let yaml = [POOL.replace("100%", "1"), empty("a"), empty("b")].concat();
    let both = ["a", "b"].map(|name| explained(&format!("empty-{name}"), name, &yaml));
    let waits = |said: &&String| said.contains("the budgets of its NodePool for Empty are used up");
    assert_eq!(both.iter().filter(waits).count(), 1, "{both:?}");
}

#[test]
fn a_poddisruptionbudget_that_allows_nothing_is_named() {
    let budget = "---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: { name: web, namespace: default }
spec: { maxUnavailable: 0, selector: {} }
status: { disruptionsAllowed: 0, currentHealthy: 2, desiredHealthy: 2, expectedPods: 2 }
";
    let yaml = [POOL, &spare_node("a"), &spare_node("b"), budget].concat();
    let said = explained("named-pdb", "a", &yaml);
    assert!(said.contains("Pdb prevents pod evictions (PodDisruptionBudget=default/web"), "{said}");
}

#[test]
fn what_a_move_has_to_pay_for_is_shown_for_nodes_that_go_and_that_stay() {
    let terms = "A move has to pay within the 240 min that the node is expected to go on, for 1 \
                 eviction at $0.0005 and 5 min in which a replacement is paid for besides";
    let yaml = [POOL, &full_node("full"), &spare_node("a"), &spare_node("b")].concat();
    let all = ["full", "a", "b"].map(|name| explained(&format!("terms-{name}"), name, &yaml));
    assert!(all.iter().all(|said| said.contains(terms)), "{all:?}");
    assert!(all.iter().any(|said| said.contains("It would be removed")), "{all:?}");
    // A node that has just come is expected to last for a quarter of an hour, and many small pods
    // cost more than it saves until then.
    let born = format!("{:.0}", nap_clock::Clock::wall().now());
    let young = |name: &str, pods| {
        let node = node(name, "Standard_D4s_v5", 4, pods, "").replace("cpu: \"1\"", "cpu: 10m");
        let created = format!("claim-{name}, creationTimestamp: \"{born}\"");
        node.replace(
            &format!("claim-{name}, creationTimestamp: \"2026-01-01T00:00:00Z\""),
            &created,
        )
        .replace("memory: 1Gi }", "memory: 16Mi }")
    };
    let yaml = [POOL, &young("a", 120), &young("b", 120)].concat();
    let said = explained("payback", "a", &yaml);
    let text = "over the 15 min that it is expected to go on, less than the $0.060 that moving its \
                pods costs: 120 evictions at $0.0005";
    assert!(said.contains(text), "{said}");
}
