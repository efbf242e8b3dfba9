//! What is an estimate in a plan, or not for every subscription, is said in each of its forms.

use super::{containers, plan, pod, pool, run, said};
use crate::process::text;

/// A pool of one capacity type and one size.
fn only(capacity_type: &str, size: &str) -> String {
    let requirement =
        format!("- {{ key: node.kubernetes.io/instance-type, operator: In, values: [{size}] }}");
    pool("weight: 1", "expireAfter: Never", &requirement)
        .replace("values: [on-demand]", &format!("values: [{capacity_type}]"))
}

#[test]
fn spot_prices_and_zones_are_marked_as_estimates() {
    let yaml = only("spot", "Standard_D4s_v5") + &pod("one", &containers("1"));
    let (table, _) = said(&["plan"], "spot", &yaml);
    assert!(table.contains("1 VM in eastus for 1 pod: ~$"), "{table}");
    assert!(table.contains("  ~$") && table.contains("~ marks estimated prices"), "{table}");
    let (wide, _) = said(&["plan", "-o", "wide"], "spot", &yaml);
    assert!(wide.contains("~ marks estimated prices") && wide.contains(" at ~$"), "{wide}");
    let (explained, _) = said(&["explain", "pod", "one"], "spot", &yaml);
    assert!(explained.contains("~ marks estimated prices"), "{explained}");
    assert!(explained.contains(" at ~$") && explained.contains("; next: spot"), "{explained}");
    let dear = run(&["plan", "--max-cost", "0.001/h"], "spot-dear", &yaml);
    assert!(text(&dear.stderr).contains("costs ~$"), "{}", text(&dear.stderr));
    let document = plan("spot", &yaml);
    assert_eq!(document["launches"][0]["priceIsEstimate"], true);
    assert_eq!(document["costIsEstimate"], true);
    assert_eq!(document["prices"]["estimates"], serde_json::json!(["spotPrices", "zones"]));

    let yaml = only("on-demand", "Standard_D4s_v5") + &pod("one", &containers("1"));
    let (table, _) = said(&["plan"], "listed", &yaml);
    assert!(
        !table.contains('~') && table.contains("the zones of a size are an estimate"),
        "{table}"
    );
    let document = plan("listed", &yaml);
    assert_eq!(document["launches"][0]["priceIsEstimate"], false);
    assert_eq!(document["costIsEstimate"], false);
}

#[test]
fn a_size_that_is_closed_to_new_subscriptions_is_named() {
    let yaml = only("on-demand", "Standard_D4s_v3") + &pod("one", &containers("1"));
    let (table, _) = said(&["plan"], "closed", &yaml);
    let says = "Standard_D4s_v3 is closed to new subscriptions since 2026-07";
    assert!(table.contains(says), "{table}");
    let (explained, _) = said(&["explain", "pod", "one"], "closed", &yaml);
    assert!(explained.contains(says), "{explained}");
    assert_eq!(plan("closed", &yaml)["launches"][0]["closedSince"], "2026-07");

    // All three cost the same; the two closed ones come first by name.
    let sizes = "Standard_D4s_v3, Standard_D4s_v4, Standard_D4s_v5";
    let document = plan("open", &(only("on-demand", sizes) + &pod("one", &containers("1"))));
    assert_eq!(document["launches"][0]["instanceType"], "Standard_D4s_v5");
    assert_eq!(document["launches"][0]["priceUsdPerHour"], 0.192);
    assert_eq!(document["launches"][0]["closedSince"], serde_json::Value::Null);
}

#[test]
fn a_region_may_be_spelled_as_in_the_portal() {
    let yaml = pod("one", &containers("1"));
    for spelling in ["East US 2", "EASTUS2", "eastus2"] {
        let (table, _) = said(&["plan", "--region", spelling], "spelling", &yaml);
        assert!(table.contains("1 VM in eastus2 for 1 pod"), "{spelling}: {table}");
    }
}
