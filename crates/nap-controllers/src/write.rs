//! Writes that survive a race: read, change, write what changed, and again if somebody else was
//! faster.
//!
//! Only what changed is sent. An object has fields that this build does not know, of a newer server
//! or of a user's own writing; a write of the whole object would take them away.

use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Resource, ResourceExt};
use nap_api::{AKSNodeClass, NodeClaim, NodeOverlay, NodePool};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::context::{Context, Doing, Error, is_conflict, is_not_found};
use crate::state::State;

/// How often a write is tried against others' changes before the reconcile fails and backs off.
const TRIES: usize = 5;

/// Which part of an object a write changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Object,
    Status,
}

/// Where an object is kept in the state.
struct Kept<K> {
    known: fn(&State, &str) -> Option<Arc<K>>,
    apply: fn(&mut State, K),
}

const CLAIMS: Kept<NodeClaim> =
    Kept { known: |state, name| state.claims.get(name).cloned(), apply: State::apply_claim };
const NODES: Kept<Node> =
    Kept { known: |state, name| state.nodes.get(name).cloned(), apply: State::apply_node };
const POOLS: Kept<NodePool> =
    Kept { known: |state, name| state.pools.get(name).cloned(), apply: State::apply_pool };
const CLASSES: Kept<AKSNodeClass> =
    Kept { known: |state, name| state.classes.get(name).cloned(), apply: State::apply_class };
const OVERLAYS: Kept<NodeOverlay> =
    Kept { known: |state, name| state.overlays.get(name).cloned(), apply: State::apply_overlay };

impl Context {
    /// Changes a claim's status. `change` returns whether there is anything to write. Does nothing
    /// if the claim is gone.
    pub async fn update_claim_status(
        &self,
        name: &str,
        change: impl Fn(&mut NodeClaim) -> bool,
    ) -> Result<(), Error> {
        self.update(name, &CLAIMS, Part::Status, change).await
    }

    /// Changes a claim's metadata. As [`Context::update_claim_status`].
    pub async fn update_claim(
        &self,
        name: &str,
        change: impl Fn(&mut NodeClaim) -> bool,
    ) -> Result<(), Error> {
        self.update(name, &CLAIMS, Part::Object, change).await
    }

    /// Changes a node. As [`Context::update_claim_status`].
    pub async fn update_node(
        &self,
        name: &str,
        change: impl Fn(&mut Node) -> bool,
    ) -> Result<(), Error> {
        self.update(name, &NODES, Part::Object, change).await
    }

    /// Changes a NodePool's status. As [`Context::update_claim_status`].
    pub async fn update_pool_status(
        &self,
        name: &str,
        change: impl Fn(&mut NodePool) -> bool,
    ) -> Result<(), Error> {
        self.update(name, &POOLS, Part::Status, change).await
    }

    /// Changes an AKSNodeClass's metadata. As [`Context::update_claim_status`].
    pub async fn update_class(
        &self,
        name: &str,
        change: impl Fn(&mut AKSNodeClass) -> bool,
    ) -> Result<(), Error> {
        self.update(name, &CLASSES, Part::Object, change).await
    }

    /// Changes an AKSNodeClass's status. As [`Context::update_claim_status`].
    pub async fn update_class_status(
        &self,
        name: &str,
        change: impl Fn(&mut AKSNodeClass) -> bool,
    ) -> Result<(), Error> {
        self.update(name, &CLASSES, Part::Status, change).await
    }

    /// Changes a NodeOverlay's status. As [`Context::update_claim_status`].
    pub async fn update_overlay_status(
        &self,
        name: &str,
        change: impl Fn(&mut NodeOverlay) -> bool,
    ) -> Result<(), Error> {
        self.update(name, &OVERLAYS, Part::Status, change).await
    }

    async fn update<K>(
        &self,
        name: &str,
        kept: &Kept<K>,
        part: Part,
        change: impl Fn(&mut K) -> bool,
    ) -> Result<(), Error>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
    {
        let api: Api<K> = Api::all(self.client.clone());
        let kind = K::kind(&());
        for attempt in 1.. {
            // The first try starts from what is known, which is nearly always current; a stale one
            // is refused.
            let known = if attempt == 1 { (kept.known)(&self.state(), name) } else { None };
            let mut object = match known {
                Some(object) => K::clone(&object),
                None => match api.get_opt(name).await.doing(&format!("reading {kind}"), name)? {
                    Some(object) => object,
                    None => return Ok(()),
                },
            };
            let before = plain(&object);
            if !change(&mut object) {
                return Ok(());
            }
            let mut patch = difference(&before, &plain(&object)).unwrap_or_else(|| json!({}));
            patch["metadata"]["resourceVersion"] = json!(object.resource_version());
            let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
            let written = match part {
                Part::Object => api.patch(name, &params, &patch).await,
                Part::Status => api.patch_status(name, &params, &patch).await,
            };
            match written {
                Ok(written) => {
                    // Without its last finalizer a deleted object is gone; its deletion was or will
                    // be seen.
                    if written.meta().deletion_timestamp.is_none()
                        || !written.finalizers().is_empty()
                    {
                        (kept.apply)(&mut self.state(), written);
                    }
                    return Ok(());
                }
                Err(error) if is_not_found(&error) => return Ok(()),
                Err(error) if is_conflict(&error) && attempt < TRIES => {}
                Err(error) => return Err(error).doing(&format!("writing {kind}"), name),
            }
        }
        Ok(())
    }

    /// Sets annotations on an object without touching anything else.
    pub async fn annotate<K>(
        &self,
        api: &Api<K>,
        name: &str,
        annotations: &[(&str, &str)],
    ) -> Result<Option<K>, Error>
    where
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let map: serde_json::Map<String, serde_json::Value> =
            annotations.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        let patch = json!({ "metadata": { "annotations": map } });
        match api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(written) => Ok(Some(written)),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(error).doing("annotating", name),
        }
    }

    /// Asks for a claim to be deleted, if it is still the one that was meant.
    pub async fn delete_claim(&self, claim: &NodeClaim) -> Result<(), Error> {
        let name = claim.name_any();
        let api: Api<NodeClaim> = Api::all(self.client.clone());
        let same = Preconditions { uid: claim.uid(), resource_version: None };
        let params = DeleteParams { preconditions: Some(same), ..DeleteParams::default() };
        match api.delete(&name, &params).await {
            Ok(either) => {
                if let either::Either::Left(written) = either {
                    self.state().apply_claim(written);
                }
                Ok(())
            }
            Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(()),
            Err(error) => Err(error).doing("deleting NodeClaim", &name),
        }
    }
}

fn plain(object: &impl Serialize) -> Value {
    serde_json::to_value(object).expect("an object of the API is plain data")
}

/// The JSON merge patch that makes `after` of `before`; none if they are the same. Lists are
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
    fn a_patch_says_what_changed_and_nothing_else() {
        let before = json!({ "a": 1, "b": { "c": [1, 2], "d": "x", "e": {} }, "f": null });
        assert_eq!(difference(&before, &before), None);
        let after = json!({ "a": 1, "b": { "c": [2], "e": { "g": true } }, "f": null, "h": 4 });
        assert_eq!(
            difference(&before, &after),
            Some(json!({ "b": { "c": [2], "d": null, "e": { "g": true } }, "h": 4 }))
        );
    }
}
