//! Settings of a NodePool for the disruption of its nodes that the incumbent does not have. They
//! are annotations, so that its definition stays the same.
//!
//! - [`Windows`] say when nodes may be disrupted.
//! - [`Settings::soak`] makes drift proceed in waves.
//! - [`expires_gracefully`] lets expired nodes be replaced like drifted ones.

mod maintenance;
mod opening;
mod spans;
#[cfg(test)]
mod tests;
mod windows;

use jiff::SignedDuration;

use crate::duration::parse_go_duration;
use crate::labels;
use crate::nodepool::NodePool;
pub use maintenance::{Maintenance, MaintenanceSchedule, PlannedMaintenance};
pub use spans::{Span, union, without};
pub use windows::{Closed, MAX_SEARCH_DAYS, REASONS, Windows};

/// Longest soak time of a wave.
const MAX_SOAK: SignedDuration = SignedDuration::from_hours(14 * 24);

/// Settings for the disruption of a NodePool's nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// When nodes may be disrupted; always without windows.
    pub windows: Windows,
    /// Time for which a wave of new nodes is watched before the next; `None` without waves.
    pub soak: Option<SignedDuration>,
}

impl Settings {
    /// Reads the annotations of a NodePool. Each problem names the annotation and the remedy.
    pub fn of(pool: &NodePool) -> Result<Self, Vec<String>> {
        let annotation = |key| pool.metadata.annotations.as_ref().and_then(|all| all.get(key));
        let mut problems = Vec::new();
        let mut settings = Self::default();
        if let Some(text) = annotation(labels::DISRUPTION_WINDOWS) {
            match Windows::parse(text) {
                Ok(windows) => settings.windows = windows,
                Err(problem) => problems.push(field(labels::DISRUPTION_WINDOWS, &problem)),
            }
        }
        if let Some(text) = annotation(labels::DRIFT_WAVES) {
            let soak = parse_go_duration(text.trim());
            let soak = soak.and_then(|soak| SignedDuration::try_from(soak).ok());
            settings.soak = soak.filter(|soak| soak.is_positive() && *soak <= MAX_SOAK);
            if settings.soak.is_none() {
                let problem = format!(
                    ": `{text}` is not a soak time up to `336h`; write one such as `30m`, or remove \
                     it"
                );
                problems.push(field(labels::DRIFT_WAVES, &problem));
            }
        }
        match annotation(labels::EXPIRY).map(|text| text.trim()) {
            None | Some("graceful") => {}
            Some(other) => {
                let problem = format!(": `{other}` is not `graceful`; write that, or remove it");
                problems.push(field(labels::EXPIRY, &problem));
            }
        }
        if problems.is_empty() { Ok(settings) } else { Err(problems) }
    }
}

/// Whether expired nodes of a NodePool are replaced within its budgets and windows, instead of
/// deleted at once. An annotation that cannot be read asks for no force either.
pub fn expires_gracefully(pool: &NodePool) -> bool {
    pool.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(labels::EXPIRY))
}

/// The maintenance schedules of the managed cluster that windows of NodePools follow.
pub fn followed_schedules<'a>(
    pools: impl IntoIterator<Item = &'a NodePool>,
) -> Vec<MaintenanceSchedule> {
    let windows = |pool| Settings::of(pool).ok().map(|settings| settings.windows);
    let all: Vec<Windows> = pools.into_iter().filter_map(windows).collect();
    let is_followed =
        |schedule: &MaintenanceSchedule| all.iter().any(|windows| windows.follow(*schedule));
    MaintenanceSchedule::ALL.into_iter().filter(is_followed).collect()
}

fn field(annotation: &str, problem: &str) -> String {
    format!("metadata.annotations[{annotation}]{problem}")
}
