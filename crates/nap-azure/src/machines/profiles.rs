//! Profiles of a machine that come from its node class: kubelet, operating system, local DNS.

use nap_api::aksnodeclass::{
    KubeletConfiguration, LinuxOsConfiguration, LocalDns, LocalDnsZone, SysctlConfiguration,
};
use nap_api::duration::parse_go_duration;
use nap_units::{Quantity, Rounding};
use serde_json::{Map, Value, json};

/// `kubeletConfig` of a machine.
pub(super) fn kubelet_config(kubelet: &KubeletConfiguration) -> Value {
    let period = kubelet.cpu_cfs_quota_period.as_ref();
    let pids = kubelet.pod_pids_limit.map(|limit| match i32::try_from(limit) {
        _ if limit < 0 => -1,
        Ok(limit) => limit,
        Err(_) => i32::MAX,
    });
    present([
        ("cpuManagerPolicy", kubelet.cpu_manager_policy.map(|it| it.as_str().into())),
        ("cpuCfsQuota", kubelet.cpu_cfs_quota.map(Value::from)),
        ("cpuCfsQuotaPeriod", period.filter(|text| !is_zero(text)).map(|text| json!(text))),
        ("imageGcHighThreshold", kubelet.image_gc_high_threshold_percent.map(Value::from)),
        ("imageGcLowThreshold", kubelet.image_gc_low_threshold_percent.map(Value::from)),
        ("topologyManagerPolicy", kubelet.topology_manager_policy.map(|it| it.as_str().into())),
        ("allowedUnsafeSysctls", kubelet.allowed_unsafe_sysctls.as_ref().map(|it| json!(it))),
        ("containerLogMaxSizeMB", mebibytes(kubelet.container_log_max_size.as_deref())),
        ("containerLogMaxFiles", kubelet.container_log_max_files.map(Value::from)),
        ("podMaxPids", pids.map(Value::from)),
        ("failSwapOn", kubelet.fail_swap_on.map(Value::from)),
    ])
}

/// `linuxOSConfig` of a machine.
pub(super) fn linux_os_config(linux: &LinuxOsConfiguration) -> Value {
    let enabled = linux.transparent_huge_page_enabled.map(|it| it.as_str().into());
    let defrag = linux.transparent_huge_page_defrag.map(|it| it.as_str().into());
    present([
        ("swapFileSizeMB", mebibytes(linux.swap_file_size.as_deref())),
        ("sysctls", linux.sysctls.as_ref().map(sysctls)),
        ("transparentHugePageEnabled", enabled),
        ("transparentHugePageDefrag", defrag),
    ])
}

/// Sysctls by the names of AKS, which differ from those of the node class in the case of some
/// letters.
fn sysctls(sysctls: &SysctlConfiguration) -> Value {
    let Ok(Value::Object(given)) = serde_json::to_value(sysctls) else { return json!({}) };
    let name = |name: String| match name.as_str() {
        "netIPv4TCPKeepaliveIntvl" => "netIpv4TcpkeepaliveIntvl".to_owned(),
        _ => name.replace("IPv4TCP", "Ipv4Tcp").replace("IPv4IP", "Ipv4Ip").replace("IPv4", "Ipv4"),
    };
    Value::Object(given.into_iter().map(|(key, value)| (name(key), value)).collect())
}

/// `localDNSProfile` of a machine. AKS is told the outcome, never `Preferred`.
pub(super) fn local_dns_profile(dns: &LocalDns, enabled: bool) -> Value {
    json!({
        "mode": if enabled { "Required" } else { "Disabled" },
        "vnetDNSOverrides": zones(&dns.vnet_dns_overrides),
        "kubeDNSOverrides": zones(&dns.kube_dns_overrides),
    })
}

fn zones(zones: &[LocalDnsZone]) -> Value {
    let zone = |it: &LocalDnsZone| {
        let overrides = present([
            ("queryLogging", Some(it.query_logging.as_str().into())),
            ("protocol", Some(it.protocol.as_str().into())),
            ("forwardDestination", Some(it.forward_destination.as_str().into())),
            ("forwardPolicy", Some(it.forward_policy.as_str().into())),
            ("maxConcurrent", Some(it.max_concurrent.into())),
            ("cacheDurationInSeconds", it.cache_duration.get().map(|it| it.as_secs().into())),
            (
                "serveStaleDurationInSeconds",
                it.serve_stale_duration.get().map(|it| it.as_secs().into()),
            ),
            ("serveStale", Some(it.serve_stale.as_str().into())),
        ]);
        (it.zone.clone(), overrides)
    };
    Value::Object(zones.iter().map(zone).collect())
}

/// An object of the members that have a value.
fn present<const N: usize>(members: [(&str, Option<Value>); N]) -> Value {
    let given = members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(given.collect::<Map<_, _>>())
}

/// A quantity in MiB, rounded to the nearest; `None` without one.
fn mebibytes(quantity: Option<&str>) -> Option<Value> {
    let bytes = quantity?.parse::<Quantity>().ok()?.to_units(Rounding::Up);
    Some((bytes.saturating_add(1 << 19) >> 20).into())
}

fn is_zero(duration: &str) -> bool {
    parse_go_duration(duration).is_some_and(|duration| duration.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sysctl_has_the_name_of_the_machines_api() {
        let given = json!({
            "fsAioMaxNr": 65536, "fsFileMax": 8192, "fsInotifyMaxUserWatches": 781_250,
            "fsNrOpen": 8192, "kernelThreadsMax": 20, "netCoreNetdevMaxBacklog": 1000,
            "netCoreOptmemMax": 20480, "netCoreRmemDefault": 212_992, "netCoreRmemMax": 212_992,
            "netCoreSomaxconn": 4096, "netCoreWmemDefault": 212_992, "netCoreWmemMax": 212_992,
            "netIPv4IPLocalPortRange": "32768 60999", "netIPv4NeighDefaultGcThresh1": 128,
            "netIPv4NeighDefaultGcThresh2": 512, "netIPv4NeighDefaultGcThresh3": 1024,
            "netIPv4TCPFinTimeout": 5, "netIPv4TCPKeepaliveProbes": 1,
            "netIPv4TCPKeepaliveTime": 30, "netIPv4TCPMaxSynBacklog": 128,
            "netIPv4TCPMaxTwBuckets": 8000, "netIPv4TCPTwReuse": true,
            "netIPv4TCPKeepaliveIntvl": 10, "netNetfilterNfConntrackBuckets": 65536,
            "netNetfilterNfConntrackMax": 131_072, "vmMaxMapCount": 65530, "vmSwappiness": 0,
            "vmVfsCachePressure": 0,
        });
        let expected = [
            "fsAioMaxNr",
            "fsFileMax",
            "fsInotifyMaxUserWatches",
            "fsNrOpen",
            "kernelThreadsMax",
            "netCoreNetdevMaxBacklog",
            "netCoreOptmemMax",
            "netCoreRmemDefault",
            "netCoreRmemMax",
            "netCoreSomaxconn",
            "netCoreWmemDefault",
            "netCoreWmemMax",
            "netIpv4IpLocalPortRange",
            "netIpv4NeighDefaultGcThresh1",
            "netIpv4NeighDefaultGcThresh2",
            "netIpv4NeighDefaultGcThresh3",
            "netIpv4TcpFinTimeout",
            "netIpv4TcpKeepaliveProbes",
            "netIpv4TcpKeepaliveTime",
            "netIpv4TcpMaxSynBacklog",
            "netIpv4TcpMaxTwBuckets",
            "netIpv4TcpTwReuse",
            "netIpv4TcpkeepaliveIntvl",
            "netNetfilterNfConntrackBuckets",
            "netNetfilterNfConntrackMax",
            "vmMaxMapCount",
            "vmSwappiness",
            "vmVfsCachePressure",
        ];
        let made = sysctls(&serde_json::from_value(given).unwrap());
        let names: Vec<&String> = made.as_object().unwrap().keys().collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn limits_and_sizes_fit_the_types_of_the_api() {
        let config = |kubelet: Value| kubelet_config(&serde_json::from_value(kubelet).unwrap());
        for (limit, expected) in [(4096, 4096), (-5, -1), (1_i64 << 40, i64::from(i32::MAX))] {
            assert_eq!(config(json!({ "podPidsLimit": limit }))["podMaxPids"], expected);
        }
        for (size, expected) in [("50Mi", 50), ("1500M", 1431), ("1Ki", 0), ("600Ki", 1)] {
            let made = config(json!({ "containerLogMaxSize": size }));
            assert_eq!(made["containerLogMaxSizeMB"], expected, "{size}");
        }
        assert!(config(json!({ "cpuCFSQuotaPeriod": "0s" })).get("cpuCfsQuotaPeriod").is_none());
    }
}
