//! Drift hashes of NodePool templates and AKSNodeClass specs, digit for digit those of the
//! incumbent.
//!
//! The incumbent hashes its Go structs by reflection, so the hash depends on Go's names of types
//! and fields and on the order in which they are declared. [`Value`] is what reflection would see,
//! and the tables below say it for our types. A field that is zero in Go is left out; a pointer to
//! a zero is not zero, and neither is a list or map that was written and is empty.

mod reflect;

use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) use reflect::Value;

use crate::aksnodeclass::{
    AKSNodeClassSpec, KubeletConfiguration, LinuxOsConfiguration, LocalDns, LocalDnsZone, Security,
};
use crate::duration::{NillableDuration, parse_go_duration};
use crate::nodepool::NodePoolSpec;
use crate::taints::Taint;

/// Version of the algorithm of [`nodepool_hash`].
pub const NODEPOOL_HASH_VERSION: &str = "v3";
/// Version of the algorithm of [`aks_node_class_hash`].
pub const AKS_NODE_CLASS_HASH_VERSION: &str = "v3";

/// Fields in the order of declaration.
type Fields = Vec<(&'static str, Option<Value>)>;

/// The hash of a NodePool's template without its requirements: what makes nodes drift when it
/// changes.
pub fn nodepool_hash(spec: &NodePoolSpec) -> String {
    let template = &spec.template;
    let empty = spec.written_empty;
    let labels = map(&template.metadata.labels, empty.labels);
    let annotations = map(&template.metadata.annotations, empty.annotations);
    let metadata = (labels.is_some() || annotations.is_some()).then(|| {
        Value::Struct("ObjectMeta", vec![("Labels", labels), ("Annotations", annotations)])
    });
    let reference = &template.spec.node_class_ref;
    let node_class_ref = Value::Struct(
        "NodeClassReference",
        vec![
            ("Kind", text(&reference.kind)),
            ("Name", text(&reference.name)),
            ("Group", text(&reference.group)),
        ],
    );
    let grace = template.spec.termination_grace_period.as_deref().and_then(parse_go_duration);
    let template_spec = Value::Struct(
        "NodeClaimTemplateSpec",
        vec![
            ("Taints", taints(&template.spec.taints, empty.taints)),
            ("StartupTaints", taints(&template.spec.startup_taints, empty.startup_taints)),
            ("NodeClassRef", Some(node_class_ref)),
            ("TerminationGracePeriod", grace.map(duration)),
            ("ExpireAfter", nillable(&template.spec.expire_after)),
        ],
    );
    let template = Value::Struct(
        "NodeClaimTemplate",
        vec![("ObjectMeta", metadata), ("Spec", Some(template_spec))],
    );
    template.hash().to_string()
}

/// The hash of an AKSNodeClass's spec without its tags: what makes nodes drift when it changes.
pub fn aks_node_class_hash(spec: &AKSNodeClassSpec) -> String {
    let fields: Fields = vec![
        ("VNETSubnetID", spec.vnet_subnet_id.clone().map(Value::Text)),
        ("OSDiskSizeGB", Some(Value::Int32(spec.os_disk_size_gb))),
        ("ImageFamily", Some(word(spec.image_family.as_str()))),
        ("FIPSMode", spec.fips_mode.map(|mode| word(mode.as_str()))),
        ("Kubelet", spec.kubelet.as_ref().map(kubelet)),
        ("MaxPods", spec.max_pods.map(Value::Int32)),
        ("Security", spec.security.as_ref().map(security)),
        ("LocalDNS", spec.local_dns.as_ref().map(local_dns)),
        (
            "GPU",
            spec.gpu.as_ref().map(|gpu| {
                Value::Struct("GPU", vec![("Mode", gpu.mode.map(|mode| word(mode.as_str())))])
            }),
        ),
        (
            "ArtifactStreaming",
            spec.artifact_streaming.as_ref().map(|streaming| {
                Value::Struct(
                    "ArtifactStreaming",
                    vec![("Enabled", streaming.enabled.map(Value::Bool))],
                )
            }),
        ),
        ("LinuxOSConfig", spec.linux_os_config.as_ref().map(linux)),
    ];
    Value::Struct("AKSNodeClassSpec", fields).hash().to_string()
}

fn kubelet(kubelet: &KubeletConfiguration) -> Value {
    let period = kubelet.cpu_cfs_quota_period.as_deref().and_then(parse_go_duration);
    let sysctls = kubelet.allowed_unsafe_sysctls.as_ref();
    let fields: Fields = vec![
        ("CPUManagerPolicy", kubelet.cpu_manager_policy.map(|policy| word(policy.as_str()))),
        ("CPUCFSQuota", kubelet.cpu_cfs_quota.map(Value::Bool)),
        ("CPUCFSQuotaPeriod", period.filter(|period| !period.is_zero()).map(duration)),
        ("ImageGCHighThresholdPercent", kubelet.image_gc_high_threshold_percent.map(Value::Int32)),
        ("ImageGCLowThresholdPercent", kubelet.image_gc_low_threshold_percent.map(Value::Int32)),
        (
            "TopologyManagerPolicy",
            kubelet.topology_manager_policy.map(|policy| word(policy.as_str())),
        ),
        (
            "AllowedUnsafeSysctls",
            sysctls.map(|names| Value::Set(names.iter().cloned().map(Value::Text).collect())),
        ),
        ("ContainerLogMaxSize", kubelet.container_log_max_size.clone().map(Value::Text)),
        ("ContainerLogMaxFiles", kubelet.container_log_max_files.map(Value::Int32)),
        ("PodPidsLimit", kubelet.pod_pids_limit.map(Value::Int64)),
        ("FailSwapOn", kubelet.fail_swap_on.map(Value::Bool)),
    ];
    Value::Struct("KubeletConfiguration", fields)
}

fn security(security: &Security) -> Value {
    let launch = security.trusted_launch.as_ref().map(|launch| {
        let fields: Fields = vec![
            ("VTPM", launch.vtpm.map(Value::Bool)),
            ("SecureBoot", launch.secure_boot.map(Value::Bool)),
        ];
        Value::Struct("TrustedLaunch", fields)
    });
    let fields: Fields = vec![
        ("EncryptionAtHost", security.encryption_at_host.map(Value::Bool)),
        ("TrustedLaunch", launch),
    ];
    Value::Struct("Security", fields)
}

fn local_dns(local_dns: &LocalDns) -> Value {
    let zones = |zones: &[LocalDnsZone]| Value::Set(zones.iter().map(zone).collect());
    let fields: Fields = vec![
        ("Mode", Some(word(local_dns.mode.as_str()))),
        ("VnetDNSOverrides", Some(zones(&local_dns.vnet_dns_overrides))),
        ("KubeDNSOverrides", Some(zones(&local_dns.kube_dns_overrides))),
    ];
    Value::Struct("LocalDNS", fields)
}

fn zone(zone: &LocalDnsZone) -> Value {
    let fields: Fields = vec![
        ("Zone", text(&zone.zone)),
        ("QueryLogging", Some(word(zone.query_logging.as_str()))),
        ("Protocol", Some(word(zone.protocol.as_str()))),
        ("ForwardDestination", Some(word(zone.forward_destination.as_str()))),
        ("ForwardPolicy", Some(word(zone.forward_policy.as_str()))),
        ("MaxConcurrent", Some(Value::Int32(zone.max_concurrent))),
        ("CacheDuration", nillable(&zone.cache_duration)),
        ("ServeStaleDuration", nillable(&zone.serve_stale_duration)),
        ("ServeStale", Some(word(zone.serve_stale.as_str()))),
    ];
    Value::Struct("LocalDNSZoneOverride", fields)
}

fn linux(linux: &LinuxOsConfiguration) -> Value {
    let sysctls = linux
        .sysctls
        .as_ref()
        .map(|sysctls| Value::Struct("SysctlConfiguration", sysctls.fields()));
    let fields: Fields = vec![
        ("SwapFileSize", linux.swap_file_size.clone().map(Value::Text)),
        ("Sysctls", sysctls),
        (
            "TransparentHugePageDefrag",
            linux.transparent_huge_page_defrag.map(|value| word(value.as_str())),
        ),
        (
            "TransparentHugePageEnabled",
            linux.transparent_huge_page_enabled.map(|value| word(value.as_str())),
        ),
    ];
    Value::Struct("LinuxOSConfiguration", fields)
}

fn word(word: &str) -> Value {
    Value::Text(word.to_owned())
}

fn text(text: &str) -> Option<Value> {
    (!text.is_empty()).then(|| word(text))
}

fn map(entries: &BTreeMap<String, String>, written_empty: bool) -> Option<Value> {
    let value = |(key, value): (&String, &String)| (key.clone(), word(value));
    (written_empty || !entries.is_empty()).then(|| Value::Map(entries.iter().map(value).collect()))
}

fn taints(taints: &[Taint], written_empty: bool) -> Option<Value> {
    let value = |taint: &Taint| {
        let effect = text(taint.effect.as_str());
        Value::Struct(
            "Taint",
            vec![("Key", text(&taint.key)), ("Value", text(&taint.value)), ("Effect", effect)],
        )
    };
    (written_empty || !taints.is_empty()).then(|| Value::Set(taints.iter().map(value).collect()))
}

fn nanoseconds(duration: Duration) -> Value {
    Value::Int64(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

/// `metav1.Duration` holds its number of nanoseconds by value, so that a zero is left out.
fn duration(duration: Duration) -> Value {
    Value::Struct(
        "Duration",
        vec![("Duration", (!duration.is_zero()).then(|| nanoseconds(duration)))],
    )
}

/// The incumbent's own type holds a pointer, so that a zero counts.
fn nillable(duration: &NillableDuration) -> Option<Value> {
    let duration = duration.get()?;
    Some(Value::Struct("NillableDuration", vec![("Duration", Some(nanoseconds(duration)))]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodepool::{NodeClaimTemplate, NodePoolSpec};
    use crate::{Effect, NillableDuration};
    use serde_json::json;

    fn class_hash(more: &serde_json::Value) -> String {
        let mut spec = json!({ "osDiskSizeGB": 128, "imageFamily": "Ubuntu" });
        json_patch_merge(&mut spec, more);
        aks_node_class_hash(&serde_json::from_value(spec).unwrap())
    }

    fn json_patch_merge(into: &mut serde_json::Value, from: &serde_json::Value) {
        for (key, value) in from.as_object().unwrap() {
            into[key] = value.clone();
        }
    }

    /// Trusted launch is newer than the release of the incumbent that `tests/it/hashes.json` was
    /// made with; this was made from its type.
    #[test]
    fn trusted_launch_is_part_of_the_hash() {
        let launch =
            json!({ "security": { "trustedLaunch": { "vtpm": true, "secureBoot": false } } });
        assert_eq!(class_hash(&launch), "12434554591595623747");
    }

    fn pool() -> NodePoolSpec {
        serde_json::from_value(serde_json::json!({
            "template": { "spec": {
                "requirements": [],
                "nodeClassRef": { "group": "karpenter.azure.com", "kind": "AKSNodeClass", "name": "default" },
            }},
        }))
        .unwrap()
    }

    #[test]
    fn a_template_but_not_its_requirements_is_hashed() {
        let base = nodepool_hash(&pool());
        let changed = |change: fn(&mut NodeClaimTemplate)| {
            let mut spec = pool();
            change(&mut spec.template);
            nodepool_hash(&spec)
        };
        let changes: [fn(&mut NodeClaimTemplate); 7] = [
            |template| drop(template.metadata.labels.insert("a".to_owned(), "b".to_owned())),
            |template| drop(template.metadata.annotations.insert("a".to_owned(), "b".to_owned())),
            |template| template.spec.taints.push(Taint::new("a", Effect::NoSchedule)),
            |template| template.spec.startup_taints.push(Taint::new("a", Effect::NoSchedule)),
            |template| "other".clone_into(&mut template.spec.node_class_ref.name),
            |template| template.spec.termination_grace_period = Some("30s".to_owned()),
            |template| template.spec.expire_after = NillableDuration::never(),
        ];
        let mut hashes: Vec<String> = changes.into_iter().map(changed).collect();
        hashes.push(base.clone());
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 8, "each change gives another hash");

        let same = |change: fn(&mut NodePoolSpec)| {
            let mut spec = pool();
            change(&mut spec);
            assert_eq!(nodepool_hash(&spec), base);
        };
        same(|spec| spec.weight = Some(5));
        same(|spec| spec.disruption.budgets.clear());
        same(|spec| spec.template.spec.expire_after = NillableDuration::parse("43200m").unwrap());
        same(|spec| {
            spec.template.spec.requirements =
                crate::Requirements::from_labels(&BTreeMap::from([(
                    "a".to_owned(),
                    "b".to_owned(),
                )]))
                .to_specs();
        });
    }

    #[test]
    fn the_hash_ignores_the_order_of_taints() {
        let taints = |keys: [&str; 2]| {
            let mut spec = pool();
            spec.template.spec.taints =
                keys.map(|key| Taint::new(key, Effect::NoSchedule)).to_vec();
            nodepool_hash(&spec)
        };
        assert_eq!(taints(["a", "b"]), taints(["b", "a"]));
    }
}
