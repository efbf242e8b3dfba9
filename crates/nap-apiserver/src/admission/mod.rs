//! Admission of built-in kinds: what the cluster itself fills in or refuses, after defaults and
//! before validation.
//!
//! | plugin | does |
//! |---|---|
//! | LimitRanger | defaults and bounds of requests and limits, from LimitRanges |
//! | RuntimeClass | overhead, node selector and tolerations of the class that a pod names |
//! | DefaultStorageClass | the class of a claim that names none |
//! | PodTopologyLabels | zone and region of the node, on pods that are bound |
//! | StorageObjectInUseProtection | finalizers of claims and volumes |
//! | ResourceQuota | refuses what would exceed a quota, and keeps its `status` |
//! | ValidatingAdmissionPolicy | rules in CEL |

mod limit_ranges;
mod policies;
mod quotas;
mod runtime_classes;

use serde_json::{Value, json};

use crate::error::Result;
use crate::object;
use crate::resources::{GroupResource, Resource};
use crate::server::State;

/// Labels of a node that its pods get.
const TOPOLOGY: [&str; 2] = ["topology.kubernetes.io/region", "topology.kubernetes.io/zone"];
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

impl State {
    /// Changes an object about to be created.
    pub(crate) fn mutate(&self, resource: &Resource, object: &mut Value) -> Result<()> {
        match (resource.group.as_str(), resource.plural.as_str()) {
            ("", "pods") => {
                self.apply_limit_ranges(resource, object)?;
                self.apply_runtime_class(resource, object)?;
                self.label_by_node(object);
            }
            ("", "persistentvolumeclaims") => {
                self.default_storage_class(object);
                protect(object, "kubernetes.io/pvc-protection");
            }
            ("", "persistentvolumes") => protect(object, "kubernetes.io/pv-protection"),
            _ => {}
        }
        Ok(())
    }

    /// Refuses an object about to be stored; `old` is what an update replaces.
    pub(crate) fn admit(
        &self,
        resource: &Resource,
        old: Option<&Value>,
        object: &Value,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        self.check_policies(resource, old, object, warnings)?;
        self.check_quotas(resource, old, object)
    }

    /// Gives a pod that is bound the zone and the region of its node as labels.
    pub(crate) fn label_by_node(&self, pod: &mut Value) {
        let name = object::text(pod, &["spec", "nodeName"]);
        if name.is_empty() {
            return;
        }
        let nodes = GroupResource::new("", "nodes");
        let Some(node) = self.store.get(&nodes, &(String::new(), name.to_owned())) else { return };
        for key in TOPOLOGY {
            if let Some(value) = object::at(&node, &["metadata", "labels", key]) {
                object::fields_mut(object::child(object::child(pod, "metadata"), "labels"))
                    .insert(key.to_owned(), value.clone());
            }
        }
    }

    /// The newest class that is marked as the default.
    fn default_storage_class(&self, claim: &mut Value) {
        let spec = object::child(claim, "spec");
        let named = spec.get("storageClassName").is_some_and(|name| !name.is_null());
        if named {
            return;
        }
        let classes =
            self.store.collections.get(&GroupResource::new("storage.k8s.io", "storageclasses"));
        let marked = classes.into_iter().flat_map(|held| held.objects.values()).filter(|class| {
            object::text(class, &["metadata", "annotations", DEFAULT_CLASS]) == "true"
        });
        let newest = marked.max_by_key(|class| {
            let made = object::text(class, &["metadata", "creationTimestamp"]);
            (made.to_owned(), std::cmp::Reverse(object::name(class).to_owned()))
        });
        if let Some(class) = newest {
            spec["storageClassName"] = json!(object::name(class));
        }
    }
}

fn protect(object: &mut Value, finalizer: &str) {
    let list = object::metadata(object).entry("finalizers").or_insert_with(|| json!([]));
    if let Value::Array(list) = list
        && !list.iter().any(|held| held == finalizer)
    {
        list.push(json!(finalizer));
    }
}
