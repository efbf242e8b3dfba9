//! Deleting: preconditions, grace periods of pods, finalizers and propagation.

use std::sync::Arc;

use http::Response;
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::{Outcome, decode};
use crate::ResponseBody;
use crate::error::{ApiError, Result};
use crate::object;
use crate::render;
use crate::request::ApiRequest;
use crate::resources::Resource;
use crate::selectors::Filter;
use crate::server::{State, success};
use crate::store::Key;

/// The finalizer that keeps an owner until its blocking dependents are gone.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// Grace of a pod that names none.
const DEFAULT_GRACE: i64 = 30;

/// Propagation policy: the fate of dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Propagation {
    #[default]
    Background,
    Foreground,
    Orphan,
}

/// `metav1.DeleteOptions`.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeleteOptions {
    pub(crate) grace: Option<i64>,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) propagation: Propagation,
    pub(crate) dry_run: bool,
}

impl DeleteOptions {
    /// From the body, with query parameters taking its place when there is none.
    pub(crate) fn parse(request: &ApiRequest) -> Result<Self> {
        let body = if request.body.is_empty() { json!({}) } else { decode(request)? };
        let mut options = Self::from_body(&body)?;
        let query = &request.query;
        if options.grace.is_none() {
            options.grace =
                query.number("gracePeriodSeconds")?.and_then(|seconds| i64::try_from(seconds).ok());
        }
        if !query.text("propagationPolicy").is_empty() {
            options.propagation = propagation(query.text("propagationPolicy"))?;
        }
        options.dry_run |= query.dry_run()?;
        Ok(options)
    }

    pub(crate) fn from_body(body: &Value) -> Result<Self> {
        let mut policy = propagation(object::text(body, &["propagationPolicy"]))?;
        if body.get("orphanDependents").and_then(Value::as_bool) == Some(true) {
            policy = Propagation::Orphan;
        }
        Ok(Self {
            grace: object::integer(body, &["gracePeriodSeconds"]),
            uid: object::text(body, &["preconditions", "uid"]).to_owned(),
            resource_version: object::text(body, &["preconditions", "resourceVersion"]).to_owned(),
            propagation: policy,
            dry_run: object::list(body, &["dryRun"]).iter().any(|mode| mode == "All"),
        })
    }
}

fn propagation(text: &str) -> Result<Propagation> {
    match text {
        "" | "Background" => Ok(Propagation::Background),
        "Foreground" => Ok(Propagation::Foreground),
        "Orphan" => Ok(Propagation::Orphan),
        other => Err(ApiError::bad_request(format!(
            "propagationPolicy: Unsupported value: {other:?}: supported values: \"Background\", \
             \"Foreground\", \"Orphan\""
        ))),
    }
}

/// Whether a deletion answers with the object, and not with a Status.
fn answers_with_object(resource: &Resource) -> bool {
    match resource.group.as_str() {
        "" => matches!(
            resource.plural.as_str(),
            "persistentvolumeclaims"
                | "persistentvolumes"
                | "pods"
                | "podtemplates"
                | "resourcequotas"
                | "serviceaccounts"
                | "services"
        ),
        "storage.k8s.io" => resource.plural != "csistoragecapacities",
        _ => false,
    }
}

impl State {
    pub(crate) fn delete_verb(
        &mut self,
        request: &ApiRequest,
        resource: &Arc<Resource>,
        key: &Key,
    ) -> Result<Response<ResponseBody>> {
        let options = DeleteOptions::parse(request)?;
        let outcome = self.delete(resource, key, &options)?;
        Ok(match outcome {
            Outcome::Kept(object) => render::json(200, &render::present(resource, &object)),
            Outcome::Removed(object) if answers_with_object(resource) => {
                render::json(200, &render::present(resource, &object))
            }
            Outcome::Removed(object) => {
                let mut details = json!({
                    "name": key.1, "kind": resource.plural, "uid": object::uid(&object),
                });
                if !resource.group.is_empty() {
                    details["group"] = json!(resource.group);
                }
                render::json(200, &success(&details))
            }
        })
    }

    pub(crate) fn delete_collection_verb(
        &mut self,
        request: &ApiRequest,
        resource: &Arc<Resource>,
        namespace: &str,
    ) -> Result<Response<ResponseBody>> {
        let query = &request.query;
        let filter = Filter::new(
            resource,
            namespace,
            query.text("labelSelector"),
            query.text("fieldSelector"),
        )?;
        let options = DeleteOptions::parse(request)?;
        let victims: Vec<(Key, Arc<Value>)> = self
            .store
            .collections
            .get(&resource.group_resource())
            .map(|collection| {
                let chosen = collection.objects.iter().filter(|(_, object)| filter.matches(object));
                chosen.map(|(key, object)| (key.clone(), Arc::clone(object))).collect()
            })
            .unwrap_or_default();
        for (key, _) in &victims {
            match self.delete(resource, key, &options) {
                Ok(_) => {}
                // An earlier deletion of this call may have taken it along.
                Err(error) if error.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        let items: Vec<Arc<Value>> = victims.into_iter().map(|(_, object)| object).collect();
        let metadata = json!({ "resourceVersion": self.store.revision().to_string() });
        Ok(render::list(resource, &items, metadata, request.view()?, self.now()))
    }

    /// Deletes, or starts to delete, one object and everything that goes with it.
    pub(crate) fn delete(
        &mut self,
        resource: &Arc<Resource>,
        key: &Key,
        options: &DeleteOptions,
    ) -> Result<Outcome> {
        let outcome = self.delete_one(resource, key, options)?;
        self.collect_garbage();
        self.refresh_quotas(&key.0);
        Ok(outcome)
    }

    /// Deletes like [`Self::delete`] but leaves garbage collection to the caller.
    pub(crate) fn delete_one(
        &mut self,
        resource: &Arc<Resource>,
        key: &Key,
        options: &DeleteOptions,
    ) -> Result<Outcome> {
        let collection = resource.group_resource();
        let held = self
            .store
            .get(&collection, key)
            .ok_or_else(|| ApiError::not_found(resource, &key.1))?;
        check_preconditions(resource, key, &held, options)?;
        if resource.is("", "namespaces")
            && matches!(key.1.as_str(), "default" | "kube-system" | "kube-public")
        {
            return Err(ApiError::forbidden(resource, &key.1, "this namespace may not be deleted"));
        }
        let grace = if resource.is("", "pods") { pod_grace(&held, options) } else { 0 };
        if options.dry_run {
            return Ok(Outcome::Kept(held));
        }
        let mut object = (*held).clone();
        let first = !object::is_deleting(&held);
        if first {
            self.mark(&mut object, grace, None);
            self.prepare_dependents(resource, &mut object, options.propagation);
        } else {
            let left =
                object::integer(&held, &["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0);
            if left == 0 || grace >= left {
                return Ok(Outcome::Kept(held));
            }
            self.mark(&mut object, grace, Some(left));
        }
        let waits = self.empty_container(resource, key, &mut object);
        if first && let Some(generation) = object::integer(&object, &["metadata", "generation"]) {
            object::metadata(&mut object).insert("generation".to_owned(), json!(generation + 1));
        }
        if grace == 0 && !waits && object::finalizers(&object).is_empty() {
            // Only a pod that goes at once is seen terminating before.
            if resource.is("", "pods") {
                self.store.put(&collection, object);
            }
            return self
                .store
                .remove(&collection, key)
                .map(Outcome::Removed)
                .ok_or_else(|| ApiError::not_found(resource, &key.1));
        }
        Ok(Outcome::Kept(self.store.put(&collection, object)))
    }

    /// Writes the time of the end; a shorter grace moves it forward from when deletion began.
    fn mark(&self, object: &mut Value, grace: i64, previous: Option<i64>) {
        let began = match previous {
            None => self.now(),
            Some(previous) => object::text(object, &["metadata", "deletionTimestamp"])
                .parse::<jiff::Timestamp>()
                .ok()
                .and_then(|end| end.checked_sub(SignedDuration::from_secs(previous)).ok())
                .unwrap_or_else(|| self.now()),
        };
        let end = began.checked_add(SignedDuration::from_secs(grace)).unwrap_or(began);
        let metadata = object::metadata(object);
        metadata.insert("deletionTimestamp".to_owned(), json!(object::time(end)));
        metadata.insert("deletionGracePeriodSeconds".to_owned(), json!(grace));
    }

    fn prepare_dependents(&mut self, resource: &Resource, object: &mut Value, policy: Propagation) {
        let uid = object::uid(object).to_owned();
        match policy {
            Propagation::Background => {}
            Propagation::Orphan => self.disown(&uid),
            Propagation::Foreground => {
                let dependents = self.store.dependents_of(&uid);
                if dependents.is_empty() {
                    return;
                }
                let metadata = object::metadata(object);
                let finalizers = metadata.entry("finalizers").or_insert_with(|| json!([]));
                if let Value::Array(list) = finalizers
                    && !list.iter().any(|held| held == FOREGROUND)
                {
                    list.push(json!(FOREGROUND));
                }
                let place = (resource.group_resource(), crate::store::key_of(object));
                self.terminating.insert(place);
                for (collection, key) in dependents {
                    let options = DeleteOptions { propagation: policy, ..DeleteOptions::default() };
                    if let Some(resource) = self.registry.any(&collection) {
                        // One that is gone or refuses is looked at again when it changes.
                        let _ = self.delete_one(&resource, &key, &options);
                    }
                }
            }
        }
    }
}

pub(super) fn check_preconditions(
    resource: &Resource,
    key: &Key,
    held: &Value,
    options: &DeleteOptions,
) -> Result<()> {
    if !options.uid.is_empty() && options.uid != object::uid(held) {
        let why = format!(
            "Precondition failed: UID in precondition: {}, UID in object meta: {}",
            options.uid,
            object::uid(held)
        );
        return Err(ApiError::conflict(resource, &key.1, &why));
    }
    let version = object::resource_version(held);
    if !options.resource_version.is_empty() && options.resource_version != version {
        let why = format!(
            "Precondition failed: ResourceVersion in precondition: {}, ResourceVersion in object meta: {version}",
            options.resource_version
        );
        return Err(ApiError::conflict(resource, &key.1, &why));
    }
    Ok(())
}

/// A pod that no kubelet runs, or that has finished, needs no grace.
fn pod_grace(pod: &Value, options: &DeleteOptions) -> i64 {
    let unbound = object::text(pod, &["spec", "nodeName"]).is_empty();
    let finished = matches!(object::text(pod, &["status", "phase"]), "Succeeded" | "Failed");
    if unbound || finished {
        return 0;
    }
    options
        .grace
        .or_else(|| object::integer(pod, &["spec", "terminationGracePeriodSeconds"]))
        .unwrap_or(DEFAULT_GRACE)
        .max(0)
}
