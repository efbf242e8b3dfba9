//! Test fixture: an emulated cluster with its provider, and NodeClaims for it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use nap_api::nodeclaim::ResourceRequirements;
use nap_api::nodepool::NodeClassRef;
use nap_api::requirement::NodeSelectorRequirement;
use nap_api::{
    AKSNodeClass, AKSNodeClassStatus, NillableDuration, NodeClaim, NodeClaimSpec, Operator, labels,
};
use nap_azure::AzureProvider;
use nap_clock::Clock;
use nap_cloud::{CloudProvider, Instance};
use nap_kubelets::VmEvent;
use nap_sim::azure::{Emulator, EmulatorConfig};
use tokio::sync::mpsc;

pub struct World {
    pub clock: Clock,
    pub emulator: Emulator,
    pub events: mpsc::Receiver<VmEvent>,
    pub provider: AzureProvider,
    pub class: AKSNodeClass,
}

pub fn config(clock: &Clock) -> EmulatorConfig {
    EmulatorConfig::new("eastus", 7, clock.clone())
}

pub fn clock() -> Clock {
    let epoch: Timestamp = "2026-11-01T00:00:00Z".parse().unwrap();
    Clock::starting_at(epoch, 1)
}

impl World {
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut EmulatorConfig)) -> Self {
        let clock = clock();
        let mut config = config(&clock);
        change(&mut config);
        let (emulator, events) = Emulator::new(config).unwrap();
        let provider = emulator.provider();
        let class = ready(&provider, AKSNodeClass::default()).await;
        Self { clock, emulator, events, provider, class }
    }
}

/// The node class with the status that the controllers set.
pub async fn ready(provider: &AzureProvider, mut class: AKSNodeClass) -> AKSNodeClass {
    let report = provider.inspect_node_class(&class).await;
    assert_eq!(report.findings, BTreeMap::new());
    class.status = Some(AKSNodeClassStatus {
        images: report.images.unwrap(),
        kubernetes_version: report.kubernetes_version,
        ..AKSNodeClassStatus::default()
    });
    class
}

/// A NodeClaim of NodePool `default` with `In` requirements.
pub fn claim(name: &str, cpu: &str, requirements: &[(&str, &[&str])]) -> NodeClaim {
    let requirements = requirements
        .iter()
        .map(|(key, values)| NodeSelectorRequirement {
            key: (*key).to_owned(),
            operator: Operator::In,
            values: values.iter().map(|value| (*value).to_owned()).collect(),
            min_values: None,
        })
        .collect();
    let spec = NodeClaimSpec {
        taints: Vec::new(),
        startup_taints: Vec::new(),
        requirements,
        resources: ResourceRequirements {
            requests: [("cpu".to_owned(), cpu.parse().unwrap())].into(),
        },
        node_class_ref: NodeClassRef::aks("default"),
        termination_grace_period: None,
        expire_after: NillableDuration::never(),
    };
    let mut claim = NodeClaim::new(name, spec);
    claim.metadata.labels = Some([(labels::NODEPOOL.to_owned(), "default".to_owned())].into());
    claim
}

/// Requirements of AKS's default NodePool.
pub const DEFAULT_POOL: [(&str, &[&str]); 3] = [
    (labels::ARCH, &["amd64"]),
    (labels::CAPACITY_TYPE, &["on-demand"]),
    (labels::SKU_FAMILY, &["D"]),
];

/// A created instance as it is read later: only its creation names the operation and its request.
pub fn without_operation(mut instance: Instance) -> Instance {
    for key in [labels::AZURE_OPERATION, labels::AZURE_CORRELATION_ID] {
        assert!(instance.annotations.remove(key).is_some(), "{key}");
    }
    instance
}

/// Lets the VMs that are being created come to exist.
pub async fn until_created(clock: &Clock) {
    clock.sleep(Duration::from_mins(1)).await;
}
