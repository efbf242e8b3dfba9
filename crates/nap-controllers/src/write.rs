//! Writes that survive a race: read, change, replace, and again if somebody else was faster.

use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use nap_api::{NodeClaim, NodePool};
use serde_json::json;

use crate::context::{Context, Doing, Error, is_conflict, is_not_found};

/// How often a write is tried against others' changes before the reconcile fails and backs off.
const TRIES: usize = 5;

impl Context {
    /// Changes a claim's status. `change` returns whether there is anything to write. Does nothing if the claim is gone.
    pub async fn update_claim_status(
        &self,
        name: &str,
        change: impl Fn(&mut NodeClaim) -> bool,
    ) -> Result<(), Error> {
        let api: Api<NodeClaim> = Api::all(self.client.clone());
        for attempt in 1.. {
            // The first try starts from what is known, which is nearly always current; a stale one is refused.
            let known = if attempt == 1 { self.state().claims.get(name).cloned() } else { None };
            let mut claim = match known {
                Some(claim) => NodeClaim::clone(&claim),
                None => match api.get_opt(name).await.doing("reading NodeClaim", name)? {
                    Some(claim) => claim,
                    None => return Ok(()),
                },
            };
            if !change(&mut claim) {
                return Ok(());
            }
            match api.replace_status(name, &PostParams::default(), &claim).await {
                Ok(written) => {
                    self.state().apply_claim(written);
                    return Ok(());
                }
                Err(error) if is_not_found(&error) => return Ok(()),
                Err(error) if is_conflict(&error) && attempt < TRIES => {}
                Err(error) => return Err(error).doing("writing the status of NodeClaim", name),
            }
        }
        Ok(())
    }

    /// Changes a claim's metadata. As [`Context::update_claim_status`].
    pub async fn update_claim(
        &self,
        name: &str,
        change: impl Fn(&mut NodeClaim) -> bool,
    ) -> Result<(), Error> {
        let api: Api<NodeClaim> = Api::all(self.client.clone());
        for attempt in 1.. {
            // The first try starts from what is known, which is nearly always current; a stale one is refused.
            let known = if attempt == 1 { self.state().claims.get(name).cloned() } else { None };
            let mut claim = match known {
                Some(claim) => NodeClaim::clone(&claim),
                None => match api.get_opt(name).await.doing("reading NodeClaim", name)? {
                    Some(claim) => claim,
                    None => return Ok(()),
                },
            };
            if !change(&mut claim) {
                return Ok(());
            }
            match api.replace(name, &PostParams::default(), &claim).await {
                Ok(written) => {
                    if written.metadata.deletion_timestamp.is_none() || !written.finalizers().is_empty() {
                        self.state().apply_claim(written);
                    }
                    return Ok(());
                }
                Err(error) if is_not_found(&error) => return Ok(()),
                Err(error) if is_conflict(&error) && attempt < TRIES => {}
                Err(error) => return Err(error).doing("writing NodeClaim", name),
            }
        }
        Ok(())
    }

    /// Changes a node. As [`Context::update_claim_status`].
    pub async fn update_node(&self, name: &str, change: impl Fn(&mut Node) -> bool) -> Result<(), Error> {
        let api: Api<Node> = Api::all(self.client.clone());
        for attempt in 1.. {
            // The first try starts from what is known, which is nearly always current; a stale one is refused.
            let known = if attempt == 1 { self.state().nodes.get(name).cloned() } else { None };
            let mut node = match known {
                Some(node) => Node::clone(&node),
                None => match api.get_opt(name).await.doing("reading Node", name)? {
                    Some(node) => node,
                    None => return Ok(()),
                },
            };
            if !change(&mut node) {
                return Ok(());
            }
            match api.replace(name, &PostParams::default(), &node).await {
                Ok(written) => {
                    if written.metadata.deletion_timestamp.is_none() || !written.finalizers().is_empty() {
                        self.state().apply_node(written);
                    }
                    return Ok(());
                }
                Err(error) if is_not_found(&error) => return Ok(()),
                Err(error) if is_conflict(&error) && attempt < TRIES => {}
                Err(error) => return Err(error).doing("writing Node", name),
            }
        }
        Ok(())
    }

    /// Changes a NodePool's status. As [`Context::update_claim_status`].
    pub async fn update_pool_status(
        &self,
        name: &str,
        change: impl Fn(&mut NodePool) -> bool,
    ) -> Result<(), Error> {
        let api: Api<NodePool> = Api::all(self.client.clone());
        for attempt in 1.. {
            // The first try starts from what is known, which is nearly always current; a stale one is refused.
            let known = if attempt == 1 { self.state().pools.get(name).cloned() } else { None };
            let mut pool = match known {
                Some(pool) => NodePool::clone(&pool),
                None => match api.get_opt(name).await.doing("reading NodePool", name)? {
                    Some(pool) => pool,
                    None => return Ok(()),
                },
            };
            if !change(&mut pool) {
                return Ok(());
            }
            match api.replace_status(name, &PostParams::default(), &pool).await {
                Ok(written) => {
                    self.state().apply_pool(written);
                    return Ok(());
                }
                Err(error) if is_not_found(&error) => return Ok(()),
                Err(error) if is_conflict(&error) && attempt < TRIES => {}
                Err(error) => return Err(error).doing("writing the status of NodePool", name),
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
