//! The Node of a VM: labels, taints and resources that AKS and the kubelet give it.
//!
//! The capacity differs from the provider's prediction on purpose: real VMs have a little more
//! memory than the estimate, and the controllers must cope with the difference.

use std::collections::BTreeMap;

use nap_api::{Effect, Taint, labels};
use nap_engine::CapacityType;
use nap_units::{CPU, EPHEMERAL_STORAGE, MEMORY, PODS, Resources};
use serde_json::Value;

use super::EmulatorConfig;
use super::state::MachineRecord;

/// Free memory below which the kubelet evicts pods, in bytes.
pub(crate) const EVICTION_THRESHOLD: i64 = 750 * 1024 * 1024;

/// Labels that AKS and the kubelet give the Node.
pub(crate) fn node_labels(
    config: &EmulatorConfig,
    machine: &MachineRecord,
) -> BTreeMap<String, String> {
    let size = &machine.size;
    let given = machine.properties.pointer("/kubernetes/nodeLabels").and_then(Value::as_object);
    let mut all: BTreeMap<String, String> = given
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect();
    let text = |pointer: &str| {
        machine.properties.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    };
    let priority = if machine.capacity_type == CapacityType::Spot { "spot" } else { "regular" };
    let os_sku =
        if text("/operatingSystem/osSKU") == "AzureLinux" { "AzureLinux" } else { "Ubuntu" };
    let cluster = cluster_label(&config.node_resource_group);
    let (cpu, memory) = (size.vcpus.to_string(), memory_mib(size.memory_gib).to_string());
    let mode = text("/mode").to_lowercase();
    for (key, value) in [
        (labels::HOSTNAME, machine.vm_name.as_str()),
        (labels::INSTANCE_TYPE, &size.name),
        ("beta.kubernetes.io/instance-type", &size.name),
        (labels::ZONE, &machine.zone_label),
        ("topology.disk.csi.azure.com/zone", &machine.zone_label),
        (labels::REGION, &config.region),
        (labels::ARCH, size.arch),
        ("beta.kubernetes.io/arch", size.arch),
        (labels::OS, "linux"),
        ("beta.kubernetes.io/os", "linux"),
        ("agentpool", &config.agent_pool),
        ("kubernetes.azure.com/agentpool", &config.agent_pool),
        ("kubernetes.azure.com/role", "agent"),
        ("kubernetes.azure.com/node-image-version", text("/nodeImageVersion")),
        (labels::AKS_MODE, &mode),
        (labels::AKS_CLUSTER, &cluster),
        (labels::AKS_OS_SKU, os_sku),
        (labels::AKS_SCALE_SET_PRIORITY, priority),
        (labels::AKS_PRIORITY, priority),
        (labels::AKS_SKU_CPU, &cpu),
        (labels::AKS_SKU_MEMORY, &memory),
    ] {
        all.insert(key.to_owned(), value.to_owned());
    }
    all
}

/// Taints that the Node registers with; `None` if one is malformed.
pub(crate) fn node_taints(properties: &Value) -> Option<Vec<Taint>> {
    let list = |pointer: &str| {
        properties.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
    };
    let both =
        list("/kubernetes/nodeInitializationTaints").iter().chain(list("/kubernetes/nodeTaints"));
    both.map(|text| parse_taint(text.as_str()?)).collect()
}

fn parse_taint(text: &str) -> Option<Taint> {
    let (name, effect) = text.rsplit_once(':')?;
    let effect = [Effect::NoSchedule, Effect::PreferNoSchedule, Effect::NoExecute]
        .into_iter()
        .find(|known| known.as_str() == effect)?;
    let (key, value) = name.split_once('=').unwrap_or((name, ""));
    (!key.is_empty()).then(|| Taint { key: key.to_owned(), value: value.to_owned(), effect })
}

/// `status.capacity` and `status.allocatable` of the Node.
#[expect(clippy::cast_possible_truncation, reason = "memory sizes are far below 2^53 bytes")]
pub(crate) fn node_resources(
    config: &EmulatorConfig,
    machine: &MachineRecord,
) -> (Resources, Resources) {
    let size = &machine.size;
    let number = |pointer: &str| machine.properties.pointer(pointer).and_then(Value::as_i64);
    // Kernel and firmware use about 5 % of the memory.
    let memory = whole_kib((size.memory_gib * 0.95 * f64::from(1 << 30)) as i64);
    let mut capacity = Resources::new()
        .with(CPU, size.vcpus * 1000)
        .with(MEMORY, memory)
        .with(
            EPHEMERAL_STORAGE,
            number("/operatingSystem/osDiskSizeGB").unwrap_or(128) * 1_000_000_000,
        )
        .with(PODS, number("/kubernetes/maxPods").unwrap_or(config.max_pods));
    if let Some(vendor) = size.gpu_vendor
        && size.gpus > 0
    {
        capacity.set(format!("{vendor}.com/gpu"), size.gpus);
    }
    let mut allocatable = capacity.clone();
    allocatable.set(CPU, capacity.get(CPU) - reserved_cpu(size.vcpus));
    let reserved = reserved_memory(size.memory_gib) + EVICTION_THRESHOLD;
    allocatable.set(MEMORY, (memory - reserved).max(0));
    (capacity, allocatable)
}

/// Memory as a kubelet reports it, in whole KiB.
pub(crate) fn whole_kib(bytes: i64) -> i64 {
    bytes / 1024 * 1024
}

/// Memory in whole MiB, as the label has it.
#[expect(clippy::cast_possible_truncation, reason = "memory sizes are far below 2^53 MiB")]
fn memory_mib(gib: f64) -> i64 {
    (gib * 1024.0).floor() as i64
}

/// CPU that AKS reserves, in milli-cores: shares of the first, the second, two more and the other
/// cores.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "vCPU counts are small"
)]
pub(crate) fn reserved_cpu(vcpus: i64) -> i64 {
    let cores = vcpus as f64;
    let share = 0.06 * cores.min(1.0)
        + 0.04 * (cores.min(2.0) - 1.0).max(0.0)
        + 0.02 * (cores.min(4.0) - 2.0).max(0.0)
        + 0.01 * (cores - 4.0).max(0.0);
    (share * 1000.0) as i64
}

/// Memory that AKS reserves, in bytes: whole MiB of shares that fall with the size.
pub(crate) fn reserved_memory(gib: f64) -> i64 {
    let between = |low: f64, high: f64| (gib.min(high) - low).max(0.0);
    let reserved = 0.25 * between(0.0, 4.0)
        + 0.20 * between(4.0, 8.0)
        + 0.10 * between(8.0, 16.0)
        + 0.06 * between(16.0, 128.0)
        + 0.02 * between(128.0, f64::MAX);
    memory_mib(reserved) * 1024 * 1024
}

/// Name of the resource group as the value of the cluster label: valid characters, at most 63, and
/// a letter or digit at the end.
fn cluster_label(group: &str) -> String {
    let valid = |char: char| if matches!(char, '(' | ')') { '-' } else { char };
    let mut label: String = group.chars().take(63).map(valid).collect();
    if label.ends_with(|last: char| !last.is_ascii_alphanumeric()) {
        if label.chars().count() == 63 {
            label.pop();
        }
        label.push('z');
    }
    label
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn taints_are_read_as_they_are_written() {
        let properties = json!({ "kubernetes": {
            "nodeInitializationTaints": ["a=b:NoSchedule", "karpenter.sh/unregistered:NoExecute"], "nodeTaints": [],
        }});
        let taints = node_taints(&properties).unwrap();
        assert_eq!(
            taints[0],
            Taint { key: "a".into(), value: "b".into(), effect: Effect::NoSchedule }
        );
        assert_eq!(taints[1], Taint::new("karpenter.sh/unregistered", Effect::NoExecute));
        for bad in ["a", "a:Never", ":NoExecute"] {
            assert_eq!(
                node_taints(&json!({ "kubernetes": { "nodeTaints": [bad] } })),
                None,
                "{bad}"
            );
        }
    }

    #[test]
    fn reservations_are_those_that_aks_documents() {
        for (vcpus, gib, milli, mib) in [
            (2, 8.0, 100, 1843),
            (4, 16.0, 140, 2662),
            (8, 32.0, 180, 3645),
            (64, 256.0, 740, 12165),
        ] {
            assert_eq!((reserved_cpu(vcpus), reserved_memory(gib)), (milli, mib << 20), "{vcpus}");
        }
    }
}
