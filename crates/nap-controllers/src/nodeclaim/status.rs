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

    /// Sets a condition to true, with a reason.
    pub fn set_true_because(&mut self, type_: &str, reason: &str, message: &str) {
        self.set(type_, conditions::Status::True, reason, message);
    }

    /// Sets a condition to unknown.
    pub fn set_unknown(&mut self, type_: &str, reason: &str, message: &str) {
        self.set(type_, conditions::Status::Unknown, reason, message);
    }

    /// Sets a condition to false.
    pub fn set_false(&mut self, type_: &str, reason: &str, message: &str) {
        self.set(type_, conditions::Status::False, reason, message);
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
    let created = claim.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    let deleting = claim.metadata.deletion_timestamp.is_some();
    let status = claim.status.get_or_insert_default();
    conditions::initialise(&mut status.conditions, &DEPENDENTS, generation, created);
    if deleting {
        // The deletion is a new generation of a spec that cannot change.
        for condition in &mut status.conditions {
            condition.observed_generation = generation;
        }
    }
    edit(&mut StatusEdit { status, generation, now });
    conditions::summarise(&mut status.conditions, &DEPENDENTS, generation, now);
    claim.status != before
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, claim};
    use nap_api::nodeclaim::condition::{DRAINED, LAUNCHED, REGISTERED};
    use serde_json::json;

    #[test]
    fn timeouts_count_from_the_creation_and_a_deletion_changes_no_readiness() {
        let created = json!({ "creationTimestamp": "1970-01-01T00:00:10Z", "generation": 1 });
        let mut claim = claim("c", json!({ "metadata": created }));
        assert!(apply(&mut claim, at(60), |edit| edit.set_true(LAUNCHED)));
        let conditions = |claim: &NodeClaim| claim.status.clone().unwrap().conditions;
        assert_eq!(conditions::since(&conditions(&claim), LAUNCHED), Some(at(60)));
        assert_eq!(conditions::since(&conditions(&claim), REGISTERED), Some(at(10)));
        apply(&mut claim, at(70), |edit| DEPENDENTS.iter().for_each(|type_| edit.set_true(type_)));
        assert!(conditions::is_true(&conditions(&claim), conditions::READY));
        claim.metadata.generation = Some(2);
        claim.metadata.deletion_timestamp = claim.metadata.creation_timestamp.clone();
        apply(&mut claim, at(80), |edit| edit.set_unknown(DRAINED, "Draining", ""));
        assert!(conditions::is_true(&conditions(&claim), conditions::READY));
    }
}
