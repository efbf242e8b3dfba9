//! A fixed node pool, as every AKS cluster has one: VMs that nap does not manage.

use std::collections::BTreeMap;
use std::time::Duration;

use nap_api::labels;
use nap_azure::embedded::EmbeddedCatalogue;
use nap_kubelets::VmEvent;
use nap_units::{CPU, EPHEMERAL_STORAGE, MEMORY, PODS, Resources};

use crate::azure::SUBSCRIPTION;
use crate::azure::node::{EVICTION_THRESHOLD, reserved_cpu, reserved_memory, whole_kib};

/// Name of the pool.
const POOL: &str = "system";
/// Size of its VMs, if the region sells it.
const SIZE: &str = "Standard_D4s_v5";
const VCPUS: i64 = 4;
const MEMORY_GIB: f64 = 16.0;
const ZONES: u32 = 3;

/// The VMs of a fixed pool of this many nodes, over the zones of a region. They join at once.
pub(crate) fn machines(count: u32, region: &str) -> Vec<VmEvent> {
    (0..count).map(|number| machine(number, region)).collect()
}

#[expect(clippy::cast_possible_truncation, reason = "16 GiB is far below 2^53 bytes")]
fn machine(number: u32, region: &str) -> VmEvent {
    let set = format!("aks-{POOL}-12345678-vmss");
    let name = format!("{set}{number:06}");
    let zonal =
        EmbeddedCatalogue::embedded().region(region).is_ok_and(|region| !region.zones.is_empty());
    let zone = if zonal { format!("{region}-{}", number % ZONES + 1) } else { "0".to_owned() };
    let given = [
        (labels::HOSTNAME, name.as_str()),
        (labels::INSTANCE_TYPE, SIZE),
        (labels::ZONE, &zone),
        ("topology.disk.csi.azure.com/zone", &zone),
        (labels::REGION, region),
        (labels::ARCH, "amd64"),
        (labels::OS, "linux"),
        ("agentpool", POOL),
        ("kubernetes.azure.com/agentpool", POOL),
        ("kubernetes.azure.com/role", "agent"),
        (labels::AKS_MODE, "system"),
    ];
    let labels: BTreeMap<String, String> =
        given.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let memory = whole_kib((MEMORY_GIB * 0.95 * f64::from(1 << 30)) as i64);
    let capacity = Resources::new()
        .with(CPU, VCPUS * 1000)
        .with(MEMORY, memory)
        .with(EPHEMERAL_STORAGE, 128_000_000_000)
        .with(PODS, 110);
    let mut allocatable = capacity.clone();
    allocatable.set(CPU, VCPUS * 1000 - reserved_cpu(VCPUS));
    allocatable.set(MEMORY, memory - reserved_memory(MEMORY_GIB) - EVICTION_THRESHOLD);
    VmEvent::Created {
        provider_id: format!(
            "azure:///subscriptions/{SUBSCRIPTION}/resourceGroups/MC_nap/providers/\
             Microsoft.Compute/virtualMachineScaleSets/{set}/virtualMachines/{number}"
        ),
        node_name: name,
        labels,
        taints: Vec::new(),
        capacity,
        allocatable,
        boot: Duration::ZERO,
    }
}
