//! Cases of the definitions' validation rules: accepted and refused objects, with messages.

use serde_json::{Value, json};

use crate::support::{merged, pool};

/// Changes of one object, each accepted, or refused with a message that contains the text.
pub(crate) struct Group {
    pub(crate) object: Value,
    pub(crate) cases: Vec<Case>,
}

type Case = (Value, Option<&'static str>);

/// All cases.
pub(crate) fn all() -> Vec<Group> {
    vec![
        node_pools(),
        budgets(),
        templates(),
        node_claims(),
        node_classes(),
        local_dns(),
        overlays(),
        buffers(),
    ]
}

fn accepted(values: impl IntoIterator<Item = Value>) -> impl Iterator<Item = Case> {
    values.into_iter().map(|value| (value, None))
}

fn disruption(fields: &Value) -> Value {
    json!({ "spec": { "disruption": fields } })
}

fn template(fields: &Value) -> Value {
    json!({ "spec": { "template": { "spec": fields } } })
}

fn node_pools() -> Group {
    let labels =
        |labels: &Value| json!({ "spec": { "template": { "metadata": { "labels": labels } } } });
    let mut cases: Vec<Case> = vec![
        (json!({}), None),
        (json!({ "spec": { "weight": 0 } }), Some("greater than or equal to 1")),
        (json!({ "spec": { "weight": 101 } }), Some("less than or equal to 100")),
        (json!({ "spec": { "limits": { "cpu": "1x" } } }), Some("spec.limits.cpu")),
        (json!({ "spec": { "template": null } }), Some("spec.template: Required value")),
        (json!({ "spec": { "other": 1 } }), Some("unknown field \"spec.other\"")),
        (json!({ "spec": { "replicas": -1 } }), Some("greater than or equal to 0")),
        (
            json!({ "spec": { "replicas": 1, "weight": 1 } }),
            Some("'weight' is not supported on static NodePools"),
        ),
        (
            json!({ "spec": { "replicas": 1, "limits": { "cpu": 1 } } }),
            Some("only 'limits.nodes' is supported on static NodePools"),
        ),
        (
            disruption(&json!({ "consolidateAfter": "1d" })),
            Some("spec.disruption.consolidateAfter"),
        ),
        (
            disruption(&json!({ "consolidateAfter": "-5m" })),
            Some("spec.disruption.consolidateAfter"),
        ),
        (disruption(&json!({ "expireAfter": "1d" })), Some("spec.disruption.expireAfter")),
        (
            disruption(&json!({ "consolidationPolicy": "WhenUnderutilized | WhenEmpty" })),
            Some("spec.disruption.consolidationPolicy: Unsupported value"),
        ),
        (
            labels(&json!({ "karpenter.sh/nodepool": "a" })),
            Some("label \"karpenter.sh/nodepool\" is restricted"),
        ),
        (
            labels(&json!({ "karpenter.sh/x": "a" })),
            Some("label domain \"karpenter.sh\" is restricted"),
        ),
        (
            labels(&json!({ "kubernetes.io/hostname": "a" })),
            Some("label \"kubernetes.io/hostname\" is restricted"),
        ),
        (labels(&json!({ "a": "x".repeat(64) })), Some("spec.template.metadata.labels.a")),
        (labels(&json!({ "a": "-" })), Some("spec.template.metadata.labels.a")),
        (template(&json!({ "expireAfter": "1d" })), Some("spec.template.spec.expireAfter")),
        (
            template(&json!({ "terminationGracePeriod": "Never" })),
            Some("spec.template.spec.terminationGracePeriod"),
        ),
        (template(&json!({ "requirements": null })), Some("requirements: Required value")),
    ];
    cases.extend(accepted([
        json!({ "spec": { "weight": 100, "limits": { "cpu": 1, "memory": "1Gi", "nodes": "5" } } }),
        json!({ "spec": { "replicas": 1, "limits": { "nodes": 3 } } }),
        labels(&json!({ "a": "", "karpenter.sh/capacity-type": "spot", "example.com/b": "B_c.d" })),
        template(&json!({ "expireAfter": "Never", "terminationGracePeriod": "1h30m" })),
        disruption(&json!({ "consolidateAfter": "Never", "expireAfter": "Never" })),
    ]));
    for policy in [
        "WhenEmpty",
        "WhenEmptyOrUnderutilized",
        "Balanced",
        "WhenUnderutilized",
        "WhenUnderUtilized",
        "WhenEmptyOrUnderUtilized",
    ] {
        cases.push((disruption(&json!({ "consolidationPolicy": policy })), None));
    }
    Group { object: pool(), cases }
}

fn budgets() -> Group {
    let budget = |fields: Value| disruption(&json!({ "budgets": [fields] }));
    let mut cases: Vec<Case> = vec![
        (budget(json!({ "nodes": "101%" })), Some("spec.disruption.budgets[0].nodes")),
        (budget(json!({ "nodes": "-1" })), Some("spec.disruption.budgets[0].nodes")),
        (
            budget(json!({ "nodes": "1", "schedule": "@daily" })),
            Some("'schedule' must be set with 'duration'"),
        ),
        (
            budget(json!({ "nodes": "1", "duration": "1h" })),
            Some("'schedule' must be set with 'duration'"),
        ),
        (budget(json!({ "schedule": "@daily", "duration": "30s" })), Some("budgets[0].duration")),
        (budget(json!({ "schedule": "* * *", "duration": "1h" })), Some("budgets[0].schedule")),
        (
            budget(json!({ "reasons": ["Expired"] })),
            Some("budgets[0].reasons[0]: Unsupported value"),
        ),
        (budget(json!({ "reasons": ["Empty", "Empty"] })), Some("Duplicate value")),
        (
            disruption(&json!({ "budgets": vec![json!({ "nodes": "1" }); 51] })),
            Some("spec.disruption.budgets: Too many"),
        ),
    ];
    cases.extend(accepted([
        disruption(&json!({ "budgets": [] })),
        budget(json!({})),
        budget(json!({ "nodes": "100%", "reasons": ["Underutilized", "Empty", "Drifted", "Unhealthy"] })),
        budget(json!({ "nodes": "0", "schedule": "0 9 * * mon-fri", "duration": "8h30m0s" })),
        budget(json!({ "nodes": "5%", "schedule": "@midnight", "duration": "10m" })),
    ]));
    Group { object: pool(), cases }
}

/// Cases of requirements, for every field that has them.
fn requirement_cases(at: &dyn Fn(Value) -> Value) -> Vec<Case> {
    let one = |item: Value| at(json!([item]));
    let key = |key: &str| one(json!({ "key": key, "operator": "Exists" }));
    let values = |operator: &str, values: Value| {
        one(json!({ "key": "a", "operator": operator, "values": values }))
    };
    let single = Some("must have a single positive integer value");
    vec![
        (one(json!({ "key": "a", "operator": "In" })), Some("'In' must have a value defined")),
        (values("In", json!([])), Some("'In' must have a value defined")),
        (values("Gt", json!(["1", "2"])), single),
        (values("Lte", json!(["-1"])), single),
        (values("Lt", json!(["x"])), single),
        (values("Gte", json!(["4"])), None),
        (values("NotIn", json!(["x"])), None),
        (values("Near", json!([])), Some("Unsupported value")),
        (key("a b"), Some("requirements[0].key")),
        (key("karpenter.sh/x"), Some("label domain \"karpenter.sh\" is restricted")),
        (key("kubernetes.io/hostname"), Some("label \"kubernetes.io/hostname\" is restricted")),
        (
            one(
                json!({ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"] }),
            ),
            None,
        ),
        (at(json!(vec![json!({ "key": "a", "operator": "Exists" }); 101])), Some("Too many")),
    ]
}

/// Cases of `minValues`, which overlays do not have.
fn least_value_cases(at: &dyn Fn(Value) -> Value) -> Vec<Case> {
    let least = |operator: &str, values: &[&str], least: u32| {
        at(json!([{ "key": "a", "operator": operator, "values": values, "minValues": least }]))
    };
    vec![
        (least("In", &["x"], 2), Some("must have at least that many values")),
        (least("In", &["x", "y"], 2), None),
        (least("Exists", &[], 51), Some("equal to 50")),
        (least("Exists", &[], 0), Some("equal to 1")),
    ]
}

/// Cases of a list of taints.
fn taint_cases(at: &dyn Fn(Value) -> Value) -> Vec<Case> {
    let one = |item: Value| at(json!([item]));
    vec![
        (
            one(json!({ "key": "karpenter.azure.com/disable,", "effect": "NoSchedule" })),
            Some("a taint key may not have a comma in it"),
        ),
        (one(json!({ "key": "a,b", "effect": "NoSchedule" })), Some("may not have a comma")),
        (one(json!({ "key": "", "effect": "NoSchedule" })), Some("aints[0].key")),
        (one(json!({ "key": "a", "effect": "Sometimes" })), Some("aints[0].effect")),
        (one(json!({ "key": "a" })), Some("aints[0].effect: Required value")),
        (one(json!({ "key": "a", "value": "b c", "effect": "NoExecute" })), Some("aints[0].value")),
        (one(json!({ "key": "a.b/c", "value": "d.e/f", "effect": "PreferNoSchedule" })), None),
        (
            one(json!({ "key": "a", "effect": "NoExecute", "timeAdded": "2030-01-01T00:00:00Z" })),
            None,
        ),
    ]
}

fn reference_cases(at: &dyn Fn(Value) -> Value) -> Vec<Case> {
    vec![
        (at(json!({ "name": "" })), Some("name may not be empty")),
        (at(json!({ "group": "" })), Some("group may not be empty")),
        (at(json!({ "kind": "" })), Some("kind may not be empty")),
        (at(json!({ "group": "a/b" })), Some("nodeClassRef.group")),
        (at(json!({ "name": null })), Some("nodeClassRef.name: Required value")),
    ]
}

fn templates() -> Group {
    let field = |name: &'static str| move |value: Value| template(&json!({ name: value }));
    let mut cases = requirement_cases(&field("requirements"));
    cases.extend(least_value_cases(&field("requirements")));
    cases.extend(taint_cases(&field("taints")));
    cases.extend(taint_cases(&field("startupTaints")));
    let reference = field("nodeClassRef");
    cases.extend(reference_cases(&reference));
    cases.push((
        field("requirements")(json!([{ "key": "karpenter.sh/nodepool", "operator": "Exists" }])),
        Some("label \"karpenter.sh/nodepool\" is restricted"),
    ));
    cases.push((reference(json!({ "group": null, "kind": null })), None));
    cases.push((
        reference(json!({ "group": null, "apiVersion": "karpenter.azure.com/v1alpha2" })),
        None,
    ));
    Group { object: pool(), cases }
}

fn node_claims() -> Group {
    let field = |name: &'static str| move |value: Value| json!({ "spec": { name: value } });
    let mut cases = requirement_cases(&field("requirements"));
    cases.extend(least_value_cases(&field("requirements")));
    cases.extend(taint_cases(&field("taints")));
    cases.extend(taint_cases(&field("startupTaints")));
    cases.extend(reference_cases(&field("nodeClassRef")));
    let period = field("terminationGracePeriod");
    let resources = |amount: &str| field("resources")(json!({ "requests": { "cpu": amount } }));
    cases.extend([
        (json!({}), None),
        (field("expireAfter")(json!("1d")), Some("spec.expireAfter")),
        (field("expireAfter")(json!("Never")), None),
        (period(json!("Never")), Some("spec.terminationGracePeriod")),
        (period(json!("30s")), None),
        (resources("1x"), Some("spec.resources.requests.cpu")),
        (resources("100m"), None),
        (
            field("nodeClassRef")(json!({ "group": null })),
            Some("nodeClassRef.group: Required value"),
        ),
    ]);
    Group { object: claim(), cases }
}

/// A NodeClaim as nap creates it.
pub(crate) fn claim() -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": { "name": "claim" },
        "spec": {
            "requirements": [{ "key": "karpenter.sh/nodepool", "operator": "In", "values": ["pool"] }],
            "nodeClassRef": { "group": "karpenter.azure.com", "kind": "AKSNodeClass", "name": "default" },
        },
    })
}

/// An AKSNodeClass with an empty spec.
pub(crate) fn class() -> Value {
    json!({ "apiVersion": "karpenter.azure.com/v1beta1", "kind": "AKSNodeClass", "metadata": { "name": "class" } })
}

fn node_classes() -> Group {
    let spec = |fields: Value| json!({ "spec": fields });
    let subnet = |subscription: &str| {
        spec(json!({ "vnetSubnetID": format!(
            "/subscriptions/{subscription}/resourceGroups/group/providers/Microsoft.Network/virtualNetworks/net/subnets/sub"
        ) }))
    };
    let tags = |key: &str, value: &str| spec(json!({ "tags": { key: value } }));
    let kubelet = |fields: Value| spec(json!({ "kubelet": fields }));
    let sysctls = |fields: Value| spec(json!({ "linuxOSConfig": { "sysctls": fields } }));
    let launch = json!({ "trustedLaunch": { "vtpm": true } });
    let mut cases: Vec<Case> = vec![
        (subnet("<sub-id>"), Some("vnetSubnetID still has a placeholder")),
        (spec(json!({ "vnetSubnetID": "sub" })), Some("spec.vnetSubnetID")),
        (spec(json!({ "osDiskSizeGB": 29 })), Some("spec.osDiskSizeGB")),
        (spec(json!({ "osDiskSizeGB": 2049 })), Some("spec.osDiskSizeGB")),
        (spec(json!({ "maxPods": 9 })), Some("spec.maxPods")),
        (spec(json!({ "maxPods": 251 })), Some("spec.maxPods")),
        (spec(json!({ "imageFamily": "Windows" })), Some("spec.imageFamily: Unsupported value")),
        (tags("a<b", "c"), Some("tags keys must not contain '<'")),
        (tags("a\\b", "c"), Some("tags keys must not contain '\\'")),
        (tags(&"k".repeat(513), "v"), Some("tags keys must be less than 512 characters")),
        (tags("k", &"v".repeat(257)), Some("tags values must be less than 256 characters")),
        (
            kubelet(json!({ "imageGCHighThresholdPercent": 80, "imageGCLowThresholdPercent": 80 })),
            Some("imageGCHighThresholdPercent must be greater than imageGCLowThresholdPercent"),
        ),
        (kubelet(json!({ "containerLogMaxFiles": 1 })), Some("containerLogMaxFiles")),
        (kubelet(json!({ "containerLogMaxSize": "50" })), Some("containerLogMaxSize")),
        (kubelet(json!({ "cpuManagerPolicy": "some" })), Some("cpuManagerPolicy")),
        (spec(json!({ "linuxOSConfig": { "swapFileSize": "1" } })), Some("swapFileSize")),
        (sysctls(json!({ "vmSwappiness": 101 })), Some("vmSwappiness")),
        (
            sysctls(json!({ "netCoreRmemDefault": 300_000, "netCoreRmemMax": 212_992 })),
            Some("netCoreRmemDefault must be <= netCoreRmemMax"),
        ),
        (
            sysctls(json!({ "netCoreWmemDefault": 300_000, "netCoreWmemMax": 212_992 })),
            Some("netCoreWmemDefault must be <= netCoreWmemMax"),
        ),
        (
            sysctls(
                json!({ "netIPv4NeighDefaultGcThresh1": 600, "netIPv4NeighDefaultGcThresh2": 512 }),
            ),
            Some("netIPv4NeighDefaultGcThresh1 must be <="),
        ),
        (
            sysctls(
                json!({ "netIPv4NeighDefaultGcThresh2": 2000, "netIPv4NeighDefaultGcThresh3": 1024 }),
            ),
            Some("netIPv4NeighDefaultGcThresh2 must be <="),
        ),
        (sysctls(json!({ "netIPv4IPLocalPortRange": "1 60999" })), Some("first port must be in")),
        (sysctls(json!({ "netIPv4IPLocalPortRange": "1024 2000" })), Some("last port must be in")),
        (
            sysctls(json!({ "netIPv4IPLocalPortRange": "50000 40000" })),
            Some("first port must be <= last"),
        ),
        (sysctls(json!({ "netIPv4IPLocalPortRange": "1024" })), Some("netIPv4IPLocalPortRange")),
        (
            spec(json!({ "fipsMode": "FIPS", "imageFamily": "Ubuntu2404" })),
            Some("FIPS is not yet supported for Ubuntu2404"),
        ),
        (
            spec(json!({ "fipsMode": "FIPS", "imageFamily": "Ubuntu2204" })),
            Some("TrustedLaunch is required for FIPS support with Ubuntu2204"),
        ),
        (
            spec(json!({ "fipsMode": "FIPS", "imageFamily": "AzureLinux", "security": launch })),
            Some("TrustedLaunch with FIPSMode FIPS is only supported for Ubuntu and Ubuntu2204"),
        ),
        (
            spec(json!({ "linuxOSConfig": { "swapFileSize": "1Gi" } })),
            Some("kubelet.failSwapOn must be set to false"),
        ),
    ];
    cases.extend(accepted([
        json!({}),
        subnet("12345678-1234-1234-1234-123456789012"),
        tags("a/b", "c<d"),
        kubelet(json!({ "imageGCHighThresholdPercent": 81, "imageGCLowThresholdPercent": 80 })),
        sysctls(json!({ "netIPv4IPLocalPortRange": "1024 60999", "netIPv4TCPTwReuse": true })),
        spec(json!({ "fipsMode": "FIPS", "imageFamily": "Ubuntu2204", "security": launch })),
        spec(json!({ "fipsMode": "FIPS", "imageFamily": "AzureLinux" })),
        spec(json!({ "linuxOSConfig": { "swapFileSize": "1Gi" }, "kubelet": { "failSwapOn": false } })),
        spec(json!({ "gpu": {}, "artifactStreaming": { "enabled": true } })),
    ]));
    Group { object: class(), cases }
}

fn local_dns() -> Group {
    let (core, vnet) = ("ClusterCoreDNS", "VnetDNS");
    let zone = |zone: &str, to: &str| {
        json!({
            "zone": zone, "queryLogging": "Error", "protocol": "PreferUDP", "forwardDestination": to,
            "forwardPolicy": "Random", "maxConcurrent": 10, "cacheDuration": "1h", "serveStaleDuration": "1h",
            "serveStale": "Verify",
        })
    };
    let good = [zone(".", vnet), zone("cluster.local", core)];
    let dns = |list: &str, zones: &[Value]| {
        let mut overrides =
            json!({ "mode": "Required", "vnetDNSOverrides": good, "kubeDNSOverrides": good });
        overrides[list] = json!(zones);
        json!({ "spec": { "localDNS": overrides } })
    };
    let mut cases: Vec<Case> = Vec::new();
    for list in ["vnetDNSOverrides", "kubeDNSOverrides"] {
        let with = |more: Value| dns(list, &[good[0].clone(), good[1].clone(), more]);
        let changed = |change: Value| with(merged(zone("a.b", vnet), &change));
        cases.extend([
            (dns(list, &good), None),
            (dns(list, &good[..1]), Some("must contain required zones")),
            (
                dns(list, &[good[0].clone(), zone("cluster.local", vnet)]),
                Some("'cluster.local' cannot be forwarded to VnetDNS"),
            ),
            (
                changed(json!({ "protocol": "ForceTCP" })),
                Some("serveStale Verify cannot be used with protocol ForceTCP"),
            ),
            (changed(json!({ "cacheDuration": "1d" })), Some("cacheDuration")),
            (changed(json!({ "serveStaleDuration": "-1h" })), Some("serveStaleDuration")),
            (changed(json!({ "zone": "a..b" })), Some("zone")),
            (with(good[0].clone()), Some("Duplicate value")),
        ]);
    }
    let list = "vnetDNSOverrides";
    cases.extend([
        (
            dns(list, &[zone(".", core), good[1].clone()]),
            Some("root zone '.' cannot be forwarded to ClusterCoreDNS"),
        ),
        (
            dns(list, &[good[0].clone(), good[1].clone(), zone("a.b", core)]),
            Some("external domains cannot be forwarded"),
        ),
    ]);
    Group { object: class(), cases }
}

fn overlays() -> Group {
    let overlay = json!({
        "apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": { "name": "overlay" },
        "spec": { "requirements": [] },
    });
    let spec = |fields: Value| json!({ "spec": fields });
    let mut cases: Vec<Case> = vec![
        (spec(json!({ "priceAdjustment": "-10%", "weight": 10_000 })), None),
        (spec(json!({ "price": "1.5", "capacity": { "example.com/gpu": 1 } })), None),
        (spec(json!({ "price": "1", "priceAdjustment": "+1" })), Some("cannot set both 'price'")),
        (spec(json!({ "priceAdjustment": "10%" })), Some("spec.priceAdjustment")),
        (spec(json!({ "priceAdjustment": "-101%" })), Some("spec.priceAdjustment")),
        (spec(json!({ "price": "-1" })), Some("spec.price")),
        (spec(json!({ "weight": 10_001 })), Some("spec.weight")),
        (spec(json!({ "capacity": { "cpu": 1 } })), Some("invalid resource restricted")),
        (
            spec(json!({ "capacity": { "example.com/gpu": "1x" } })),
            Some("spec.capacity.example.com/gpu"),
        ),
        (
            spec(json!({ "requirements": [{ "key": "a", "operator": "NotIn" }] })),
            Some("'NotIn' must have a value defined"),
        ),
        (
            spec(json!({ "requirements": [{ "key": "a", "operator": "Exists", "minValues": 1 }] })),
            Some("unknown field"),
        ),
    ];
    cases.extend(requirement_cases(&|requirements| spec(json!({ "requirements": requirements }))));
    Group { object: overlay, cases }
}

fn buffers() -> Group {
    let spec = |fields: Value| json!({ "spec": fields });
    let buffer = json!({
        "apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer",
        "metadata": { "name": "buffer", "namespace": "default" }, "spec": {},
    });
    let scalable = json!({ "apiGroup": "apps", "kind": "Deployment", "name": "a" });
    Group {
        object: buffer,
        cases: vec![
            (spec(json!({ "podTemplateRef": { "name": "a" }, "replicas": 1 })), None),
            (spec(json!({ "scalableRef": scalable, "percentage": 10 })), None),
            (
                spec(json!({ "podTemplateRef": { "name": "a" } })),
                Some("If podTemplateRef is set, replicas or limits must also be set"),
            ),
            (
                spec(
                    json!({ "podTemplateRef": { "name": "a" }, "replicas": 1, "scalableRef": scalable }),
                ),
                Some("either PodTemplateRef or ScalableRef"),
            ),
            (spec(json!({ "replicas": -1 })), Some("spec.replicas")),
            (
                spec(json!({ "podTemplateRef": { "name": "" }, "replicas": 1 })),
                Some("podTemplateRef.name"),
            ),
        ],
    }
}
