//! Drift hashes of NodePools and AKSNodeClasses, and their migration to a new hash version.
//!
//! After a change of the hash version, NodeClaims get the new hash of their unchanged NodePool or
//! class, so that no node drifts because of it.

use kube::ResourceExt;
use nap_api::nodeclaim::condition::DRIFTED;
use nap_api::{AKSNodeClass, NodeClaim, NodePool, hash, labels};

use crate::cluster::claim_is;
use crate::context::{Context, Error};

/// A drift hash and its version, as annotations carry them.
pub struct HashStamp {
    hash_key: &'static str,
    hash: String,
    version_key: &'static str,
    version: &'static str,
}

impl HashStamp {
    /// The stamp of a NodePool's template.
    pub fn of_pool(pool: &NodePool) -> Self {
        Self {
            hash_key: labels::NODEPOOL_HASH,
            hash: hash::nodepool_hash(&pool.spec),
            version_key: labels::NODEPOOL_HASH_VERSION,
            version: hash::NODEPOOL_HASH_VERSION,
        }
    }

    /// The stamp of an AKSNodeClass's spec.
    pub fn of_class(class: &AKSNodeClass) -> Self {
        Self {
            hash_key: labels::AKS_NODE_CLASS_HASH,
            hash: hash::aks_node_class_hash(&class.spec),
            version_key: labels::AKS_NODE_CLASS_HASH_VERSION,
            version: hash::AKS_NODE_CLASS_HASH_VERSION,
        }
    }

    /// The annotations that make up the stamp.
    pub fn annotations(&self) -> [(String, String); 2] {
        [
            (self.hash_key.to_owned(), self.hash.clone()),
            (self.version_key.to_owned(), self.version.to_owned()),
        ]
    }

    /// Whether an object carries this stamp.
    pub fn is_on(&self, object: &impl ResourceExt) -> bool {
        self.annotations().iter().all(|(key, value)| object.annotations().get(key) == Some(value))
    }

    fn has_version(&self, object: &impl ResourceExt) -> bool {
        object.annotations().get(self.version_key).is_some_and(|version| version == self.version)
    }

    /// Whether the hash of a NodeClaim differs from that of its owner in the same version. Hashes
    /// of different versions cannot be compared.
    pub fn differs(keys: (&str, &str), claim: &NodeClaim, owner: &impl ResourceExt) -> bool {
        let (hash, version) = keys;
        let (ours, theirs) = (claim.annotations(), owner.annotations());
        match (ours.get(hash), theirs.get(hash), ours.get(version), theirs.get(version)) {
            (Some(ours), Some(theirs), Some(our_version), Some(their_version)) => {
                our_version == their_version && ours != theirs
            }
            _ => false,
        }
    }

    /// Puts the stamp on every NodeClaim that `belongs` to an owner with another hash version. To
    /// be called before the owner gets the stamp itself: an interrupted migration is then repeated.
    /// A NodeClaim that has drifted keeps its hash, and stays drifted.
    pub async fn migrate(
        &self,
        context: &Context,
        owner: &impl ResourceExt,
        belongs: impl Fn(&NodeClaim) -> bool,
    ) -> Result<(), Error> {
        if self.has_version(owner) {
            return Ok(());
        }
        let claims: Vec<String> = {
            let index = context.index();
            index.claims().filter(|claim| belongs(claim)).map(|claim| claim.name_any()).collect()
        };
        for name in claims {
            context.update::<NodeClaim>(&name, |claim| self.stamp(claim)).await?;
        }
        Ok(())
    }

    /// Stamps a NodeClaim. Returns whether anything changed.
    fn stamp(&self, claim: &mut NodeClaim) -> bool {
        if self.has_version(claim) {
            return false;
        }
        let drifted = claim_is(claim, DRIFTED);
        let annotations = claim.annotations_mut();
        annotations.insert(self.version_key.to_owned(), self.version.to_owned());
        if !drifted {
            annotations.insert(self.hash_key.to_owned(), self.hash.clone());
        }
        true
    }
}
