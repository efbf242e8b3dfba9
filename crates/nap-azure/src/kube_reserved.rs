//! Resources that AKS reserves on a node, computed in the number types of AKS.
//!
//! The CPU reservation is summed in IEEE doubles bracket by bracket and truncated, as AKS
//! configures the kubelet; exact arithmetic would be one millicore off for every twentieth size.

/// Free memory below which the kubelet evicts pods, in bytes.
pub const EVICTION_THRESHOLD: i64 = 750 << 20;

/// CPU that AKS reserves for the system, in milli-cores.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "vCPU counts are small"
)]
pub fn kube_reserved_cpu_milli(vcpus: i64) -> i64 {
    let brackets =
        [(0.0, 1.0, 0.06), (1.0, 2.0, 0.04), (2.0, 4.0, 0.02), (4.0, f64::INFINITY, 0.01)];
    (1000.0 * progressive(vcpus as f64, &brackets)) as i64
}

/// Memory that AKS reserves for the system, in bytes.
#[expect(clippy::cast_possible_truncation, reason = "memory sizes are far below 2^53 MiB")]
pub fn kube_reserved_memory(gib: f64) -> i64 {
    let brackets = [
        (0.0, 4.0, 0.25),
        (4.0, 8.0, 0.20),
        (8.0, 16.0, 0.10),
        (16.0, 128.0, 0.06),
        (128.0, f64::INFINITY, 0.02),
    ];
    ((1024.0 * progressive(gib, &brackets)) as i64) << 20
}

/// Memory that the node reports, in bytes, for a nominal size and an overhead ratio. The fraction
/// of a GiB is dropped before the overhead, as AKS does.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "far below 2^53 bytes"
)]
pub(crate) fn memory_capacity(gib: f64, overhead: f64) -> i64 {
    let nominal = (gib.floor() as i64) << 30;
    nominal - (nominal as f64 * overhead).ceil() as i64
}

fn progressive(amount: f64, brackets: &[(f64, f64, f64)]) -> f64 {
    let mut tax = 0.0;
    for (low, high, rate) in brackets {
        if amount > *low {
            tax += (amount.min(*high) - low) * rate;
        }
    }
    tax
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_equal_those_of_aks() {
        for (vcpus, gib, cpu, memory_mib, capacity, allocatable) in [
            (2, 8.0, 100, 1843, 7_945_689_497, 5_226_731_929),
            (4, 16.0, 140, 2662, 15_891_378_995, 12_313_637_683),
            (8, 32.0, 180, 3645, 31_782_757_990, 27_174_266_470),
            (16, 64.0, 260, 5611, 63_565_515_980, 56_895_524_044),
            (64, 256.0, 740, 12165, 254_262_063_923, 240_719_704_883),
        ] {
            assert_eq!(kube_reserved_cpu_milli(vcpus), cpu, "{vcpus}");
            assert_eq!(kube_reserved_memory(gib), memory_mib << 20, "{gib}");
            assert_eq!(memory_capacity(gib, 0.075), capacity, "{gib}");
            assert_eq!(capacity - (memory_mib << 20) - EVICTION_THRESHOLD, allocatable);
        }
        assert_eq!(kube_reserved_cpu_milli(120), 1299);
        assert_eq!(kube_reserved_cpu_milli(176), 1859);
        assert_eq!(kube_reserved_memory(7.0), 1638 << 20);
    }
}
