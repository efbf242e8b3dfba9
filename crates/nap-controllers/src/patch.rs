//! Optimistic writes: read, change, patch the difference, and retry on a conflict.
//!
//! Only the difference is sent. Objects have fields that this build does not know, written by a
//! newer server or by users; writing the whole object would remove them.

use std::sync::Arc;

use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, ResourceExt};
use nap_api::NodeClaim;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::cluster::Indexed;
use crate::context::{Context, Doing, Error, is_conflict, is_not_found};

/// Attempts of one write before the reconcile fails and backs off.
const MAX_ATTEMPTS: usize = 5;

/// The part of an object that a write changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Object,
    Status,
}

impl Context {
    /// Changes the metadata or spec of a cluster-scoped object. `change` returns whether there is
    /// anything to write. Does nothing if the object is gone.
    pub async fn update<K: Indexed + Serialize>(
        &self,
        name: &str,
        change: impl Fn(&mut K) -> bool,
    ) -> Result<(), Error> {
        self.write(name, Part::Object, change).await
    }

    /// Changes the status of a cluster-scoped object, as [`Context::update`].
    pub async fn update_status<K: Indexed + Serialize>(
        &self,
        name: &str,
        change: impl Fn(&mut K) -> bool,
    ) -> Result<(), Error> {
        self.write(name, Part::Status, change).await
    }

    async fn write<K: Indexed + Serialize>(
        &self,
        name: &str,
        part: Part,
        change: impl Fn(&mut K) -> bool,
    ) -> Result<(), Error> {
        let api: Api<K> = self.api();
        let kind = K::kind(&());
        for attempt in 1.. {
            // The first attempt starts from the index, which is nearly always current; a stale
            // version is refused by the server.
            let known = if attempt == 1 { K::get(&self.index(), name) } else { None };
            let before = match known {
                Some(object) => object,
                None => match api.get_opt(name).await.doing(&format!("reading {kind}"), name)? {
                    Some(object) => Arc::new(object),
                    None => return Ok(()),
                },
            };
            let mut object = K::clone(&before);
            if !change(&mut object) {
                return Ok(());
            }
            let mut patch =
                difference(&plain(&*before), &plain(&object)).unwrap_or_else(|| json!({}));
            patch["metadata"]["resourceVersion"] = json!(object.resource_version());
            let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
            let written = match part {
                Part::Object => api.patch(name, &params, &patch).await,
                Part::Status => api.patch_status(name, &params, &patch).await,
            };
            match written {
                Ok(written) => {
                    self.observe(written);
                    return Ok(());
                }
                Err(error) if is_not_found(&error) => return Ok(()),
                Err(error) if is_conflict(&error) && attempt < MAX_ATTEMPTS => {}
                Err(error) => return Err(error).doing(&format!("writing {kind}"), name),
            }
        }
        Ok(())
    }

    /// Sets annotations of a cluster-scoped object, whatever its version. Does nothing if the
    /// object is gone.
    pub async fn annotate<K: Indexed>(
        &self,
        name: &str,
        annotations: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(), Error> {
        let map: Map<String, Value> =
            annotations.into_iter().map(|(key, value)| (key, json!(value))).collect();
        let patch = Patch::Merge(json!({ "metadata": { "annotations": map } }));
        match self.api::<K>().patch(name, &PatchParams::default(), &patch).await {
            Ok(written) => {
                self.observe(written);
                Ok(())
            }
            Err(error) if is_not_found(&error) => Ok(()),
            Err(error) => Err(error).doing(&format!("annotating {}", K::kind(&())), name),
        }
    }

    /// Deletes a NodeClaim, unless another one has taken its name.
    pub async fn delete_claim(&self, claim: &NodeClaim) -> Result<(), Error> {
        let name = claim.name_any();
        let preconditions = Preconditions { uid: claim.uid(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match self.api::<NodeClaim>().delete(&name, &params).await {
            Ok(either) => {
                if let either::Either::Left(written) = either {
                    self.observe(written);
                }
                Ok(())
            }
            Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(()),
            Err(error) => Err(error).doing("deleting NodeClaim", &name),
        }
    }

    fn api<K: Indexed>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }
}

/// Adds a finalizer to an object that is not being deleted. Returns whether it was missing.
pub fn add_finalizer(object: &mut impl ResourceExt, finalizer: &str) -> bool {
    let missing = object.meta().deletion_timestamp.is_none() && !has_finalizer(object, finalizer);
    if missing {
        object.finalizers_mut().push(finalizer.to_owned());
    }
    missing
}

/// Removes a finalizer. Returns whether it was there.
pub fn remove_finalizer(object: &mut impl ResourceExt, finalizer: &str) -> bool {
    let before = object.finalizers().len();
    object.finalizers_mut().retain(|one| one != finalizer);
    object.finalizers().len() != before
}

/// Whether an object carries a finalizer.
pub fn has_finalizer(object: &impl ResourceExt, finalizer: &str) -> bool {
    object.finalizers().iter().any(|one| one == finalizer)
}

fn plain(object: &impl Serialize) -> Value {
    serde_json::to_value(object).expect("an object of the API is plain data")
}

/// The JSON merge patch (RFC 7386) from `before` to `after`; `None` if they are equal. Lists are
/// replaced as a whole.
fn difference(before: &Value, after: &Value) -> Option<Value> {
    match (before, after) {
        (before, after) if before == after => None,
        (Value::Object(before), Value::Object(after)) => {
            let gone = before.keys().filter(|key| !after.contains_key(*key));
            let mut patch: Map<String, Value> =
                gone.map(|key| (key.clone(), Value::Null)).collect();
            for (key, value) in after {
                match before.get(key) {
                    Some(before) => {
                        patch.extend(difference(before, value).map(|change| (key.clone(), change)));
                    }
                    None => drop(patch.insert(key.clone(), value.clone())),
                }
            }
            Some(Value::Object(patch))
        }
        (_, after) => Some(after.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_contains_only_what_changed() {
        let before = json!({ "a": 1, "b": { "c": [1, 2], "d": "x", "e": {} }, "f": null });
        assert_eq!(difference(&before, &before), None);
        let after = json!({ "a": 1, "b": { "c": [2], "e": { "g": true } }, "f": null, "h": 4 });
        assert_eq!(
            difference(&before, &after),
            Some(json!({ "b": { "c": [2], "d": null, "e": { "g": true } }, "h": 4 }))
        );
    }

    #[test]
    fn finalizers_are_added_once_and_not_to_deleted_objects() {
        let mut node = k8s_openapi::api::core::v1::Node::default();
        assert!(add_finalizer(&mut node, "f"));
        assert!(!add_finalizer(&mut node, "f"));
        assert!(has_finalizer(&node, "f"));
        assert!(remove_finalizer(&mut node, "f"));
        assert!(!remove_finalizer(&mut node, "f"));
        let deleted = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::MIN);
        node.metadata.deletion_timestamp = Some(deleted);
        assert!(!add_finalizer(&mut node, "f"));
    }
}
