//! The CustomResourceDefinitions, made from the types and the rules that types cannot express.
//!
//! Whatever the incumbent's definitions accept, these accept with the same meaning. What they
//! accept besides are the old spellings of [`crate::normalise`]. One default of the incumbent's is
//! missing on purpose: `spec.template.spec.expireAfter`. If the server filled it in, nap could not
//! tell afterwards whether the author of `spec.disruption.expireAfter` wanted it; nap fills it in
//! when it reads.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Value, json};

use crate::capacitybuffer::CapacityBuffer;
use crate::nodeoverlay::NodeOverlay;
use crate::normalise::OLD_POLICIES;
use crate::schema::{self, patch, property, rule, rules};
use crate::{AKSNodeClass, NodeClaim, NodePool};

/// Every definition that nap needs, in name order.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![aks_node_class(), capacity_buffer(), node_claim(), node_overlay(), node_pool()]
}

fn node_pool() -> CustomResourceDefinition {
    let crd = finished::<NodePool>(
        "The nodes that may be created for unschedulable pods, and the rules for their disruption.",
        |schema| {
            let template = "spec.template.spec";
            schema::template_labels(schema, "spec.template.metadata.labels");
            patch(
                schema,
                "spec.template.metadata.annotations",
                &json!({ "x-kubernetes-map-type": "granular" }),
            );
            schema::taints(schema, &format!("{template}.taints"));
            schema::taints(schema, &format!("{template}.startupTaints"));
            schema::requirements(schema, &format!("{template}.requirements"), true, false);
            schema::node_class_ref(schema, &format!("{template}.nodeClassRef"));
            old_spellings(schema);
            patch(schema, "spec.disruption", &json!({ "default": { "consolidateAfter": "0s" } }));
            let budgets = "spec.disruption.budgets";
            patch(schema, budgets, &json!({ "x-kubernetes-list-type": "atomic" }));
            let together = "self.all(x, has(x.schedule) == has(x.duration))";
            rules(schema, budgets, [rule(together, "'schedule' must be set with 'duration'")]);
            patch(
                schema,
                &format!("{budgets}[].reasons"),
                &json!({ "x-kubernetes-list-type": "set", "maxItems": 50 }),
            );
            rules(
                schema,
                "spec",
                [
                    rule(
                        "has(self.replicas) == has(oldSelf.replicas)",
                        "Cannot transition NodePool between static (replicas set) and dynamic (replicas unset) provisioning modes",
                    ),
                    rule(
                        "!has(self.replicas) || !has(self.limits) || size(self.limits) == 0 || (size(self.limits) == 1 && 'nodes' in self.limits)",
                        "only 'limits.nodes' is supported on static NodePools",
                    ),
                    rule(
                        "!has(self.replicas) || !has(self.weight)",
                        "'weight' is not supported on static NodePools",
                    ),
                ],
            );
            schema::conditions(schema, true);
        },
    );
    let old = |version: &str| {
        (
            version.to_owned(),
            format!("karpenter.sh/{version} NodePool is deprecated; use karpenter.sh/v1 NodePool"),
        )
    };
    with_old_versions(crd, &[old("v1beta1"), old("v1alpha5")])
}

/// Lets the schema of NodePools keep what older documents still teach.
fn old_spellings(schema: &mut Value) {
    let expire_after = "spec.template.spec.expireAfter";
    let description = "After this long a node is replaced; `Never` keeps it. Absent means `720h`.";
    patch(schema, expire_after, &json!({ "default": null, "description": description }));
    let old = json!({
        "description": "Old spelling of `spec.template.spec.expireAfter`, which wins where it is written too.",
        "type": "string",
        "pattern": r"^(([0-9]+(s|m|h))+|Never)$",
    });
    property(schema, "spec.disruption", "expireAfter", old);
    let current = ["WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced"];
    let policies: Vec<&str> = current.into_iter().chain(OLD_POLICIES.map(|(old, _)| old)).collect();
    let description = "Which nodes are consolidated. `WhenUnderutilized` is an old spelling of `WhenEmptyOrUnderutilized`.";
    let change = json!({ "enum": policies, "description": description });
    patch(schema, "spec.disruption.consolidationPolicy", &change);

    let reference = "spec.template.spec.nodeClassRef";
    let old = json!({
        "description": "Old spelling of `group`, with a version after the slash.",
        "type": "string",
        "maxLength": 253,
    });
    property(schema, reference, "apiVersion", old);
    patch(schema, reference, &json!({ "required": ["name"] }));
    let group = |object: &str| {
        format!(
            "(has({object}.group) ? {object}.group : has({object}.apiVersion) ? {object}.apiVersion.find('^[^/]+') : 'karpenter.azure.com')"
        )
    };
    let kind = |object: &str| format!("(has({object}.kind) ? {object}.kind : 'AKSNodeClass')");
    let same =
        |value: &dyn Fn(&str) -> String| format!("{} == {}", value("self"), value("oldSelf"));
    rules(
        schema,
        reference,
        [
            rule(&same(&group), "nodeClassRef.group is immutable"),
            rule(&same(&kind), "nodeClassRef.kind is immutable"),
        ],
    );
}

fn node_claim() -> CustomResourceDefinition {
    finished::<NodeClaim>(
        "One node, requested or running. nap creates and deletes these.",
        |schema| {
            schema::taints(schema, "spec.taints");
            schema::taints(schema, "spec.startupTaints");
            schema::requirements(schema, "spec.requirements", false, false);
            schema::node_class_ref(schema, "spec.nodeClassRef");
            patch(schema, "spec.resources", &json!({ "default": null }));
            rules(schema, "spec", [rule("self == oldSelf", "spec is immutable")]);
            schema::conditions(schema, true);
        },
    )
}

fn node_overlay() -> CustomResourceDefinition {
    finished::<NodeOverlay>(
        "What a user knows better about instance types than the cloud says, such as a price.",
        |schema| {
            schema::requirements(schema, "spec.requirements", false, true);
            rules(
                schema,
                "spec.capacity",
                [rule(
                    "self.all(x, !(x in ['cpu', 'memory', 'ephemeral-storage', 'pods']))",
                    "invalid resource restricted",
                )],
            );
            rules(
                schema,
                "spec",
                [rule(
                    "!has(self.price) || !has(self.priceAdjustment)",
                    "cannot set both 'price' and 'priceAdjustment'",
                )],
            );
            schema::conditions(schema, true);
        },
    )
}

fn capacity_buffer() -> CustomResourceDefinition {
    finished::<CapacityBuffer>(
        "Room that is kept free for pods that do not exist yet. Not acted on yet.",
        |schema| {
            rules(
                schema,
                "spec",
                [
                    rule(
                        "!has(self.podTemplateRef) || has(self.replicas) || has(self.limits)",
                        "If podTemplateRef is set, replicas or limits must also be set",
                    ),
                    rule(
                        "!(has(self.podTemplateRef) && has(self.scalableRef))",
                        "You must define either PodTemplateRef or ScalableRef, but not both",
                    ),
                ],
            );
            schema::conditions(schema, true);
        },
    )
}

/// AKSNodeClass has one schema under two version names; the old one is deprecated.
fn aks_node_class() -> CustomResourceDefinition {
    let crd = finished::<AKSNodeClass>("Azure settings of nodes.", |schema| {
        patch(schema, "", &json!({ "required": null }));
        patch(schema, "spec", &json!({ "default": {} }));
        let subnet = rule(
            "!self.contains('<') && !self.contains('>')",
            "vnetSubnetID still has a placeholder in `<…>`: put in your own subscription id, resource group, network and subnet",
        );
        rules(schema, "spec.vnetSubnetID", [subnet]);
        rules(
            schema,
            "spec.tags",
            [
                rule("self.all(k, size(k) <= 512)", "tags keys must be less than 512 characters"),
                rule(
                    "self.all(k, !k.matches('[<>%&?]'))",
                    "tags keys must not contain '<', '>', '%', '&', or '?'",
                ),
                rule(r"self.all(k, !k.contains('\\'))", r"tags keys must not contain '\'"),
                rule(
                    "self.all(k, size(self[k]) <= 256)",
                    "tags values must be less than 256 characters",
                ),
            ],
        );
        let ordered = |low: &str, high: &str| {
            rule(
                &format!("!has(self.{low}) || !has(self.{high}) || self.{low} <= self.{high}"),
                &format!("{low} must be <= {high}"),
            )
        };
        let thresholds = rule(
            "!has(self.imageGCHighThresholdPercent) || !has(self.imageGCLowThresholdPercent) || self.imageGCHighThresholdPercent > self.imageGCLowThresholdPercent",
            "imageGCHighThresholdPercent must be greater than imageGCLowThresholdPercent",
        );
        rules(schema, "spec.kubelet", [thresholds]);
        let port = |index: usize| format!("int(self.netIPv4IPLocalPortRange.split(' ')[{index}])");
        let ports = |condition: String, message: &str| {
            // What is no range at all, the pattern refuses; a rule that cannot be evaluated would
            // only add noise.
            let is_range = r"has(self.netIPv4IPLocalPortRange) && self.netIPv4IPLocalPortRange.matches('^\\d+ \\d+$')";
            rule(&format!("!({is_range}) || ({condition})"), message)
        };
        rules(
            schema,
            "spec.linuxOSConfig.sysctls",
            [
                ordered("netCoreRmemDefault", "netCoreRmemMax"),
                ordered("netCoreWmemDefault", "netCoreWmemMax"),
                ordered("netIPv4NeighDefaultGcThresh1", "netIPv4NeighDefaultGcThresh2"),
                ordered("netIPv4NeighDefaultGcThresh2", "netIPv4NeighDefaultGcThresh3"),
                ports(
                    format!("{0} >= 1024 && {0} <= 60999", port(0)),
                    "netIPv4IPLocalPortRange first port must be in [1024, 60999]",
                ),
                ports(
                    format!("{0} >= 32768 && {0} <= 65535", port(1)),
                    "netIPv4IPLocalPortRange last port must be in [32768, 65535]",
                ),
                ports(
                    format!("{} <= {}", port(0), port(1)),
                    "netIPv4IPLocalPortRange first port must be <= last port",
                ),
            ],
        );
        local_dns(schema);
        rules(schema, "spec", security_rules());
        image_requirements(schema);
        schema::conditions(schema, false);
    });
    let warning = "use v1beta1.AKSNodeClass instead".to_owned();
    with_old_versions(crd, &[("v1alpha2".to_owned(), warning)])
}

fn local_dns(schema: &mut Value) {
    for list in ["spec.localDNS.vnetDNSOverrides", "spec.localDNS.kubeDNSOverrides"] {
        let keys =
            json!({ "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["zone"] });
        patch(schema, list, &keys);
        let zones = "['.', 'cluster.local'].all(z, self.exists(x, x.zone == z))";
        rules(schema, list, [rule(zones, "must contain required zones '.' and 'cluster.local'")]);
        rules(
            schema,
            &format!("{list}[]"),
            [
                rule(
                    "!(self.zone.endsWith('cluster.local') && self.forwardDestination == 'VnetDNS')",
                    "'cluster.local' cannot be forwarded to VnetDNS",
                ),
                rule(
                    "!(self.serveStale == 'Verify' && self.protocol == 'ForceTCP')",
                    "serveStale Verify cannot be used with protocol ForceTCP",
                ),
            ],
        );
    }
    rules(
        schema,
        "spec.localDNS.vnetDNSOverrides",
        [
            rule(
                "!self.exists(x, x.zone == '.' && x.forwardDestination == 'ClusterCoreDNS')",
                "root zone '.' cannot be forwarded to ClusterCoreDNS from vnetDNSOverrides",
            ),
            rule(
                "!self.exists(x, x.zone != '.' && !x.zone.endsWith('cluster.local') && x.forwardDestination == 'ClusterCoreDNS')",
                "external domains cannot be forwarded to ClusterCoreDNS from vnetDNSOverrides",
            ),
        ],
    );
}

fn security_rules() -> Vec<Value> {
    let fips = "has(self.fipsMode) && self.fipsMode == 'FIPS'";
    let launch = "has(self.security) && has(self.security.trustedLaunch) && \
                  ((has(self.security.trustedLaunch.vtpm) && self.security.trustedLaunch.vtpm) || \
                  (has(self.security.trustedLaunch.secureBoot) && self.security.trustedLaunch.secureBoot))";
    vec![
        rule(
            &format!("!({fips}) || (has(self.imageFamily) && self.imageFamily != 'Ubuntu2404')"),
            "FIPS is not yet supported for Ubuntu2404",
        ),
        rule(
            &format!(
                "!({fips} && has(self.imageFamily) && self.imageFamily == 'Ubuntu2204') || ({launch})"
            ),
            "TrustedLaunch is required for FIPS support with Ubuntu2204",
        ),
        rule(
            &format!(
                "!({fips} && {launch}) || !has(self.imageFamily) || self.imageFamily in ['Ubuntu', 'Ubuntu2204']"
            ),
            "TrustedLaunch with FIPSMode FIPS is only supported for Ubuntu and Ubuntu2204",
        ),
        rule(
            "!has(self.linuxOSConfig) || !has(self.linuxOSConfig.swapFileSize) || (has(self.kubelet) && has(self.kubelet.failSwapOn) && !self.kubelet.failSwapOn)",
            "kubelet.failSwapOn must be set to false when linuxOSConfig.swapFileSize is specified",
        ),
    ]
}

/// nap writes these itself, so they are only described, not judged.
fn image_requirements(schema: &mut Value) {
    let items = json!({
        "description": "One requirement on the node.",
        "type": "object",
        "required": ["key", "operator"],
        "properties": {
            "key": { "description": "The label's key.", "type": "string" },
            "operator": { "description": "How the label relates to the values.", "type": "string" },
            "values": {
                "description": "The values.",
                "type": "array",
                "items": { "type": "string" },
                "x-kubernetes-list-type": "atomic",
            },
        },
    });
    patch(schema, "status.images[].requirements", &json!({ "items": items, "default": null }));
    patch(schema, "status.images[]", &json!({ "required": ["id", "requirements"] }));
}

/// The derived definition with a description, what the types cannot say, and the shape that servers
/// want.
fn finished<K: CustomResourceExt>(
    description: &str,
    more: impl Fn(&mut Value),
) -> CustomResourceDefinition {
    let mut crd = K::crd();
    crd.spec.names.list_kind = Some(format!("{}List", crd.spec.names.kind));
    for version in &mut crd.spec.versions {
        let Some(derived) =
            version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut())
        else {
            continue;
        };
        let mut schema = serde_json::to_value(&*derived).expect("a derived schema is plain data");
        schema::tidy(&mut schema);
        patch(&mut schema, "", &json!({ "description": description, "title": null }));
        more(&mut schema);
        *derived = serde_json::from_value(schema).expect("a patched schema is still a schema");
    }
    crd
}

/// The schema under old version names, with the printer columns of each.
fn with_old_versions(
    mut crd: CustomResourceDefinition,
    old: &[(String, String)],
) -> CustomResourceDefinition {
    let Some(current) = crd.spec.versions.first().cloned() else { return crd };
    for (name, warning) in old {
        let mut version = current.clone();
        version.name.clone_from(name);
        version.storage = false;
        version.deprecated = Some(true);
        version.deprecation_warning = Some(warning.clone());
        crd.spec.versions.push(version);
    }
    crd
}
