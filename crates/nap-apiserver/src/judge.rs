//! Judgement of single objects, as the server would take or refuse them at creation, with all
//! problems of an object at once. For manifests that nobody has applied yet.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use nap_clock::Clock;
use serde_json::{Value, json};

use crate::builtin::{defaults, metadata, shape, validate};
use crate::error::FieldError;
use crate::resources::{GroupResource, Resource};
use crate::server::State;
use crate::verbs::{WriteOptions, decode_typed};
use crate::{Config, object};

/// Names that come with every cluster on AKS.
const RUNTIME_CLASSES: [&str; 3] =
    ["kata-cc-isolation", "kata-mshv-vm-isolation", "kata-vm-isolation"];
/// Maximum edits between an unknown field and the name that it may have meant.
const MAX_EDITS: usize = 3;

/// A problem of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldProblem {
    /// Path of the field, such as `spec.containers[0].image`.
    pub field: String,
    /// What is wrong with it.
    pub text: String,
}

/// The judgement of an object.
#[derive(Debug)]
pub enum Verdict {
    /// No kind of this group is known.
    UnknownGroup,
    /// The group is known, and the kind is not.
    UnknownKind,
    /// The kind is known in these versions only.
    UnknownVersion(Vec<String>),
    /// The kind is known.
    Judged {
        /// The object with the defaults that the server fills in, without what is wrong.
        object: Value,
        /// Everything that the server would refuse; empty if it takes the object.
        problems: Vec<FieldProblem>,
    },
}

/// A judge of objects. Definitions are compiled once.
pub struct Judge {
    state: State,
    /// Types of built-in kinds, by API version and kind.
    types: BTreeMap<(String, String), Value>,
}

impl Judge {
    /// A judge that knows the built-in kinds and these definitions. Fails on a bad definition.
    pub fn new(definitions: &[CustomResourceDefinition]) -> Result<Self, String> {
        // No time of an object is shown, so any serves.
        let clock = Clock::fixed(jiff::Timestamp::UNIX_EPOCH);
        let state = State::new(Config { clock, seed: 1, git_version: String::new() });
        let mut judge = Self { state, types: BTreeMap::new() };
        for definition in definitions {
            let mut definition = serde_json::to_value(definition).map_err(|e| e.to_string())?;
            object::default(&mut definition, "kind", || json!("CustomResourceDefinition"));
            object::default(&mut definition, "apiVersion", || json!("apiextensions.k8s.io/v1"));
            judge.store(definition).map_err(|error| error.to_string())?;
        }
        for name in RUNTIME_CLASSES {
            let class = json!({ "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
                "metadata": { "name": name }, "handler": name });
            judge.learn(&class);
        }
        Ok(judge)
    }

    /// Remembers a PriorityClass or RuntimeClass, to which other objects may refer by name.
    pub fn learn(&mut self, object: &Value) {
        if ["PriorityClass", "RuntimeClass"].contains(&object::text(object, &["kind"])) {
            // A class that is refused is reported when it is judged itself.
            let _ = self.store(object::without(object, &["status"]));
        }
    }

    fn store(&mut self, mut object: Value) -> crate::error::Result<()> {
        object::metadata(&mut object).remove("resourceVersion");
        let (version, kind) =
            (object::text(&object, &["apiVersion"]), object::text(&object, &["kind"]));
        if let Some(resource) = self.state.registry.by_kind(version, kind).cloned() {
            self.state.create(&resource, "", object, &mut WriteOptions::default())?;
        }
        Ok(())
    }

    /// Judges an object. One that comes from a cluster (it has a uid) was taken before, so only its
    /// types are checked.
    pub fn judge(&mut self, object: &Value) -> Verdict {
        let version = object::text(object, &["apiVersion"]).to_owned();
        let kind = object::text(object, &["kind"]).to_owned();
        let Some(resource) = self.state.registry.by_kind(&version, &kind).cloned() else {
            return self.unknown(&version, &kind);
        };
        let from_cluster = !object::uid(object).is_empty();
        let mut object = object.clone();
        let mut errors = Vec::new();
        let types = resource
            .json_schema
            .map(|add| &*self.types.entry((version, kind)).or_insert_with(|| shape::types(add)));
        if let Some(types) = types {
            errors = shape::remove_wrong_types(types, &mut object);
        }
        let wrong: Vec<String> = errors.iter().map(|error| error.field.clone()).collect();
        let mut problems = Vec::new();
        match decode_typed(&resource, object) {
            Err(problem) => {
                return judged(
                    Value::Null,
                    vec![FieldProblem { field: String::new(), text: problem }],
                );
            }
            Ok((decoded, unknown)) => {
                object = decoded;
                if !from_cluster {
                    let names = |field: &str| match (types, &resource.schema) {
                        (Some(types), _) => shape::names_beside(types, field),
                        (None, Some(schema)) => shape::names_beside(&schema.raw, field),
                        (None, None) => Vec::new(),
                    };
                    problems.extend(unknown.into_iter().map(|field| {
                        let text = unknown_field(&field, &names(&field));
                        FieldProblem { field, text }
                    }));
                }
            }
        }
        if from_cluster {
            problems.extend(errors.iter().map(problem_of));
            return judged(object, problems);
        }
        errors.extend(self.after_decoding(&resource, &mut object));
        // What was removed for its type is not missing.
        let follows = |error: &FieldError| {
            let needed = matches!(error.problem, crate::error::Problem::Required(_));
            needed && wrong.iter().any(|field| error.field.starts_with(field.as_str()))
        };
        errors.retain(|error| !follows(error) && error.field != "<nil>");
        errors.dedup();
        problems.extend(errors.iter().map(problem_of));
        judged(object, problems)
    }

    fn unknown(&self, version: &str, kind: &str) -> Verdict {
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let mut of_group = self.state.registry.iter().filter(|one| one.group == group).peekable();
        if of_group.peek().is_none() {
            return Verdict::UnknownGroup;
        }
        let served: Vec<String> =
            of_group.filter(|one| one.kind == kind).map(|one| one.api_version()).collect();
        if served.is_empty() { Verdict::UnknownKind } else { Verdict::UnknownVersion(served) }
    }

    /// Defaults and everything that the server checks after decoding.
    fn after_decoding(&self, resource: &Resource, object: &mut Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let named = [["metadata", "name"], ["metadata", "generateName"]];
        if named.iter().all(|path| object::text(object, path).is_empty()) {
            errors.push(FieldError::required("metadata.name", "name or generateName is required"));
        } else if object::name(object).is_empty() {
            let name = format!("{}x", object::text(object, &named[1]));
            object::metadata(object).insert("name".to_owned(), json!(name));
            errors.extend(metadata::check(resource, object));
            object::metadata(object).remove("name");
        } else {
            errors.extend(metadata::check(resource, object));
        }
        errors.extend(self.missing_classes(resource, object));
        if !resource.is_custom() && defaults::holds_quantities(resource) {
            defaults::canonical_quantities(object, "", &mut errors);
        }
        // A class that is missing is reported above, a quantity that cannot be read too.
        let _ = defaults::apply(&self.state, resource, None, object);
        errors.extend(validate::check(resource, None, object));
        if let Some(schema) = &resource.schema {
            errors.extend(schema.validate(object, None));
        }
        errors
    }

    /// Classes that the pods of an object name and that do not exist.
    fn missing_classes(&self, resource: &Resource, object: &mut Value) -> Vec<FieldError> {
        let path: &[&str] = match (resource.group.as_str(), resource.kind.as_str()) {
            ("", "Pod") => &["spec"],
            ("batch", "CronJob") => &["spec", "jobTemplate", "spec", "template", "spec"],
            ("apps" | "batch", _) | ("", "ReplicationController") => &["spec", "template", "spec"],
            _ => return Vec::new(),
        };
        let spec = path.iter().try_fold(&mut *object, |value, step| value.get_mut(step));
        let Some(spec) = spec.filter(|spec| spec.is_object()) else { return Vec::new() };
        let mut errors = Vec::new();
        for (field, group, plural, kind) in [
            ("priorityClassName", "scheduling.k8s.io", "priorityclasses", "PriorityClass"),
            ("runtimeClassName", "node.k8s.io", "runtimeclasses", "RuntimeClass"),
        ] {
            let name = object::text(spec, &[field]).to_owned();
            let key = (String::new(), name.clone());
            let collection = GroupResource::new(group, plural);
            if !name.is_empty() && self.state.store.get(&collection, &key).is_none() {
                let detail = format!("no {kind} of this name is known; add it to the files");
                let field_path = format!("{}.{field}", path.join("."));
                errors.push(FieldError::invalid(field_path, name, detail));
                object::fields_mut(spec).remove(field);
            }
        }
        errors
    }
}

fn judged(object: Value, mut problems: Vec<FieldProblem>) -> Verdict {
    // The real server says some of them twice.
    problems.dedup_by(|one, other| one.field == other.field && one.text == other.text);
    Verdict::Judged { object, problems }
}

fn problem_of(error: &FieldError) -> FieldProblem {
    FieldProblem { field: error.field.clone(), text: error.body() }
}

/// The words for an unknown field, with the name that it may have meant.
fn unknown_field(path: &str, names: &[&str]) -> String {
    let name = path.rsplit('.').next().unwrap_or(path);
    let near = names.iter().map(|known| (edits(name, known), *known)).min();
    match near.filter(|(edits, known)| *edits <= MAX_EDITS && *edits < known.len()) {
        Some((_, known)) => format!("unknown field; did you mean `{known}`?"),
        None => "unknown field; remove it".to_owned(),
    }
}

/// Edits between two names, whatever their case.
fn edits(a: &str, b: &str) -> usize {
    strsim::damerau_levenshtein(&a.to_lowercase(), &b.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(judge: &mut Judge, object: &Value) -> Vec<String> {
        match judge.judge(object) {
            Verdict::Judged { problems, .. } => {
                problems.iter().map(|one| format!("{}: {}", one.field, one.text)).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    fn deployment(spec: &Value, pod: &Value) -> Value {
        let mut object = json!({ "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "web" },
            "spec": { "selector": { "matchLabels": { "app": "web" } },
                "template": { "metadata": { "labels": { "app": "web" } },
                    "spec": { "containers": [{ "name": "c", "image": "i" }] } } } });
        json_patch::merge(&mut object["spec"], spec);
        json_patch::merge(&mut object["spec"]["template"]["spec"], pod);
        object
    }

    #[test]
    fn all_problems_of_an_object_are_reported_at_once() {
        let mut judge = Judge::new(&[]).unwrap();
        let sound = deployment(&json!({}), &json!({}));
        assert_eq!(problems(&mut judge, &sound), [""; 0]);
        let spec = json!({ "replicas": -3, "minReadySeconds": "soon", "strateg": {} });
        let pod = json!({
            "nodeSelectr": { "a": "b" }, "priorityClassName": "gold", "runtimeClassName": "gvisor",
            "tolerations": [{ "key": "k", "operator": "Maybe" }],
            "topologySpreadConstraints": [
                { "maxSkew": 0, "topologyKey": "zone", "whenUnsatisfiable": "Perhaps" }],
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "a", "operator": "Is" }] }] } } },
            "containers": [{ "name": "c", "image": "i", "resources": { "requests": {
                "cpu": "-1", "memory": "1 core", "nvidia.com/gpu": "1.5" } } }],
        });
        let pod_spec = "spec.template.spec";
        let term = format!(
            "{pod_spec}.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.\
             nodeSelectorTerms[0].matchExpressions[0].operator: Unsupported value: \"Is\""
        );
        let found = problems(&mut judge, &deployment(&spec, &pod));
        for expected in [
            "spec.strateg: unknown field; did you mean `strategy`?",
            "spec.template.spec.nodeSelectr: unknown field; did you mean `nodeSelector`?",
            "spec.minReadySeconds: Invalid value: \"soon\": must be of type integer",
            "spec.replicas: Invalid value: -3: must be greater than or equal to 0",
            "spec.template.spec.priorityClassName: Invalid value: \"gold\": no PriorityClass",
            "spec.template.spec.runtimeClassName: Invalid value: \"gvisor\": no RuntimeClass",
            "spec.template.spec.tolerations[0].operator: Unsupported value: \"Maybe\"",
            "spec.template.spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0",
            "spec.template.spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported",
            "spec.template.spec.containers[0].resources.requests[cpu]: Invalid value: \"-1\"",
            "spec.template.spec.containers[0].resources.requests[memory]: Invalid value: \"1 core\"",
            "spec.template.spec.containers[0].resources.requests[nvidia.com/gpu]: Invalid value",
            "spec.template.spec.containers[0].resources.limits: Required value: Limit must be set",
            &term,
        ] {
            assert!(found.iter().any(|one| one.starts_with(expected)), "{expected}: {found:#?}");
        }
        assert_eq!(found.len(), 14, "{found:#?}");
    }

    #[test]
    fn claims_of_a_stateful_set_are_volumes_of_its_pods() {
        let mut judge = Judge::new(&[]).unwrap();
        let mut set = deployment(
            &json!({ "serviceName": "web", "volumeClaimTemplates": [{
                "metadata": { "name": "data" },
                "spec": { "accessModes": ["ReadWriteOnce"],
                    "resources": { "requests": { "storage": "1Gi" } } } }] }),
            &json!({ "containers": [{ "name": "c", "image": "i", "volumeMounts": [
                { "name": "data", "mountPath": "/data" }, { "name": "logs", "mountPath": "/l" }] }] }),
        );
        set["kind"] = json!("StatefulSet");
        let field = "spec.template.spec.containers[0].volumeMounts[1].name";
        assert_eq!(problems(&mut judge, &set), [format!("{field}: Not found: \"logs\"")]);
    }

    #[test]
    fn classes_that_were_learnt_and_those_of_every_cluster_are_known() {
        let mut judge = Judge::new(&[]).unwrap();
        judge.learn(&json!({ "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": { "name": "gold" }, "value": 5 }));
        for name in ["gold", "system-node-critical"] {
            let object = deployment(&json!({}), &json!({ "priorityClassName": name }));
            assert_eq!(problems(&mut judge, &object), [""; 0]);
        }
    }

    #[test]
    fn objects_of_a_cluster_are_judged_by_their_types_only() {
        let mut judge = Judge::new(&[]).unwrap();
        let mut object = deployment(&json!({ "replicas": -3, "newField": 1 }), &json!({}));
        object["metadata"]["uid"] = json!("u");
        assert_eq!(problems(&mut judge, &object), [""; 0]);
        object["spec"]["replicas"] = json!("many");
        assert_eq!(problems(&mut judge, &object).len(), 1);
    }

    #[test]
    fn unknown_kinds_are_told_from_unknown_versions_and_groups() {
        let mut judge = Judge::new(&[]).unwrap();
        let object = |version: &str, kind: &str| json!({ "apiVersion": version, "kind": kind });
        assert!(matches!(judge.judge(&object("example.com/v1", "A")), Verdict::UnknownGroup));
        assert!(matches!(judge.judge(&object("apps/v1", "Deploymint")), Verdict::UnknownKind));
        let old = judge.judge(&object("apps/v1beta1", "Deployment"));
        assert!(matches!(old, Verdict::UnknownVersion(served) if served == ["apps/v1"]));
    }
}
