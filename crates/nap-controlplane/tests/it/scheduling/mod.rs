//! Plans before the real scheduler: it must bind what the engine placed, and leave what the engine called unschedulable.
//!
//! The nodes of a plan are made as objects, held back by a taint, and released, new ones one by one as the controller releases them: first the
//! pods that a node was bought for are nominated to it, then the taint goes. Lost nominations are given again more often than the controller
//! does it, so this shows what nomination can do, not how the controller's timing does. The same runs without nomination, to see what that
//! would cost.

mod bench;
mod objects;
mod outcome;

use std::collections::BTreeMap;
use std::sync::Arc;

use nap_api::{Requirements, labels};
use nap_engine::{
    ATTACHABLE_VOLUMES, CapacityType, InstanceType, Offering, Options, PodKey, Pool, Snapshot, solve,
};
use nap_units::{CPU, PODS, Resources, UsdPerHour};
use serde_json::json;

use bench::{Bench, Hint};
use outcome::{Kind, Outcome, Tally};

/// How many generated clusters are put before the scheduler, unless `NAP_CASES` says otherwise.
const CASES: u64 = 8;
/// How far apart the generator's seeds are: neighbours have much in common.
const APART: u64 = 1000;
/// How often a case is tried before a disagreement counts: nomination leaves a small race, which the controller settles with a second look.
const TRIES: usize = 4;

/// Every generated plan is realised with nomination, and what has no place in it has none before the scheduler either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
async fn the_scheduler_agrees_with_the_engine() {
    let bench = Bench::start().await;
    let number = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (first, cases) = (number("NAP_SEED", 1), number("NAP_CASES", CASES));
    let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
    let (mut dependent, mut others) = (Tally::default(), Tally::default());
    let mut again = 0;
    for seed in first..first + cases {
        let snapshot = nap_oracle::generate(seed * APART);
        let plan = solve(&snapshot, &Options::default());
        let first = bench.judge(&snapshot, &plan, Hint::Nominated).await;
        let mut repeated = None;
        for _ in 1..TRIES {
            if repeated.as_ref().unwrap_or(&first).agrees() {
                break;
            }
            again += 1;
            repeated = Some(bench.judge(&snapshot, &plan, Hint::Nominated).await);
        }
        let last = repeated.as_ref().unwrap_or(&first);
        let is_realised = last.bound() == last.planned();
        for (first, last) in first.kinds.iter().zip(&last.kinds) {
            for rule in &last.rules {
                tallies.entry(rule).or_default().add(first, last, is_realised);
            }
            let of = if last.depends_on_others() { &mut dependent } else { &mut others };
            of.add(first, last, is_realised);
        }
        if !last.agrees() {
            let file = format!("{}/disagreement-{seed}.json", env!("CARGO_TARGET_TMPDIR"));
            let Outcome { places, complaints, .. } = last;
            let shown =
                json!({ "snapshot": snapshot, "plan": plan, "places": places, "complaints": complaints });
            std::fs::write(&file, shown.to_string()).unwrap();
            eprintln!("seed {seed}; see {file}");
            for kind in last.kinds.iter().filter(|kind| kind.planned != kind.bound) {
                let Kind { pod, rules, planned, bound, is_outranked, .. } = kind;
                let outranked = if *is_outranked { ", outranked" } else { "" };
                eprintln!("  {pod}: {bound} of {planned} bound; {}{outranked}", rules.join(", "));
            }
        }
    }
    eprintln!("{cases} clusters, {again} tries again");
    for (rule, tally) in &tallies {
        eprintln!("{rule:>14}: {tally:?}");
    }
    eprintln!("pods that depend on others: {dependent:?}\nother pods: {others:?}");
    assert_eq!(others.too_few, 0, "of {}", others.planned);
    assert_eq!(others.too_many + dependent.too_many, 0, "the engine refuses what the scheduler binds");
    let (few, planned) = (dependent.too_few, dependent.planned);
    assert!(few * 30 <= planned, "{few} of {planned} planned pods depend on the order in which nodes come");
}

/// Large pods on nodes that just hold them, small ones three to a node: a packing that a scheduler does not find by itself. With nomination it is
/// realised; what it would cost without is printed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
async fn a_tight_plan_is_realised() {
    let bench = Bench::start().await;
    let snapshot = tight();
    let plan = solve(&snapshot, &Options::default());
    assert!(plan.unplaced.is_empty());
    let plain = bench.judge(&snapshot, &plan, Hint::None).await;
    let mut nominated = bench.judge(&snapshot, &plan, Hint::Nominated).await;
    for _ in 1..TRIES {
        if !nominated.agrees() {
            let (bound, planned) = (nominated.bound(), nominated.planned());
            eprintln!("nominated: {bound} of {planned} planned pods bound, once more");
            nominated = bench.judge(&snapshot, &plan, Hint::Nominated).await;
        }
    }
    for (how, outcome) in [("plain", &plain), ("nominated", &nominated)] {
        eprintln!(
            "{how}: {} of {} planned pods bound on machines for {}/h; the rest would cost {}/h more",
            outcome.bound(),
            outcome.planned(),
            outcome.cost,
            outcome.more
        );
    }
    assert_eq!(nominated.bound(), nominated.planned());
}

/// The objects say how many volumes a node takes: of a plan that forgot about it, only so many pods are bound.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
async fn the_scheduler_counts_attached_volumes() {
    let bench = Bench::start().await;
    let disks = format!("{ATTACHABLE_VOLUMES}disk.csi.azure.com");
    let mut snapshot = tight();
    snapshot.pods.retain(|pod| pod.requests.get(CPU) < 1000);
    snapshot.pods.truncate(3);
    for pod in &mut snapshot.pods {
        pod.requests.set(&disks, 1);
    }
    let careless = solve(&snapshot, &Options::default());
    assert_eq!(careless.launches.len(), 1);
    for kind in snapshot.catalogues.values_mut().flat_map(|types| Arc::make_mut(types).iter_mut()) {
        kind.allocatable.set(&disks, 2);
    }
    let outcome = bench.judge(&snapshot, &careless, Hint::Nominated).await;
    assert_eq!((outcome.planned(), outcome.bound()), (3, 2));
    let outcome = bench.judge(&snapshot, &solve(&snapshot, &Options::default()), Hint::Nominated).await;
    assert_eq!((outcome.planned(), outcome.bound()), (3, 3));
}

/// 20 pods of 7 CPUs and 120 of 0.6, and machines that just hold one of the former, or three of the latter.
fn tight() -> Snapshot {
    let pod = |name: String, milli: i64| nap_engine::Pod {
        key: PodKey::new("default", &name),
        requests: Resources::new().with(CPU, milli).with(PODS, 1),
        terms: vec![Requirements::new()],
        ..nap_engine::Pod::default()
    };
    let kind = |name: &str, milli: i64, micros: i64| InstanceType {
        name: name.to_owned(),
        capacity: Resources::new().with(CPU, milli).with(PODS, 110),
        allocatable: Resources::new().with(CPU, milli).with(PODS, 110),
        requirements: Requirements::from_labels(&BTreeMap::from([(
            labels::INSTANCE_TYPE.to_owned(),
            name.to_owned(),
        )])),
        offerings: vec![Offering {
            zone: "z-1".to_owned(),
            capacity_type: CapacityType::OnDemand,
            price: UsdPerHour::from_micros(micros),
            available: true,
            requirements: Arc::new(Requirements::from_labels(&BTreeMap::from([
                (labels::ZONE.to_owned(), "z-1".to_owned()),
                (labels::CAPACITY_TYPE.to_owned(), "on-demand".to_owned()),
            ]))),
        }],
    };
    let types = vec![kind("large", 7820, 400_000), kind("small", 1900, 90_000)];
    Snapshot {
        pods: (0..20)
            .map(|index| pod(format!("large-{index}"), 7000))
            .chain((0..120).map(|index| pod(format!("small-{index}"), 600)))
            .collect(),
        pools: vec![Pool {
            name: "pool".to_owned(),
            weight: 0,
            requirements: Requirements::from_labels(&BTreeMap::from([(
                labels::NODEPOOL.to_owned(),
                "pool".to_owned(),
            )])),
            taints: Vec::new(),
            headroom: Resources::new(),
            catalogue: "all".to_owned(),
        }],
        catalogues: BTreeMap::from([("all".to_owned(), Arc::new(types.into()))]),
        ..Snapshot::default()
    }
}
