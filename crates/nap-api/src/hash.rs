//! Drift hashes of NodePool templates and AKSNodeClass specs, digit for digit those of the incumbent.
//!
//! The incumbent hashes its Go structs by reflection, so the hash depends on Go's names of types and fields and on the order in
//! which they are declared. [`Value`] is what reflection would see, and the tables below say it for our types. A field that is zero in
//! Go is left out; a pointer to a zero is not zero.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::aksnodeclass::{AKSNodeClassSpec, ImageFamily};
use crate::duration::parse_go_duration;
use crate::nodepool::NodePoolSpec;
use crate::taints::Taint;

/// Which algorithm [`nodepool_hash`] is.
pub const NODEPOOL_HASH_VERSION: &str = "v3";
/// Which algorithm [`aks_node_class_hash`] is.
pub const AKS_NODE_CLASS_HASH_VERSION: &str = "v3";

/// The hash of a NodePool's template without its requirements: what makes nodes drift when it changes.
pub fn nodepool_hash(spec: &NodePoolSpec) -> String {
    let template = &spec.template;
    let labels = map(&template.metadata.labels);
    let annotations = map(&template.metadata.annotations);
    let metadata = (labels.is_some() || annotations.is_some())
        .then(|| Value::Struct("ObjectMeta", vec![("Labels", labels), ("Annotations", annotations)]));
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
    let expire_after = template.spec.expire_after.get();
    let template_spec = Value::Struct(
        "NodeClaimTemplateSpec",
        vec![
            ("Taints", taints(&template.spec.taints)),
            ("StartupTaints", taints(&template.spec.startup_taints)),
            ("NodeClassRef", Some(node_class_ref)),
            ("TerminationGracePeriod", grace.map(duration)),
            ("ExpireAfter", expire_after.map(nillable_duration)),
        ],
    );
    let template =
        Value::Struct("NodeClaimTemplate", vec![("ObjectMeta", metadata), ("Spec", Some(template_spec))]);
    template.hash().to_string()
}

/// The hash of an AKSNodeClass's spec without its tags: what makes nodes drift when it changes.
pub fn aks_node_class_hash(spec: &AKSNodeClassSpec) -> String {
    aks_node_class_value(spec, Vec::new()).hash().to_string()
}

/// The fields of an AKSNodeClass's spec in the order of declaration.
const AKS_NODE_CLASS_FIELDS: [&str; 12] = [
    "VNETSubnetID",
    "OSDiskSizeGB",
    "ImageID",
    "ImageFamily",
    "FIPSMode",
    "Kubelet",
    "MaxPods",
    "Security",
    "LocalDNS",
    "GPU",
    "ArtifactStreaming",
    "LinuxOSConfig",
];

/// The spec as Go sees it. `more` are fields that our type does not have yet, declared after `ImageFamily`.
fn aks_node_class_value(spec: &AKSNodeClassSpec, more: Vec<(&'static str, Option<Value>)>) -> Value {
    let family = match spec.image_family {
        ImageFamily::Ubuntu => "Ubuntu",
        ImageFamily::Ubuntu2204 => "Ubuntu2204",
        ImageFamily::Ubuntu2404 => "Ubuntu2404",
        ImageFamily::AzureLinux => "AzureLinux",
    };
    let mut fields = vec![
        ("VNETSubnetID", spec.vnet_subnet_id.clone().map(Value::Text)),
        ("OSDiskSizeGB", Some(Value::Int32(spec.os_disk_size_gb))),
        ("ImageFamily", Some(Value::Text(family.to_owned()))),
        ("MaxPods", spec.max_pods.map(Value::Int32)),
    ];
    fields.extend(more);
    fields.sort_by_key(|(name, _)| AKS_NODE_CLASS_FIELDS.iter().position(|other| other == name));
    Value::Struct("AKSNodeClassSpec", fields)
}

/// A value as Go's reflection sees it, pointers followed.
enum Value {
    Text(String),
    Int32(i32),
    Int64(i64),
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "only fields that our types do not have yet are booleans")
    )]
    Bool(bool),
    /// A slice, whose order does not count.
    Set(Vec<Value>),
    Map(BTreeMap<String, Value>),
    /// The type's name and its fields in the order of declaration. `None` is a zero value, which is left out.
    Struct(&'static str, Vec<(&'static str, Option<Value>)>),
}

impl Value {
    fn hash(&self) -> u64 {
        match self {
            Self::Text(text) => fnv(text.as_bytes()),
            Self::Int32(number) => fnv(&number.to_le_bytes()),
            Self::Int64(number) => fnv(&number.to_le_bytes()),
            Self::Bool(value) => fnv(&[u8::from(*value)]),
            Self::Set(items) => items.iter().fold(0, |hash, item| hash ^ item.hash()),
            Self::Map(entries) => {
                let pair = |(key, value): (&String, &Self)| ordered(fnv(key.as_bytes()), value.hash());
                finish(entries.iter().map(pair).fold(0, |hash, pair| hash ^ pair))
            }
            Self::Struct(name, fields) => {
                let mut hash = fnv(name.as_bytes());
                for (field, value) in fields {
                    if let Some(value) = value {
                        hash = finish(hash ^ ordered(fnv(field.as_bytes()), value.hash()));
                    }
                }
                hash
            }
        }
    }
}

/// FNV-1 of 64 bits: multiply, then xor.
fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(*byte))
}

fn ordered(first: u64, second: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&second.to_le_bytes());
    fnv(&bytes)
}

fn finish(hash: u64) -> u64 {
    fnv(&hash.to_le_bytes())
}

fn text(text: &str) -> Option<Value> {
    (!text.is_empty()).then(|| Value::Text(text.to_owned()))
}

fn map(entries: &BTreeMap<String, String>) -> Option<Value> {
    let value = |(key, value): (&String, &String)| (key.clone(), Value::Text(value.clone()));
    (!entries.is_empty()).then(|| Value::Map(entries.iter().map(value).collect()))
}

fn taints(taints: &[Taint]) -> Option<Value> {
    let value = |taint: &Taint| {
        let effect = text(taint.effect.as_str());
        Value::Struct(
            "Taint",
            vec![("Key", text(&taint.key)), ("Value", text(&taint.value)), ("Effect", effect)],
        )
    };
    (!taints.is_empty()).then(|| Value::Set(taints.iter().map(value).collect()))
}

fn nanoseconds(duration: Duration) -> Value {
    Value::Int64(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

/// `metav1.Duration` holds its number of nanoseconds by value, so that a zero is left out.
fn duration(duration: Duration) -> Value {
    Value::Struct("Duration", vec![("Duration", (!duration.is_zero()).then(|| nanoseconds(duration)))])
}

/// The incumbent's own type holds a pointer, so that a zero counts.
fn nillable_duration(duration: Duration) -> Value {
    Value::Struct("NillableDuration", vec![("Duration", Some(nanoseconds(duration)))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodepool::{NodeClaimTemplate, NodePoolSpec};
    use crate::{Effect, NillableDuration};

    fn kubelet(cpu_manager: &str) -> (&'static str, Option<Value>) {
        let fields = vec![
            ("CPUManagerPolicy", text(cpu_manager)),
            ("CPUCFSQuota", Some(Value::Bool(true))),
            ("CPUCFSQuotaPeriod", Some(duration(Duration::from_millis(100)))),
            ("ImageGCHighThresholdPercent", Some(Value::Int32(85))),
            ("ImageGCLowThresholdPercent", Some(Value::Int32(80))),
            ("TopologyManagerPolicy", text("none")),
            ("AllowedUnsafeSysctls", Some(Value::Set(vec![Value::Text("net.core.somaxconn".to_owned())]))),
            ("ContainerLogMaxSize", text("10Mi")),
            ("ContainerLogMaxFiles", Some(Value::Int32(10))),
        ];
        ("Kubelet", Some(Value::Struct("KubeletConfiguration", fields)))
    }

    fn base() -> AKSNodeClassSpec {
        AKSNodeClassSpec {
            vnet_subnet_id: Some("subnet-id".to_owned()),
            os_disk_size_gb: 30,
            image_family: ImageFamily::Ubuntu2204,
            tags: BTreeMap::from([("tags".to_owned(), "do not count".to_owned())]),
            max_pods: Some(100),
        }
    }

    fn local_dns(fields: Vec<(&'static str, Option<Value>)>) -> (&'static str, Option<Value>) {
        ("LocalDNS", Some(Value::Struct("LocalDNS", fields)))
    }

    fn zone(field: (&'static str, Option<Value>)) -> (&'static str, Option<Value>) {
        let zone = Value::Struct("LocalDNSZoneOverride", vec![("Zone", text("example.com")), field]);
        local_dns(vec![("VnetDNSOverrides", Some(Value::Set(vec![zone])))])
    }

    #[test]
    fn node_classes_hash_as_the_incumbent_does() {
        let hash = |spec: AKSNodeClassSpec, more| aks_node_class_value(&spec, more).hash().to_string();
        let plain = |spec| hash(spec, vec![kubelet("static")]);
        let with = |field| hash(base(), vec![kubelet("static"), field]);
        assert_eq!(plain(base()), "4108492229247269128");
        let subnet = AKSNodeClassSpec { vnet_subnet_id: Some("subnet-id-2".to_owned()), ..base() };
        assert_eq!(plain(subnet), "13971920214979852468");
        assert_eq!(plain(AKSNodeClassSpec { os_disk_size_gb: 40, ..base() }), "7816855636861645563");
        let linux = AKSNodeClassSpec { image_family: ImageFamily::AzureLinux, ..base() };
        assert_eq!(plain(linux), "15616969746300892810");
        assert_eq!(plain(AKSNodeClassSpec { max_pods: Some(200), ..base() }), "15508761509963240710");
        assert_eq!(hash(base(), vec![kubelet("none")]), "33638514539106194");
        assert_eq!(with(local_dns(vec![("Mode", text("Required"))])), "17805442572569734619");
        let streaming = Value::Struct("ArtifactStreaming", vec![("Enabled", Some(Value::Bool(true)))]);
        assert_eq!(with(("ArtifactStreaming", Some(streaming))), "15355387647114481444");
        assert_eq!(with(zone(("QueryLogging", text("Log")))), "14608914734386108436");
        let cache = nillable_duration(Duration::from_hours(1));
        assert_eq!(with(zone(("CacheDuration", Some(cache)))), "11008649797056761238");
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
    fn everything_in_a_template_but_its_requirements_counts() {
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
                crate::Requirements::from_labels(&BTreeMap::from([("a".to_owned(), "b".to_owned())]))
                    .to_specs();
        });
    }

    #[test]
    fn the_order_of_taints_does_not_count() {
        let taints = |keys: [&str; 2]| {
            let mut spec = pool();
            spec.template.spec.taints = keys.map(|key| Taint::new(key, Effect::NoSchedule)).to_vec();
            nodepool_hash(&spec)
        };
        assert_eq!(taints(["a", "b"]), taints(["b", "a"]));
    }
}
