//! Properties of consolidation for generated fleets, and the judge of steps itself.

use std::cell::RefCell;
use std::collections::BTreeMap;

use nap_engine::{
    Consolidation, ConsolidationCache, ConsolidationOptions, Fleet, KeepReason, Kept, Options,
    Placement, Snapshot, Step, consolidate, solve,
};
use nap_oracle::{carry_out_freely, check_consolidation, generate_fleet, replay, shrink_fleet};
use nap_units::UsdPerHour;

use crate::judge::seeds;

/// Maximum number of decisions until a fleet must be settled.
const MAX_PASSES: usize = 40;

fn decide(fleet: &Fleet, cache: &mut ConsolidationCache) -> Consolidation {
    consolidate(fleet, &ConsolidationOptions::default(), cache)
}

#[test]
fn decisions_are_valid_until_nothing_is_left() {
    judge("valid", invalid);
}

#[test]
fn steps_count_the_domains_that_earlier_steps_add() {
    // In these fleets a step launches the first node of a capacity type.
    for seed in [1490, 1694] {
        assert_eq!(invalid(&generate_fleet(seed)), None, "seed {seed}");
    }
}

/// What is wrong with the decisions for a fleet until nothing is left to save.
fn invalid(fleet: &Fleet) -> Option<String> {
    let options = ConsolidationOptions::default();
    let mut fleet = fleet.clone();
    let mut cache = ConsolidationCache::default();
    for pass in 0..MAX_PASSES {
        let decision = decide(&fleet, &mut cache);
        let (wrong, after) = replay(&fleet, &options, &decision);
        if !wrong.is_empty() {
            return Some(format!("pass {pass}: {wrong:?}\n{:#?}", decision.steps));
        }
        if decision.steps.is_empty() {
            return None;
        }
        fleet = after;
    }
    Some(format!("not settled after {MAX_PASSES} passes"))
}

/// Runs until nothing is left to save, by the number of their decisions, and the runs that were
/// given up because pods found no place.
#[derive(Default)]
struct Runs {
    settled: BTreeMap<usize, usize>,
    given_up: usize,
}

impl Runs {
    fn carried_out(&self) -> usize {
        self.settled.values().sum()
    }

    /// The smallest number of decisions that suffices for a share of the runs, in percent.
    fn decisions_for(&self, percent: usize) -> usize {
        let mut seen = 0;
        let enough = self.settled.iter().find(|(_, runs)| {
            seen += **runs;
            seen * 100 >= self.carried_out() * percent
        });
        enough.map_or(0, |(decisions, _)| *decisions)
    }
}

#[test]
fn fleets_settle_with_a_scheduler_that_places_pods_as_it_likes() {
    let runs = RefCell::new(Runs::default());
    judge("settles", |fleet| {
        for draw in 0..3 {
            let mut fleet = fleet.clone();
            let mut cache = ConsolidationCache::default();
            let mut pass = 0;
            loop {
                let decision = decide(&fleet, &mut cache);
                if decision.steps.is_empty() {
                    *runs.borrow_mut().settled.entry(pass).or_default() += 1;
                    break;
                }
                pass += 1;
                if pass > MAX_PASSES {
                    return Some(format!("not settled after {MAX_PASSES} passes"));
                }
                // Pods that a random scheduler leaves without a place are another matter.
                let after = carry_out_freely(&fleet, &decision, draw * 1000 + pass as u64);
                let Some(after) = after else {
                    runs.borrow_mut().given_up += 1;
                    break;
                };
                fleet = after;
            }
        }
        None
    });
    let runs = runs.into_inner();
    let (carried_out, given_up) = (runs.carried_out(), runs.given_up);
    let [half, most, all] = [50, 95, 100].map(|percent| runs.decisions_for(percent));
    eprintln!(
        "{carried_out} runs settled, {given_up} given up; decisions until nothing was left: \
         {:?}; half of the runs at most {half}, 95 of 100 {most}, all {all}",
        runs.settled,
    );
    let share = 100 * carried_out / (carried_out + given_up).max(1);
    assert!(share >= 80, "only {share} of 100 runs were carried out to the end");
}

#[test]
fn cache_changes_no_decision() {
    judge("cache", |fleet| {
        let options = ConsolidationOptions::default();
        let mut fleet = fleet.clone();
        let mut cache = ConsolidationCache::default();
        for pass in 0..4 {
            let decision = decide(&fleet, &mut cache);
            let cold = decide(&fleet, &mut ConsolidationCache::default());
            if decision != cold {
                return Some(format!("pass {pass}: {decision:#?}, with an empty cache {cold:#?}"));
            }
            fleet = replay(&fleet, &options, &decision).1;
        }
        None
    });
}

#[test]
fn order_of_the_input_changes_no_decision() {
    judge("order", |fleet| {
        let mut turned = fleet.clone();
        turned.snapshot.nodes.reverse();
        turned.snapshot.pools.reverse();
        turned.snapshot.daemons.reverse();
        turned.candidates.reverse();
        let last = turned.templates.len().saturating_sub(1);
        turned.templates.reverse();
        for one in &mut turned.candidates {
            one.pods.reverse();
            for pod in &mut one.pods {
                pod.template = last - pod.template;
            }
        }
        let one = decide(fleet, &mut ConsolidationCache::default());
        let other = decide(&turned, &mut ConsolidationCache::default());
        (one != other).then(|| format!("{one:#?}, turned {other:#?}"))
    });
}

/// Panics with a reduced fleet if `wrong` returns a text, or panics, for the fleet of a seed.
fn judge(name: &str, wrong: impl Fn(&Fleet) -> Option<String>) {
    let wrong = |fleet: &Fleet| {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| wrong(fleet)));
        caught.unwrap_or_else(|_| Some("it panics, see above".to_owned()))
    };
    for seed in seeds() {
        let fleet = generate_fleet(seed);
        if wrong(&fleet).is_some() {
            let small = shrink_fleet(fleet, |fleet| wrong(fleet).is_some());
            let why = wrong(&small).unwrap_or_default();
            let text = serde_json::to_string(&small).unwrap_or_default();
            panic!("{name}, seed {seed}: {why}\n{text}");
        }
    }
}

/// A valid decision of one step without the engine's consolidation: the first candidate whose pods
/// the engine plans for less than its price. `None` if there is none.
fn naive(fleet: &Fleet) -> Option<Consolidation> {
    let before: UsdPerHour = fleet.candidates.iter().map(|one| one.price).sum();
    for one in &fleet.candidates {
        if fleet.pools.get(&one.pool).is_none_or(|rules| rules.budget == 0 || rules.balanced) {
            continue;
        }
        let mut snapshot = Snapshot { pods: Vec::new(), ..fleet.snapshot.clone() };
        snapshot.nodes.retain(|node| node.name != one.node);
        for pod in &one.pods {
            let template = fleet.templates[pod.template].clone();
            snapshot.pods.push(nap_engine::Pod { key: pod.key.clone(), ..template });
        }
        let plan = solve(&snapshot, &Options::default());
        let saving = one.price - plan.cost;
        let is_small = saving.micros() * 100 < one.price.micros() * 2;
        let is_spot = |launch: &nap_engine::Launch| launch.capacity_type.as_str() == "spot";
        if !plan.unplaced.is_empty() || is_small || plan.launches.iter().any(is_spot) {
            continue;
        }
        let mut kept: Vec<Kept> = fleet
            .candidates
            .iter()
            .filter(|other| other.node != one.node)
            .map(|other| Kept { node: other.node.clone(), reason: KeepReason::Receives })
            .collect();
        kept.sort_by(|a, b| a.node.cmp(&b.node));
        let step = Step { remove: vec![one.node.clone()], plan, saving, evictions: one.pods.len() };
        let steps = vec![step];
        return Some(Consolidation {
            steps,
            kept,
            surplus: Vec::new(),
            cost_before: before,
            cost_after: before - saving,
        });
    }
    None
}

/// A way to spoil a decision for a fleet; false if it cannot be spoilt in this way.
type Spoil = fn(&mut Fleet, &mut Consolidation) -> bool;

/// Every rule that the judge enforces, each with a decision that breaks only it.
const SPOILS: &[(&str, Spoil)] = &[
    ("a pod has no place", |_, decision| decision.steps[0].plan.placements.pop().is_some()),
    ("a pod has two places", |_, decision| {
        let placements = &mut decision.steps[0].plan.placements;
        let first = placements.first().cloned();
        placements.extend(first.clone());
        first.is_some()
    }),
    ("a pod goes to the removed node", |_, decision| {
        let step = &mut decision.steps[0];
        let removed = step.remove[0].clone();
        let first = step.plan.placements.first_mut();
        first.map(|placement| placement.node = removed).is_some()
    }),
    ("a pod goes to a node without room", |fleet, decision| {
        let Some(Placement { node, .. }) = decision.steps[0].plan.placements.first() else {
            return false;
        };
        let full = fleet.snapshot.nodes.iter_mut().find(|one| one.name == *node).unwrap();
        std::sync::Arc::make_mut(full).free = nap_units::Resources::new();
        true
    }),
    ("the saving is another", |_, decision| {
        let step = &mut decision.steps[0];
        step.saving += UsdPerHour::from_micros(1);
        decision.cost_after = decision.cost_after - UsdPerHour::from_micros(1);
        true
    }),
    ("the cost after is another", |_, decision| {
        decision.cost_after = decision.cost_after - UsdPerHour::from_micros(1);
        true
    }),
    ("the number of moves is another", |_, decision| {
        decision.steps[0].evictions += 1;
        true
    }),
    ("the budget is exceeded", |fleet, _| {
        fleet.pools.values_mut().for_each(|rules| rules.budget = 0);
        true
    }),
    ("a node is removed twice", |_, decision| {
        let mut again = decision.steps[0].clone();
        again.saving = UsdPerHour::ZERO;
        decision.steps.push(again);
        true
    }),
    ("the removed node does not exist", |fleet, decision| {
        decision.steps[0].remove = vec!["nobody".to_owned()];
        decision.kept = fleet.candidates.iter().map(|one| kept(&one.node)).collect();
        decision.kept.sort_by(|a, b| a.node.cmp(&b.node));
        true
    }),
    ("a step removes nothing", |_, decision| {
        decision.steps.push(Step::default());
        true
    }),
    ("a receiver is removed", |fleet, decision| {
        let target = decision.steps[0].plan.placements.first().map(|one| one.node.clone());
        let Some(one) = fleet.candidates.iter().find(|one| Some(&one.node) == target.as_ref())
        else {
            return false;
        };
        let remove = vec![one.node.clone()];
        decision.kept.retain(|kept| kept.node != one.node);
        decision.steps.push(Step { remove, saving: one.price, ..Step::default() });
        decision.cost_after = decision.cost_after - one.price;
        true
    }),
    ("a launch is cheaper than its offering", |_, decision| {
        let step = &mut decision.steps[0];
        let Some(launch) = step.plan.launches.first_mut() else { return false };
        let cent = UsdPerHour::from_micros(10);
        launch.price = launch.price - cent;
        step.plan.cost = step.plan.cost - cent;
        step.saving += cent;
        decision.cost_after = decision.cost_after - cent;
        true
    }),
    ("a launch is not on sale", |fleet, decision| {
        let Some(launch) = decision.steps[0].plan.launches.first() else { return false };
        for types in fleet.snapshot.catalogues.values_mut() {
            let mut types_of = nap_engine::Catalogue::clone(types);
            for kind in types_of.edit().iter_mut().filter(|one| one.name == launch.instance_type) {
                kind.offerings.iter_mut().for_each(|offer| offer.available = false);
            }
            *types = std::sync::Arc::new(types_of);
        }
        true
    }),
    ("the cost rises", |fleet, decision| {
        let step = &mut decision.steps[0];
        if step.plan.launches.is_empty() {
            return false;
        }
        let node = &step.remove[0];
        let one = fleet.candidates.iter_mut().find(|one| one.node == *node).unwrap();
        let cheap = UsdPerHour::from_micros(1);
        let less = one.price - cheap;
        one.price = cheap;
        step.saving = step.saving - less;
        decision.cost_before = decision.cost_before - less;
        true
    }),
    ("a step scores below the policy Balanced", |fleet, decision| {
        let node = &decision.steps[0].remove[0];
        let one = fleet.candidates.iter().find(|one| one.node == *node).unwrap();
        let rules = fleet.pools.get_mut(&one.pool).unwrap();
        let moved = one.disruption_cost;
        // The pool is twice as large in money as the step saves, and hardly larger in disruption.
        rules.balanced = true;
        rules.cost = UsdPerHour::from_micros(2 * decision.steps[0].saving.micros() + 1);
        rules.disruption_cost = moved;
        true
    }),
    ("a candidate is neither removed nor kept", |_, decision| decision.kept.pop().is_some()),
    ("a limit is exceeded", |fleet, decision| {
        let Some(launch) = decision.steps[0].plan.launches.first() else { return false };
        let pools = &mut fleet.snapshot.pools;
        let pool = pools.iter_mut().find(|pool| pool.name == launch.pool).unwrap();
        pool.headroom.set(nap_engine::NODES, -1);
        true
    }),
];

fn kept(node: &str) -> Kept {
    Kept { node: node.to_owned(), reason: KeepReason::Receives }
}

#[test]
fn judge_refuses_every_spoilt_decision() {
    let options = ConsolidationOptions::default();
    let mut tried = vec![0; SPOILS.len()];
    let mut valid = 0;
    for seed in 0..300 {
        let fleet = generate_fleet(seed);
        let Some(decision) = naive(&fleet) else { continue };
        assert_eq!(check_consolidation(&fleet, &options, &decision), [], "seed {seed}");
        valid += 1;
        for (number, (name, spoil)) in SPOILS.iter().enumerate() {
            let (mut fleet, mut decision) = (fleet.clone(), decision.clone());
            if spoil(&mut fleet, &mut decision) {
                tried[number] += 1;
                let wrong = check_consolidation(&fleet, &options, &decision);
                assert!(!wrong.is_empty(), "seed {seed}: {name}: {decision:#?}");
            }
        }
    }
    assert!(valid > 50, "only {valid} fleets have a valid step");
    for ((name, _), tried) in SPOILS.iter().zip(tried) {
        assert!(tried > 0, "{name} was never tried");
    }
}
