//! Preferences as requirements that are relaxed one at a time.
//!
//! A pod with preferences is first placed with all of them as requirements. Where that leaves no
//! place, it gives up one after another in the incumbent's order: the heaviest preferred pod
//! affinity, the heaviest preferred anti-affinity, the heaviest preferred node affinity, the first
//! `ScheduleAnyway` constraint, and finally its aversion to `PreferNoSchedule` taints. So a pod has
//! *levels*: the same pod with fewer and fewer requirements.

use std::borrow::Cow;
use std::cmp::Reverse;

use nap_api::{Requirements, Taint};

use crate::classes::grouping::Group;
use crate::model::{Options, Pod, PreferencePolicy, Preferences, Selector, Snapshot, Weighted};

/// A pod with the requirements of one relaxation level.
pub(crate) struct Level<'a> {
    /// The pod. Its [`Preferences::anti_affinity`] are the terms that still hold, and its
    /// [`Preferences::spread`] repeat those of its last spread constraints that are preferred; all
    /// other preferences are either among its requirements or relaxed.
    pub(crate) pod: Cow<'a, Pod>,
    pub(crate) places: Places<'a>,
    /// `PreferNoSchedule` taints repel the pod like `NoSchedule`.
    pub(crate) avoids_soft_taints: bool,
}

/// Node requirements besides a pod's own terms: the topology of its volumes and its preferred node
/// affinity. Unlike the terms they never restrict the nodes that a spread constraint covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Places<'a> {
    /// No restriction.
    Any,
    /// A node must satisfy one of the alternatives.
    OneOf(Cow<'a, [Requirements]>),
    /// The preferred node affinity excludes every place of the volumes.
    None,
}

impl<'a> Places<'a> {
    fn of_volumes(pod: &Cow<'a, Pod>) -> Self {
        match pod {
            pod if pod.volume_terms.is_empty() => Self::Any,
            Cow::Borrowed(pod) => Self::OneOf(Cow::Borrowed(&pod.volume_terms)),
            Cow::Owned(pod) => Self::OneOf(Cow::Owned(pod.volume_terms.clone())),
        }
    }

    fn and(self, term: &Requirements) -> Self {
        let any = [Requirements::new()];
        let places = match &self {
            Self::Any => &any[..],
            Self::OneOf(places) => places,
            Self::None => &[],
        };
        let agreeing = places.iter().filter(|place| place.intersects(term).is_ok());
        let narrowed: Vec<Requirements> = agreeing.map(|place| both(place, term)).collect();
        if narrowed.is_empty() { Self::None } else { Self::OneOf(narrowed.into()) }
    }

    /// The alternatives of a pod's own terms that agree with the places.
    pub(crate) fn narrow<'t>(&self, terms: &'t [Requirements]) -> Vec<Cow<'t, Requirements>> {
        let any = [Requirements::new()];
        match self {
            Self::Any if terms.is_empty() => vec![Cow::Owned(Requirements::new())],
            Self::Any => terms.iter().map(Cow::Borrowed).collect(),
            Self::None => Vec::new(),
            Self::OneOf(places) => {
                let terms = if terms.is_empty() { &any } else { terms };
                let each = terms.iter().flat_map(|term| {
                    let agreeing = places.iter().filter(|place| term.intersects(place).is_ok());
                    agreeing.map(move |place| Cow::Owned(both(term, place)))
                });
                each.collect()
            }
        }
    }
}

fn both(one: &Requirements, other: &Requirements) -> Requirements {
    let mut both = one.clone();
    both.extend(other);
    both
}

/// The levels of each group of pods, the most demanding first.
pub(crate) struct Levels<'a> {
    pub(crate) list: Vec<Level<'a>>,
    /// Start of each group's levels in `list`, and the end of the last.
    pub(crate) starts: Vec<usize>,
}

impl<'a> Levels<'a> {
    pub(crate) fn of(groups: &[Group<'a>], snapshot: &Snapshot, options: &Options) -> Self {
        let soft_taints: Vec<&Taint> = snapshot
            .pools
            .iter()
            .flat_map(|pool| &pool.taints)
            .chain(snapshot.nodes.iter().flat_map(|node| &node.taints))
            .filter(|taint| !taint.repels())
            .collect();
        let mut list = Vec::with_capacity(groups.len());
        let mut starts = Vec::with_capacity(groups.len() + 1);
        for group in groups {
            starts.push(list.len());
            let tolerates =
                |taint: &Taint| group.pod.tolerations.iter().any(|one| one.tolerates(taint));
            let meets_soft_taints = soft_taints.iter().any(|taint| !tolerates(taint));
            add_levels(group.pod, meets_soft_taints, options, &mut list);
        }
        starts.push(list.len());
        Self { list, starts }
    }
}

fn add_levels<'a>(
    pod: &'a Pod,
    meets_soft_taints: bool,
    options: &Options,
    list: &mut Vec<Level<'a>>,
) {
    let pod = with_default_spread(pod, options);
    let has_preferences = pod.preferences != Preferences::default();
    if options.preferences == PreferencePolicy::Ignore || !(has_preferences || meets_soft_taints) {
        let places = Places::of_volumes(&pod);
        let pod = if has_preferences {
            Cow::Owned(Pod { preferences: Preferences::default(), ..pod.into_owned() })
        } else {
            pod
        };
        list.push(Level { pod, places, avoids_soft_taints: false });
        return;
    }
    let mut left = pod.preferences.clone();
    heaviest_first(&mut left.nodes);
    heaviest_first(&mut left.affinity);
    heaviest_first(&mut left.anti_affinity);
    let mut avoids_soft_taints = meets_soft_taints;
    loop {
        let volumes = Places::of_volumes(&pod);
        // Only the heaviest preferred node affinity counts at a time.
        let places = match left.nodes.first() {
            Some(Weighted { term, .. }) => volumes.and(term),
            None => volumes,
        };
        list.push(Level { pod: Cow::Owned(demanding(&pod, &left)), places, avoids_soft_taints });
        if !left.affinity.is_empty() {
            left.affinity.remove(0);
        } else if !left.anti_affinity.is_empty() {
            left.anti_affinity.remove(0);
        } else if !left.nodes.is_empty() {
            left.nodes.remove(0);
        } else if !left.spread.is_empty() {
            left.spread.swap_remove(0);
        } else if avoids_soft_taints {
            avoids_soft_taints = false;
        } else {
            return;
        }
    }
}

fn heaviest_first<T>(terms: &mut [Weighted<T>]) {
    terms.sort_by_key(|one| Reverse(one.weight));
}

/// The pod with its preferred pod affinity and spread among its requirements.
fn demanding(pod: &Pod, preferences: &Preferences) -> Pod {
    let mut pod = pod.clone();
    pod.affinity.extend(preferences.affinity.iter().map(|one| one.term.clone()));
    pod.spread.extend(preferences.spread.iter().cloned());
    pod.preferences = Preferences {
        anti_affinity: preferences.anti_affinity.clone(),
        spread: preferences.spread.clone(),
        ..Preferences::default()
    };
    pod
}

/// Gives a pod without spread constraints the default ones of the cluster.
fn with_default_spread<'a>(pod: &'a Pod, options: &Options) -> Cow<'a, Pod> {
    let has_own = !pod.spread.is_empty() || !pod.preferences.spread.is_empty();
    let Some(workload) =
        pod.workload.as_ref().filter(|_| !has_own && !options.default_spread.is_empty())
    else {
        return Cow::Borrowed(pod);
    };
    let mut pod = pod.clone();
    for default in &options.default_spread {
        let mut spread = default.spread.clone();
        spread.selector = Selector::clone(workload);
        if default.must_hold {
            pod.spread.push(spread);
        } else {
            pod.preferences.spread.push(spread);
        }
    }
    Cow::Owned(pod)
}
