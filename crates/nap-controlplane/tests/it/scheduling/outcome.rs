//! Outcome of a plan on the real scheduler.

use std::collections::BTreeMap;

use nap_api::Requirements;
use nap_engine::{ATTACHABLE_VOLUMES, Plan, PodKey, Preferences, Snapshot};
use nap_units::UsdPerHour;

/// Nodes of the pods and costs after a plan was carried out.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) kinds: Vec<PodGroup>,
    /// Node by bound pod.
    pub(super) places: BTreeMap<PodKey, String>,
    /// The scheduler's messages by unbound pod.
    pub(super) complaints: BTreeMap<PodKey, String>,
    pub(super) cost: UsdPerHour,
    /// Cost of further nodes for planned pods that were not bound.
    pub(super) more: UsdPerHour,
    /// Number of further plans.
    pub(super) replans: usize,
    /// The snapshot and the plan of the last further plan.
    pub(super) last: Option<(Snapshot, Plan)>,
}

/// Pods that differ in their names only and are interchangeable.
#[derive(Debug)]
pub(super) struct PodGroup {
    /// One of them.
    pub(super) pod: PodKey,
    pub(super) rules: Vec<&'static str>,
    pub(super) planned: usize,
    /// Pods bound by the first plan.
    pub(super) at_once: usize,
    /// Pods bound in the end.
    pub(super) bound: usize,
    /// Whether other pods have a higher priority, against which a nomination reserves nothing.
    pub(super) is_outranked: bool,
    /// Whether some are unplaced because of NodePool settings.
    pub(super) is_pool_matter: bool,
}

impl PodGroup {
    /// Whether their nodes depend on rules between pods or on priorities, so that the order of
    /// nodes may matter.
    pub(super) fn depends_on_others(&self) -> bool {
        self.is_outranked || self.rules.iter().any(|rule| COUPLING.contains(rule))
    }
}

impl Outcome {
    pub(super) fn planned(&self) -> usize {
        self.kinds.iter().map(|kind| kind.planned).sum()
    }

    /// Number of planned pods bound by the first plan.
    pub(super) fn at_once(&self) -> usize {
        self.kinds.iter().map(|kind| kind.at_once.min(kind.planned)).sum()
    }

    /// Number of planned pods bound in the end.
    pub(super) fn bound(&self) -> usize {
        self.kinds.iter().map(|kind| kind.bound.min(kind.planned)).sum()
    }
}

const COUPLING: [&str; 3] = ["spread", "affinity", "anti-affinity"];

/// Names of a pod's rules.
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

/// Counts over all cases of pods with a rule.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) planned: usize,
    /// Pods bound by the first plan.
    pub(super) at_once: usize,
    /// Pods bound by a further plan.
    pub(super) late: usize,
    /// Planned pods that were never bound.
    pub(super) too_few: usize,
    /// Unplaced pods that were bound although all planned pods were bound too.
    pub(super) too_many: usize,
    /// Unplaced pods bound in place of planned ones.
    pub(super) instead: usize,
    /// Pods unplaced because of NodePool settings, bound to nodes of others.
    pub(super) lucky: usize,
}

impl Tally {
    /// Adds the pods of a kind. `is_realised`: whether the first plan bound all planned pods of the
    /// case.
    pub(super) fn add(&mut self, kind: &PodGroup, is_realised: bool) {
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
