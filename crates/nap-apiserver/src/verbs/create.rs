//! Creating objects.

use std::sync::Arc;

use http::Response;
use serde_json::{Value, json};

use super::{WriteOptions, check_kind, decode, normalise, refuse};
use crate::ResponseBody;
use crate::builtin;
use crate::error::{ApiError, FieldError, Result};
use crate::object;
use crate::request::ApiRequest;
use crate::resources::{GroupResource, Resource};
use crate::server::State;
use crate::store::key_of;

/// The real server tries this often to find a free generated name.
const NAME_ATTEMPTS: usize = 8;
/// Longer bases are cut so that the suffix fits into 63 characters.
const MAX_GENERATED_BASE: usize = 58;

impl State {
    pub(crate) fn create_verb(
        &mut self,
        request: &ApiRequest,
        resource: &Arc<Resource>,
        namespace: &str,
    ) -> Result<Response<ResponseBody>> {
        let mut options = WriteOptions::parse(&request.query)?;
        let mut object = decode(request)?;
        object::metadata(&mut object).remove("managedFields");
        let object = self.create(resource, namespace, object, &mut options)?;
        self.written(request, resource, 201, &object, &options)
    }

    /// Stores a new object after defaulting and validation.
    pub(crate) fn create(
        &mut self,
        resource: &Arc<Resource>,
        namespace: &str,
        mut object: Value,
        options: &mut WriteOptions,
    ) -> Result<Arc<Value>> {
        check_kind(resource, &mut object)?;
        let given = object::namespace(&object).to_owned();
        if resource.namespaced && !given.is_empty() && given != namespace {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        if !object::resource_version(&object).is_empty() {
            return Err(ApiError::bad_request(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        if resource.namespaced {
            self.check_namespace(resource, namespace, object::name(&object))?;
        }
        let mut object = normalise(resource, object, options)?;
        self.stamp(resource, namespace, &mut object);
        self.name(resource, &mut object)?;
        reset_status(resource, &mut object);
        builtin::defaults::apply(self, resource, None, &mut object)?;
        self.mutate(resource, &mut object)?;
        if resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
            crate::crd::complete(&mut object, &self.timestamp());
        }
        let name = object::name(&object).to_owned();
        let mut errors = builtin::metadata::check(resource, &object);
        errors.extend(builtin::validate::check(resource, None, &object));
        if let Some(schema) = &resource.schema {
            errors.extend(schema.validate(&object, None));
            errors.extend(super::scale::negative_replicas(resource, &object));
        }
        refuse(resource, &name, &errors)?;
        let collection = resource.group_resource();
        if self.store.get(&collection, &key_of(&object)).is_some() {
            return Err(ApiError::already_exists(resource, &name));
        }
        self.admit(resource, None, &object, &mut options.warnings)?;
        builtin::conversion::to_storage(resource, &mut object);
        if resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
            self.define(resource, &object, options)?;
        }
        if options.dry_run {
            return Ok(Arc::new(object));
        }
        if resource.plural == "events" {
            self.expire_events();
        }
        let stored = self.store.put(&collection, object);
        self.collect_garbage();
        if resource.is("", "namespaces") {
            self.provide_account(&stored);
        }
        self.refresh_quotas(namespace);
        Ok(stored)
    }

    fn check_namespace(&self, resource: &Resource, namespace: &str, name: &str) -> Result<()> {
        let namespaces = GroupResource::new("", "namespaces");
        let found = self
            .store
            .get(&namespaces, &(String::new(), namespace.to_owned()))
            .ok_or_else(|| ApiError::namespace_not_found(namespace))?;
        if object::is_deleting(&found) {
            let why = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            return Err(ApiError::forbidden(resource, name, &why));
        }
        Ok(())
    }

    fn stamp(&mut self, resource: &Resource, namespace: &str, object: &mut Value) {
        let (uid, now) = (self.store.uid(), self.timestamp());
        let metadata = object::metadata(object);
        for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
            metadata.remove(key);
        }
        metadata.insert("uid".to_owned(), json!(uid));
        metadata.insert("creationTimestamp".to_owned(), json!(now));
        if resource.has_generation {
            metadata.insert("generation".to_owned(), json!(1));
        } else {
            metadata.remove("generation");
        }
        if resource.namespaced {
            metadata.insert("namespace".to_owned(), json!(namespace));
        } else {
            metadata.remove("namespace");
        }
    }

    fn name(&mut self, resource: &Resource, object: &mut Value) -> Result<()> {
        if !object::name(object).is_empty() {
            return Ok(());
        }
        let base = object::text(object, &["metadata", "generateName"]).to_owned();
        if base.is_empty() {
            let error = FieldError::required("metadata.name", "name or generateName is required");
            return Err(ApiError::invalid(resource, "", &[error]));
        }
        let base: String = base.chars().take(MAX_GENERATED_BASE).collect();
        for _ in 0..NAME_ATTEMPTS {
            let name = format!("{base}{}", self.store.name_suffix());
            object::metadata(object).insert("name".to_owned(), json!(name));
            if self.store.get(&resource.group_resource(), &key_of(object)).is_none() {
                break;
            }
        }
        Ok(())
    }
}

/// Status belongs to controllers: a creator cannot set it, except on nodes, where the kubelet
/// registers with it.
fn reset_status(resource: &Resource, object: &mut Value) {
    if !resource.has_status || resource.is("", "nodes") {
        return;
    }
    let map = object::fields_mut(object);
    if resource.is_custom() {
        map.remove("status");
    } else {
        map.insert("status".to_owned(), json!({}));
    }
}
