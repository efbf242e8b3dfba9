//! Plans on the real scheduler: it must bind the pods that the engine placed and no others.
//!
//! The nodes of a plan are created as objects, held back by a taint, and released one by one in the
//! controllers' release order: first the pods of a node are nominated to it, then the taint is
//! removed. Lost nominations are repeated more often than in the controllers, so this shows the
//! effect of nomination and not of the controllers' timing. Pods that stay pending are planned
//! again. The same runs without nomination show what that would cost.

mod bench;
mod generated;
mod judge;
mod objects;
mod outcome;
mod verdicts;

use std::collections::BTreeMap;
use std::sync::Arc;

use nap_api::{Requirements, labels};
use nap_engine::{
    ATTACHABLE_VOLUMES, CapacityType, InstanceType, Offering, Options, Plan, PodKey, Pool,
    Snapshot, solve,
};
use nap_units::{CPU, PODS, Resources, UsdPerHour};
use serde_json::json;

use bench::{Bench, Hint};
use judge::judge;
use outcome::{Outcome, PodGroup, Tally};

/// Default number of generated clusters; `NAP_CASES` overrides it.
const CASES: u64 = 8;
/// Distance between seeds: neighboring seeds give similar snapshots.
const APART: u64 = 1000;
/// Default number of tries of a race between the scheduler and nomination; `NAP_TRIES` overrides
/// it.
const TRIES: usize = 3;

/// Generated plans are bound as planned with nomination, and unplaced pods stay pending.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
async fn the_scheduler_agrees_with_the_engine() {
    let bench = Bench::start().await;
    let (first, cases) = (number("NAP_SEED", 1), number("NAP_CASES", CASES));
    let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
    let (mut dependent, mut others) = (Tally::default(), Tally::default());
    let (mut replans, mut cost, mut more) = (0, UsdPerHour::ZERO, UsdPerHour::ZERO);
    for seed in first..first + cases {
        let snapshot = nap_oracle::generate(seed * APART);
        let plan = solve(&snapshot, &Options::default());
        let outcome = judge(&bench, &snapshot, &plan, Hint::Nominated).await;
        replans += outcome.replans;
        cost += outcome.cost;
        more += outcome.more;
        let is_realised = outcome.at_once() == outcome.planned();
        for kind in &outcome.kinds {
            for rule in &kind.rules {
                tallies.entry(rule).or_default().add(kind, is_realised);
            }
            if kind.depends_on_others() { &mut dependent } else { &mut others }
                .add(kind, is_realised);
        }
        report(&seed.to_string(), &snapshot, &plan, &outcome);
    }
    eprintln!("{cases} clusters for {cost}/h; {replans} plans anew, for {more}/h");
    for (rule, tally) in &tallies {
        eprintln!("{rule:>14}: {tally:?}");
    }
    eprintln!("pods that depend on others: {dependent:?}\nother pods: {others:?}");
    assert_eq!(
        others.too_many + dependent.too_many,
        0,
        "the engine refuses what the scheduler binds"
    );
    assert_eq!(others.too_few, 0, "planned pods are not bound");
    let (few, planned) = (dependent.too_few, dependent.planned);
    assert!(
        few * 30 <= planned,
        "{few} of {planned} planned pods depend on the order in which others are bound"
    );
}

/// Prints where the scheduler deviated from the plan, and writes the case to a file.
fn report(case: &str, snapshot: &Snapshot, plan: &Plan, outcome: &Outcome) {
    let differs = |kind: &&PodGroup| {
        kind.at_once < kind.planned || (kind.at_once > kind.planned && !kind.is_pool_matter)
    };
    let different: Vec<&PodGroup> = outcome.kinds.iter().filter(differs).collect();
    if different.is_empty() {
        return;
    }
    let file = format!("{}/disagreement-{case}.json", env!("CARGO_TARGET_TMPDIR"));
    let Outcome { places, complaints, last, cost, more, .. } = outcome;
    let shown = json!({
        "snapshot": snapshot, "plan": plan, "places": places, "complaints": complaints, "last": last,
    });
    std::fs::write(&file, shown.to_string()).unwrap();
    eprintln!("case {case}; {cost} + {more}; see {file}");
    for PodGroup { pod, rules, planned, at_once, bound, is_outranked, .. } in different {
        let outranked = if *is_outranked { ", outranked" } else { "" };
        let rules = rules.join(", ");
        eprintln!("  {pod}: {at_once} of {planned} bound, then {bound}; {rules}{outranked}");
    }
}

/// Large pods on nodes that just fit them, small ones three per node: a packing that the scheduler
/// does not find by itself. The scheduler races with nomination, so a majority of the tries must
/// succeed. Prints the cost without nomination.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
async fn tight_plan_is_bound_as_planned_with_nomination() {
    let bench = Bench::start().await;
    let (snapshot, tries) = (tight(), number("NAP_TRIES", TRIES));
    let (mut made, mut successes) = (0, 0);
    while made < tries && successes <= tries / 2 {
        let (_, nominated) = with_and_without_nomination(&bench, &snapshot).await;
        made += 1;
        successes += usize::from(nominated.more == UsdPerHour::ZERO);
    }
    assert!(successes > tries / 2, "only {successes} of {made} tries succeeded");
}

/// The incumbent's mix, most of whose pods have rules about zones and hosts. The scheduler's order
/// leaves some planned pods unbound, but the result is cheaper than without nomination.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
async fn nomination_makes_the_incumbents_mix_cheaper() {
    let bench = Bench::start().await;
    let snapshot =
        nap_problem::generate::incumbent_mix(number("NAP_PODS", 100), 1).snapshot().unwrap();
    let (mut more_without, mut more_with) = (UsdPerHour::ZERO, UsdPerHour::ZERO);
    for _ in 0..number("NAP_TRIES", TRIES) {
        let (plain, nominated) = with_and_without_nomination(&bench, &snapshot).await;
        more_without += plain.more;
        more_with += nominated.more;
    }
    assert!(more_with < more_without, "{more_with}/h more with nomination, {more_without} without");
}

/// Carries out the plan for all pods without and with nomination; in the end every pod is bound.
async fn with_and_without_nomination(bench: &Bench, snapshot: &Snapshot) -> (Outcome, Outcome) {
    let plan = solve(snapshot, &Options::default());
    assert!(plan.unplaced.is_empty());
    let plain = judge(bench, snapshot, &plan, Hint::None).await;
    let nominated = judge(bench, snapshot, &plan, Hint::Nominated).await;
    describe("plain", &plain);
    describe("nominated", &nominated);
    report("nominated", snapshot, &plan, &nominated);
    (plain, nominated)
}

fn describe(how: &str, outcome: &Outcome) {
    let (at_once, planned) = (outcome.at_once(), outcome.planned());
    let Outcome { cost, more, .. } = outcome;
    eprintln!(
        "{how}: {at_once} of {planned} planned pods bound on machines for {cost}/h; the rest for {more}/h more"
    );
    assert_eq!(outcome.bound(), planned);
}

/// A number from the environment.
fn number<T: std::str::FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Of a plan that ignores the attach limit, only as many pods are bound as the node can attach
/// volumes.
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
    for kind in snapshot.catalogues.values_mut().flat_map(|types| Arc::make_mut(types).edit()) {
        kind.allocatable.set(&disks, 2);
    }
    let outcome = judge(&bench, &snapshot, &careless, Hint::Nominated).await;
    assert_eq!((outcome.planned(), outcome.at_once()), (3, 2));
    let outcome =
        judge(&bench, &snapshot, &solve(&snapshot, &Options::default()), Hint::Nominated).await;
    assert_eq!((outcome.planned(), outcome.at_once()), (3, 3));
}

/// 20 pods of 7 CPUs and 120 of 0.6, and instance types that just fit one of the former or three of
/// the latter.
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
        closed: false,
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
            max_price: None,
        }],
        catalogues: BTreeMap::from([("all".to_owned(), Arc::new(types.into()))]),
        ..Snapshot::default()
    }
}
