//! NodeClaims that are decided and not created yet.
//!
//! The NodeClaims of a large batch take seconds to create, and the next batch is planned meanwhile.
//! Until its creation is answered, a NodeClaim counts in plans as if it existed: its pods have a
//! place, its room is promised to them, and its capacity counts against the limits of its NodePool.
//! No controller acts on it. A restart forgets it, and its pods are planned again.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt;
use nap_api::NodeClaim;
use nap_engine::PodKey;

use super::{Dirty, Index, NodeView};

/// Identifies a NodeClaim that is not created yet and has no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DecidedId(u64);

/// A NodeClaim that is not created yet.
#[derive(Clone, Debug)]
pub struct DecidedClaim {
    /// The NodeClaim, with a name that no object can have.
    pub view: NodeView,
    /// The pods that it is for.
    pub pods: Vec<PodKey>,
}

/// The NodeClaims that are decided and not created yet. Provisioning bounds their number.
#[derive(Debug, Default)]
pub(super) struct DecidedClaims {
    claims: BTreeMap<DecidedId, DecidedClaim>,
    last: u64,
}

impl Index {
    /// Counts on a NodeClaim that is about to be created for some pods.
    pub fn decide(&mut self, claim: &NodeClaim, pods: Vec<PodKey>) -> DecidedId {
        self.decided.last += 1;
        let id = DecidedId(self.decided.last);
        let mut claim = claim.clone();
        let prefix = claim.metadata.generate_name.take().unwrap_or_default();
        claim.metadata.name = Some(format!("{prefix} {}", id.0));
        let view = NodeView { claim: Some(Arc::new(claim)), node: None };
        self.decided.claims.insert(id, DecidedClaim { view, pods });
        self.bump_generation();
        id
    }

    /// Forgets a decided NodeClaim that was created and is indexed by its own name.
    pub fn decided_was_created(&mut self, id: DecidedId) {
        self.decided.claims.remove(&id);
    }

    /// Forgets a decided NodeClaim that cannot be created. Its pods need another plan.
    pub fn decided_has_failed(&mut self, id: DecidedId) {
        if self.decided.claims.remove(&id).is_some() {
            self.bump_generation();
            self.mark(Dirty::Provisioning);
        }
    }

    /// Forgets every decided NodeClaim: none of them is being created any more.
    pub fn forget_decided(&mut self) {
        self.decided.claims.clear();
    }

    /// The NodeClaims that are decided and not created yet, in the order of their decision.
    pub fn decided(&self) -> impl ExactSizeIterator<Item = &DecidedClaim> {
        self.decided.claims.values()
    }
}

impl DecidedClaim {
    /// The name by which plans call it.
    pub fn name(&self) -> String {
        self.view.claim.as_ref().map(|claim| claim.name_any()).unwrap_or_default()
    }
}
