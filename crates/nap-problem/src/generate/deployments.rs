//! Fixed workloads: the deployments of the incumbent's performance suite, and Cluster Autoscaler's
//! packing case.

use crate::{Amounts, InstanceType, Offering, PodClass, TopologySpreadConstraint};
use nap_api::labels;

use super::mixes::{selector, term};
use super::{class, requests};

/// A case of the performance suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Case {
    /// 500 small and 500 large pods.
    Basic,
    /// 500 small pods spread over hosts and 500 large pods.
    HostSpread,
    /// 1,000 small pods spread over hosts and 1,000 large pods.
    HostSpreadXl,
    /// host-spread and 100 pods that must not be disrupted.
    DoNotDisrupt,
    /// 300 small pods spread over hosts and 300 large pods.
    Drift,
    /// 500 small and 500 large pods, each kind at most once per host.
    Interference,
    /// 30 Deployments of 30 shapes, all spread over zones.
    Wide,
}

/// Milli-cores and MiB of the deployments of [`Case::Wide`].
const WIDE: [(i64, i64); 30] = [
    (240, 300),
    (450, 400),
    (650, 700),
    (900, 1024),
    (1400, 2048),
    (1900, 4096),
    (2400, 8192),
    (2800, 4096),
    (3300, 16_384),
    (3700, 10_240),
    (2300, 65_536),
    (900, 30_720),
    (1300, 32_768),
    (2800, 32_768),
    (1800, 30_720),
    (1850, 20_480),
    (3300, 30_720),
    (3800, 300),
    (225, 500),
    (450, 750),
    (700, 1024),
    (900, 2048),
    (1300, 4096),
    (1800, 8192),
    (2400, 16_384),
    (2800, 32_768),
    (3400, 28_672),
    (3800, 65_536),
    (3300, 13_312),
    (2800, 24_576),
];

const SMALL: (i64, i64) = (900, 3100);
const LARGE: (i64, i64) = (3500, 28 * 1024);

fn deployment(name: &str, replicas: usize, (cpu, memory): (i64, i64)) -> PodClass {
    let mut made = class(name, replicas, requests(cpu, memory));
    made.labels.insert("app".to_owned(), name.to_owned());
    made
}

fn spread(mut class: PodClass, key: &str) -> PodClass {
    class.topology_spread.push(TopologySpreadConstraint {
        max_skew: 1,
        topology_key: key.to_owned(),
        when_unsatisfiable: "DoNotSchedule".to_owned(),
        label_selector: Some(selector("app", &class.name)),
        ..TopologySpreadConstraint::default()
    });
    class
}

fn apart(mut class: PodClass) -> PodClass {
    class.pod_anti_affinity.push(term(labels::HOSTNAME, "app", &class.name));
    class
}

/// The pods of a case at full scale.
pub fn deployments(case: Case) -> Vec<PodClass> {
    let small = |replicas| deployment("small-resource-app", replicas, SMALL);
    let large = |replicas| deployment("large-resource-app", replicas, LARGE);
    match case {
        Case::Basic => vec![small(500), large(500)],
        Case::HostSpread => vec![spread(small(500), labels::HOSTNAME), large(500)],
        Case::HostSpreadXl => vec![spread(small(1000), labels::HOSTNAME), large(1000)],
        Case::DoNotDisrupt => vec![
            spread(small(500), labels::HOSTNAME),
            large(500),
            deployment("do-not-disrupt-app", 100, (900, 450)),
        ],
        Case::Drift => vec![spread(small(300), labels::HOSTNAME), large(300)],
        Case::Interference => vec![apart(small(500)), apart(large(500))],
        Case::Wide => WIDE.iter().enumerate().map(|(index, shape)| wide(index, *shape)).collect(),
    }
}

/// Spread over zones; the first three with anti-affinity by host, the next three spread over hosts.
fn wide(index: usize, shape: (i64, i64)) -> PodClass {
    let replicas = if index < 20 { 35 } else { 30 };
    let made = spread(
        deployment(&format!("wide-deployment-{}", index + 1), replicas, shape),
        labels::ZONE,
    );
    match index {
        0..3 => apart(made),
        3..6 => spread(made, labels::HOSTNAME),
        _ => made,
    }
}

/// The only instance type of [`golden`].
pub fn golden_type() -> InstanceType {
    InstanceType {
        name: "node".to_owned(),
        arch: "amd64".to_owned(),
        os: vec!["linux".to_owned()],
        capacity: Amounts { cpu_milli: 1000, memory_bytes: 5000, pods: 100, ..Amounts::default() },
        offerings: vec![Offering {
            zone: "zone".to_owned(),
            capacity_type: "on-demand".to_owned(),
            price_usd_per_hour: 1.0,
            available: true,
        }],
        ..InstanceType::default()
    }
}

/// Cluster Autoscaler's packing case: 50,000 small pods and 1,000 of about twice the size, which
/// need exactly 2,595 nodes.
pub fn golden() -> Vec<PodClass> {
    let amounts =
        |cpu_milli, memory_bytes| Amounts { cpu_milli, memory_bytes, ..Amounts::default() };
    vec![class("small", 50_000, amounts(50, 100)), class("large", 1_000, amounts(95, 190))]
}
