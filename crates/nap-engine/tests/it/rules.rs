//! Rules of a plan, one test each.

use std::sync::Arc;

use nap_api::requirement::Incompatible;
use nap_api::{Operator, Toleration, labels};
use nap_engine::{
    CapacityType, NODES, Options, Plan, PoolRejection, Refusal, RequirementsConflict, Shortage,
    Snapshot, Tier, Unsupported, solve, solve_first_fit,
};
use nap_units::{CPU, MEMORY, Resources, UsdPerHour};

use crate::build::{
    asks, catalogue, daemon, instance_type, launches, node, offering, pod, pods, pool, snapshot,
    tainted, wants,
};

fn run(snapshot: &Snapshot) -> Plan {
    solve(snapshot, &Options::default())
}

fn why(plan: &Plan) -> PoolRejection {
    match &plan.unplaced.first().expect("an unplaced pod").refusal {
        Refusal::Pools(reasons) => reasons.first().expect("a reason for each pool").why.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_pods_give_an_empty_plan() {
    assert_eq!(run(&Snapshot::default()), Plan::default());
    assert_eq!(run(&snapshot(Vec::new(), catalogue(), vec![pool("a")])), Plan::default());
}

#[test]
fn the_cheapest_type_that_holds_the_pods_is_launched() {
    let plan = run(&snapshot(pods("web", 3, 1000, 2), catalogue(), vec![pool("a")]));
    assert_eq!(launches(&plan), ["a d4 z-1 $0.192 3"]);
    assert_eq!(plan.cost, UsdPerHour::from_micros(192_000));
    let launch = &plan.launches[0];
    assert_eq!(
        launch.requests,
        Resources::new().with(CPU, 3000).with(MEMORY, 6 << 30).with("pods", 3)
    );
    assert_eq!(launch.alternatives.len(), 3 * 5 - 1);
    assert_eq!(
        (&*launch.alternatives[0].instance_type, &*launch.alternatives[0].zone),
        ("d4", "z-2")
    );
    assert!(launch.alternatives.iter().is_sorted_by_key(|other| other.price));
}

#[test]
fn a_size_cap_is_cheaper_than_growing_onto_the_largest_type() {
    // The largest type is expensive, and without a cap the first node grows onto it.
    let types =
        vec![instance_type("small", 4, 16, 200_000), instance_type("giant", 64, 256, 9_000_000)];
    let input = snapshot(pods("web", 60, 1000, 1), types, vec![pool("a")]);
    let grown = solve_first_fit(&input, &Options::default());
    assert_eq!((grown.launches.len(), grown.cost), (1, UsdPerHour::from_micros(9_000_000)));
    let plan = run(&input);
    assert_eq!((plan.launches.len(), plan.cost), (15, UsdPerHour::from_micros(3_000_000)));
    assert_ne!(plan.tier, Tier::FirstFit);
}

#[test]
fn complementary_pods_share_nodes() {
    // First fit pairs the compute pods, which uses up the vCPUs of five nodes and wastes their
    // memory.
    let mut all = pods("compute", 10, 4000, 2);
    all.extend(pods("memory", 10, 3900, 28));
    let input = snapshot(all, vec![instance_type("d8", 8, 32, 384_000)], vec![pool("a")]);
    assert_eq!(solve_first_fit(&input, &Options::default()).launches.len(), 15);
    let plan = run(&input);
    assert_eq!((plan.launches.len(), plan.tier), (10, Tier::Patterns));
}

#[test]
fn column_generation_comes_within_two_percent_of_the_bound() {
    // Three classes that fill a node exactly only in the right proportions.
    let mut all = pods("a", 40, 3700, 5);
    all.extend(pods("b", 60, 2300, 13));
    all.extend(pods("c", 80, 1100, 3));
    let types = vec![
        instance_type("d8", 8, 32, 384_000),
        instance_type("d16", 16, 64, 768_000),
        instance_type("e8", 8, 64, 504_000),
    ];
    let plan = run(&snapshot(all, types, vec![pool("a")]));
    assert!(matches!(plan.tier, Tier::ColumnGeneration | Tier::RuinAndRecreate), "{:?}", plan.tier);
    let gap = plan.gap_percent().unwrap_or(f64::MAX);
    assert!(gap < 2.0, "{gap} % above the bound");
}

#[test]
fn slack_leaves_room_on_nodes_and_refuses_no_pod() {
    let input = snapshot(pods("web", 4, 1000, 1), catalogue(), vec![pool("a")]);
    let with_slack = |percent| Options { slack_percent: percent, ..Options::default() };
    assert_eq!(launches(&solve(&input, &with_slack(0))), ["a d4 z-1 $0.192 4"]);
    // With 20 % slack, 3.2 of 4 cores are for pods.
    let plan = solve(&input, &with_slack(20));
    for launch in &plan.launches {
        let size: i64 = launch.instance_type.trim_start_matches('d').parse().unwrap();
        assert!(launch.requests.get(CPU) <= size * 800, "{launch:?}");
    }
    assert_eq!(plan.launches.iter().map(|launch| launch.pods.len()).sum::<usize>(), 4);
    // A pod that needs a whole node is placed without slack.
    let whole = snapshot(pods("whole", 1, 64_000, 1), catalogue(), vec![pool("a")]);
    assert_eq!(solve(&whole, &with_slack(20)).unplaced, []);
}

#[test]
fn a_pod_larger_than_the_size_caps_still_gets_a_node() {
    let mut all = pods("small", 8, 500, 1);
    all.push(pod("large", 60_000, 100));
    let plan = run(&snapshot(all, catalogue(), vec![pool("a")]));
    assert!(plan.unplaced.is_empty());
    assert!(plan.launches.iter().any(|launch| launch.instance_type == "d64"));
}

#[test]
fn existing_nodes_are_filled_first_initialized_before_in_flight_then_by_name() {
    let mut input = snapshot(pods("web", 4, 1000, 1), catalogue(), vec![pool("a")]);
    let mut coming = node("a-coming", 1000, 10);
    coming.initialized = false;
    input.nodes = [coming, node("c", 1000, 10), node("b", 1000, 10)].map(Arc::new).into();
    let plan = run(&input);
    let placed: Vec<&str> =
        plan.placements.iter().map(|placement| placement.node.as_str()).collect();
    assert_eq!(placed, ["b", "c", "a-coming"]);
    assert_eq!(launches(&plan), ["a d2 z-2 $0.096 1"], "z-1 has the most nodes");
}

#[test]
fn an_existing_node_must_have_the_labels_and_no_untolerated_taint() {
    let mut wanting = pod("web", 500, 1);
    wanting.terms = vec![wants(&[(labels::SKU_CPU, Operator::In, &["2"])])];
    let mut input = snapshot(vec![wanting, pod("other", 500, 1)], catalogue(), vec![pool("a")]);
    let mut other = node("tainted", 4000, 10);
    other.taints = vec![tainted("gpu")];
    other.labels.insert(labels::SKU_CPU.to_owned(), "2".to_owned());
    input.nodes = [node("bare", 4000, 10), other].map(Arc::new).into();
    let plan = run(&input);
    assert_eq!(plan.placements.len(), 1);
    assert_eq!(
        (plan.placements[0].pod.as_str(), plan.placements[0].node.as_str()),
        ("default/other", "bare")
    );
    assert_eq!(plan.launches[0].instance_type, "d2");
}

#[test]
fn higher_priorities_are_placed_first() {
    let mut important = pod("z-important", 500, 1);
    important.priority = 10;
    let mut input = snapshot(vec![pod("a-large", 900, 1), important], Vec::new(), Vec::new());
    input.nodes = [node("n", 1000, 4)].map(Arc::new).into();
    let plan = run(&input);
    assert_eq!(plan.placements[0].pod.as_str(), "default/z-important");
    assert_eq!(plan.unplaced[0].refusal, Refusal::NoPools);
}

#[test]
fn heavier_pools_come_first_and_equal_ones_compare_by_price() {
    let mut costly = pool("costly");
    costly.requirements.extend(&wants(&[(labels::SKU_CPU, Operator::Gte, &["16"])]));
    let input = |costly| {
        snapshot(pods("web", 2, 500, 1), catalogue(), vec![costly, pool("fair"), pool("other")])
    };
    assert_eq!(launches(&run(&input(costly.clone()))), ["fair d2 z-1 $0.096 2"]);
    costly.weight = 5;
    assert_eq!(launches(&run(&input(costly))), ["costly d16 z-1 $0.768 2"]);
}

#[test]
fn a_pool_with_an_untolerated_taint_is_skipped() {
    let mut gpu = pool("gpu");
    gpu.weight = 100;
    gpu.taints = vec![tainted("gpu")];
    let mut tolerant = pod("tolerant", 600, 1);
    tolerant.tolerations =
        vec![Toleration { key: "gpu".into(), exists: true, ..Toleration::default() }];
    let input =
        snapshot(vec![pod("plain", 500, 1), tolerant], catalogue(), vec![pool("a"), gpu.clone()]);
    let mut launched = launches(&run(&input));
    launched.sort();
    assert_eq!(launched, ["a d2 z-2 $0.096 1", "gpu d2 z-1 $0.096 1"].map(str::to_owned));
    let plan = run(&snapshot(vec![pod("plain", 500, 1)], catalogue(), vec![gpu]));
    assert_eq!(why(&plan), PoolRejection::Taint(tainted("gpu")));
}

#[test]
fn daemon_overhead_counts_on_the_types_that_daemons_run_on() {
    let mut input = snapshot(vec![pod("web", 2000, 1)], catalogue(), vec![pool("a")]);
    input.daemons = vec![daemon("logs", 100)];
    let plan = run(&input);
    assert_eq!(plan.launches[0].instance_type, "d4");
    assert_eq!(plan.launches[0].requests.get(CPU), 2100);
    input.daemons[0].terms = vec![wants(&[(labels::SKU_CPU, Operator::Gt, &["2"])])];
    assert_eq!(run(&input).launches[0].instance_type, "d2");
    input.daemons[0].terms = vec![wants(&[("team", Operator::In, &["x"])])];
    assert_eq!(run(&input).launches[0].instance_type, "d2");
}

#[test]
fn terms_are_tried_in_order() {
    let mut picky = pod("web", 500, 1);
    picky.terms = vec![
        wants(&[(labels::ZONE, Operator::In, &["nowhere"])]),
        wants(&[(labels::ZONE, Operator::In, &["z-3"])]),
        wants(&[(labels::ZONE, Operator::In, &["z-2"])]),
    ];
    let plan = run(&snapshot(vec![picky], catalogue(), vec![pool("a")]));
    assert_eq!(launches(&plan), ["a d2 z-3 $0.096 1"]);
    let zone = plan.launches[0]
        .requirements
        .get(labels::ZONE)
        .expect("the term is part of the requirements");
    assert_eq!(zone.single(), Some("z-3"));
    assert!(
        plan.launches[0].requirements.get(labels::INSTANCE_TYPE).is_none(),
        "not narrowed to the offering"
    );
}

#[test]
fn pods_with_conflicting_requirements_do_not_share_a_node() {
    let zone = |name: &str, zones: &[&str]| {
        let mut pod = pod(name, 500, 1);
        pod.terms = vec![wants(&[(labels::ZONE, Operator::In, zones)])];
        pod
    };
    let input = snapshot(
        vec![zone("a", &["z-1", "z-2"]), zone("b", &["z-2", "z-3"]), zone("c", &["z-1"])],
        catalogue(),
        vec![pool("a")],
    );
    let plan = run(&input);
    assert!(plan.unplaced.is_empty());
    assert_eq!(plan.launches.len(), 2);
    for launch in &plan.launches {
        let allowed = launch.requirements.get(labels::ZONE).expect("a zone");
        assert!(allowed.allows(&launch.zone));
        assert!(launch.alternatives.iter().all(|other| allowed.allows(&other.zone)));
    }
}

#[test]
fn an_unavailable_offering_is_never_chosen() {
    let mut types = catalogue();
    for offering in &mut types[0].offerings {
        offering.available = false;
    }
    let plan = run(&snapshot(vec![pod("web", 500, 1)], types.clone(), vec![pool("a")]));
    assert_eq!(launches(&plan), ["a d4 z-1 $0.192 1"]);
    assert!(plan.launches[0].alternatives.iter().all(|other| &*other.instance_type != "d2"));
    types.truncate(1);
    let plan = run(&snapshot(vec![pod("web", 500, 1)], types, vec![pool("a")]));
    let funnel = PoolRejection::Offerings {
        total: 3,
        compatible: 3,
        large_enough: 3,
        available: 0,
        shortage: None,
    };
    assert_eq!(why(&plan), funnel);
}

#[test]
fn spot_is_launched_where_it_is_cheaper_and_allowed() {
    let mut types = catalogue();
    for one in &mut types {
        let price = one.offerings[0].price.micros() / 5;
        one.offerings.push(offering("z-1", CapacityType::Spot, price));
    }
    let input = |pool| snapshot(vec![pod("web", 500, 1)], types.clone(), vec![pool]);
    assert_eq!(run(&input(pool("a"))).launches[0].capacity_type, CapacityType::Spot);
    let mut on_demand = pool("a");
    on_demand.requirements.extend(&wants(&[(labels::CAPACITY_TYPE, Operator::In, &["on-demand"])]));
    let plan = run(&input(on_demand));
    assert_eq!(plan.launches[0].capacity_type, CapacityType::OnDemand);
    assert!(
        plan.launches[0]
            .alternatives
            .iter()
            .all(|other| other.capacity_type == CapacityType::OnDemand)
    );
}

#[test]
fn equal_nodes_are_spread_over_the_zones() {
    let types = vec![instance_type("d2", 2, 8, 96_000)];
    let plan = run(&snapshot(pods("web", 6, 2000, 1), types, vec![pool("a")]));
    let mut zones: Vec<&str> = plan.launches.iter().map(|launch| launch.zone.as_str()).collect();
    zones.sort_unstable();
    assert_eq!(zones, ["z-1", "z-1", "z-2", "z-2", "z-3", "z-3"]);
}

#[test]
fn a_zonal_offering_is_preferred_to_a_regional_one() {
    let mut only = instance_type("d2", 2, 8, 96_000);
    let mut regional = offering("0", CapacityType::OnDemand, 96_000);
    Arc::make_mut(&mut regional.requirements).extend(&wants(&[(
        labels::PLACEMENT_SCOPE,
        Operator::In,
        &["regional"],
    )]));
    only.offerings = vec![regional, offering("z-1", CapacityType::OnDemand, 96_000)];
    let plan = run(&snapshot(pods("web", 2, 2000, 1), vec![only], vec![pool("a")]));
    assert!(
        plan.launches
            .iter()
            .all(|launch| launch.zone == "z-1" && &*launch.alternatives[0].zone == "0")
    );
}

#[test]
fn limits_hold_within_one_plan() {
    let mut limited = pool("a");
    limited.headroom = Resources::new().with(CPU, 20_000);
    let plan = run(&snapshot(pods("web", 40, 1000, 1), catalogue(), vec![limited.clone()]));
    assert_eq!(plan.unplaced.len(), 20);
    assert_eq!(why(&plan), PoolRejection::Limit(CPU.to_owned()));
    let mut two = limited.clone();
    two.headroom = Resources::new().with(NODES, 2);
    let plan = run(&snapshot(pods("web", 200, 1000, 1), catalogue(), vec![two]));
    assert_eq!((plan.launches.len(), plan.unplaced.len()), (2, 72));
    assert_eq!(why(&plan), PoolRejection::Limit(NODES.to_owned()));
    let mut none = limited;
    none.headroom = Resources::new().with(MEMORY, 0);
    assert_eq!(
        why(&run(&snapshot(vec![pod("web", 1, 0)], catalogue(), vec![none]))),
        PoolRejection::Limit(MEMORY.into())
    );
}

#[test]
fn pods_beyond_a_limit_go_to_the_next_pool() {
    let mut first = pool("first");
    first.weight = 10;
    first.headroom = Resources::new().with(CPU, 4000);
    let plan = run(&snapshot(pods("web", 8, 1000, 1), catalogue(), vec![first, pool("second")]));
    assert!(plan.unplaced.is_empty());
    let on = |name: &str| -> usize {
        plan.launches
            .iter()
            .filter(|launch| launch.pool == name)
            .map(|launch| launch.pods.len())
            .sum()
    };
    assert_eq!((on("first"), on("second")), (4, 4));
}

#[test]
fn the_maximum_of_pods_per_node_holds() {
    let options = Options { max_pods_per_node: Some(3), ..Options::default() };
    let plan = solve(&snapshot(pods("web", 10, 100, 0), catalogue(), vec![pool("a")]), &options);
    assert_eq!(plan.launches.len(), 4);
    assert!(plan.launches.iter().all(|launch| launch.pods.len() <= 3));
}

#[test]
fn reasons_name_the_step_that_failed() {
    let refused = |pod| why(&run(&snapshot(vec![pod], catalogue(), vec![pool("a")])));
    let mut custom = pod("web", 100, 1);
    custom.terms = vec![wants(&[("team", Operator::In, &["x"])])];
    assert_eq!(
        refused(custom),
        PoolRejection::Requirements(RequirementsConflict::Label(Incompatible::Undefined {
            key: "team".to_owned()
        }))
    );
    let mut gpu = pod("web", 100, 1);
    gpu.terms = vec![wants(&[(labels::SKU_GPU_NAME, Operator::In, &["A100"])])];
    let funnel = |compatible, large_enough, shortage: Option<&str>| PoolRejection::Offerings {
        total: 18,
        compatible,
        large_enough,
        available: 0,
        shortage: shortage.map(|name| Shortage::Resource(name.to_owned())),
    };
    assert_eq!(refused(gpu), funnel(0, 0, None));
    assert_eq!(refused(pod("web", 65_000, 1)), funnel(18, 0, Some(CPU)));
    let mut device = pod("web", 100, 1);
    device.requests = asks(100, 1).with("nvidia.com/gpu", 1);
    assert_eq!(refused(device), funnel(18, 0, Some("nvidia.com/gpu")));
    let mut small = pod("web", 3000, 1);
    small.terms = vec![wants(&[(labels::SKU_CPU, Operator::Lte, &["2"])])];
    assert_eq!(refused(small), funnel(3, 0, Some(CPU)));
    assert_eq!(
        why(&run(&snapshot(vec![pod("web", 1, 1)], Vec::new(), vec![pool("a")]))),
        PoolRejection::Offerings {
            total: 0,
            compatible: 0,
            large_enough: 0,
            available: 0,
            shortage: None
        }
    );
}

#[test]
fn a_pod_with_an_unsupported_constraint_is_never_placed() {
    let mut strange = pod("web", 100, 1);
    let constraint = Unsupported::Field("spec.resourceClaims".to_owned());
    strange.unsupported = Some(constraint.clone());
    let mut input = snapshot(vec![strange], catalogue(), vec![pool("a")]);
    input.nodes = [node("n", 4000, 10)].map(Arc::new).into();
    let plan = run(&input);
    assert!(plan.launches.is_empty() && plan.placements.is_empty());
    assert_eq!(plan.unplaced[0].refusal, Refusal::Unsupported { constraint });
}

#[test]
fn extreme_amounts_do_not_overflow() {
    let mut huge = pod("huge", i64::MAX, 1);
    huge.requests.set(MEMORY, i64::MAX);
    let mut negative = pod("negative", -5, -5);
    negative.requests.set("pods", i64::MIN);
    let mut input = snapshot(vec![huge, negative], catalogue(), vec![pool("a")]);
    input.daemons = vec![daemon("a", i64::MAX), daemon("b", i64::MAX)];
    input.nodes = [node("n", i64::MIN, 0)].map(Arc::new).into();
    let plan = run(&input);
    assert_eq!(plan.placements.len() + plan.unplaced.len(), 2);
}
