//! The Node of a VM: labels, taints and resources that AKS and the kubelet give it.
//!
//! The capacity differs from the provider's prediction on purpose: real VMs have a little more
//! memory than the estimate, and the controllers must cope with the difference.

use std::collections::BTreeMap;

use nap_api::{Effect, Taint, labels};
use nap_azure::instance_types::cluster_label;
use nap_azure::{EVICTION_THRESHOLD, kube_reserved_cpu_milli, kube_reserved_memory};
use nap_engine::CapacityType;
use nap_units::{CPU, EPHEMERAL_STORAGE, MEMORY, PODS, Resources};
use serde_json::Value;

use super::EmulatorConfig;
use super::state::MachineRecord;

/// Labels that AKS and the kubelet give the Node.
pub(crate) fn node_labels(
    config: &EmulatorConfig,
    machine: &MachineRecord,
) -> BTreeMap<String, String> {
    let sku = &machine.sku;
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
    let (cpu, memory) = (sku.vcpus.to_string(), sku.memory_mib().to_string());
    let mode = text("/mode").to_lowercase();
    for (key, value) in [
        (labels::HOSTNAME, machine.vm_name.as_str()),
        (labels::INSTANCE_TYPE, &sku.name),
        ("beta.kubernetes.io/instance-type", &sku.name),
        (labels::ZONE, &machine.zone_label),
        (labels::REGION, &config.region),
        (labels::ARCH, &sku.arch),
        ("beta.kubernetes.io/arch", &sku.arch),
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
    let sku = &machine.sku;
    let number = |pointer: &str| machine.properties.pointer(pointer).and_then(Value::as_i64);
    // Kernel and firmware use about 5 % of the memory.
    let memory = (sku.memory_gib * 0.95 * f64::from(1 << 30)) as i64;
    let mut capacity = Resources::new()
        .with(CPU, sku.vcpus * 1000)
        .with(MEMORY, memory)
        .with(
            EPHEMERAL_STORAGE,
            number("/operatingSystem/osDiskSizeGB").unwrap_or(128) * 1_000_000_000,
        )
        .with(PODS, number("/kubernetes/maxPods").unwrap_or(config.max_pods));
    if let Some(gpu) = sku.gpu
        && sku.gpus > 0
    {
        capacity.set(format!("{}.com/gpu", gpu.manufacturer), sku.gpus);
    }
    let mut allocatable = capacity.clone();
    allocatable.set(CPU, capacity.get(CPU) - kube_reserved_cpu_milli(sku.vcpus));
    let reserved = kube_reserved_memory(sku.memory_gib) + EVICTION_THRESHOLD;
    allocatable.set(MEMORY, (memory - reserved).max(0));
    (capacity, allocatable)
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
}
