//! Refusals and explanations in English.

use nap_api::{Effect, Taint};
use nap_engine::{
    CapacityType, Options, PoolReason, PoolRejection, PriceEstimates, Refusal, Shortage,
    Unsupported, solve,
};
use nap_units::UsdPerHour;

use crate::build::{catalogue, instance_type, pod, pods, pool, snapshot};

#[test]
fn refusals_are_one_line_each() {
    let offerings =
        |compatible, large_enough, available, shortage: Option<&str>| PoolRejection::Offerings {
            total: 412,
            compatible,
            large_enough,
            available,
            shortage: shortage.map(|name| Shortage::Resource(name.to_owned())),
        };
    let taint = Taint { key: "gpu".into(), value: "yes".into(), effect: Effect::NoSchedule };
    for (why, text) in [
        (offerings(120, 0, 0, Some("cpu")), "412 offerings, 120 compatible, none with enough cpu"),
        (
            offerings(120, 0, 0, None),
            "412 offerings, 120 compatible, none large enough in every resource at once",
        ),
        (offerings(0, 0, 0, None), "412 offerings, none compatible"),
        (
            offerings(9, 4, 0, None),
            "412 offerings, 9 compatible, 4 large enough, none available at present",
        ),
        (PoolRejection::Taint(taint), "taint `gpu=yes:NoSchedule` is not tolerated"),
        (PoolRejection::Limit("cpu".into()), "its limit on cpu leaves no room"),
    ] {
        assert_eq!(why.to_string(), text);
    }
    let price = UsdPerHour::from_micros;
    let too_dear = PoolRejection::PriceCeiling {
        ceiling: price(50_000),
        excluded: 2,
        cheapest: price(96_000),
        capacity_type: CapacityType::Spot,
    };
    let text = "its price ceiling of $0.050/h excludes all 2 offerings that could be launched; the \
                cheapest costs ~$0.096/h";
    assert_eq!(too_dear.marked(PriceEstimates::Spot).to_string(), text);
    assert_eq!(too_dear.to_string(), text.replace('~', ""));
    let whole = Refusal::Pools(vec![PoolReason { pool: "a".to_owned(), why: too_dear }]);
    let whole = whole.marked(PriceEstimates::Spot).to_string();
    assert_eq!(whole, format!("nodepool \"a\": {text}"));
    let reason = |pool: &str, resource: &str| PoolReason {
        pool: pool.to_owned(),
        why: PoolRejection::Limit(resource.to_owned()),
    };
    assert_eq!(
        Refusal::Pools(vec![reason("a", "cpu"), reason("b", "nodes")]).to_string(),
        "nodepool \"a\": its limit on cpu leaves no room; nodepool \"b\": its limit on nodes leaves no room"
    );
    assert_eq!(
        Refusal::Unsupported { constraint: Unsupported::Field("spec.x".into()) }.to_string(),
        "`spec.x` is not supported yet"
    );
}

#[test]
fn a_launch_is_explained_by_its_alternatives() {
    let plan =
        solve(&snapshot(pods("web", 2, 550, 1), catalogue(), vec![pool("a")]), &Options::default());
    assert_eq!(
        plan.explain_launch(&plan.launches[0], PriceEstimates::None),
        "d2 on-demand in z-1 at $0.096/h: cheapest of 18 offerings that hold 2 pods (1.1 vCPU, 2.0 GiB); next: d4 at $0.192/h"
    );
    let mut only = instance_type("d2", 2, 8, 96_000);
    only.offerings.truncate(1);
    let plan = solve(
        &snapshot(vec![pod("web", 2000, 1)], vec![only], vec![pool("a")]),
        &Options::default(),
    );
    assert_eq!(
        plan.explain_launch(&plan.launches[0], PriceEstimates::None),
        "d2 on-demand in z-1 at $0.096/h: the only offering that holds 1 pod (2.0 vCPU, 1.0 GiB)"
    );
}

#[test]
fn estimated_prices_of_a_launch_are_marked() {
    let plan =
        solve(&snapshot(pods("web", 2, 550, 1), catalogue(), vec![pool("a")]), &Options::default());
    let launch = &plan.launches[0];
    let all = plan.explain_launch(launch, PriceEstimates::All);
    assert!(all.contains(" at ~$0.096/h: ") && all.ends_with(" at ~$0.192/h"), "{all}");
    let spot = plan.explain_launch(launch, PriceEstimates::Spot);
    assert_eq!(spot, plan.explain_launch(launch, PriceEstimates::None), "nothing is spot");
}
