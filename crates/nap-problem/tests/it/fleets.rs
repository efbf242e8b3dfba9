//! Fleets of problem files, and the judge of steps.

use nap_problem::generate::fleets::{self, FleetKind};
use nap_problem::generate::{catalogues, rng};
use nap_problem::{Problem, RunningFleet, StepFile, StepsFile, judge_steps};
use serde_json::{Value, json};

/// Four nodes of one type: `a` to `c` run one `web` pod each, `d` runs a pod that must stay. A
/// smaller type is cheaper.
fn base() -> Value {
    let offers = |price: f64| {
        json!([{"zone": "z1", "capacityType": "on-demand", "priceUsdPerHour": price},
               {"zone": "z2", "capacityType": "on-demand", "priceUsdPerHour": price},
               {"zone": "z3", "capacityType": "on-demand", "priceUsdPerHour": price, "available": false}])
    };
    let size = |name: &str, cpu: i64, price: f64| {
        json!({"name": name, "arch": "amd64", "capacity": {"cpuMilli": cpu, "memoryBytes": 1_i64 << 34, "pods": 10},
               "offerings": offers(price)})
    };
    let node = |name: &str, zone: &str, pods: Value| {
        json!({"name": name, "nodePool": "default", "instanceType": "large", "zone": zone,
               "capacityType": "on-demand", "pods": pods})
    };
    json!({
        "version": 1, "name": "fleet",
        "instanceTypes": [size("small", 2000, 0.1), size("large", 4000, 0.2)],
        "nodePools": [{"name": "default", "limits": {"nodes": "4"}}],
        "pods": [
            {"name": "web", "requests": {"cpuMilli": 1500, "memoryBytes": 1}},
            {"name": "pinned", "requests": {"cpuMilli": 3000, "memoryBytes": 1}, "doNotDisrupt": true},
            {"name": "apart", "labels": {"app": "apart"}, "requests": {"cpuMilli": 100, "memoryBytes": 1},
             "podAntiAffinity": [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "apart"}}}]}],
        "nodes": [node("a", "z1", json!({"web": 1})), node("b", "z1", json!({"web": 1})),
                  node("c", "z2", json!({"web": 1, "apart": 1})), node("d", "z2", json!({"pinned": 1}))]
    })
}

fn problem() -> Problem {
    Problem::parse(&base().to_string()).unwrap()
}

/// Moves the pod of `a` to `b`, then replaces `c` by a small node.
fn steps() -> Value {
    json!([
        {"remove": ["a"], "plan": {"nodes": [], "existing": {"b": {"web": 1}}}},
        {"remove": ["c"], "plan": {"nodes": [
            {"nodePool": "default", "instanceType": "small", "zone": "z2", "capacityType": "on-demand",
             "priceUsdPerHour": 0.1, "pods": {"web": 1, "apart": 1}}]}}])
}

fn read(steps: &Value) -> Vec<StepFile> {
    StepsFile::parse(&json!({"decisions": [steps]}).to_string()).unwrap().decisions.remove(0)
}

#[test]
fn valid_steps_are_replayed_priced_and_counted() {
    let steps = read(&steps());
    let verdict = judge_steps(&problem(), 50, std::slice::from_ref(&steps)).unwrap();
    assert_eq!(verdict.violations, [""; 0]);
    assert_eq!((verdict.removed, verdict.launched, verdict.moves), (2, 1, 3));
    assert_eq!(problem().fleet_cost().to_string(), "$0.800");
    assert_eq!(verdict.after.fleet_cost().to_string(), "$0.500");
    let names: Vec<&str> = verdict.after.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["b", "d", "launched-0-0"]);
    assert_eq!(verdict.after.nodes[0].pods["web"], 2);
    verdict.after.check().unwrap();

    // A fleet that carries the same steps out has the same nodes, and leaves the others alone.
    let mut running = RunningFleet::new(problem(), 50).unwrap();
    let before = running.fleet().snapshot.nodes[3].clone();
    running.apply(&steps).unwrap();
    assert_eq!(running.problem().nodes, verdict.after.nodes);
    assert!(std::sync::Arc::ptr_eq(&before, &running.fleet().snapshot.nodes[1]));
    assert_eq!(*running.fleet(), {
        let mut anew = RunningFleet::new(verdict.after, 50).unwrap().fleet().clone();
        // Pods are named after the number of their node, which a new fleet counts anew.
        for (one, other) in anew.candidates.iter_mut().zip(&running.fleet().candidates) {
            one.pods.clone_from(&other.pods);
        }
        anew
    });
}

#[test]
fn judge_refuses_wrong_steps() {
    // JSON pointer into the steps, new value, budget in percent, and the words of the violation.
    let cases: &[(&str, Value, usize, &str)] = &[
        ("/0/remove", json!([]), 50, "removes no node"),
        ("/0/remove", json!(["a", "a"]), 50, "removes a node twice"),
        ("/0/remove", json!(["x"]), 50, "`x` does not exist"),
        ("/0/remove", json!(["d"]), 50, "must not be evicted"),
        ("/1/remove", json!(["a"]), 50, "`a` does not exist"),
        ("/1/remove", json!(["b"]), 50, "would move twice"),
        ("/0/remove", json!(["a"]), 25, "exceeds its budget"),
        ("/0/plan/existing", json!({}), 50, "`web` has 1 pods, the plan 0"),
        ("/0/plan/existing", json!({"b": {"web": 2}}), 50, "`web` has 1 pods, the plan 2"),
        ("/0/plan/existing", json!({"a": {"web": 1}}), 50, "`a` does not exist"),
        ("/0/plan/existing", json!({"d": {"web": 1}}), 50, "too little cpu"),
        ("/0/plan", json!({"nodes": [], "unplaced": {"web": 1}}), 50, "1 pods have no place"),
        ("/1/plan/nodes/0/instanceType", json!("none"), 50, "`none` does not exist"),
        ("/1/plan/nodes/0/zone", json!("z3"), 50, "not on offer in `z3`"),
        ("/1/plan/nodes/0/priceUsdPerHour", json!(0.05), 50, "it costs $0.100"),
        ("/1/plan/nodes/0/nodePool", json!("none"), 50, "`none` does not exist"),
    ];
    for (path, value, budget, word) in cases {
        let mut changed = steps();
        let (parent, key) = path.rsplit_once('/').unwrap();
        match changed.pointer_mut(parent).unwrap() {
            Value::Array(list) => list[key.parse::<usize>().unwrap()] = value.clone(),
            parent => parent[key] = value.clone(),
        }
        let said = judge_steps(&problem(), *budget, &[read(&changed)]).unwrap().violations;
        assert!(said.iter().any(|said| said.contains(word)), "{path}: {said:?}");
    }
}

#[test]
fn judge_refuses_dearer_launches_broken_rules_and_exceeded_limits() {
    let dear = json!([{"remove": ["a"], "plan": {"nodes": [
        {"nodePool": "default", "instanceType": "small", "zone": "z1", "capacityType": "on-demand",
         "priceUsdPerHour": 0.1, "pods": {"web": 1}},
        {"nodePool": "default", "instanceType": "large", "zone": "z1", "capacityType": "on-demand",
         "priceUsdPerHour": 0.2, "pods": {}}]}}]);
    let said = |problem: &Value, steps: &Value| {
        let problem = Problem::parse(&problem.to_string()).unwrap();
        judge_steps(&problem, 100, &[read(steps)]).unwrap().violations.join("; ")
    };
    let mut roomy = base();
    roomy["nodePools"][0]["limits"] = json!({});
    assert!(said(&roomy, &dear).contains("the cost rises"), "{}", said(&roomy, &dear));
    // Four nodes are allowed: one for one is possible, two for one is not.
    assert!(said(&base(), &dear).contains("limit on nodes"), "{}", said(&base(), &dear));
    let mut together = base();
    together["nodes"][1]["pods"] = json!({"web": 1, "apart": 1});
    let moved = json!([{"remove": ["c"], "plan": {"nodes": [], "existing": {"b": {"web": 1, "apart": 1}}}}]);
    assert!(said(&together, &moved).contains("anti-affinity"), "{}", said(&together, &moved));
    assert_eq!(said(&base(), &moved), "", "without the other pod it may move");
    let mut tainted = base();
    tainted["nodePools"][0]["taints"] = json!([{"key": "new", "effect": "NoSchedule"}]);
    assert!(said(&tainted, &moved).contains("does not tolerate taint `new`"));
}

#[test]
fn nodes_that_receive_nothing_matter_only_to_rules_and_limits() {
    // Without rules between pods and without limits, the judge looks at receivers only.
    let mut alone = base();
    alone["nodePools"][0]["limits"] = json!({});
    alone["pods"][2]["podAntiAffinity"] = json!([]);
    let problem = Problem::parse(&alone.to_string()).unwrap();
    let verdict = judge_steps(&problem, 50, &[read(&steps())]).unwrap();
    assert_eq!(verdict.violations, [""; 0]);
    let names: Vec<&str> = verdict.after.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["b", "d", "launched-0-0"]);
    for (existing, word) in [
        (json!({"d": {"web": 1}}), "too little cpu"),
        (json!({"a": {"web": 1}}), "`a` does not exist"),
        (json!({}), "`web` has 1 pods"),
    ] {
        let mut changed = steps();
        changed[0]["plan"]["existing"] = existing;
        let said = judge_steps(&problem, 50, &[read(&changed)]).unwrap().violations;
        assert!(said.iter().any(|said| said.contains(word)), "{said:?}");
    }
}

#[test]
fn later_decisions_have_budgets_of_their_own_and_name_launched_nodes() {
    let first = read(&json!([steps()[1]]));
    let second = read(&json!([{"remove": ["launched-0-0"], "plan": {"nodes": [],
                               "existing": {"a": {"web": 1, "apart": 1}}}}]));
    let verdict = judge_steps(&problem(), 25, &[first.clone(), second.clone()]).unwrap();
    assert_eq!(verdict.violations, [""; 0]);
    let mut running = RunningFleet::new(problem(), 25).unwrap();
    running.apply(&first).unwrap();
    let after = running.judge(&second).unwrap();
    assert_eq!(after.violations, [""; 0]);
    running.apply(&second).unwrap();
    assert_eq!(running.problem().nodes, after.after.nodes);
    let together = [first, second].concat();
    let said = judge_steps(&problem(), 100, &[together]).unwrap().violations;
    assert!(said.iter().any(|said| said.contains("launched by the same decision")), "{said:?}");
}

#[test]
fn a_fleet_has_every_node_that_may_go_as_a_candidate() {
    let fleet = problem().fleet(30).unwrap();
    let names: Vec<&str> = fleet.candidates.iter().map(|one| one.node.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"], "`d` runs a pod that must not be evicted");
    assert_eq!(fleet.snapshot.nodes.len(), 4);
    assert_eq!(fleet.pools["default"].budget, 2, "30 % of four nodes, rounded up");
    assert_eq!(fleet.pools["default"].cost.to_string(), "$0.800", "kept nodes count too");
    let third = &fleet.candidates[2];
    assert_eq!((third.disruption_cost, third.remaining_life), (3000, 86_400));
    let pods: Vec<&str> = third.pods.iter().map(|pod| pod.key.as_str()).collect();
    assert_eq!(pods, ["default/apart-2.0", "default/web-2.0"]);
    assert_eq!(fleet.templates[third.pods[1].template].requests.get("cpu"), 1500);

    let mut pending = problem();
    pending.pods[0].replicas = 1;
    let error = pending.fleet(30).unwrap_err().to_string();
    assert!(error.contains("pods: web: replicas"), "{error}");
}

#[test]
fn generated_fleets_are_valid_and_as_full_as_they_say() {
    let mut packed = Problem {
        version: 1,
        name: "fleet".to_owned(),
        instance_types: catalogues::thin(catalogues::fake_400(), 400),
        node_pools: vec![catalogues::fake_pool()],
        ..Problem::default()
    };
    packed.instance_types.retain(|one| one.capacity.cpu_milli <= 8000);
    for kind in [FleetKind::Plain, FleetKind::Spread, FleetKind::Pinned] {
        let mut made = packed.clone();
        let pods = fleets::pods_for(&made, kind, 30).unwrap();
        made.pods = fleets::pods(&mut rng(1), kind, pods);
        let plan = fleets::first_fit(&made).unwrap();
        fleets::pack(&mut made, &plan, 30, &mut rng(1));
        assert_eq!(made.nodes.len(), 30, "{kind:?}");
        made.check().unwrap();
        let before = made.running();
        let pinned = |made: &Problem| -> usize {
            made.nodes.iter().filter_map(|node| node.pods.get("pinned")).sum()
        };
        let stay = pinned(&made);
        fleets::churn(&mut made, 40, &mut rng(1));
        assert_eq!(made.running(), before - (before - stay) * 40 / 100, "{kind:?}");
        assert_eq!(pinned(&made), stay);
        made.check().unwrap();
        assert!(made.fleet(10).is_ok());
    }
    let error = fleets::equal(&mut packed, FleetKind::Half, 3, &mut rng(1)).unwrap_err();
    assert!(error.to_string().contains("Standard_D16als_v6"), "{error}");
}

#[test]
fn a_cheaper_fleet_needs_the_moves_of_the_nodes_that_go() {
    let problem = problem();
    let at = |micros: i64| problem.fewest_moves(nap_units::UsdPerHour::from_micros(micros));
    // Four nodes at $0.200; `d` must stay, and of the others `a` and `b` have one pod each.
    assert_eq!(at(800_000), 0);
    assert_eq!(at(700_000), 1, "half a node is rounded up");
    assert_eq!(at(600_000), 1);
    assert_eq!(at(400_000), 2);
    assert_eq!(at(200_000), 4);
}

/// Lower bound on the cost of consolidating a fleet, in micro-dollars per hour.
fn bound(problem: &Problem) -> i64 {
    problem.consolidation_bound().unwrap().unwrap().micros()
}

#[test]
fn the_bound_pays_for_nodes_that_must_stay() {
    // `d` costs $0.900 and has one core free, and four pods are elsewhere.
    let mut fleet = base();
    let mut dear = fleet["instanceTypes"][1].clone();
    dear["name"] = "dear".into();
    for offer in dear["offerings"].as_array_mut().unwrap() {
        offer["priceUsdPerHour"] = 0.9.into();
    }
    fleet["instanceTypes"].as_array_mut().unwrap().push(dear);
    fleet["nodes"][3]["instanceType"] = "dear".into();
    let stays = bound(&Problem::parse(&fleet.to_string()).unwrap());
    assert!(
        (1_000_000..=1_200_000).contains(&stays),
        "{stays}: two small nodes, or one and a half"
    );
    fleet["pods"][1]["doNotDisrupt"] = false.into();
    let may_go = bound(&Problem::parse(&fleet.to_string()).unwrap());
    assert!((300_000..=500_000).contains(&may_go), "{may_go}: cheap nodes for all four pods");
}

#[test]
fn no_consolidation_of_a_pinned_fleet_ends_below_the_bound() {
    let mut made = Problem {
        version: 1,
        name: "fleet".to_owned(),
        instance_types: catalogues::thin(catalogues::fake_400(), 400),
        node_pools: vec![catalogues::fake_pool()],
        ..Problem::default()
    };
    made.instance_types.retain(|one| one.capacity.cpu_milli <= 8000);
    let pods = fleets::pods_for(&made, FleetKind::Pinned, 30).unwrap();
    made.pods = fleets::pods(&mut rng(1), FleetKind::Pinned, pods);
    let plan = fleets::first_fit(&made).unwrap();
    fleets::pack(&mut made, &plan, 30, &mut rng(1));
    for seed in 1..6 {
        let mut fleet = made.clone();
        fleets::churn(&mut fleet, 60, &mut rng(seed));
        let least = bound(&fleet);
        let mut running = RunningFleet::new(fleet.clone(), 100).unwrap();
        loop {
            let options = nap_engine::ConsolidationOptions::default();
            let cache = &mut nap_engine::ConsolidationCache::default();
            let decision = nap_engine::consolidate(running.fleet(), &options, cache);
            if decision.steps.is_empty() {
                break;
            }
            running.apply(&StepFile::of(&decision)).unwrap();
        }
        let cost = running.problem().fleet_cost().micros();
        assert!(cost >= least, "seed {seed}: {cost} is below the bound {least}");
        assert!(cost * 100 <= least * 115, "seed {seed}: {cost} is far above the bound {least}");
        // As if every pod could go: further away, because it cannot be reached.
        fleet.pods.iter_mut().for_each(|class| class.do_not_disrupt = false);
        assert!(bound(&fleet) <= least, "seed {seed}");
    }
}
