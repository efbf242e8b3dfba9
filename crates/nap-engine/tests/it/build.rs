//! Builders of small snapshots.

use std::collections::BTreeMap;
use std::sync::Arc;

use nap_api::{Effect, Operator, Requirement, Requirements, Taint, Toleration, labels};
use nap_engine::{
    CapacityType, Daemon, InstanceType, Node, Offering, Plan, Pod, PodKey, Pool, Snapshot,
};
use nap_units::{CPU, MEMORY, PODS, Resources, UsdPerHour};

pub const GIB: i64 = 1 << 30;

/// Requests in milli-cores and GiB, with one `pods`.
pub fn asks(cpu: i64, gib: i64) -> Resources {
    Resources::new().with(CPU, cpu).with(MEMORY, gib * GIB).with(PODS, 1)
}

pub fn pod(name: &str, cpu: i64, gib: i64) -> Pod {
    Pod {
        key: PodKey::new("default", name),
        requests: asks(cpu, gib),
        terms: vec![Requirements::new()],
        ..Pod::default()
    }
}

pub fn pods(prefix: &str, count: usize, cpu: i64, gib: i64) -> Vec<Pod> {
    (0..count).map(|number| pod(&format!("{prefix}-{number:04}"), cpu, gib)).collect()
}

pub fn wants(items: &[(&str, Operator, &[&str])]) -> Requirements {
    let mut requirements = Requirements::new();
    for (key, operator, values) in items {
        requirements.add(key, Requirement::new(*operator, values.iter().copied()));
    }
    requirements
}

pub fn offering(zone: &str, capacity_type: CapacityType, micros: i64) -> Offering {
    Offering {
        zone: zone.to_owned(),
        capacity_type,
        price: UsdPerHour::from_micros(micros),
        available: true,
        requirements: Arc::new(wants(&[
            (labels::ZONE, Operator::In, &[zone]),
            (labels::CAPACITY_TYPE, Operator::In, &[capacity_type.as_str()]),
        ])),
    }
}

/// Instance type with these vCPUs and GiB, on demand in three zones, at a price in micro-dollars.
pub fn instance_type(name: &str, vcpu: i64, gib: i64, micros: i64) -> InstanceType {
    let capacity = Resources::new().with(CPU, vcpu * 1000).with(MEMORY, gib * GIB).with(PODS, 110);
    InstanceType {
        name: name.to_owned(),
        requirements: wants(&[
            (labels::INSTANCE_TYPE, Operator::In, &[name]),
            (labels::ARCH, Operator::In, &["amd64"]),
            (labels::SKU_CPU, Operator::In, &[&vcpu.to_string()]),
            (labels::SKU_GPU_NAME, Operator::DoesNotExist, &[]),
        ]),
        allocatable: capacity.clone(),
        capacity,
        offerings: ["z-1", "z-2", "z-3"]
            .map(|zone| offering(zone, CapacityType::OnDemand, micros))
            .to_vec(),
        closed: false,
    }
}

/// Sizes from 2 to 64 vCPUs with 4 GiB per vCPU and a price in proportion; the largest cost a
/// little more per vCPU.
pub fn catalogue() -> Vec<InstanceType> {
    [(2, 96_000), (4, 192_000), (8, 384_000), (16, 768_000), (32, 1_540_000), (64, 3_100_000)]
        .map(|(vcpu, micros)| instance_type(&format!("d{vcpu}"), vcpu, vcpu * 4, micros))
        .to_vec()
}

pub fn pool(name: &str) -> Pool {
    Pool {
        name: name.to_owned(),
        weight: 0,
        requirements: wants(&[(labels::NODEPOOL, Operator::In, &[name])]),
        taints: Vec::new(),
        headroom: Resources::new(),
        catalogue: "all".to_owned(),
        max_price: None,
    }
}

pub fn node(name: &str, cpu: i64, gib: i64) -> Node {
    Node {
        name: name.to_owned(),
        labels: [(labels::HOSTNAME, name), (labels::ZONE, "z-1")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        taints: Vec::new(),
        free: Resources::new().with(CPU, cpu).with(MEMORY, gib * GIB).with(PODS, 100),
        initialized: true,
        ..Node::default()
    }
}

pub fn daemon(name: &str, cpu: i64) -> Daemon {
    Daemon {
        name: name.to_owned(),
        requests: asks(cpu, 0),
        terms: vec![Requirements::new()],
        tolerations: vec![Toleration { exists: true, ..Toleration::default() }],
        ..Daemon::default()
    }
}

pub fn snapshot(pods: Vec<Pod>, types: Vec<InstanceType>, pools: Vec<Pool>) -> Snapshot {
    Snapshot {
        pods,
        nodes: Vec::new(),
        pools,
        daemons: Vec::new(),
        catalogues: BTreeMap::from([("all".to_owned(), Arc::new(types.into()))]),
        ..Snapshot::default()
    }
}

pub fn tainted(key: &str) -> Taint {
    Taint::new(key, Effect::NoSchedule)
}

/// `pool type zone price pods` of each launch, in order.
pub fn launches(plan: &Plan) -> Vec<String> {
    plan.launches
        .iter()
        .map(|launch| {
            format!(
                "{} {} {} {} {}",
                launch.pool,
                launch.instance_type,
                launch.zone,
                launch.price,
                launch.pods.len()
            )
        })
        .collect()
}
