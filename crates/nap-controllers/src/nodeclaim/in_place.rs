//! Changes of a running instance that need no new one, such as its tags.

use kube::ResourceExt;
use nap_api::nodeclaim::condition::REGISTERED;
use nap_api::{NodeClaim, labels};

use super::{Step, live_claim};
use crate::cluster::claim_is;
use crate::context::{Context, Error};

/// Brings the instance of a registered NodeClaim up to date with its node class.
pub async fn update(context: &Context, name: &str) -> Result<Step, Error> {
    let Some(claim) = live_claim(context, name) else { return Ok(Step::Deleted) };
    let class = context.index().class(&claim.spec.node_class_ref.name).cloned();
    let Some(class) = class.filter(|_| claim_is(&claim, REGISTERED)) else { return Ok(Step::Done) };
    let Some(hash) = context.cloud.in_place_hash(&claim, &class) else { return Ok(Step::Done) };
    let key = labels::IN_PLACE_UPDATE_HASH;
    if claim.annotations().get(key) == Some(&hash) {
        return Ok(Step::Done);
    }
    context.cloud.update_in_place(&claim, &class).await?;
    tracing::info!(nodeclaim = name, "updated instance in place");
    context.annotate::<NodeClaim>(name, [(key.to_owned(), hash)]).await?;
    Ok(Step::Done)
}
