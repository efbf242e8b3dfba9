//! RuntimeClass: the overhead, the node selector and the tolerations that a class gives its pods.

use serde_json::Value;

use crate::error::{ApiError, Result};
use crate::object;
use crate::resources::{GroupResource, Resource};
use crate::server::State;

impl State {
    /// Fills in what the RuntimeClass of a pod says. Refuses a pod whose class does not exist or
    /// says something else than the pod.
    pub(super) fn apply_runtime_class(&self, resource: &Resource, pod: &mut Value) -> Result<()> {
        let refused =
            |pod: &Value, why: &str| Err(ApiError::forbidden(resource, object::name(pod), why));
        let name = object::text(pod, &["spec", "runtimeClassName"]).to_owned();
        let classes = GroupResource::new("node.k8s.io", "runtimeclasses");
        let class = self.store.get(&classes, &(String::new(), name.clone()));
        if !name.is_empty() && class.is_none() {
            let why = format!("pod rejected: RuntimeClass {name:?} not found");
            return refused(pod, &why);
        }
        let of_class = |path: &[&str]| class.as_ref().and_then(|class| object::at(class, path));
        let own = object::at(pod, &["spec", "overhead"]).cloned();
        match (of_class(&["overhead", "podFixed"]), own) {
            (Some(fixed), Some(own)) if *fixed != own => {
                let why = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined \
                           Overhead";
                return refused(pod, why);
            }
            (Some(fixed), _) => pod["spec"]["overhead"] = fixed.clone(),
            (None, Some(_)) => {
                let why = "pod rejected: Pod Overhead set without corresponding RuntimeClass \
                           defined Overhead";
                return refused(pod, why);
            }
            (None, None) => {}
        }
        let labels = of_class(&["scheduling", "nodeSelector"]).and_then(Value::as_object);
        for (label, wanted) in labels.into_iter().flatten() {
            let selector = object::child(object::child(pod, "spec"), "nodeSelector");
            let held = object::text(selector, &[label]).to_owned();
            let wanted_text = wanted.as_str().unwrap_or_default();
            if selector.get(label).is_some() && held != wanted_text {
                let why = format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{label}] = {wanted_text}; \
                     pod.spec.nodeSelector[{label}] = {held}"
                );
                return refused(pod, &why);
            }
            object::fields_mut(selector).insert(label.clone(), wanted.clone());
        }
        if of_class(&["scheduling"]).is_some() {
            let more = class
                .as_ref()
                .map(|class| object::list(class, &["scheduling", "tolerations"]).to_vec());
            let mut all = object::list(pod, &["spec", "tolerations"]).to_vec();
            all.extend(more.unwrap_or_default());
            if !all.is_empty() {
                pod["spec"]["tolerations"] = Value::Array(merged(&all));
            }
        }
        Ok(())
    }
}

/// Tolerations without those that another one covers; of equal ones the first stays.
fn merged(all: &[Value]) -> Vec<Value> {
    let mut kept: Vec<Value> = Vec::new();
    for (index, one) in all.iter().enumerate() {
        let covered = kept.iter().any(|other| covers(other, one))
            || all[index + 1..].iter().any(|other| other != one && covers(other, one));
        if !covered {
            kept.push(one.clone());
        }
    }
    kept
}

/// Whether a toleration tolerates everything that another one does.
fn covers(wide: &Value, narrow: &Value) -> bool {
    let text = |value: &Value, field: &str| object::text(value, &[field]).to_owned();
    let same = |field: &str| text(wide, field) == text(narrow, field);
    let exists = text(wide, "operator") == "Exists";
    if wide == narrow {
        return true;
    }
    let all_keys = text(wide, "key").is_empty() && exists;
    let all_effects = text(wide, "effect").is_empty();
    if !(same("key") || all_keys) || !(same("effect") || all_effects) {
        return false;
    }
    let seconds = |value: &Value| object::integer(value, &["tolerationSeconds"]);
    if text(wide, "effect") == "NoExecute"
        && let Some(most) = seconds(wide)
        && seconds(narrow).is_none_or(|own| own > most)
    {
        return false;
    }
    exists || (text(narrow, "operator") == "Equal" && same("value"))
}
