//! Server-side apply: who has set which field, conflicts, and merging.
//!
//! Fields are tracked for objects that somebody has applied once, and not for others: an object
//! that is applied for the first time belongs to `before-first-apply`, as in a server that was
//! upgraded, or to `kubectl-client-side-apply` if kubectl says that it made it.

mod fields;
mod schema;

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::object;
use crate::resources::Resource;
use fields::FieldSet;
use schema::Node;

/// Who writes, and how.
#[derive(Debug, Clone, Default)]
pub(crate) struct Manager {
    pub(crate) name: String,
    /// `status` or empty.
    pub(crate) subresource: &'static str,
    pub(crate) force: bool,
}

/// One entry of `managedFields`.
#[derive(Debug, Clone)]
struct Entry {
    manager: String,
    operation: String,
    api_version: String,
    time: String,
    subresource: String,
    fields: FieldSet,
}

impl Entry {
    /// The manager as conflicts name it: with the version that it used, unless it applies too.
    fn title(&self) -> String {
        let mut title = format!("conflict with {:?}", self.manager);
        if !self.subresource.is_empty() {
            let _ = write!(title, " with subresource {:?}", self.subresource);
        }
        if self.operation == "Update" {
            let _ = write!(title, " using {}", self.api_version);
        }
        title
    }
}

fn read(object: &Value) -> Vec<Entry> {
    let entries = object::list(object, &["metadata", "managedFields"]).iter();
    entries
        .map(|entry| {
            let text = |field: &str| object::text(entry, &[field]).to_owned();
            Entry {
                manager: text("manager"),
                operation: text("operation"),
                api_version: text("apiVersion"),
                time: text("time"),
                subresource: text("subresource"),
                fields: fields::parse(&entry["fieldsV1"]),
            }
        })
        .collect()
}

fn write(entries: &[Entry], object: &mut Value) {
    let shown: Vec<Value> = entries
        .iter()
        .filter(|entry| !entry.fields.is_empty())
        .map(|entry| {
            let mut shown = json!({
                "manager": entry.manager, "operation": entry.operation,
                "apiVersion": entry.api_version, "time": entry.time,
                "fieldsType": "FieldsV1", "fieldsV1": fields::render(&entry.fields),
            });
            if !entry.subresource.is_empty() {
                shown["subresource"] = json!(entry.subresource);
            }
            shown
        })
        .collect();
    let metadata = object::metadata(object);
    if shown.is_empty() {
        metadata.remove("managedFields");
    } else {
        metadata.insert("managedFields".to_owned(), json!(shown));
    }
}

/// The object of a first apply, with its fields tracked.
pub(crate) fn created(resource: &Resource, applied: &Value, manager: &Manager, now: &str) -> Value {
    let mut object = applied.clone();
    let fields = fields::fields_of(applied, Node::root(resource));
    write(&[entry(resource, manager, "Apply", fields, now)], &mut object);
    object
}

fn entry(
    resource: &Resource,
    manager: &Manager,
    operation: &str,
    fields: FieldSet,
    now: &str,
) -> Entry {
    Entry {
        manager: manager.name.clone(),
        operation: operation.to_owned(),
        api_version: resource.api_version(),
        time: now.to_owned(),
        subresource: manager.subresource.to_owned(),
        fields,
    }
}

/// The live object with what is applied merged in and its fields tracked; an error names the
/// conflicts.
pub(crate) fn merged(
    resource: &Resource,
    live: &Value,
    applied: &Value,
    manager: &Manager,
    now: &str,
) -> Result<Value, ApiError> {
    let root = Node::root(resource);
    let wanted = fields::fields_of(applied, root);
    let mut entries = read(live);
    if entries.is_empty() {
        let key = "kubectl.kubernetes.io/last-applied-configuration";
        let annotated = object::at(live, &["metadata", "annotations", key]).is_some();
        let name =
            if annotated { "kubectl-client-side-apply" } else { "before-first-apply" }.to_owned();
        let before = Manager { name, ..Manager::default() };
        let held = fields::fields_of(&object::without(live, &["status"]), root);
        entries.push(entry(resource, &before, "Update", held, now));
    }
    let is_own = |entry: &Entry| {
        entry.manager == manager.name
            && entry.operation == "Apply"
            && entry.subresource == manager.subresource
    };
    let mut conflicts = Vec::new();
    for entry in entries.iter_mut().filter(|entry| !is_own(entry)) {
        let differs = |path: &&fields::Path| {
            let held = fields::get(live, path);
            held.is_some() && held != fields::get(applied, path) && !is_item(path)
        };
        let lost: Vec<fields::Path> =
            entry.fields.intersection(&wanted).filter(differs).cloned().collect();
        for path in lost {
            if manager.force {
                entry.fields.remove(&path);
            } else {
                conflicts.push((entry.title(), path));
            }
        }
    }
    if !conflicts.is_empty() {
        return Err(conflict(&conflicts));
    }
    let mut object = live.clone();
    fields::merge(&mut object, applied, root);
    let previous = entries.iter().find(|entry| is_own(entry));
    let previous = previous.map(|entry| entry.fields.clone()).unwrap_or_default();
    entries.retain(|entry| !is_own(entry));
    // What the manager applied before and does not any more goes, unless somebody else has it too.
    for path in previous.difference(&wanted) {
        let below = |other: &fields::Path| other.starts_with(path);
        let kept =
            wanted.iter().any(below) || entries.iter().any(|entry| entry.fields.iter().any(below));
        if !kept {
            fields::remove(&mut object, path);
        }
    }
    entries.push(entry(resource, manager, "Apply", wanted, now));
    write(&entries, &mut object);
    Ok(object)
}

fn is_item(path: &[String]) -> bool {
    path.last().is_some_and(|step| !step.starts_with("f:"))
}

fn conflict(conflicts: &[(String, fields::Path)]) -> ApiError {
    let message = match conflicts {
        [(with, path)] => {
            format!("Apply failed with 1 conflict: {with}: {}", fields::show(path))
        }
        all => {
            let mut text = format!("Apply failed with {} conflicts: ", all.len());
            let mut last = "";
            for (with, path) in all {
                if with != last {
                    let gap = if last.is_empty() { "" } else { "\n" };
                    let _ = write!(text, "{gap}{with}:");
                    last = with;
                }
                let _ = write!(text, "\n- {}", fields::show(path));
            }
            text
        }
    };
    let causes: Vec<Value> = conflicts
        .iter()
        .map(|(with, path)| {
            json!({
                "reason": "FieldManagerConflict", "message": with, "field": fields::show(path),
            })
        })
        .collect();
    ApiError::apply_conflict(&message, &causes)
}

/// Tracks a write that is no apply: changed fields belong to its manager, removed ones to nobody.
/// An object that nobody has applied is left alone.
pub(crate) fn track(
    resource: &Resource,
    old: &Value,
    new: &mut Value,
    manager: &Manager,
    now: &str,
) {
    let mut entries = read(old);
    if entries.is_empty() {
        return;
    }
    let root = Node::root(resource);
    let (before, after) = (fields::fields_of(old, root), fields::fields_of(new, root));
    let changed: FieldSet = after
        .iter()
        .filter(|path| {
            !before.contains(*path)
                || (!is_item(path) && fields::get(old, path) != fields::get(new, path))
        })
        .cloned()
        .collect();
    for entry in &mut entries {
        entry.fields.retain(|path| {
            after.contains(path) && !changed.contains(path)
                || !before.contains(path) && fields::get(new, path).is_some()
        });
    }
    if !changed.is_empty() {
        let own = entries.iter_mut().find(|entry| {
            entry.manager == manager.name
                && entry.operation == "Update"
                && entry.subresource == manager.subresource
        });
        match own {
            Some(entry) => {
                entry.fields.extend(changed);
                now.clone_into(&mut entry.time);
            }
            None => entries.push(entry(resource, manager, "Update", changed, now)),
        }
    }
    write(&entries, new);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources;

    fn deployments() -> Resource {
        resources::builtin().into_iter().find(|r| r.is("apps", "deployments")).unwrap()
    }

    fn deployment(replicas: Option<i64>, containers: &Value) -> Value {
        let mut spec = json!({ "template": { "spec": { "containers": containers } } });
        if let Some(replicas) = replicas {
            spec["replicas"] = json!(replicas);
        }
        json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" }, "spec": spec })
    }

    fn manager(name: &str) -> Manager {
        Manager { name: name.to_owned(), ..Manager::default() }
    }

    #[test]
    fn a_field_of_another_manager_is_a_conflict_until_it_is_forced() {
        let resource = deployments();
        let main = json!([{ "name": "main", "image": "a" }]);
        let live = created(&resource, &deployment(Some(2), &main), &manager("ann"), "t");
        let other = deployment(Some(3), &main);
        let error = merged(&resource, &live, &other, &manager("bob"), "t").unwrap_err();
        assert_eq!(
            error.message,
            "Apply failed with 1 conflict: conflict with \"ann\": .spec.replicas"
        );
        assert_eq!((error.code, error.reason), (409, "Conflict"));
        let force = Manager { force: true, ..manager("bob") };
        let taken = merged(&resource, &live, &other, &force, "t").unwrap();
        assert_eq!(taken["spec"]["replicas"], 3);
        // Now the first manager has lost it.
        let back = merged(&resource, &taken, &deployment(Some(2), &main), &manager("ann"), "t");
        assert!(back.unwrap_err().message.contains("conflict with \"bob\""));
    }

    #[test]
    fn what_is_not_applied_any_more_goes_and_what_others_own_stays() {
        let resource = deployments();
        let both = json!([{ "name": "main", "image": "a" }, { "name": "side", "image": "b" }]);
        let live = created(&resource, &deployment(Some(2), &both), &manager("ann"), "t");
        let mut scaled = live.clone();
        scaled["spec"]["replicas"] = json!(5);
        track(&resource, &live, &mut scaled, &manager("kubectl-scale"), "t");
        let main = json!([{ "name": "main", "image": "c" }]);
        let applied =
            merged(&resource, &scaled, &deployment(None, &main), &manager("ann"), "t").unwrap();
        assert_eq!(applied["spec"]["template"]["spec"]["containers"], main);
        assert_eq!(applied["spec"]["replicas"], 5);
        let managers: Vec<&str> = object::list(&applied, &["metadata", "managedFields"])
            .iter()
            .map(|entry| object::text(entry, &["manager"]))
            .collect();
        assert_eq!(managers, ["kubectl-scale", "ann"]);
    }

    #[test]
    fn the_first_apply_conflicts_with_what_was_there_before() {
        let resource = deployments();
        let main = json!([{ "name": "main", "image": "a" }]);
        let live = deployment(Some(2), &main);
        let same = merged(&resource, &live, &live, &manager("ann"), "t");
        assert!(same.is_ok());
        let error = merged(&resource, &live, &deployment(Some(9), &main), &manager("ann"), "t");
        assert!(error.unwrap_err().message.contains("\"before-first-apply\""));
    }

    #[test]
    fn fields_are_written_as_the_real_server_writes_them() {
        let resource = deployments();
        let main = json!([{ "name": "main", "image": "a" }]);
        let live = created(&resource, &deployment(Some(2), &main), &manager("ann"), "t");
        let written = &live["metadata"]["managedFields"][0]["fieldsV1"];
        let expected = json!({ "f:spec": {
            "f:replicas": {},
            "f:template": { "f:spec": { "f:containers": {
                "k:{\"name\":\"main\"}": { ".": {}, "f:image": {}, "f:name": {} },
            } } },
        } });
        assert_eq!(*written, expected);
    }
}
