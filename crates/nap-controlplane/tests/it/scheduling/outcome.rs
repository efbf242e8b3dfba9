//! What the scheduler made of a plan, in numbers.

use std::collections::BTreeMap;

use nap_api::Requirements;
use nap_engine::{ATTACHABLE_VOLUMES, Plan, PodKey, Preferences, Snapshot};
use nap_units::UsdPerHour;

/// What the scheduler made of a plan.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) kinds: Vec<Kind>,
    /// Where the scheduler put pods.
    pub(super) places: BTreeMap<PodKey, String>,
    /// What it says about the others.
    pub(super) complaints: BTreeMap<PodKey, String>,
    pub(super) cost: UsdPerHour,
    /// What machines cost besides that were bought for planned pods that were not bound.
    pub(super) more: UsdPerHour,
    /// How often they were planned for anew.
    pub(super) replans: usize,
    /// The cluster as it was at the last time, and the plan for it.
    pub(super) last: Option<(Snapshot, Plan)>,
}

/// Pods that differ in nothing but their names: they stand in for each other.
#[derive(Debug)]
pub(super) struct Kind {
    /// One of them.
    pub(super) pod: PodKey,
    pub(super) rules: Vec<&'static str>,
    pub(super) planned: usize,
    /// Bound when the plan was carried out.
    pub(super) at_once: usize,
    /// Bound in the end.
    pub(super) bound: usize,
    /// Others have a higher priority: a nomination keeps no room free from them.
    pub(super) is_outranked: bool,
    /// Some have no place because of what pools may buy.
    pub(super) is_pool_matter: bool,
}

impl Kind {
    /// Whether rules between pods decide where they may be, or others go first: then the order in
    /// which nodes come may matter.
    pub(super) fn depends_on_others(&self) -> bool {
        self.is_outranked || self.rules.iter().any(|rule| COUPLING.contains(rule))
    }
}

impl Outcome {
    pub(super) fn planned(&self) -> usize {
        self.kinds.iter().map(|kind| kind.planned).sum()
    }

    /// Planned pods that were bound when the plan was carried out.
    pub(super) fn at_once(&self) -> usize {
        self.kinds.iter().map(|kind| kind.at_once.min(kind.planned)).sum()
    }

    /// Planned pods that were bound in the end.
    pub(super) fn bound(&self) -> usize {
        self.kinds.iter().map(|kind| kind.bound.min(kind.planned)).sum()
    }
}

const COUPLING: [&str; 3] = ["spread", "affinity", "anti-affinity"];

/// The rules that a pod has, by name.
pub(super) fn rules_of(pod: &nap_engine::Pod) -> Vec<&'static str> {
    let has = [
        ("spread", !pod.spread.is_empty()),
        ("affinity", !pod.affinity.is_empty()),
        ("anti-affinity", !pod.anti_affinity.is_empty()),
        ("node affinity", !pod.terms.iter().any(Requirements::is_empty)),
        ("host ports", !pod.host_ports.is_empty()),
        ("volume zones", !pod.volume_terms.is_empty()),
        (
            "attach limits",
            pod.requests.iter().any(|(name, _)| name.starts_with(ATTACHABLE_VOLUMES)),
        ),
        ("preferences", pod.preferences != Preferences::default()),
        ("priority", pod.priority > 0),
    ];
    let rules: Vec<&str> = has.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect();
    if rules.is_empty() { vec!["none"] } else { rules }
}

/// Pods of all cases that have a rule.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) planned: usize,
    /// Bound when the plan was carried out.
    pub(super) at_once: usize,
    /// Bound only when they were planned for anew.
    pub(super) late: usize,
    /// Planned and never bound.
    pub(super) too_few: usize,
    /// Bound beyond the plan, where everything planned was bound too.
    pub(super) too_many: usize,
    /// Bound in place of planned ones.
    pub(super) instead: usize,
    /// Bound on what was bought for others, where nothing could be bought for them.
    pub(super) lucky: usize,
}

impl Tally {
    /// With the pods of a kind; `is_realised` says whether all planned pods of the case were bound
    /// at once.
    pub(super) fn add(&mut self, kind: &Kind, is_realised: bool) {
        let at_once = kind.at_once.min(kind.planned);
        let bound = kind.bound.min(kind.planned);
        self.planned += kind.planned;
        self.at_once += at_once;
        self.late += bound - at_once;
        self.too_few += kind.planned - bound;
        let beyond = match (is_realised, kind.is_pool_matter) {
            (true, true) => &mut self.lucky,
            (true, false) => &mut self.too_many,
            (false, _) => &mut self.instead,
        };
        *beyond += kind.at_once - at_once;
    }
}
