//! What forbids a step of consolidation although it would save: budgets, the number of steps, the
//! `Balanced` policy, `minValues`, limits; and what decides whether it saves.

use std::sync::Arc;

use nap_api::{Operator, Requirement, labels};
use nap_engine::{
    ConsolidationCache, ConsolidationOptions, KeepReason, MinValuesPolicy, NODES, Options, Overlay,
    PoolRules, PriceChange, WorkloadBudget, consolidate, overlay,
};
use nap_units::{CPU, Resources, UsdPerHour};

use crate::build::{instance_type, pod, wants};
use crate::consolidating::{World, reason, saves_too_little, steps, three_full_nodes};

fn dollars(micros: i64) -> UsdPerHour {
    UsdPerHour::from_micros(micros)
}

/// Two nodes whose pods fit on one of them, and two full ones.
fn two_of_four() -> World {
    let mut world = World::new();
    let web = world.template(pod("web", 1000, 4));
    let large = world.template(pod("large", 3600, 14));
    world.node("a", "d4", &[(web, 1)]).node("b", "d4", &[(web, 1)]);
    world.node("full1", "d4", &[(large, 1)]).node("full2", "d4", &[(large, 1)]);
    world
}

#[test]
fn a_node_that_saves_nothing_says_so_whatever_the_budget() {
    for budget in [0, 1, 100] {
        let mut world = two_of_four();
        world.fleet.pools.get_mut("p").unwrap().budget = budget;
        let decision = world.decide();
        for full in ["full1", "full2"] {
            let why = reason(&decision, full).to_string();
            let text =
                "a replacement would save $0.01937/h at most, less than the least of $0.0288/h";
            assert!(why.starts_with(text), "budget {budget}: {why}");
        }
        if budget == 0 {
            assert_eq!(reason(&decision, "a"), &KeepReason::Budget);
            assert_eq!(reason(&decision, "b"), &KeepReason::Budget);
        }
    }
}

#[test]
fn a_node_that_saves_nothing_says_so_whatever_was_moved_today() {
    let mut world = two_of_four();
    let workload = "Deployment shop/web".to_owned();
    world.fleet.workloads = vec![WorkloadBudget { workload, evictions: 0 }];
    for one in &mut world.fleet.candidates {
        one.workloads = vec![(0, one.pods.len())];
    }
    let decision = world.decide();
    assert!(matches!(reason(&decision, "a"), KeepReason::EvictionBudget { .. }));
    assert!(saves_too_little(&decision, "full1"));
}

#[test]
fn what_waits_for_another_decision_because_of_its_size_says_so() {
    let mut world = World::new();
    world.sell(vec![instance_type("d4", 4, 16, 192_000), instance_type("d6", 6, 24, 300_000)]);
    let web = world.template(pod("web", 3600, 14));
    world.node("a", "d6", &[(web, 1)]).node("b", "d6", &[(web, 1)]);
    world.node("full", "d4", &[(web, 1)]);
    let decision = world.decide_with(&ConsolidationOptions {
        max_steps: 1,
        max_removed: 1,
        ..ConsolidationOptions::default()
    });
    assert_eq!(decision.steps.len(), 1, "{:?}", steps(&decision));
    let late = decision.kept.iter().filter(|one| one.reason == KeepReason::Steps { max: 1 });
    assert_eq!(late.count(), 1, "{:?}", decision.kept);
    assert!(saves_too_little(&decision, "full"));
}

/// A node with three pods that the other node has room for, in a pool with these totals.
fn balanced(cost: i64, disruption_cost: i64) -> World {
    let mut world = World::new();
    let web = world.template(pod("web", 1000, 4));
    world.node("a", "d4", &[(web, 3)]).node("roomy", "d8", &[(web, 5)]);
    world.fleet.candidates.pop();
    let cost = dollars(cost);
    let rules =
        PoolRules { budget: 100, balanced: true, cost, disruption_cost, spot_to_spot: false };
    world.fleet.pools.insert("p".to_owned(), rules);
    world
}

#[test]
fn balanced_asks_for_half_the_share_of_the_saving_that_it_disrupts() {
    // The node is two fifths of the disruption, so it has to be a fifth of the cost.
    let decision = balanced(5 * 192_000, 10_000).decide();
    assert_eq!(steps(&decision), ["-a"]);
    let decision = balanced(5 * 192_000 + 1000, 10_000).decide();
    assert_eq!(steps(&decision), [""; 0]);
    assert_eq!(reason(&decision, "a"), &KeepReason::Balanced { score: 499 });
    let mut world = balanced(10 * 192_000, 10_000);
    assert_eq!(reason(&world.decide(), "a"), &KeepReason::Balanced { score: 250 });
    world.fleet.pools.get_mut("p").unwrap().balanced = false;
    assert_eq!(steps(&world.decide()), ["-a"]);
}

#[test]
fn a_step_over_two_pools_must_be_worth_it_in_each_balanced_one() {
    // A third of the saving falls to pool `q`, which loses one node of three pods.
    let steps_with = |cost, disruption_cost| {
        let mut world = three_full_nodes();
        let rules = world.fleet.pools.get_mut("q").unwrap();
        (rules.balanced, rules.cost) = (true, dollars(cost));
        rules.disruption_cost = disruption_cost;
        steps(&world.decide())
    };
    let share = 176_000 / 3;
    assert_eq!(steps_with(share, 3000), ["-a -b -c +d6 +d6"]);
    assert_eq!(steps_with(2 * share, 3000), ["-a -b -c +d6 +d6"]);
    assert_eq!(steps_with(2 * share + 1000, 3000), [""; 0]);
}

#[test]
fn min_values_are_never_relaxed_for_a_saving() {
    let world = |min_types: i64| {
        let mut world = World::new();
        let key = labels::INSTANCE_TYPE;
        let requirements = &mut world.fleet.snapshot.pools[0].requirements;
        let any = Requirement::new(Operator::Exists, [""; 0]);
        requirements.add(key, any.with_min_values(Some(min_types)));
        let web = world.template(pod("web", 1000, 4));
        world.node("a", "d64", &[(web, 1)]);
        world
    };
    let best_effort = ConsolidationOptions {
        solve: Options { min_values: MinValuesPolicy::BestEffort, ..Options::default() },
        ..ConsolidationOptions::default()
    };
    for options in [ConsolidationOptions::default(), best_effort] {
        assert_eq!(steps(&world(6).decide_with(&options)), ["-a +d2"]);
        let decision = world(7).decide_with(&options);
        assert_eq!(steps(&decision), [""; 0], "there are only six types");
    }
}

#[test]
fn overlays_decide_by_their_prices() {
    let decide = |percent: i64| {
        let mut world = World::new();
        world.sell(vec![instance_type("d4", 4, 16, 192_000), instance_type("e4", 4, 16, 192_000)]);
        let web = world.template(pod("web", 1000, 4));
        world.node("a", "d4", &[(web, 4)]);
        let cheaper = Overlay {
            name: "agreement".to_owned(),
            requirements: wants(&[(labels::INSTANCE_TYPE, Operator::In, &["e4"])]),
            price: Some(PriceChange::Millionths(-10_000 * percent)),
            ..Overlay::default()
        };
        let snapshot = &mut world.fleet.snapshot;
        let of = &snapshot.catalogues["all"];
        let (changed, _) = overlay(of, &snapshot.pools[0], &[cheaper]);
        snapshot.catalogues.insert("all".to_owned(), Arc::new(changed));
        world.decide()
    };
    assert_eq!(steps(&decide(20)), ["-a +e4"]);
    let decision = decide(10);
    assert!(matches!(reason(&decision, "a"), KeepReason::SmallSaving { .. }), "{decision:?}");
}

#[test]
fn the_cost_of_a_node_counts_for_fewer_nodes_and_never_for_a_larger_bill() {
    // Two nodes of $0.192 against one of $0.330: 14 % less, and 28 % with $0.1 a node.
    let mut world = World::new();
    world.sell(vec![instance_type("d4", 4, 16, 192_000), instance_type("d8", 8, 32, 330_000)]);
    let web = world.template(pod("web", 1900, 7));
    world.node("a", "d4", &[(web, 2)]).node("b", "d4", &[(web, 2)]);
    let at = |world: &World, micros| {
        let solve = Options { node_cost: dollars(micros), ..Options::default() };
        steps(
            &world.decide_with(&ConsolidationOptions { solve, ..ConsolidationOptions::default() }),
        )
    };
    assert_eq!(at(&world, 0), [""; 0]);
    assert_eq!(at(&world, 100_000), ["-a -b +d8"]);
    world.sell(vec![instance_type("d4", 4, 16, 192_000), instance_type("d8", 8, 32, 384_000)]);
    assert_eq!(at(&world, 1_000_000), [""; 0], "the bill would not be smaller");
}

#[test]
fn costs_are_remembered_beside_limits_and_forgotten_when_these_bind_otherwise() {
    let mut world = World::new();
    let web = world.template(pod("web", 1000, 4));
    world.node("a", "d64", &[(web, 33)]);
    let limit = |world: &mut World, nodes| {
        let headroom = Resources::new().with(NODES, nodes).with(CPU, 1_000_000);
        world.fleet.snapshot.pools[0].headroom = headroom;
    };
    let options = ConsolidationOptions::default();
    let mut cache = ConsolidationCache::default();
    limit(&mut world, 0);
    let one = consolidate(&world.fleet, &options, &mut cache);
    assert_eq!(steps(&one), [""; 0], "two nodes would be cheaper, and one may be there");
    assert!(cache.remembered() > 0, "a pool with limits has a memory too");
    limit(&mut world, 5);
    let two = consolidate(&world.fleet, &options, &mut cache);
    assert_eq!(two.steps.len(), 1, "what was dear under the limit is not now");
    assert_eq!(two, consolidate(&world.fleet, &options, &mut ConsolidationCache::default()));
    limit(&mut world, 100);
    assert_eq!(consolidate(&world.fleet, &options, &mut cache), two);
    let remembered = cache.remembered();
    limit(&mut world, 5000);
    assert_eq!(consolidate(&world.fleet, &options, &mut cache), two);
    assert_eq!(cache.remembered(), remembered, "limits that do not bind are alike");
}
