//! The one table of built-in resources, and the description of a resource, built-in or custom.

use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::crd::CustomSchema;

/// Paths of the parts of `scale` in the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scale {
    pub(crate) spec: Vec<String>,
    pub(crate) status: Vec<String>,
    /// Path of the label selector: an object in built-ins, a string in custom resources.
    pub(crate) selector: Option<Vec<String>>,
}

/// A column of `kubectl get`, as a CRD declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PrinterColumn {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) format: String,
    pub(crate) description: String,
    pub(crate) priority: i64,
    pub(crate) json_path: String,
}

/// One served version of one resource.
#[derive(Debug, Clone)]
pub(crate) struct Resource {
    pub(crate) group: String,
    pub(crate) version: String,
    /// The version objects are stored in; differs from `version` only for custom resources.
    pub(crate) storage_version: String,
    pub(crate) kind: String,
    pub(crate) list_kind: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) namespaced: bool,
    pub(crate) has_status: bool,
    /// Whether `metadata.generation` is kept.
    pub(crate) has_generation: bool,
    pub(crate) scale: Option<Scale>,
    /// Decodes and re-encodes a built-in kind, which checks its types and drops unknown fields.
    pub(crate) round_trip: Option<fn(Value) -> Result<Value, String>>,
    pub(crate) schema: Option<Arc<CustomSchema>>,
    /// Adds the schema of a built-in kind to a document and returns the reference to it.
    pub(crate) json_schema: Option<fn(&mut SchemaGenerator) -> Schema>,
    pub(crate) columns: Vec<PrinterColumn>,
    pub(crate) selectable_fields: Vec<String>,
    pub(crate) deprecation_warning: Option<String>,
    /// Group of the collection that holds the objects; another one than `group` only for events.
    pub(crate) storage_group: String,
    /// Where the answers come from.
    pub(crate) source: Source,
}

/// Where the objects of a resource come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// They are stored.
    Stored,
    /// A question that is answered and not stored.
    Review,
    /// Made for each request from the stored pods and nodes.
    Metrics,
}

impl Source {
    /// The verbs that discovery lists.
    pub(crate) fn verbs(self) -> &'static [&'static str] {
        match self {
            Self::Stored => {
                &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
            }
            Self::Review => &["create"],
            Self::Metrics => &["get", "list"],
        }
    }
}

/// Identity of a stored collection, in whatever version it is requested.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupResource {
    pub(crate) group: String,
    pub(crate) plural: String,
}

impl GroupResource {
    pub(crate) fn new(group: &str, plural: &str) -> Self {
        Self { group: group.to_owned(), plural: plural.to_owned() }
    }
}

impl Resource {
    pub(crate) fn group_resource(&self) -> GroupResource {
        GroupResource::new(&self.storage_group, &self.plural)
    }

    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        self.group == group && self.plural == plural
    }

    /// `pods`, `nodepools.karpenter.sh`: how messages name the resource.
    pub(crate) fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    pub(crate) fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    pub(crate) fn storage_api_version(&self) -> String {
        api_version(&self.storage_group, &self.storage_version)
    }

    pub(crate) fn is_custom(&self) -> bool {
        self.schema.is_some()
    }
}

pub(crate) fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

fn round_trip<T: Serialize + DeserializeOwned>(value: Value) -> Result<Value, String> {
    let typed: T = serde_json::from_value(value).map_err(|error| error.to_string())?;
    serde_json::to_value(&typed).map_err(|error| error.to_string())
}

fn json_schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

struct Row {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    short_names: &'static [&'static str],
    /// Letters: `n` namespaced, `s` status, `g` generation, `c` scale, `a` in category `all`,
    /// `r` review, `e` in category `api-extensions`.
    traits: &'static str,
    round_trip: fn(Value) -> Result<Value, String>,
    json_schema: Option<fn(&mut SchemaGenerator) -> Schema>,
}

macro_rules! rows {
    ($($group:literal $version:literal $($path:ident)::+ . $kind:ident $plural:literal [$($short:literal)*] $traits:literal;)*) => {
        [$(Row {
            group: $group,
            version: $version,
            kind: stringify!($kind),
            plural: $plural,
            short_names: &[$($short),*],
            traits: $traits,
            round_trip: round_trip::<k8s_openapi::$($path)::+::$kind>,
            json_schema: Some(json_schema::<k8s_openapi::$($path)::+::$kind>),
        }),*]
    };
}

/// Every built-in resource this server stores.
pub(crate) fn builtin() -> Vec<Resource> {
    let rows = rows! {
        "" "v1" api::core::v1.ConfigMap "configmaps" ["cm"] "n";
        "" "v1" api::core::v1.Endpoints "endpoints" ["ep"] "n";
        "" "v1" api::core::v1.Event "events" ["ev"] "n";
        "" "v1" api::core::v1.LimitRange "limitranges" ["limits"] "n";
        "" "v1" api::core::v1.Namespace "namespaces" ["ns"] "s";
        "" "v1" api::core::v1.Node "nodes" ["no"] "s";
        "" "v1" api::core::v1.PersistentVolume "persistentvolumes" ["pv"] "s";
        "" "v1" api::core::v1.PersistentVolumeClaim "persistentvolumeclaims" ["pvc"] "ns";
        "" "v1" api::core::v1.Pod "pods" ["po"] "nsga";
        "" "v1" api::core::v1.PodTemplate "podtemplates" [] "n";
        "" "v1" api::core::v1.ReplicationController "replicationcontrollers" ["rc"] "nsgca";
        "" "v1" api::core::v1.ResourceQuota "resourcequotas" ["quota"] "ns";
        "" "v1" api::core::v1.Secret "secrets" [] "n";
        "" "v1" api::core::v1.Service "services" ["svc"] "nsa";
        "" "v1" api::core::v1.ServiceAccount "serviceaccounts" ["sa"] "n";
        "admissionregistration.k8s.io" "v1" api::admissionregistration::v1.MutatingWebhookConfiguration
            "mutatingwebhookconfigurations" [] "ge";
        "admissionregistration.k8s.io" "v1" api::admissionregistration::v1.ValidatingAdmissionPolicy
            "validatingadmissionpolicies" [] "sge";
        "admissionregistration.k8s.io" "v1" api::admissionregistration::v1.ValidatingAdmissionPolicyBinding
            "validatingadmissionpolicybindings" [] "ge";
        "admissionregistration.k8s.io" "v1" api::admissionregistration::v1.ValidatingWebhookConfiguration
            "validatingwebhookconfigurations" [] "ge";
        "apiextensions.k8s.io" "v1" apiextensions_apiserver::pkg::apis::apiextensions::v1.CustomResourceDefinition
            "customresourcedefinitions" ["crd" "crds"] "sge";
        "apps" "v1" api::apps::v1.ControllerRevision "controllerrevisions" [] "n";
        "apps" "v1" api::apps::v1.DaemonSet "daemonsets" ["ds"] "nsga";
        "apps" "v1" api::apps::v1.Deployment "deployments" ["deploy"] "nsgca";
        "apps" "v1" api::apps::v1.ReplicaSet "replicasets" ["rs"] "nsgca";
        "apps" "v1" api::apps::v1.StatefulSet "statefulsets" ["sts"] "nsgca";
        "authentication.k8s.io" "v1" api::authentication::v1.SelfSubjectReview "selfsubjectreviews" [] "r";
        "authentication.k8s.io" "v1" api::authentication::v1.TokenReview "tokenreviews" [] "r";
        "authorization.k8s.io" "v1" api::authorization::v1.LocalSubjectAccessReview
            "localsubjectaccessreviews" [] "nr";
        "authorization.k8s.io" "v1" api::authorization::v1.SelfSubjectAccessReview
            "selfsubjectaccessreviews" [] "r";
        "authorization.k8s.io" "v1" api::authorization::v1.SelfSubjectRulesReview
            "selfsubjectrulesreviews" [] "r";
        "authorization.k8s.io" "v1" api::authorization::v1.SubjectAccessReview
            "subjectaccessreviews" [] "r";
        "autoscaling" "v1" api::autoscaling::v1.HorizontalPodAutoscaler
            "horizontalpodautoscalers" ["hpa"] "nsa";
        "autoscaling" "v2" api::autoscaling::v2.HorizontalPodAutoscaler
            "horizontalpodautoscalers" ["hpa"] "nsa";
        "batch" "v1" api::batch::v1.CronJob "cronjobs" ["cj"] "nsga";
        "batch" "v1" api::batch::v1.Job "jobs" [] "nsga";
        "certificates.k8s.io" "v1" api::certificates::v1.CertificateSigningRequest
            "certificatesigningrequests" ["csr"] "s";
        "coordination.k8s.io" "v1" api::coordination::v1.Lease "leases" [] "n";
        "discovery.k8s.io" "v1" api::discovery::v1.EndpointSlice "endpointslices" [] "n";
        "events.k8s.io" "v1" api::events::v1.Event "events" ["ev"] "n";
        "networking.k8s.io" "v1" api::networking::v1.Ingress "ingresses" ["ing"] "nsg";
        "networking.k8s.io" "v1" api::networking::v1.IngressClass "ingressclasses" [] "g";
        "networking.k8s.io" "v1" api::networking::v1.NetworkPolicy "networkpolicies" ["netpol"] "ng";
        "node.k8s.io" "v1" api::node::v1.RuntimeClass "runtimeclasses" [] "";
        "policy" "v1" api::policy::v1.PodDisruptionBudget "poddisruptionbudgets" ["pdb"] "nsg";
        "rbac.authorization.k8s.io" "v1" api::rbac::v1.ClusterRole "clusterroles" [] "";
        "rbac.authorization.k8s.io" "v1" api::rbac::v1.ClusterRoleBinding "clusterrolebindings" [] "";
        "rbac.authorization.k8s.io" "v1" api::rbac::v1.Role "roles" [] "n";
        "rbac.authorization.k8s.io" "v1" api::rbac::v1.RoleBinding "rolebindings" [] "n";
        "scheduling.k8s.io" "v1" api::scheduling::v1.PriorityClass "priorityclasses" ["pc"] "g";
        "storage.k8s.io" "v1" api::storage::v1.CSIDriver "csidrivers" [] "";
        "storage.k8s.io" "v1" api::storage::v1.CSIStorageCapacity "csistoragecapacities" [] "n";
        "storage.k8s.io" "v1" api::storage::v1.CSINode "csinodes" [] "";
        "storage.k8s.io" "v1" api::storage::v1.StorageClass "storageclasses" ["sc"] "";
        "storage.k8s.io" "v1" api::storage::v1.VolumeAttachment "volumeattachments" [] "s";
    };
    let mut all: Vec<Resource> = rows.iter().map(from_row).collect();
    all.extend([metrics("NodeMetrics", "nodes", false), metrics("PodMetrics", "pods", true)]);
    for resource in &mut all {
        // Two versions of one collection, and two groups of another.
        match (resource.group.as_str(), resource.version.as_str()) {
            ("autoscaling", "v1") => "v2".clone_into(&mut resource.storage_version),
            ("events.k8s.io", _) => resource.storage_group.clear(),
            _ => {}
        }
    }
    all
}

/// A resource of `metrics.k8s.io`, which has no types of its own here.
fn metrics(kind: &str, plural: &str, namespaced: bool) -> Resource {
    let row = Row {
        group: "metrics.k8s.io",
        version: "v1beta1",
        kind: "",
        plural: "",
        short_names: &[],
        traits: if namespaced { "n" } else { "" },
        round_trip: Ok,
        json_schema: None,
    };
    Resource {
        kind: kind.to_owned(),
        list_kind: format!("{kind}List"),
        plural: plural.to_owned(),
        singular: String::new(),
        source: Source::Metrics,
        ..from_row(&row)
    }
}

fn from_row(row: &Row) -> Resource {
    let has = |letter: char| row.traits.contains(letter);
    let path = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
    Resource {
        group: row.group.to_owned(),
        version: row.version.to_owned(),
        storage_version: row.version.to_owned(),
        kind: row.kind.to_owned(),
        list_kind: format!("{}List", row.kind),
        plural: row.plural.to_owned(),
        singular: row.kind.to_lowercase(),
        short_names: row.short_names.iter().map(|name| (*name).to_owned()).collect(),
        categories: [('a', "all"), ('e', "api-extensions")]
            .iter()
            .filter(|(letter, _)| has(*letter))
            .map(|(_, category)| (*category).to_owned())
            .collect(),
        namespaced: has('n'),
        has_status: has('s'),
        has_generation: has('g'),
        scale: has('c').then(|| Scale {
            spec: path("spec.replicas"),
            status: path("status.replicas"),
            selector: Some(path("spec.selector")),
        }),
        round_trip: Some(row.round_trip),
        schema: None,
        json_schema: row.json_schema,
        columns: Vec::new(),
        selectable_fields: Vec::new(),
        deprecation_warning: None,
        storage_group: row.group.to_owned(),
        source: if has('r') { Source::Review } else { Source::Stored },
    }
}
