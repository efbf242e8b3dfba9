//! From a CustomResourceDefinition object to the resources it serves.

use std::sync::Arc;

use serde_json::{Value, json};

use super::CustomSchema;
use crate::error::FieldError;
use crate::object;
use crate::resources::{PrinterColumn, Resource, Scale, Source};

/// Fills what the API server itself writes into a definition: names, conditions, stored versions.
pub(crate) fn complete(definition: &mut Value, now: &str) {
    let kind = object::text(definition, &["spec", "names", "kind"]).to_owned();
    let spec = object::child(definition, "spec");
    let names = object::child(spec, "names");
    object::default(names, "singular", || json!(kind.to_lowercase()));
    object::default(names, "listKind", || json!(format!("{kind}List")));
    let names = names.clone();
    object::default(spec, "conversion", || json!({ "strategy": "None" }));
    let stored: Vec<Value> = object::list(spec, &["versions"])
        .iter()
        .filter(|version| version.get("storage").and_then(Value::as_bool) == Some(true))
        .filter_map(|version| version.get("name").cloned())
        .collect();
    let status = object::child(definition, "status");
    let mut versions = object::list(status, &["storedVersions"]).to_vec();
    for version in stored {
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    status["acceptedNames"] = names;
    status["storedVersions"] = json!(versions);
    if object::list(status, &["conditions"]).is_empty() {
        status["conditions"] = json!([
            { "type": "NamesAccepted", "status": "True", "reason": "NoConflicts",
              "message": "no conflicts found", "lastTransitionTime": now },
            { "type": "Established", "status": "True", "reason": "InitialNamesAccepted",
              "message": "the initial names have been accepted", "lastTransitionTime": now },
        ]);
    }
}

/// One resource per served version, or what is wrong with the definition.
pub(crate) fn resources_of(definition: &Value) -> Result<Vec<Resource>, Vec<FieldError>> {
    let mut errors = Vec::new();
    let spec = |path: &[&str]| {
        let path: Vec<&str> = std::iter::once("spec").chain(path.iter().copied()).collect();
        object::text(definition, &path).to_owned()
    };
    let (group, plural, kind) =
        (spec(&["group"]), spec(&["names", "plural"]), spec(&["names", "kind"]));
    for (field, value) in
        [("spec.group", &group), ("spec.names.plural", &plural), ("spec.names.kind", &kind)]
    {
        if value.is_empty() {
            errors.push(FieldError::required(field, ""));
        }
    }
    let expected = format!("{plural}.{group}");
    if object::name(definition) != expected {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid("metadata.name", object::name(definition), detail));
    }
    let scope = spec(&["scope"]);
    if !matches!(scope.as_str(), "Namespaced" | "Cluster") {
        let supported = vec![json!("Cluster"), json!("Namespaced")];
        errors.push(FieldError::not_supported("spec.scope", scope.clone(), supported));
    }
    let versions = object::list(definition, &["spec", "versions"]);
    let storage: Vec<&str> = versions
        .iter()
        .filter(|version| version.get("storage").and_then(Value::as_bool) == Some(true))
        .map(|version| object::text(version, &["name"]))
        .collect();
    let [storage_version] = storage.as_slice() else {
        errors.push(FieldError::invalid(
            "spec.versions",
            Value::Null,
            "must have exactly one version marked as storage version",
        ));
        return Err(errors);
    };
    if versions.len() > 1 && spec(&["conversion", "strategy"]) == "Webhook" {
        errors.push(FieldError::not_supported(
            "spec.conversion.strategy",
            "Webhook",
            vec![json!("None")],
        ));
    }
    let strings = |path: &[&str]| -> Vec<String> {
        object::list(definition, path).iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut resources = Vec::new();
    for (index, version) in versions.iter().enumerate() {
        let path = format!("spec.versions[{index}].schema.openAPIV3Schema");
        let Some(raw) = object::at(version, &["schema", "openAPIV3Schema"]) else {
            errors.push(FieldError::required(path, "schemas are required"));
            continue;
        };
        let schema = match CustomSchema::parse(raw, &path) {
            Ok(schema) => schema,
            Err(problems) => {
                errors.extend(problems);
                continue;
            }
        };
        if version.get("served").and_then(Value::as_bool) != Some(true) {
            continue;
        }
        let name = object::text(version, &["name"]).to_owned();
        let deprecated = version.get("deprecated").and_then(Value::as_bool) == Some(true);
        let warning = object::text(version, &["deprecationWarning"]);
        resources.push(Resource {
            group: group.clone(),
            version: name.clone(),
            storage_version: (*storage_version).to_owned(),
            kind: kind.clone(),
            list_kind: match spec(&["names", "listKind"]) {
                empty if empty.is_empty() => format!("{kind}List"),
                given => given,
            },
            plural: plural.clone(),
            singular: match spec(&["names", "singular"]) {
                empty if empty.is_empty() => kind.to_lowercase(),
                given => given,
            },
            short_names: strings(&["spec", "names", "shortNames"]),
            categories: strings(&["spec", "names", "categories"]),
            namespaced: scope == "Namespaced",
            has_status: object::at(version, &["subresources", "status"]).is_some(),
            has_generation: true,
            scale: object::at(version, &["subresources", "scale"]).map(scale_of),
            round_trip: None,
            schema: Some(Arc::new(schema)),
            json_schema: None,
            columns: columns_of(version),
            selectable_fields: object::list(version, &["selectableFields"])
                .iter()
                .map(|field| object::text(field, &["jsonPath"]).trim_start_matches('.').to_owned())
                .collect(),
            deprecation_warning: deprecated.then(|| {
                if warning.is_empty() {
                    format!("{group}/{name} {kind} is deprecated")
                } else {
                    warning.to_owned()
                }
            }),
            storage_group: group.clone(),
            source: Source::Stored,
        });
    }
    if errors.is_empty() { Ok(resources) } else { Err(errors) }
}

fn scale_of(scale: &Value) -> Scale {
    let path = |key: &str| -> Vec<String> {
        let text = object::text(scale, &[key]).trim_start_matches('.');
        text.split('.').filter(|step| !step.is_empty()).map(str::to_owned).collect()
    };
    let selector = path("labelSelectorPath");
    Scale {
        spec: path("specReplicasPath"),
        status: path("statusReplicasPath"),
        selector: (!selector.is_empty()).then_some(selector),
    }
}

fn columns_of(version: &Value) -> Vec<PrinterColumn> {
    object::list(version, &["additionalPrinterColumns"])
        .iter()
        .map(|column| PrinterColumn {
            name: object::text(column, &["name"]).to_owned(),
            kind: object::text(column, &["type"]).to_owned(),
            format: object::text(column, &["format"]).to_owned(),
            description: object::text(column, &["description"]).to_owned(),
            priority: object::integer(column, &["priority"]).unwrap_or_default(),
            json_path: object::text(column, &["jsonPath"]).to_owned(),
        })
        .collect()
}
