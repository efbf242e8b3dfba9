//! When a way of hashing changes: claims get the new hash of what they were made from, so that no
//! node drifts because of it.

use kube::ResourceExt;
use nap_api::nodeclaim::condition::DRIFTED;
use nap_api::{NodeClaim, conditions};

use crate::context::{Context, Error};

/// A hash as annotations say it.
pub struct Stamp<'a> {
    /// The annotation with the hash.
    pub hash_key: &'a str,
    /// The hash.
    pub hash: &'a str,
    /// The annotation with the way of hashing.
    pub version_key: &'a str,
    /// The way of hashing.
    pub version: &'a str,
}

impl Stamp<'_> {
    /// Whether an object carries this hash.
    pub fn is_on(&self, object: &impl ResourceExt) -> bool {
        let has = |key, value| object.annotations().get(key).is_some_and(|have| have == value);
        has(self.hash_key, self.hash) && has(self.version_key, self.version)
    }

    /// Puts the hash on every claim that `belongs` if its owner was hashed in another way until
    /// now. To be done before the owner gets its own: if this ends halfway, it is done again. A
    /// claim that has drifted already stays as it is, and drifted.
    pub async fn migrate(
        &self,
        context: &Context,
        owner: &impl ResourceExt,
        belongs: impl Fn(&NodeClaim) -> bool,
    ) -> Result<(), Error> {
        if owner.annotations().get(self.version_key).is_some_and(|version| version == self.version)
        {
            return Ok(());
        }
        let claims: Vec<String> = {
            let state = context.state();
            state
                .claims
                .values()
                .filter(|claim| belongs(claim))
                .map(|claim| claim.name_any())
                .collect()
        };
        for name in claims {
            context
                .update_claim(&name, |claim| {
                    if claim
                        .annotations()
                        .get(self.version_key)
                        .is_some_and(|version| version == self.version)
                    {
                        return false;
                    }
                    let conditions =
                        claim.status.as_ref().map(|status| status.conditions.as_slice());
                    let drifted = conditions::is_true(conditions.unwrap_or_default(), DRIFTED);
                    let annotations = claim.annotations_mut();
                    annotations.insert(self.version_key.to_owned(), self.version.to_owned());
                    if !drifted {
                        annotations.insert(self.hash_key.to_owned(), self.hash.to_owned());
                    }
                    true
                })
                .await?;
        }
        Ok(())
    }
}
