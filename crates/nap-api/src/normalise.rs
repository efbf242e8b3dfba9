//! Old spellings of NodePools, brought to the current one.
//!
//! Published guides still carry spellings that were current once, or never. What their authors
//! meant is clear, so nap takes it, and says what it took. The stored object stays as it was
//! written; [`crate::NodePoolSpec`] is normalised while it is read, so that nothing that works with
//! the type ever sees an old spelling, drift hashes included.
//!
//! | written | means |
//! |---|---|
//! | `consolidationPolicy: WhenUnderutilized` and its variants | `WhenEmptyOrUnderutilized` |
//! | `spec.disruption.expireAfter` | `spec.template.spec.expireAfter`, unless that is written too |
//! | `nodeClassRef` with `apiVersion` or only a name | `karpenter.azure.com`, `AKSNodeClass` |
//! | `karpenter.sh/v1beta1` and `v1alpha5` NodePool | `karpenter.sh/v1` |
//! | `karpenter.azure.com/v1alpha2` AKSNodeClass | `karpenter.azure.com/v1beta1` |

use std::fmt;

use serde_json::{Map, Value, json};

use crate::labels;

/// Old names of consolidation policies, and what they mean.
pub const OLD_POLICIES: [(&str, &str); 3] = [
    ("WhenUnderutilized", "WhenEmptyOrUnderutilized"),
    ("WhenUnderUtilized", "WhenEmptyOrUnderutilized"),
    ("WhenEmptyOrUnderUtilized", "WhenEmptyOrUnderutilized"),
];

/// Default of the incumbent's definition for `spec.template.spec.expireAfter`.
const FILLED_IN: &str = "720h";

/// Something that was written in an old spelling, and how it was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Path of the field.
    pub field: &'static str,
    /// Meaning in the current spelling.
    pub text: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.text)
    }
}

/// Brings a whole manifest to the current spelling. Kinds other than NodePool and AKSNodeClass are
/// left alone.
pub fn manifest(manifest: &mut Value) -> Vec<Note> {
    let mut notes = Vec::new();
    let text = |key: &str| manifest.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let current = match (api_version.as_str(), kind.as_str()) {
        ("karpenter.sh/v1beta1" | "karpenter.sh/v1alpha5", "NodePool") => "karpenter.sh/v1",
        ("karpenter.azure.com/v1alpha2", "AKSNodeClass") => "karpenter.azure.com/v1beta1",
        _ => &api_version,
    };
    if current != api_version {
        notes
            .push(Note { field: "apiVersion", text: format!("`{api_version}` means `{current}`") });
        manifest["apiVersion"] = json!(current);
    }
    if current == "karpenter.sh/v1"
        && kind == "NodePool"
        && let Some(spec) = manifest.get_mut("spec")
    {
        notes.extend(node_pool_spec(spec));
    }
    notes
}

/// Brings the spec of a NodePool to the current spelling. What is current already stays as it is.
pub fn node_pool_spec(spec: &mut Value) -> Vec<Note> {
    let mut notes = Vec::new();
    consolidation_policy(spec, &mut notes);
    expire_after(spec, &mut notes);
    node_class_ref(spec, &mut notes);
    notes
}

fn consolidation_policy(spec: &mut Value, notes: &mut Vec<Note>) {
    let Some(policy) = spec.pointer_mut("/disruption/consolidationPolicy") else { return };
    if let Some((old, current)) = OLD_POLICIES.into_iter().find(|(old, _)| policy == old) {
        let field = "spec.disruption.consolidationPolicy";
        notes.push(Note { field, text: format!("`{old}` means `{current}`") });
        *policy = json!(current);
    }
}

fn expire_after(spec: &mut Value, notes: &mut Vec<Note>) {
    let Some(disruption) = spec.get_mut("disruption").and_then(Value::as_object_mut) else {
        return;
    };
    let Some(Value::String(old)) = disruption.remove("expireAfter") else { return };
    let Some(template) = spec.pointer_mut("/template/spec").and_then(Value::as_object_mut) else {
        return;
    };
    let written = template.get("expireAfter").and_then(Value::as_str).map(str::to_owned);
    let text = match written {
        None => format!("`{old}` means `spec.template.spec.expireAfter: {old}`"),
        Some(current) if current == old => {
            format!("`{old}` is said by spec.template.spec.expireAfter already")
        }
        Some(current) if current == FILLED_IN => format!(
            "`{old}` means `spec.template.spec.expireAfter: {old}`, although that is `{current}`, because servers fill that in by \
             themselves; remove one of the two"
        ),
        Some(current) => {
            let text = format!(
                "`{old}` is not used, because spec.template.spec.expireAfter is `{current}`"
            );
            notes.push(Note { field: "spec.disruption.expireAfter", text });
            return;
        }
    };
    notes.push(Note { field: "spec.disruption.expireAfter", text });
    template.insert("expireAfter".to_owned(), Value::String(old));
}

fn node_class_ref(spec: &mut Value, notes: &mut Vec<Note>) {
    let Some(reference) =
        spec.pointer_mut("/template/spec/nodeClassRef").and_then(Value::as_object_mut)
    else {
        return;
    };
    let before = reference.clone();
    let from_version = match reference.remove("apiVersion") {
        Some(Value::String(version)) => version.split_once('/').map(|(group, _)| group.to_owned()),
        _ => None,
    };
    let group = from_version.unwrap_or_else(|| labels::AZURE_GROUP.to_owned());
    fill(reference, "group", &group);
    fill(reference, "kind", "AKSNodeClass");
    if *reference != before {
        let shown = |key: &str| reference.get(key).and_then(Value::as_str).unwrap_or_default();
        let text = format!("means group `{}` and kind `{}`", shown("group"), shown("kind"));
        notes.push(Note { field: "spec.template.spec.nodeClassRef", text });
    }
}

fn fill(map: &mut Map<String, Value>, key: &str, value: &str) {
    if map.get(key).is_none_or(Value::is_null) {
        map.insert(key.to_owned(), json!(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalised(mut spec: Value) -> (Value, Vec<String>) {
        let notes = node_pool_spec(&mut spec);
        (spec, notes.iter().map(ToString::to_string).collect())
    }

    fn pool(disruption: &Value, template: &Value) -> Value {
        json!({ "disruption": disruption, "template": { "spec": template } })
    }

    fn current_ref() -> Value {
        json!({ "group": "karpenter.azure.com", "kind": "AKSNodeClass", "name": "default" })
    }

    #[test]
    fn old_policies_are_understood() {
        for old in ["WhenUnderutilized", "WhenUnderUtilized", "WhenEmptyOrUnderUtilized"] {
            let (spec, notes) = normalised(json!({ "disruption": { "consolidationPolicy": old } }));
            assert_eq!(
                spec,
                json!({ "disruption": { "consolidationPolicy": "WhenEmptyOrUnderutilized" } })
            );
            assert_eq!(
                notes,
                [format!(
                    "spec.disruption.consolidationPolicy: `{old}` means `WhenEmptyOrUnderutilized`"
                )]
            );
        }
        let (spec, notes) = normalised(json!({ "disruption": { "consolidationPolicy": "A | B" } }));
        assert_eq!(
            (spec["disruption"]["consolidationPolicy"].as_str(), notes.len()),
            (Some("A | B"), 0)
        );
    }

    #[test]
    fn the_old_place_of_expire_after_is_understood() {
        for (old, written, result, said) in [
            ("Never", None, "Never", "means `spec.template.spec.expireAfter: Never`"),
            ("Never", Some("720h"), "Never", "because servers fill that in by themselves"),
            ("Never", Some("48h"), "48h", "is not used"),
            ("48h", Some("48h"), "48h", "already"),
        ] {
            let template = match written {
                Some(written) => json!({ "expireAfter": written }),
                None => json!({}),
            };
            let (spec, notes) = normalised(pool(&json!({ "expireAfter": old }), &template));
            assert_eq!(spec, pool(&json!({}), &json!({ "expireAfter": result })));
            assert_eq!(notes.len(), 1);
            assert!(notes[0].contains(said), "{notes:?}");
        }
    }

    #[test]
    fn references_get_group_and_kind() {
        for (written, noted) in [
            (json!({ "name": "default" }), true),
            (
                json!({ "apiVersion": "karpenter.azure.com/v1alpha2", "kind": "AKSNodeClass", "name": "default" }),
                true,
            ),
            (json!({ "group": "karpenter.azure.com", "name": "default" }), true),
            (current_ref(), false),
        ] {
            let (spec, notes) = normalised(pool(&json!({}), &json!({ "nodeClassRef": written })));
            assert_eq!(spec["template"]["spec"]["nodeClassRef"], current_ref());
            assert_eq!(!notes.is_empty(), noted, "{notes:?}");
        }
        let other = json!({ "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "name": "default" });
        let (spec, _) = normalised(pool(&json!({}), &json!({ "nodeClassRef": other })));
        assert_eq!(spec["template"]["spec"]["nodeClassRef"]["group"], "karpenter.k8s.aws");
    }

    #[test]
    fn old_versions_of_manifests_are_understood() {
        for (written, kind, current) in [
            ("karpenter.sh/v1beta1", "NodePool", "karpenter.sh/v1"),
            ("karpenter.sh/v1alpha5", "NodePool", "karpenter.sh/v1"),
            ("karpenter.azure.com/v1alpha2", "AKSNodeClass", "karpenter.azure.com/v1beta1"),
        ] {
            let mut object = json!({ "apiVersion": written, "kind": kind });
            assert_eq!(manifest(&mut object).len(), 1);
            assert_eq!(object["apiVersion"], current);
        }
        let mut other =
            json!({ "apiVersion": "apps/v1", "kind": "Deployment", "spec": { "disruption": 1 } });
        assert_eq!(
            (manifest(&mut other), other["spec"]["disruption"].as_i64()),
            (Vec::new(), Some(1))
        );
    }
}
