//! How close plans come to their lower bound where the pods may not all use the same nodes.

use std::collections::BTreeMap;

use nap_api::{Operator, labels};
use nap_engine::{
    CapacityType, Namespaces, Options, Pod, PodTerm, Selector, Snapshot, Spread, solve,
};

use crate::build::{catalogue, instance_type, offering, pods, pool, snapshot, wants};

fn gap(snapshot: &Snapshot) -> f64 {
    let plan = solve(snapshot, &Options::default());
    assert!(plan.unplaced.is_empty(), "{:?}", plan.unplaced);
    plan.gap_percent().expect("a bound")
}

fn labelled(app: &str, mut pods: Vec<Pod>) -> Vec<Pod> {
    for pod in &mut pods {
        pod.labels = BTreeMap::from([("app".to_owned(), app.to_owned())]);
    }
    pods
}

#[test]
fn pods_that_must_be_on_demand_are_not_priced_as_spot() {
    let mut types = catalogue();
    for one in &mut types {
        let price = one.offerings[0].price.micros() / 10;
        one.offerings.push(offering("z-1", CapacityType::Spot, price));
    }
    let mut all = pods("spot", 30, 1000, 3);
    let mut on_demand = pods("on-demand", 30, 1000, 3);
    for pod in &mut on_demand {
        pod.terms = vec![wants(&[(labels::CAPACITY_TYPE, Operator::In, &["on-demand"])])];
    }
    all.extend(on_demand);
    // Priced as spot, the on-demand half alone would be 900 % above the bound.
    let gap = gap(&snapshot(all, types, vec![pool("a")]));
    assert!(gap < 1.0, "{gap} % above the bound");
}

#[test]
fn three_pods_in_three_zones_need_three_nodes() {
    let mut all = labelled("db", pods("db", 3, 2500, 8));
    for pod in &mut all {
        pod.anti_affinity = vec![PodTerm {
            topology_key: labels::ZONE.to_owned(),
            selector: Selector::label("app", "db"),
            namespaces: Namespaces::only("default"),
        }];
    }
    let gap = gap(&snapshot(all, catalogue(), vec![pool("a")]));
    assert!(gap < 0.1, "{gap} % above the bound");
}

#[test]
fn plans_with_some_spread_pods_come_close_to_the_bound() {
    // 18 workloads of odd sizes, every sixth spread over the zones.
    let mut all = Vec::new();
    for number in 0..18_i64 {
        let (cpu, gib) = (130 + 290 * (number * 7 % 11), 1 + number * 5 % 9);
        let (name, count) = (format!("w{number}"), 20 + usize::try_from(number * 13 % 60).unwrap());
        let mut workload = labelled(&name, pods(&name, count, cpu, gib));
        if number % 6 == 0 {
            for pod in &mut workload {
                pod.spread = vec![Spread {
                    topology_key: labels::ZONE.to_owned(),
                    max_skew: 1,
                    min_domains: None,
                    selector: Selector::label("app", &name),
                    honor_affinity: true,
                    honor_taints: false,
                }];
            }
        }
        all.extend(workload);
    }
    let mut types = catalogue();
    types.truncate(4);
    types.extend([instance_type("f4", 4, 8, 169_000), instance_type("f16", 16, 32, 676_000)]);
    let gap = gap(&snapshot(all, types, vec![pool("a")]));
    assert!(gap < 4.0, "{gap} % above the bound");
}
