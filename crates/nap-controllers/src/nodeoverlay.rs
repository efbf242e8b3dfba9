//! Keeps the status of NodeOverlays: whether they count, and what is in the way of those that do
//! not.

use std::time::Duration;

use nap_api::conditions;
use nap_api::nodepool::VALIDATION_SUCCEEDED;

use crate::context::{Context, Outcome};
use crate::state::catalogues::Refused;

/// How often overlays are looked at again: what they are about may be on offer only now.
const AGAIN: Duration = Duration::from_hours(6);

/// Brings the status of every overlay up to date.
pub async fn reconcile(context: &Context) -> Outcome {
    let names: Vec<String> = context.state().overlays.keys().cloned().collect();
    if names.is_empty() {
        return Ok(None);
    }
    let catalogues = context.catalogues().await;
    let now = context.clock.now();
    for name in names {
        let refused = catalogues.refused.get(&name);
        context
            .update_overlay_status(&name, |overlay| {
                let generation = overlay.metadata.generation;
                let mut status = overlay.status.clone().unwrap_or_default();
                let problem = refused.map(|refused| match refused {
                    Refused::Invalid(problem) => ("RuntimeValidation", problem.as_str()),
                    Refused::Conflict => ("Conflict", "conflict with another overlay"),
                });
                let list = &mut status.conditions;
                match problem {
                    Some((reason, message)) => {
                        let no = conditions::Status::False;
                        conditions::set(
                            list,
                            VALIDATION_SUCCEEDED,
                            no,
                            reason,
                            message,
                            generation,
                            now,
                        )
                    }
                    None => conditions::set_true(list, VALIDATION_SUCCEEDED, generation, now),
                };
                conditions::summarise(list, &[VALIDATION_SUCCEEDED], generation, now);
                let changed = overlay.status.as_ref() != Some(&status);
                overlay.status = Some(status);
                changed
            })
            .await?;
    }
    Ok(Some(AGAIN))
}
