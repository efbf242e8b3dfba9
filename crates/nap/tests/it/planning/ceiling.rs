//! The price ceiling of a NodePool and of a plan.

use super::{containers, plan, pod, pool, run, said};
use crate::process::text;

/// A pool of D sizes with the annotation.
fn capped(price: &str) -> String {
    let annotation =
        format!("annotations: {{ nap.karpenter.sh/max-price-per-node-hour: \"{price}\" }}");
    pool("weight: 1", "expireAfter: Never", "")
        .replace("metadata: { name: only }", &format!("metadata: {{ name: only, {annotation} }}"))
}

#[test]
fn a_node_never_costs_more_than_the_ceiling() {
    // The large pod needs 30 vCPUs, for about a dollar.
    let pods = pod("large", &containers("30")) + &pod("small", &containers("3"));
    let document = plan("ceiling", &(capped("0.5") + &pods));
    let launches = document["launches"].as_array().unwrap();
    assert_eq!(launches.len(), 1);
    assert_eq!(launches[0]["pods"], serde_json::json!(["default/small"]));
    for offering in launches[0]["alternatives"].as_array().unwrap() {
        assert!(offering["priceUsdPerHour"].as_f64().unwrap() <= 0.5, "{offering}");
    }
    let reason = &document["unschedulable"][0]["reasons"][0];
    assert_eq!(reason["reason"], "priceCeiling");
    let message = reason["message"].as_str().unwrap();
    assert!(message.starts_with("its price ceiling of $0.500/h excludes all "), "{message}");
    assert!(message.contains("the cheapest costs $0.992/h"), "{message}");
    let both = plan("free", &(capped("5") + &pods));
    assert_eq!(both["unschedulable"], serde_json::json!([]));
}

#[test]
fn the_cheapest_price_above_the_ceiling_is_marked_if_it_is_an_estimate() {
    let spot = capped("0.001").replace("values: [on-demand]", "values: [spot]");
    let yaml = spot + &pod("large", &containers("30"));
    let document = plan("spot-ceiling", &yaml);
    let message = document["unschedulable"][0]["reasons"][0]["message"].as_str().unwrap();
    assert!(message.contains("the cheapest costs ~$"), "{message}");
    for command in [&["plan"][..], &["explain", "pod", "large"]] {
        let (text, _) = said(command, "spot-ceiling", &yaml);
        let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(joined.contains("the cheapest costs ~$"), "{text}");
        assert!(joined.contains("~ marks estimated prices"), "{text}");
    }
}

#[test]
fn the_ceiling_of_a_plan_holds_for_every_pool() {
    let yaml = capped("5") + &pod("large", &containers("30"));
    let (table, _) = said(&["plan", "--max-node-price", "0.5"], "flag", &yaml);
    assert!(table.contains("its price ceiling of $0.500/h excludes all"), "{table}");
    for (flag, says) in [("free", "not a number of dollars"), ("0", "not above zero")] {
        let output = run(&["plan", "--max-node-price", flag], "flag", &yaml);
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.contains(says), "{error}");
    }
    let output = run(&["plan"], "bad", &capped("dear"));
    let error = text(&output.stderr);
    assert!(!output.status.success());
    assert!(error.contains("max-price-per-node-hour]: `dear` is not a price"), "{error}");
}
