//! Replacing and patching objects, and their `status` subresource.

use std::sync::Arc;

use http::Response;
use serde_json::{Value, json};

use super::{WriteOptions, check_kind, decode, normalise, refuse};
use crate::ResponseBody;
use crate::apply;
use crate::builtin;
use crate::error::{ApiError, FieldError, Result};
use crate::object;
use crate::patch::Patch;
use crate::render;
use crate::request::ApiRequest;
use crate::resources::Resource;
use crate::server::State;
use crate::store::Key;

/// Effect of a write.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The object as it is now; unchanged objects keep their resourceVersion.
    Kept(Arc<Value>),
    /// The write ended the object: the last finalizer went, or it was deleted at once.
    Removed(Arc<Value>),
}

impl Outcome {
    pub(crate) fn object(&self) -> &Arc<Value> {
        match self {
            Self::Kept(object) | Self::Removed(object) => object,
        }
    }
}

impl State {
    pub(crate) fn update_verb(
        &mut self,
        request: &ApiRequest,
        resource: &Arc<Resource>,
        key: &Key,
        status: bool,
    ) -> Result<Response<ResponseBody>> {
        let mut options = WriteOptions::parse(&request.query)?;
        options.manager = Some(request.manager(if status { "status" } else { "" }));
        let new = decode(request)?;
        if object::name(&new) != key.1 {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({}) does not match the name on the URL ({})",
                object::name(&new),
                key.1
            )));
        }
        if resource.is_custom() && object::resource_version(&new).is_empty() {
            let error = FieldError::invalid(
                "metadata.resourceVersion",
                json!(0),
                "must be specified for an update",
            );
            return Err(ApiError::invalid(resource, &key.1, &[error]));
        }
        let outcome = self.replace(resource, key, new, status, &mut options)?;
        self.written(request, resource, 200, outcome.object(), &options)
    }

    pub(crate) fn patch_verb(
        &mut self,
        request: &ApiRequest,
        resource: &Arc<Resource>,
        key: &Key,
        status: bool,
    ) -> Result<Response<ResponseBody>> {
        let patch = Patch::parse(request, resource)?;
        let mut options = WriteOptions::parse(&request.query)?;
        let manager = request.manager(if status { "status" } else { "" });
        if matches!(patch, Patch::Apply(_)) && request.query.text("fieldManager").is_empty() {
            return Err(ApiError::apply_without_manager());
        }
        let Some(old) = self.store.get(&resource.group_resource(), key) else {
            if let (Patch::Apply(object), false) = (&patch, status) {
                let mut object = apply::created(resource, object, &manager, &self.timestamp());
                object::metadata(&mut object).insert("name".to_owned(), json!(key.1));
                let created = self.create(resource, &key.0, object, &mut options)?;
                return self.written(request, resource, 201, &created, &options);
            }
            return Err(ApiError::not_found(resource, &key.1));
        };
        let old = render::present(resource, &old).into_owned();
        let new = if let Patch::Apply(applied) = &patch {
            apply::merged(resource, &old, applied, &manager, &self.timestamp())?
        } else {
            options.manager = Some(manager);
            patch.apply(resource, old)?
        };
        let outcome = self.replace(resource, key, new, status, &mut options)?;
        self.written(request, resource, 200, outcome.object(), &options)
    }

    /// Replaces an object (or only its status) after carrying over what the server owns.
    pub(crate) fn replace(
        &mut self,
        resource: &Arc<Resource>,
        key: &Key,
        mut new: Value,
        status: bool,
        options: &mut WriteOptions,
    ) -> Result<Outcome> {
        let collection = resource.group_resource();
        let stored = self
            .store
            .get(&collection, key)
            .ok_or_else(|| ApiError::not_found(resource, &key.1))?;
        let old = render::present(resource, &stored).into_owned();
        check_kind(resource, &mut new)?;
        check_identity(resource, key, &old, &new)?;
        let mut new = normalise(resource, new, options)?;
        if status {
            new = status_only(resource, &old, new);
        } else if resource.has_status {
            carry(&old, &mut new, "status");
        }
        carry_metadata(&old, &mut new);
        builtin::defaults::apply(self, resource, Some(&old), &mut new)?;
        if !status {
            if resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
                crate::crd::complete(&mut new, &self.timestamp());
            }
            bump_generation(resource, &old, &mut new);
        }
        let mut errors = builtin::metadata::check(resource, &new);
        errors.extend(builtin::metadata::check_update(&old, &new));
        if !status {
            errors.extend(builtin::validate::check(resource, Some(&old), &new));
        }
        if let Some(schema) = &resource.schema {
            errors.extend(schema.validate(&new, Some(&old)));
            errors.extend(super::scale::negative_replicas(resource, &new));
        }
        refuse(resource, &key.1, &errors)?;
        let unmanaged =
            |object: &Value| object::at(object, &["metadata", "managedFields"]).cloned();
        if let Some(manager) = options.manager.take_if(|_| unmanaged(&new) == unmanaged(&old)) {
            apply::track(resource, &old, &mut new, &manager, &self.timestamp());
        }
        if is_same(&old, &new) {
            return Ok(Outcome::Kept(stored));
        }
        if !status {
            self.admit(resource, Some(&old), &new, &mut options.warnings)?;
        }
        builtin::conversion::to_storage(resource, &mut new);
        if resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
            self.define(resource, &new, options)?;
        }
        if options.dry_run {
            return Ok(Outcome::Kept(Arc::new(new)));
        }
        let ends = object::is_deleting(&new)
            && object::finalizers(&new).is_empty()
            && object::integer(&new, &["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0) == 0;
        let outcome = if ends {
            // Watches see a deletion of the state before this write.
            self.store.remove(&collection, key);
            Outcome::Removed(Arc::new(new))
        } else {
            Outcome::Kept(self.store.put(&collection, new))
        };
        self.collect_garbage();
        self.refresh_quotas(&key.0);
        Ok(outcome)
    }
}

/// Whether nothing has changed but the times at which fields were set.
fn is_same(old: &Value, new: &Value) -> bool {
    let timeless = |object: &Value| {
        let mut object = object.clone();
        let entries = object::metadata(&mut object).get_mut("managedFields");
        for entry in entries.and_then(Value::as_array_mut).into_iter().flatten() {
            object::fields_mut(entry).remove("time");
        }
        object
    };
    old == new
        || object::at(old, &["metadata", "managedFields"]).is_some()
            && timeless(old) == timeless(new)
}

fn check_identity(resource: &Resource, key: &Key, old: &Value, new: &Value) -> Result<()> {
    let (given, held) = (object::resource_version(new), object::resource_version(old));
    if !given.is_empty() && given != held {
        return Err(ApiError::modified(resource, &key.1));
    }
    let (given, held) = (object::uid(new), object::uid(old));
    if !given.is_empty() && given != held {
        let why = format!(
            "Precondition failed: UID in precondition: {given}, UID in object meta: {held}"
        );
        return Err(ApiError::conflict(resource, &key.1, &why));
    }
    let name = object::name(new);
    if !name.is_empty() && name != key.1 {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            key.1
        )));
    }
    let namespace = object::namespace(new);
    if !namespace.is_empty() && namespace != key.0 {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

/// The old object with the new status. Built-in kinds also let a status write change labels,
/// annotations and finalizers; custom resources do not.
fn status_only(resource: &Resource, old: &Value, mut new: Value) -> Value {
    let mut merged = old.clone();
    if !resource.is_custom()
        && let Some(metadata) = object::fields_mut(&mut new).remove("metadata")
    {
        merged["metadata"] = metadata;
        if let Some(owners) = object::at(old, &["metadata", "ownerReferences"]) {
            merged["metadata"]["ownerReferences"] = owners.clone();
        }
    }
    match new.get_mut("status") {
        Some(status) => merged["status"] = status.take(),
        None => {
            object::fields_mut(&mut merged).remove("status");
        }
    }
    merged
}

fn carry(old: &Value, new: &mut Value, key: &str) {
    match old.get(key) {
        Some(value) => new[key] = value.clone(),
        None => {
            object::fields_mut(new).remove(key);
        }
    }
}

fn carry_metadata(old: &Value, new: &mut Value) {
    let held = old.get("metadata").cloned().unwrap_or_default();
    let metadata = object::metadata(new);
    // An empty list, or one with an empty entry, is how a client takes the tracking back.
    if let Some(Value::Array(entries)) = metadata.get("managedFields")
        && entries.iter().all(|entry| entry == &json!({}))
    {
        metadata.remove("managedFields");
    } else if !metadata.contains_key("managedFields")
        && let Some(entries) = held.get("managedFields")
    {
        metadata.insert("managedFields".to_owned(), entries.clone());
    }
    for key in [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "generateName",
    ] {
        match held.get(key) {
            Some(value) => metadata.insert(key.to_owned(), value.clone()),
            None => metadata.remove(key),
        };
    }
}

/// The generation counts changes of what the user asked for: everything but metadata and, where it
/// is a subresource, status.
fn bump_generation(resource: &Resource, old: &Value, new: &mut Value) {
    if !resource.has_generation {
        return;
    }
    let ignored: &[&str] = if resource.has_status {
        &["metadata", "status", "apiVersion"]
    } else {
        &["metadata", "apiVersion"]
    };
    if object::without(old, ignored) != object::without(new, ignored) {
        let generation = object::integer(old, &["metadata", "generation"]).unwrap_or(0) + 1;
        object::metadata(new).insert("generation".to_owned(), json!(generation));
    }
}
