//! The pods of the incumbent's scheduling benchmark: five equal parts, of which all but the first
//! depend on other pods.

use std::collections::BTreeMap;

use crate::{LabelSelector, PodAffinityTerm, PodClass, TopologySpreadConstraint};
use nap_api::labels;
use rand::RngExt as _;
use rand_pcg::Pcg64Mcg;

use super::{class, requests};

const LABEL: &str = "my-label";
/// Misspelled in the incumbent's source too.
const AFFINITY_LABEL: &str = "my-affininity";
const VALUES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];
const CPUS: [i64; 5] = [100, 250, 500, 1000, 1500];
const MEMORIES: [i64; 6] = [100, 256, 512, 1024, 2048, 4096];

/// Classes by name; equal pods are one class.
#[derive(Default)]
struct Classes(BTreeMap<String, PodClass>);

impl Classes {
    /// Adds a pod with random requests; `dress` sets the rules of a new class.
    fn draw(&mut self, rng: &mut Pcg64Mcg, kind: &str, dress: impl Fn(&mut PodClass)) {
        let (cpu, memory) = shape(rng);
        let name = format!("{kind}-{cpu}m-{memory}mi");
        let entry = self.0.entry(name.clone()).or_insert_with(|| {
            let mut made = class(name, 0, requests(cpu, memory));
            dress(&mut made);
            made
        });
        entry.replicas += 1;
    }

    fn plain(&mut self, rng: &mut Pcg64Mcg) {
        let label = pick(rng, &VALUES);
        self.draw(rng, &format!("plain-{label}"), |class| set(class, LABEL, label));
    }

    fn spread(&mut self, rng: &mut Pcg64Mcg, name: &str, key: &str) {
        let (label, counted) = (pick(rng, &VALUES), pick(rng, &VALUES));
        self.draw(rng, &format!("{name}-{label}-{counted}"), |class| {
            set(class, LABEL, label);
            class.topology_spread.push(TopologySpreadConstraint {
                max_skew: 1,
                topology_key: key.to_owned(),
                when_unsatisfiable: "DoNotSchedule".to_owned(),
                label_selector: Some(selector(LABEL, counted)),
                ..TopologySpreadConstraint::default()
            });
        });
    }

    fn list(self) -> Vec<PodClass> {
        self.0.into_values().collect()
    }
}

fn pick<T: Copy>(rng: &mut Pcg64Mcg, list: &[T]) -> T {
    list[rng.random_range(0..list.len())]
}

/// Random requests: milli-cores and MiB.
pub(super) fn shape(rng: &mut Pcg64Mcg) -> (i64, i64) {
    (pick(rng, &CPUS), pick(rng, &MEMORIES))
}

fn set(class: &mut PodClass, key: &str, value: &str) {
    class.labels.insert(key.to_owned(), value.to_owned());
}

pub(super) fn selector(key: &str, value: &str) -> LabelSelector {
    let match_labels = BTreeMap::from([(key.to_owned(), value.to_owned())]);
    LabelSelector { match_labels, ..LabelSelector::default() }
}

/// An affinity term that selects pods by one label.
pub(super) fn term(topology_key: &str, key: &str, value: &str) -> PodAffinityTerm {
    PodAffinityTerm {
        label_selector: Some(selector(key, value)),
        topology_key: topology_key.to_owned(),
        ..PodAffinityTerm::default()
    }
}

/// A fifth each: plain, spread over zones, spread over hosts, affinity to a zone, and
/// anti-affinity by host; plain takes the remainder.
pub fn mix(rng: &mut Pcg64Mcg, pods: usize) -> Vec<PodClass> {
    let part = pods / 5;
    let mut classes = Classes::default();
    for _ in 0..pods - 4 * part {
        classes.plain(rng);
    }
    for _ in 0..part {
        classes.spread(rng, "zone-spread", labels::ZONE);
    }
    for _ in 0..part {
        classes.spread(rng, "host-spread", labels::HOSTNAME);
    }
    for _ in 0..part {
        let label = pick(rng, &VALUES);
        classes.draw(rng, &format!("zone-together-{label}"), |class| {
            set(class, AFFINITY_LABEL, label);
            class.pod_affinity.push(term(labels::ZONE, AFFINITY_LABEL, label));
        });
    }
    for _ in 0..part {
        classes.draw(rng, "host-apart", |class| {
            set(class, "app", "nginx");
            class.pod_anti_affinity.push(term(labels::HOSTNAME, "app", "nginx"));
        });
    }
    classes.list()
}

/// Pods without rules, of random requests.
pub fn plain(rng: &mut Pcg64Mcg, pods: usize) -> Vec<PodClass> {
    let mut classes = Classes::default();
    for _ in 0..pods {
        classes.plain(rng);
    }
    classes.list()
}

/// Equal pods of random requests. Their preferences are left out: the format has none.
pub fn preferences(rng: &mut Pcg64Mcg, pods: usize) -> Vec<PodClass> {
    let (cpu, memory) = shape(rng);
    let mut made = class("preferring", pods, requests(cpu, memory));
    set(&mut made, "app", "nginx");
    vec![made]
}
