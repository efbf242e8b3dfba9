//! Properties of every plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nap_api::requirement::Undefined;
use nap_api::{Operator, Toleration, labels};
use nap_engine::{
    CapacityType, InstanceType, NODES, Options, Plan, Pod, Pool, Snapshot, SolverCache, solve,
    solve_first_fit, solve_with,
};
use nap_units::{CPU, MEMORY, Resources};
use proptest::prelude::*;

use crate::build::{daemon, instance_type, node, offering, pod, pool, tainted, wants};

fn any_pod() -> impl Strategy<Value = (i64, i64, u8, bool, i32)> {
    (
        prop::sample::select(vec![100, 500, 1000, 3000, 9000, 70_000]),
        prop::sample::select(vec![0, 1, 4, 30]),
        0u8..6,
        any::<bool>(),
        prop::sample::select(vec![0, 0, 0, 7]),
    )
}

fn make_pod(
    number: usize,
    (cpu, gib, terms, tolerant, priority): (i64, i64, u8, bool, i32),
) -> Pod {
    let mut pod = pod(&format!("p{number:03}"), cpu, gib);
    pod.priority = priority;
    let zones = |zones: &[&str]| wants(&[(labels::ZONE, Operator::In, zones)]);
    pod.terms = match terms {
        0 => vec![zones(&["z-1", "z-2"])],
        1 => vec![zones(&["z-2", "z-3"])],
        2 => vec![zones(&["z-9"]), wants(&[(labels::SKU_CPU, Operator::Lte, &["8"])])],
        3 => vec![wants(&[("team", Operator::In, &["x"])])],
        _ => pod.terms,
    };
    if tolerant {
        pod.tolerations =
            vec![Toleration { key: "t".into(), exists: true, ..Toleration::default() }];
    }
    pod
}

fn any_pool() -> impl Strategy<Value = Pool> {
    (0i32..3, any::<bool>(), any::<bool>(), prop::option::of(0i64..40), prop::option::of(0i64..5))
        .prop_map(|(weight, taint, team, cpu, nodes)| {
            let mut pool = pool("");
            pool.weight = weight;
            if taint {
                pool.taints = vec![tainted("t")];
            }
            if team {
                pool.requirements.extend(&wants(&[("team", Operator::In, &["x"])]));
            }
            if let Some(cpu) = cpu {
                pool.headroom.set(CPU, cpu * 1000);
                pool.headroom.set(MEMORY, cpu << 31);
            }
            if let Some(nodes) = nodes {
                pool.headroom.set(NODES, nodes);
            }
            pool
        })
}

fn any_catalogue() -> impl Strategy<Value = Vec<InstanceType>> {
    prop::collection::vec((1i64..9, 1i64..6, 1i64..400, any::<bool>()), 1..8).prop_map(|sizes| {
        let make = |(number, (size, ratio, price, spot)): (usize, (i64, i64, i64, bool))| {
            let vcpu = 1 << (size - 1).min(6);
            let mut made = instance_type(
                &format!("t{number}"),
                vcpu,
                vcpu * ratio,
                vcpu * 40_000 + price * 100,
            );
            made.allocatable.set(CPU, vcpu * 1000 - 80);
            if spot {
                made.offerings.push(offering("z-2", CapacityType::Spot, vcpu * 11_000));
                made.offerings[0].available = false;
            }
            made
        };
        sizes.into_iter().enumerate().map(make).collect()
    })
}

fn any_snapshot() -> impl Strategy<Value = Snapshot> {
    let pods = prop::collection::vec((any_pod(), 1usize..6), 0..12);
    let pools = prop::collection::vec(any_pool(), 0..4);
    let nodes = prop::collection::vec((0i64..9, any::<bool>()), 0..4);
    (pods, pools, any_catalogue(), nodes, 0usize..3).prop_map(
        |(pods, pools, types, nodes, daemons)| {
            let specs = pods.into_iter().flat_map(|(spec, count)| std::iter::repeat_n(spec, count));
            let name = |(number, pool): (usize, Pool)| {
                let name = format!("pool-{number}");
                let mut named = Pool { name: name.clone(), ..pool };
                named.requirements.set(labels::NODEPOOL, nap_api::Requirement::is_in([name]));
                named
            };
            Snapshot {
                pods: specs.enumerate().map(|(number, spec)| make_pod(number, spec)).collect(),
                nodes: nodes
                    .into_iter()
                    .enumerate()
                    .map(|(number, (cpu, initialized))| {
                        let mut node = node(&format!("n{number}"), cpu * 500, cpu * 2);
                        node.initialized = initialized;
                        Arc::new(node)
                    })
                    .collect(),
                pools: pools.into_iter().enumerate().map(name).collect(),
                daemons: (0..daemons).map(|number| daemon(&format!("d{number}"), 50)).collect(),
                catalogues: BTreeMap::from([("all".to_owned(), Arc::new(types.into()))]),
                ..Snapshot::default()
            }
        },
    )
}

fn check(snapshot: &Snapshot, options: &Options, plan: &Plan) {
    let by_key: BTreeMap<_, _> = snapshot.pods.iter().map(|pod| (&pod.key, pod)).collect();
    let places = plan.placements.iter().map(|placement| &placement.pod);
    let places = places.chain(plan.launches.iter().flat_map(|launch| &launch.pods));
    let places: Vec<_> = places.chain(plan.unplaced.iter().map(|unplaced| &unplaced.pod)).collect();
    assert_eq!(places.len(), by_key.len(), "every pod is placed or refused exactly once");
    assert_eq!(places.iter().collect::<BTreeSet<_>>().len(), by_key.len());

    for node in &snapshot.nodes {
        let mut asked = Resources::new();
        for placement in plan.placements.iter().filter(|placement| placement.node == node.name) {
            asked.add(&by_key[&placement.pod].requests);
        }
        assert!(asked.fits(&node.free), "{} is not overfilled", node.name);
    }
    let types = &snapshot.catalogues["all"];
    let mut spent: BTreeMap<&str, Resources> = BTreeMap::new();
    for launch in &plan.launches {
        let pool = snapshot
            .pools
            .iter()
            .find(|pool| pool.name == launch.pool)
            .expect("a pool that exists");
        assert!(options.max_pods_per_node.is_none_or(|most| launch.pods.len() <= most as usize));
        let alternatives = launch
            .alternatives
            .iter()
            .map(|other| (&*other.instance_type, &*other.zone, other.capacity_type));
        let chosen = (&*launch.instance_type, &*launch.zone, launch.capacity_type);
        for (name, zone, capacity_type) in std::iter::once(chosen).chain(alternatives) {
            let instance_type =
                types.types().iter().find(|one| one.name == name).expect("a type that exists");
            let offering = instance_type
                .offerings
                .iter()
                .find(|one| one.zone == zone && one.capacity_type == capacity_type)
                .expect("an offering that exists");
            assert!(offering.available);
            assert!(launch.requirements.intersects(&instance_type.requirements).is_ok());
            assert!(launch.requirements.intersects(&offering.requirements).is_ok());
            assert!(launch.requests.fits(&instance_type.allocatable), "{name} holds its pods");
            assert!(
                offering.price >= launch.price
                    || (name, zone) == (&*launch.instance_type, &*launch.zone)
                    || !pool.headroom.is_empty()
            );
        }
        for pod in launch.pods.iter().map(|key| by_key[key]) {
            assert!(nap_api::taints::first_untolerated(&pool.taints, &pod.tolerations).is_none());
            let suits =
                |term| launch.requirements.compatible(term, Undefined::AllowWellKnown).is_ok();
            assert!(pod.terms.iter().any(suits));
        }
        let instance_type = types
            .types()
            .iter()
            .find(|one| one.name == launch.instance_type)
            .expect("a type that exists");
        let charge = instance_type.capacity.clone().with(NODES, 1);
        spent.entry(&launch.pool).or_default().add(&charge);
    }
    for pool in &snapshot.pools {
        let Some(spent) = spent.get(pool.name.as_str()) else { continue };
        for (name, headroom) in pool.headroom.iter() {
            assert!(
                spent.get(name) <= headroom,
                "{}: {name} {} of {headroom}",
                pool.name,
                spent.get(name)
            );
        }
    }
    assert_eq!(plan.cost, plan.launches.iter().map(|launch| launch.price).sum());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn plans_are_valid_and_never_worse_than_first_fit(
        snapshot in any_snapshot(),
        most in prop::option::of(1u32..6),
    ) {
        let options = Options { max_pods_per_node: most, ..Options::default() };
        let plan = solve(&snapshot, &options);
        check(&snapshot, &options, &plan);
        let baseline = solve_first_fit(&snapshot, &options);
        check(&snapshot, &options, &baseline);
        if plan.unplaced.len() == baseline.unplaced.len() {
            prop_assert!(plan.cost <= baseline.cost, "{} > {}", plan.cost, baseline.cost);
        }
    }

    #[test]
    fn a_solver_cache_changes_no_plan(snapshot in any_snapshot(), other in any_snapshot()) {
        let options = Options::default();
        let plan = solve(&snapshot, &options);
        prop_assert_eq!(&solve_with(&SolverCache::new(&snapshot), &snapshot, &options), &plan);
        prop_assert_eq!(&solve_with(&SolverCache::new(&other), &snapshot, &options), &plan);
    }

    #[test]
    fn the_order_of_the_input_changes_no_plan(snapshot in any_snapshot(), seed in any::<u64>()) {
        let mut shuffled = snapshot.clone();
        let mut state = seed;
        shuffle(&mut shuffled.pods, &mut state);
        shuffle(&mut shuffled.nodes, &mut state);
        shuffle(&mut shuffled.pools, &mut state);
        shuffle(&mut shuffled.daemons, &mut state);
        for types in shuffled.catalogues.values_mut() {
            shuffle(Arc::make_mut(types).edit(), &mut state);
        }
        let text = |snapshot| serde_json::to_string(&solve(snapshot, &Options::default())).unwrap();
        prop_assert_eq!(text(&snapshot), text(&shuffled));
    }
}

fn shuffle<T>(items: &mut [T], state: &mut u64) {
    for index in (1..items.len()).rev() {
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let other = usize::try_from(*state >> 33).unwrap_or(0) % (index + 1);
        items.swap(index, other);
    }
}
