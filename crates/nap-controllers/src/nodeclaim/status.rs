//! Edits of a NodeClaim's status.

use jiff::Timestamp;
use nap_api::nodeclaim::condition::DEPENDENTS;
use nap_api::{NodeClaim, NodeClaimStatus, conditions};

use crate::context::{Context, Error};

/// A NodeClaim's status under edit.
pub struct StatusEdit<'a> {
    /// The status.
    pub status: &'a mut NodeClaimStatus,
    generation: Option<i64>,
    now: Timestamp,
}

impl StatusEdit<'_> {
    /// Sets a condition to true, with its own name as the reason.
    pub fn set_true(&mut self, type_: &str) {
        conditions::set_true(&mut self.status.conditions, type_, self.generation, self.now);
    }

    /// Sets a condition to true, with a reason that is its message too.
    pub fn set_true_because(&mut self, type_: &str, reason: &str) {
        self.set(type_, conditions::Status::True, reason, reason);
    }

    /// Sets a condition to unknown.
    pub fn set_unknown(&mut self, type_: &str, reason: &str, message: &str) {
        self.set(type_, conditions::Status::Unknown, reason, message);
    }

    /// Removes a condition.
    pub fn clear(&mut self, type_: &str) {
        conditions::clear(&mut self.status.conditions, type_);
    }

    fn set(&mut self, type_: &str, status: conditions::Status, reason: &str, message: &str) {
        let list = &mut self.status.conditions;
        conditions::set(list, type_, status, reason, message, self.generation, self.now);
    }
}

impl Context {
    /// Edits the status of a NodeClaim and recomputes `Ready`. Writes only if anything changed, and
    /// does nothing if the NodeClaim is gone.
    pub async fn edit_claim_status(
        &self,
        name: &str,
        edit: impl Fn(&mut StatusEdit<'_>),
    ) -> Result<(), Error> {
        let now = self.clock.now();
        self.update_status(name, |claim| apply(claim, now, &edit)).await
    }
}

/// Applies an edit. Returns whether anything changed.
fn apply(claim: &mut NodeClaim, now: Timestamp, edit: impl Fn(&mut StatusEdit<'_>)) -> bool {
    let before = claim.status.clone();
    let generation = claim.metadata.generation;
    let status = claim.status.get_or_insert_default();
    edit(&mut StatusEdit { status, generation, now });
    conditions::summarise(&mut status.conditions, &DEPENDENTS, generation, now);
    claim.status != before
}
