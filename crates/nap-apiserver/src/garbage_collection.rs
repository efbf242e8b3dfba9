//! Garbage collection, done inside the server after each write: dependents whose owners are all
//! gone, owners that waited for their dependents, and namespaces and definitions being emptied.
//!
//! The real cluster does this in controllers, some time later. Here it happens at once and in key
//! order, so that a simulation repeats exactly; the order of events a watch sees is the same.

use serde_json::{Value, json};

use crate::crd;
use crate::error::{ApiError, FieldError, Result};
use crate::object;
use crate::resources::{GroupResource, Resource};
use crate::server::State;
use crate::store::{Collection, Key};
use crate::verbs::{DeleteOptions, FOREGROUND, WriteOptions};

const DEFINITIONS: (&str, &str) = ("apiextensions.k8s.io", "customresourcedefinitions");
const DEFINITION_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

impl State {
    /// Follows up on everything that vanished or changed owners, until nothing is left to do.
    pub(crate) fn collect_garbage(&mut self) {
        loop {
            if let Some(uid) = self.store.vanished.pop_front() {
                for (collection, key) in self.store.dependents_of(&uid) {
                    self.collect_if_orphaned(&collection, &key);
                }
            } else if let Some((collection, key)) = self.store.adopted.pop_front() {
                self.collect_if_orphaned(&collection, &key);
            } else if !self.finish_one() {
                return;
            }
        }
    }

    fn collect_if_orphaned(&mut self, collection: &GroupResource, key: &Key) {
        let Some(object) = self.store.get(collection, key) else { return };
        let owners = object::list(&object, &["metadata", "ownerReferences"]);
        let all_gone = !owners.is_empty()
            && owners.iter().all(|owner| {
                // An owner of a kind that is not served cannot be judged absent.
                let known = self
                    .registry
                    .by_kind(object::text(owner, &["apiVersion"]), object::text(owner, &["kind"]))
                    .is_some();
                known && self.store.located(object::text(owner, &["uid"])).is_none()
            });
        if !all_gone || object::is_deleting(&object) {
            return;
        }
        if let Some(resource) = self.registry.any(collection) {
            // The object was just read and there are no preconditions: nothing can refuse.
            let _ = self.delete_one(&resource, key, &DeleteOptions::default());
        }
    }

    /// Ends one waiting object whose wait is over; false when there is none.
    fn finish_one(&mut self) -> bool {
        for (collection, key) in self.terminating.clone() {
            let Some(object) = self.store.get(&collection, &key) else {
                self.terminating.remove(&(collection, key));
                return true;
            };
            let Some(finalizer) = self.finished(&collection, &object) else { continue };
            self.terminating.remove(&(collection.clone(), key.clone()));
            let mut object = (*object).clone();
            if let Some(Value::Array(list)) = object::metadata(&mut object).get_mut("finalizers") {
                list.retain(|held| held.as_str() != Some(finalizer));
            }
            let ends = object::finalizers(&object).is_empty();
            self.store.put(&collection, object.clone());
            if ends {
                self.store.remove(&collection, &key);
                self.forget_definition(&collection, &object);
            }
            return true;
        }
        false
    }

    /// The finalizer to drop when nothing holds the object any more.
    fn finished(&self, collection: &GroupResource, object: &Value) -> Option<&'static str> {
        if collection.group.is_empty() && collection.plural == "namespaces" {
            return self.namespace_contents(object::name(object)).is_empty().then_some("");
        }
        if (collection.group.as_str(), collection.plural.as_str()) == DEFINITIONS {
            let defined = defined_by(object);
            let left = self.store.collections.get(&defined).is_some_and(|c| !c.objects.is_empty());
            return (!left).then_some(DEFINITION_FINALIZER);
        }
        let uid = object::uid(object);
        let blocked = self.store.dependents_of(uid).into_iter().any(|(collection, key)| {
            self.store.get(&collection, &key).is_some_and(|dependent| {
                object::list(&dependent, &["metadata", "ownerReferences"]).iter().any(|owner| {
                    object::text(owner, &["uid"]) == uid
                        && owner.get("blockOwnerDeletion").and_then(Value::as_bool) == Some(true)
                })
            })
        });
        (!blocked).then_some(FOREGROUND)
    }

    /// Deletes what a namespace or definition contains; true when some of it is still there, in
    /// which case the object is marked and waits.
    pub(crate) fn empty_container(
        &mut self,
        resource: &Resource,
        key: &Key,
        object: &mut Value,
    ) -> bool {
        let collection = resource.group_resource();
        if resource.is("", "namespaces") {
            for (collection, key) in self.namespace_contents(&key.1) {
                if let Some(resource) = self.registry.any(&collection) {
                    let _ = self.delete_one(&resource, &key, &DeleteOptions::default());
                }
            }
            if self.namespace_contents(&key.1).is_empty() {
                return false;
            }
            object["status"]["phase"] = json!("Terminating");
            self.terminating.insert((collection, key.clone()));
            return true;
        }
        if resource.is(DEFINITIONS.0, DEFINITIONS.1) {
            let defined = defined_by(object);
            let keys: Vec<Key> = self
                .store
                .collections
                .get(&defined)
                .map(|c| c.objects.keys().cloned().collect())
                .unwrap_or_default();
            if let Some(resource) = self.registry.any(&defined) {
                for key in &keys {
                    let _ = self.delete_one(&resource, key, &DeleteOptions::default());
                }
            }
            if self.store.collections.get(&defined).is_none_or(|c| c.objects.is_empty()) {
                self.forget_definition(&collection, object);
                return false;
            }
            let metadata = object::metadata(object);
            let finalizers = metadata.entry("finalizers").or_insert_with(|| json!([]));
            if let Value::Array(list) = finalizers {
                list.push(json!(DEFINITION_FINALIZER));
            }
            self.terminating.insert((collection, key.clone()));
            return true;
        }
        false
    }

    fn namespace_contents(&self, namespace: &str) -> Vec<(GroupResource, Key)> {
        let from: Key = (namespace.to_owned(), String::new());
        self.store
            .collections
            .iter()
            .flat_map(|(collection, held)| {
                held.objects
                    .range(from.clone()..)
                    .take_while(|(key, _)| key.0 == namespace)
                    .map(|(key, _)| (collection.clone(), key.clone()))
            })
            .collect()
    }

    /// Takes an owner out of its dependents, which then live on.
    pub(crate) fn disown(&mut self, uid: &str) {
        for (collection, key) in self.store.dependents_of(uid) {
            let Some(dependent) = self.store.get(&collection, &key) else { continue };
            let mut dependent = (*dependent).clone();
            let metadata = object::metadata(&mut dependent);
            if let Some(Value::Array(owners)) = metadata.get_mut("ownerReferences") {
                owners.retain(|owner| object::text(owner, &["uid"]) != uid);
                if owners.is_empty() {
                    metadata.remove("ownerReferences");
                }
            }
            self.store.put(&collection, dependent);
        }
    }

    /// Serves what a definition describes, or says what is wrong with it.
    pub(crate) fn define(
        &mut self,
        resource: &Resource,
        definition: &Value,
        options: &WriteOptions,
    ) -> Result<()> {
        let resources = crd::resources_of(definition)
            .map_err(|errors| ApiError::invalid(resource, object::name(definition), &errors))?;
        let defined = defined_by(definition);
        if self.registry.any(&defined).is_some_and(|served| !served.is_custom()) {
            let error =
                FieldError::forbidden("spec.names.plural", "is served by the API server itself");
            return Err(ApiError::invalid(resource, object::name(definition), &[error]));
        }
        if options.dry_run {
            return Ok(());
        }
        self.registry.forget(&defined);
        let now = self.store.revision();
        self.store.collections.entry(defined).or_insert_with(|| Collection::since(now));
        for resource in resources {
            self.registry.insert(resource);
        }
        Ok(())
    }

    fn forget_definition(&mut self, collection: &GroupResource, definition: &Value) {
        if (collection.group.as_str(), collection.plural.as_str()) == DEFINITIONS {
            let defined = defined_by(definition);
            self.registry.forget(&defined);
            self.store.drop_collection(&defined);
        }
    }
}

fn defined_by(definition: &Value) -> GroupResource {
    GroupResource::new(
        object::text(definition, &["spec", "group"]),
        object::text(definition, &["spec", "names", "plural"]),
    )
}
