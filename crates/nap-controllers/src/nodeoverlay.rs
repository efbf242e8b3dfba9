//! Status of NodeOverlays: whether each is applied, and why not.

use std::time::Duration;

use jiff::Timestamp;
use nap_api::nodepool::VALIDATION_SUCCEEDED;
use nap_api::{NodeOverlay, conditions};

use crate::context::{Context, Outcome};
use crate::permissions::{KARPENTER, Permission};
use crate::snapshot::OverlayRefusal;

/// Statuses are written.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new(KARPENTER, "nodeoverlays", &["get"]),
    Permission::new(KARPENTER, "nodeoverlays/status", &["patch"]),
];

/// Interval at which overlays are validated again: an instance type that one names may appear.
const INTERVAL: Duration = Duration::from_hours(6);

/// Updates the status of every overlay.
pub async fn reconcile(context: &Context) -> Outcome {
    let names: Vec<String> = context.index().overlays().map(|(name, _)| name.clone()).collect();
    if names.is_empty() {
        return Ok(None);
    }
    let catalogues = context.catalogues().await;
    let now = context.clock.now();
    for name in names {
        let refusal = catalogues.refused.get(&name);
        context
            .update_status::<NodeOverlay>(&name, |overlay| set_validation(overlay, refusal, now))
            .await?;
    }
    Ok(Some(INTERVAL))
}

/// Writes the `ValidationSucceeded` condition. Returns whether anything changed.
fn set_validation(
    overlay: &mut NodeOverlay,
    refusal: Option<&OverlayRefusal>,
    now: Timestamp,
) -> bool {
    let generation = overlay.metadata.generation;
    let mut status = overlay.status.clone().unwrap_or_default();
    let list = &mut status.conditions;
    let problem = refusal.map(|refusal| match refusal {
        OverlayRefusal::Invalid(problem) => ("RuntimeValidation", problem.as_str()),
        OverlayRefusal::Conflict => ("Conflict", "conflict with another overlay"),
    });
    match problem {
        Some((reason, message)) => {
            let (type_, no) = (VALIDATION_SUCCEEDED, conditions::Status::False);
            conditions::set(list, type_, no, reason, message, generation, now)
        }
        None => conditions::set_true(list, VALIDATION_SUCCEEDED, generation, now),
    };
    conditions::summarise(list, &[VALIDATION_SUCCEEDED], generation, now);
    let changed = overlay.status.as_ref() != Some(&status);
    overlay.status = Some(status);
    changed
}
