//! Which nodes of a running fleet are removed or replaced, and why the others stay.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nap_api::labels;
use nap_engine::{
    Candidate, CapacityType, Consolidation, ConsolidationCache, ConsolidationOptions, Fleet,
    KeepReason, Node, Pod, PodKey, PoolRules, RunningPod, RunningPods, Selector, Spread,
    WorkloadBudget, consolidate,
};
use nap_units::{CPU, MEMORY, PODS, Resources, UsdPerHour};

use crate::build::{GIB, catalogue, instance_type, offering, pod, pool, snapshot};

/// A fleet in the making: nodes of the catalogue's types with pods.
pub struct World {
    pub fleet: Fleet,
}

impl World {
    pub fn new() -> Self {
        let snapshot = snapshot(Vec::new(), catalogue(), vec![pool("p")]);
        let rules = PoolRules { budget: 100, ..PoolRules::default() };
        let pools = BTreeMap::from([("p".to_owned(), rules)]);
        Self { fleet: Fleet { snapshot, pools, ..Fleet::default() } }
    }

    pub fn template(&mut self, pod: Pod) -> usize {
        self.fleet.templates.push(pod);
        self.fleet.templates.len() - 1
    }

    /// A node of a type in zone `z-1` with pods of some templates.
    pub fn node(
        &mut self,
        name: &str,
        instance_type: &str,
        content: &[(usize, usize)],
    ) -> &mut Self {
        self.node_in("z-1", name, instance_type, content)
    }

    fn node_in(
        &mut self,
        zone: &str,
        name: &str,
        instance_type: &str,
        content: &[(usize, usize)],
    ) -> &mut Self {
        let types = self.fleet.snapshot.catalogues["all"].types();
        let of = types.iter().find(|one| one.name == instance_type).unwrap();
        let (capacity, price) = (of.capacity.clone(), of.offerings[0].price);
        let mut free = capacity.clone();
        let (mut pods, mut residents) = (Vec::new(), Vec::new());
        for (template, count) in content.iter().copied() {
            let of = self.fleet.templates[template].clone();
            for number in 0..count {
                free.subtract(&of.requests);
                let (namespace, stem) = of.key.parts();
                let key = PodKey::new(namespace, &format!("{stem}-{name}-{number}"));
                residents.push(RunningPods::from(&of));
                pods.push(RunningPod { key, template });
            }
        }
        let labels = [
            (labels::HOSTNAME, name),
            (labels::ZONE, zone),
            (labels::NODEPOOL, "p"),
            (labels::INSTANCE_TYPE, instance_type),
            (labels::CAPACITY_TYPE, "on-demand"),
        ];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let name = name.to_owned();
        let node = Node {
            name: name.clone(),
            labels,
            free,
            initialized: true,
            residents,
            ..Node::default()
        };
        self.fleet.snapshot.nodes.push(Arc::new(node));
        self.fleet.candidates.push(Candidate {
            node: name,
            pool: "p".to_owned(),
            instance_type: instance_type.to_owned(),
            capacity_type: Some(CapacityType::OnDemand),
            price,
            capacity,
            disruption_cost: 1000 + 1000 * i64::try_from(pods.len()).unwrap(),
            pods,
            remaining_life: 86_400,
            ..Candidate::default()
        });
        self
    }

    /// Makes the last node one of another pool.
    pub fn in_pool(&mut self, name: &str) -> &mut Self {
        if !self.fleet.pools.contains_key(name) {
            let rules = PoolRules { budget: 100, ..PoolRules::default() };
            self.fleet.pools.insert(name.to_owned(), rules);
            self.fleet.snapshot.pools.push(pool(name));
        }
        let node = Arc::make_mut(self.fleet.snapshot.nodes.last_mut().unwrap());
        node.labels.insert(labels::NODEPOOL.to_owned(), name.to_owned());
        name.clone_into(&mut self.fleet.candidates.last_mut().unwrap().pool);
        self
    }

    /// Lets only these types be on sale.
    pub fn sell(&mut self, types: Vec<nap_engine::InstanceType>) -> &mut Self {
        let types = Arc::new(types.into());
        self.fleet.snapshot.catalogues = BTreeMap::from([("all".to_owned(), types)]);
        self
    }

    pub fn decide(&self) -> Consolidation {
        self.decide_with(&ConsolidationOptions::default())
    }

    pub fn decide_with(&self, options: &ConsolidationOptions) -> Consolidation {
        let mut cache = ConsolidationCache::default();
        let decision = consolidate(&self.fleet, options, &mut cache);
        let again = consolidate(&self.fleet, options, &mut cache);
        assert_eq!(decision, again, "the cache does not change the decision");
        let mut shuffled = self.fleet.clone();
        shuffled.candidates.reverse();
        shuffled.snapshot.nodes.reverse();
        let mut cache = ConsolidationCache::default();
        let other = consolidate(&shuffled, options, &mut cache);
        assert_eq!(decision, other, "the order of the lists does not change the decision");
        check(&self.fleet, &decision);
        decision
    }
}

/// Every removed node's pods have one place each, no removed node receives, and each step saves.
fn check(fleet: &Fleet, decision: &Consolidation) {
    let mut gone: BTreeSet<&str> = BTreeSet::new();
    let mut free: BTreeMap<&str, Resources> =
        fleet.snapshot.nodes.iter().map(|one| (one.name.as_str(), one.free.clone())).collect();
    for step in &decision.steps {
        assert!(step.saving > UsdPerHour::ZERO);
        let removed = fleet.candidates.iter().filter(|one| step.remove.contains(&one.node));
        let mut wanted: Vec<(&str, usize)> = removed
            .clone()
            .flat_map(|one| &one.pods)
            .map(|pod| (pod.key.as_str(), pod.template))
            .collect();
        let price: UsdPerHour = removed.map(|one| one.price).sum();
        assert_eq!(step.saving, price - step.plan.cost);
        assert_eq!(step.evictions, wanted.len());
        gone.extend(step.remove.iter().map(String::as_str));
        let mut placed: Vec<&str> = Vec::new();
        for placement in &step.plan.placements {
            assert!(!gone.contains(placement.node.as_str()), "a removed node receives nothing");
            let of = wanted.iter().find(|(key, _)| *key == placement.pod.as_str()).unwrap();
            let room = free.get_mut(placement.node.as_str()).unwrap();
            room.subtract(&fleet.templates[of.1].requests);
            for resource in [CPU, MEMORY, PODS] {
                assert!(room.get(resource) >= 0, "{} is overfull", placement.node);
            }
            placed.push(placement.pod.as_str());
        }
        placed.extend(step.plan.launches.iter().flat_map(|one| &one.pods).map(PodKey::as_str));
        placed.sort_unstable();
        wanted.sort_unstable();
        let wanted: Vec<&str> = wanted.into_iter().map(|(key, _)| key).collect();
        assert_eq!(placed, wanted);
    }
}

/// `-removed +launched` of each step.
pub fn steps(decision: &Consolidation) -> Vec<String> {
    let step = |step: &nap_engine::Step| {
        let launches = step.plan.launches.iter().map(|one| format!(" +{}", one.instance_type));
        format!("-{}{}", step.remove.join(" -"), launches.collect::<String>())
    };
    decision.steps.iter().map(step).collect()
}

pub fn reason<'d>(decision: &'d Consolidation, node: &str) -> &'d KeepReason {
    &decision.kept.iter().find(|one| one.node == node).unwrap().reason
}

/// Whether a node stays because no replacement is cheap enough.
pub fn saves_too_little(decision: &Consolidation, node: &str) -> bool {
    let reason = reason(decision, node);
    matches!(reason, KeepReason::NoCheaper { .. } | KeepReason::SmallSaving { .. })
}

#[test]
fn a_node_whose_pods_fit_elsewhere_is_removed() {
    let mut world = World::new();
    let web = world.template(pod("web", 1000, 4));
    world.node("a", "d4", &[(web, 1)]).node("b", "d4", &[(web, 3)]);
    let decision = world.decide();
    assert_eq!(steps(&decision), ["-a"]);
    assert_eq!(reason(&decision, "b"), &KeepReason::Receives);
    assert_eq!(decision.cost_after.micros(), 192_000);
}

#[test]
fn an_empty_node_is_removed_and_a_full_one_stays() {
    let mut world = World::new();
    let web = world.template(pod("web", 1000, 4));
    world.node("empty", "d4", &[]).node("full", "d4", &[(web, 4)]);
    let decision = world.decide();
    assert_eq!(steps(&decision), ["-empty"]);
    assert!(saves_too_little(&decision, "full"));
}

#[test]
fn a_node_that_is_too_large_is_replaced() {
    let mut world = World::new();
    let web = world.template(pod("web", 1000, 4));
    world.node("a", "d32", &[(web, 4)]);
    assert_eq!(steps(&world.decide()), ["-a +d4"]);
}

#[test]
fn one_node_is_replaced_by_two_where_that_is_cheaper() {
    let mut world = World::new();
    let web = world.template(pod("web", 1000, 4));
    world.node("a", "d64", &[(web, 33)]);
    let decision = world.decide();
    assert_eq!(decision.steps.len(), 1);
    assert!(decision.steps[0].plan.launches.len() > 1, "{:?}", steps(&decision));
}

#[test]
fn several_nodes_are_replaced_by_fewer_that_are_cheaper() {
    // Each node is too full to be removed or shrunk, and three are worth two.
    let mut world = World::new();
    let big = world.template(pod("big", 2600, 10));
    world.node("a", "d4", &[(big, 1)]).node("b", "d4", &[(big, 1)]).node("c", "d4", &[(big, 1)]);
    let decision = world.decide();
    assert_eq!(steps(&decision), ["-a -b -c +d8"]);
    assert_eq!(decision.steps[0].saving.micros(), 192_000);
}

/// Three full nodes of two pools, whose pods fit two nodes that are cheaper together.
pub fn three_full_nodes() -> World {
    let mut world = World::new();
    world.sell(vec![instance_type("d4", 4, 16, 192_000), instance_type("d6", 6, 24, 200_000)]);
    let large = world.template(pod("large", 3000, 12));
    let small = world.template(pod("small", 1000, 4));
    let both = [(large, 1), (small, 1)];
    world.node("a", "d4", &both).node("b", "d4", &both).node("c", "d4", &both).in_pool("q");
    world
}

#[test]
fn nodes_of_two_pools_are_replaced_together() {
    let decision = three_full_nodes().decide();
    assert_eq!(steps(&decision), ["-a -b -c +d6 +d6"]);
    assert_eq!(decision.steps[0].saving.micros(), 176_000);
}

#[test]
fn a_pool_without_a_budget_keeps_its_part_of_what_could_be_replaced_together() {
    let mut world = three_full_nodes();
    world.fleet.pools.get_mut("q").unwrap().budget = 0;
    let decision = world.decide();
    assert!(decision.steps.is_empty(), "{:?}", steps(&decision));
    assert!(saves_too_little(&decision, "c"), "alone: {:?}", reason(&decision, "c"));
}

#[test]
fn five_nodes_become_two() {
    let mut world = World::new();
    let sizes = [("d4", 4, 192_000), ("d6", 6, 260_000), ("d8", 8, 300_000)];
    let types = sizes.map(|(name, vcpu, price)| instance_type(name, vcpu, 4 * vcpu, price));
    world.sell(types.to_vec());
    // Two share a d6, three a d8, and none a d4.
    let web = world.template(pod("web", 2400, 9));
    for name in ["a", "b", "c", "d", "e"] {
        world.node(name, "d4", &[(web, 1)]);
    }
    let decision = world.decide();
    let launches = decision.steps.iter().flat_map(|step| &step.plan.launches);
    let mut launched: Vec<&str> = launches.map(|one| one.instance_type.as_str()).collect();
    launched.sort_unstable();
    assert_eq!(launched, ["d6", "d8"], "{:?}", steps(&decision));
    assert_eq!(decision.steps.iter().map(|step| step.remove.len()).sum::<usize>(), 5);
    let saving: UsdPerHour = decision.steps.iter().map(|step| step.saving).sum();
    assert_eq!(saving.micros(), 400_000);
}

#[test]
fn the_cheaper_of_spot_and_on_demand_replaces_the_other() {
    let both = |name: &str, vcpu, on_demand, spot| {
        let mut one = instance_type(name, vcpu, 4 * vcpu, on_demand);
        let of = |capacity_type, price| offering("z-1", capacity_type, price);
        one.offerings = vec![of(CapacityType::OnDemand, on_demand), of(CapacityType::Spot, spot)];
        one
    };
    let decide = |spot_price, from, price| {
        let mut world = World::new();
        world.sell(vec![both("d4", 4, 192_000, spot_price)]);
        let web = world.template(pod("web", 3000, 12));
        world.node("a", "d4", &[(web, 1)]);
        let node = &mut world.fleet.candidates[0];
        (node.capacity_type, node.price) = (Some(from), UsdPerHour::from_micros(price));
        let decision = world.decide();
        assert_eq!(steps(&decision), ["-a +d4"]);
        decision.steps[0].plan.launches[0].capacity_type
    };
    let (on_demand, spot) = (CapacityType::OnDemand, CapacityType::Spot);
    assert_eq!(decide(60_000, on_demand, 192_000), spot);
    assert_eq!(decide(300_000, spot, 300_000), on_demand, "spot has become dearer");
}

#[test]
fn budgets_limit_the_nodes_that_are_removed() {
    let mut world = World::new();
    let web = world.template(pod("web", 1000, 4));
    world.node("keep", "d16", &[(web, 8)]);
    for name in ["a", "b", "c"] {
        world.node(name, "d4", &[(web, 1)]);
    }
    world.fleet.pools.get_mut("p").unwrap().budget = 2;
    let decision = world.decide();
    assert_eq!(decision.steps.iter().map(|step| step.remove.len()).sum::<usize>(), 2);
    let waiting = decision.kept.iter().filter(|one| one.reason == KeepReason::Budget);
    assert_eq!(waiting.count(), 1, "the third would pay as well: {:?}", decision.kept);
}

#[test]
fn pods_stay_within_their_spread() {
    let mut world = World::new();
    let mut web = pod("web", 1000, 4);
    web.labels.insert("app".to_owned(), "web".to_owned());
    let selector = Selector::label("app", "web");
    web.spread = vec![Spread {
        topology_key: labels::ZONE.to_owned(),
        max_skew: 1,
        selector,
        min_domains: None,
        honor_affinity: false,
        honor_taints: false,
    }];
    let web = world.template(web);
    let filler = world.template(pod("filler", 2000, 8));
    world.node_in("z-1", "a", "d4", &[(web, 1)]);
    world.node_in("z-2", "b", "d4", &[(web, 1), (filler, 1)]);
    world.node_in("z-3", "c", "d4", &[(web, 1), (filler, 1)]);
    let decision = world.decide();
    // Another zone has room for it, and would then have two while its own has none.
    assert_eq!(steps(&decision), ["-a +d2"]);
    assert_eq!(decision.steps[0].plan.launches[0].zone, "z-1");
}

#[test]
fn a_spot_node_is_replaced_by_spot_only_if_the_pool_allows_it() {
    let mut world = World::new();
    let types: Vec<_> = (0..20)
        .map(|number| {
            let mut one = instance_type(&format!("s{number:02}"), 2, 8, 90_000 + number);
            one.offerings = vec![offering("z-1", CapacityType::Spot, 30_000 + number)];
            one
        })
        .chain([{
            let mut large = instance_type("large", 16, 64, 700_000);
            large.offerings = vec![offering("z-1", CapacityType::Spot, 250_000)];
            large
        }])
        .collect();
    world.fleet.snapshot.catalogues = BTreeMap::from([("all".to_owned(), Arc::new(types.into()))]);
    let web = world.template(pod("web", 1000, 4));
    world.node("a", "large", &[(web, 1)]);
    world.fleet.candidates[0].capacity_type = Some(CapacityType::Spot);
    assert_eq!(reason(&world.decide(), "a"), &KeepReason::SpotToSpot);
    world.fleet.pools.get_mut("p").unwrap().spot_to_spot = true;
    assert_eq!(steps(&world.decide()), ["-a +s00"]);
}

/// Spot types `s00` … of two vCPUs, and one of sixteen.
fn spot_types(count: i64) -> Vec<nap_engine::InstanceType> {
    let spot = |name: &str, cpu, price| {
        let mut one = instance_type(name, cpu, 4 * cpu, 3 * price);
        one.offerings = vec![offering("z-1", CapacityType::Spot, price)];
        one
    };
    let small = (0..count).map(|number| spot(&format!("s{number:02}"), 2, 30_000 + number));
    small.chain([spot("large", 16, 250_000)]).collect()
}

#[test]
fn a_spot_node_is_replaced_by_spot_only_if_fifteen_cheaper_types_are_on_sale() {
    // One pod needs one small node, two pods need two.
    for pods in [1, 2] {
        let decide = |types| {
            let mut world = World::new();
            let types = Arc::new(spot_types(types).into());
            world.fleet.snapshot.catalogues = BTreeMap::from([("all".to_owned(), types)]);
            world.fleet.pools.get_mut("p").unwrap().spot_to_spot = true;
            let web = world.template(pod("web", 1500, 4));
            world.node("a", "large", &[(web, pods)]);
            world.fleet.candidates[0].capacity_type = Some(CapacityType::Spot);
            world.decide()
        };
        assert_eq!(reason(&decide(14), "a"), &KeepReason::FewSpotTypes { types: 14 }, "{pods}");
        assert_eq!(steps(&decide(15)), [format!("-a{}", " +s00".repeat(pods))]);
    }
}

#[test]
fn one_decision_moves_no_more_pods_of_a_workload_than_it_may_have_evicted() {
    let mut world = World::new();
    let web = world.template(pod("web", 1000, 4));
    let names = ["a", "b", "c", "d", "e", "f"];
    for name in names {
        world.node(name, "d4", &[(web, 1)]);
    }
    assert_eq!(steps(&world.decide()).len(), 4, "six pods fit two nodes");
    for candidate in &mut world.fleet.candidates {
        candidate.workloads = vec![(0, 1)];
    }
    let of = |evictions| {
        let workload = "Deployment shop/web".to_owned();
        vec![WorkloadBudget { workload, evictions }]
    };
    world.fleet.workloads = of(2);
    let decision = world.decide();
    let moved: usize = decision.steps.iter().map(|step| step.evictions).sum();
    assert_eq!(moved, 2, "{:?}", steps(&decision));
    let is_budget = |one: &&nap_engine::Kept| {
        matches!(&one.reason, KeepReason::EvictionBudget { evictions: 0, .. })
    };
    assert!(decision.kept.iter().filter(is_budget).count() > 0, "{:?}", decision.kept);
    world.fleet.workloads = of(0);
    let decision = world.decide();
    assert_eq!(steps(&decision), [""; 0]);
    let kept = reason(&decision, "a").to_string();
    assert_eq!(
        kept,
        "the pods of Deployment shop/web have been moved as often as they may be in a day"
    );
}

#[test]
fn a_limit_of_the_pool_counts_what_leaves() {
    let mut world = World::new();
    world.fleet.snapshot.pools[0].headroom = Resources::new().with(CPU, 0);
    let web = world.template(pod("web", 1000, 4));
    world.node("a", "d32", &[(web, 4)]);
    assert_eq!(steps(&world.decide()), ["-a +d4"]);
}

#[test]
fn an_unknown_pool_keeps_its_nodes() {
    let mut world = World::new();
    world.node("a", "d4", &[]);
    world.fleet.pools.clear();
    assert_eq!(reason(&world.decide(), "a"), &KeepReason::Budget);
}

#[test]
fn moves_that_do_not_pay_back_are_not_made() {
    let mut world = World::new();
    let tiny = world.template(pod("tiny", 10, 0));
    world.node("a", "d2", &[(tiny, 40)]).node("b", "d2", &[(tiny, 40)]);
    for candidate in &mut world.fleet.candidates {
        candidate.remaining_life = 600;
    }
    let decision = world.decide();
    assert!(matches!(reason(&decision, "a"), KeepReason::Payback { .. }), "{decision:?}");
    world.fleet.candidates[0].remaining_life = 3600;
    assert_eq!(steps(&world.decide()), ["-a"]);
}

/// Nodes of four cores that no step may remove, each with this many pods of one core.
fn held_nodes(pods: &[(&str, usize)]) -> World {
    let mut world = World::new();
    let web = world.template(pod("web", 1000, 4));
    for (name, count) in pods {
        world.node(name, "d4", &[(web, *count)]);
    }
    world.fleet.candidates.iter_mut().for_each(|one| one.is_held = true);
    world
}

#[test]
fn nodes_that_the_others_have_room_for_are_surplus_although_they_may_not_go() {
    let world = held_nodes(&[("a", 1), ("b", 1), ("c", 1), ("full", 4)]);
    let decision = world.decide();
    assert_eq!((steps(&decision).len(), decision.kept.len()), (0, 0));
    assert_eq!(decision.surplus.len(), 2, "{:?}", decision.surplus);
    assert!(!decision.surplus.contains(&"full".to_owned()));
    assert_eq!(decision.cost_after, decision.cost_before);
}

#[test]
fn surplus_nodes_have_room_for_their_pods_together() {
    let world = held_nodes(&[("a", 2), ("b", 2), ("c", 3)]);
    assert_eq!(world.decide().surplus.len(), 1, "seven pods need two nodes");
    assert!(held_nodes(&[("a", 3), ("b", 3)]).decide().surplus.is_empty());
}

#[test]
fn a_surplus_node_stays_one_while_another_would_do_as_well() {
    for name in ["a", "b", "c"] {
        let mut world = held_nodes(&[("a", 2), ("b", 2), ("c", 2)]);
        let candidates = world.fleet.candidates.iter_mut();
        candidates.filter(|one| one.node == name).for_each(|one| one.was_surplus = true);
        assert_eq!(world.decide().surplus, [name]);
    }
}

#[test]
fn memory_is_counted_in_gib() {
    // Guards the builders: a node without room is not a receiver.
    let mut world = World::new();
    let fat = world.template(pod("fat", 100, 12));
    world.node("a", "d4", &[(fat, 1)]).node("b", "d4", &[(fat, 1)]);
    assert_eq!(world.fleet.snapshot.nodes[0].free.get(MEMORY), 4 * GIB);
    assert!(world.decide().steps.iter().all(|step| step.plan.placements.is_empty()));
}

#[test]
fn nodes_are_deleted_together_where_one_by_one_their_pods_would_be_in_each_others_way() {
    let mut world = World::new();
    let small = world.template(pod("small", 1000, 1));
    let large = world.template(pod("large", 4000, 1));
    let half = world.template(pod("half", 500, 1));
    // The small pods are the first to move, and would go where only the large one has room.
    world.node("a", "d8", &[(small, 2)]);
    world.node("b", "d4", &[(large, 1)]);
    world.node("four-free", "d8", &[(half, 8)]);
    world.node("two-free", "d8", &[(small, 6)]);
    let decision = world.decide();
    let removed: Vec<&[String]> = decision.steps.iter().map(|step| &*step.remove).collect();
    assert_eq!(removed, [["a"], ["b"]]);
    assert!(decision.steps.iter().all(|step| step.plan.launches.is_empty()));
}

#[test]
fn nodes_that_lack_cpu_and_nodes_that_lack_memory_are_replaced_together() {
    let mut world = World::new();
    let high_memory = world.template(pod("high-memory", 1000, 8));
    let high_cpu = world.template(pod("high-cpu", 1000, 2));
    // Half of the CPU of thirty nodes and half of the memory of twenty is free: alone, neither kind
    // can be had for less.
    for number in 0..30 {
        world.node(&format!("memory-{number:02}"), "d16", &[(high_memory, 8)]);
    }
    for number in 0..20 {
        world.node(&format!("cpu-{number:02}"), "d16", &[(high_cpu, 16)]);
    }
    let decision = world.decide();
    assert!(!decision.steps.is_empty());
    for step in &decision.steps {
        let of = |kind: &str| step.remove.iter().filter(|node| node.starts_with(kind)).count();
        assert!(of("memory") > 0 && of("cpu") > 0, "{:?}", step.remove);
    }
}
