//! What pods would like, as requirements that are given up one after another.
//!
//! A pod with preferences is tried with all of them first. Where that leaves it without a place, it
//! gives up one after another, in the incumbent's order: the heaviest preferred pod affinity, the
//! heaviest preferred anti-affinity, the heaviest preferred node affinity, the first spread
//! constraint that need not hold, and last of all it puts up with taints that only discourage. So a
//! pod has *levels*: the same pod with fewer and fewer demands.

use std::borrow::Cow;
use std::cmp::Reverse;

use nap_api::{Requirements, Taint};

use crate::classes::grouping::Group;
use crate::model::pod_rules::Selector;
use crate::model::{Options, Pod, PreferencePolicy, Preferences, Snapshot, Weighted};

/// One of the forms in which a pod is tried.
pub(crate) struct Level<'a> {
    /// The pod with what it demands at this level. [`Preferences::anti_affinity`] are those that
    /// still hold. [`Preferences::spread`] are those of its last spread constraints that need not
    /// hold. All else in its preferences is either among its demands or given up.
    pub(crate) pod: Cow<'a, Pod>,
    /// Taints that only discourage keep it away too.
    pub(crate) is_picky: bool,
}

/// The levels of each group, the most demanding first.
pub(crate) struct Levels<'a> {
    pub(crate) list: Vec<Level<'a>>,
    /// Where the levels of each group begin, and where the last ones end.
    pub(crate) starts: Vec<usize>,
}

impl<'a> Levels<'a> {
    pub(crate) fn of(groups: &[Group<'a>], snapshot: &Snapshot, options: &Options) -> Self {
        let discourages = |taint: &Taint| !taint.repels();
        let taints: Vec<&Taint> = snapshot
            .pools
            .iter()
            .flat_map(|pool| &pool.taints)
            .chain(snapshot.nodes.iter().flat_map(|node| &node.taints))
            .filter(|taint| discourages(taint))
            .collect();
        let mut list = Vec::with_capacity(groups.len());
        let mut starts = Vec::with_capacity(groups.len() + 1);
        for group in groups {
            starts.push(list.len());
            let tolerates =
                |taint: &&&Taint| group.pod.tolerations.iter().any(|one| one.tolerates(taint));
            let minds = taints.iter().filter(|taint| !tolerates(taint)).count() > 0;
            levels(group.pod, minds, options, &mut list);
        }
        starts.push(list.len());
        Self { list, starts }
    }
}

fn levels<'a>(pod: &'a Pod, minds_taints: bool, options: &Options, list: &mut Vec<Level<'a>>) {
    let with_defaults = with_default_spread(pod, options);
    let ignore = options.preferences == PreferencePolicy::Ignore;
    if ignore || (with_defaults.preferences == Preferences::default() && !minds_taints) {
        let pod = if with_defaults.preferences == Preferences::default() {
            with_defaults
        } else {
            Cow::Owned(Pod { preferences: Preferences::default(), ..with_defaults.into_owned() })
        };
        list.push(Level { pod, is_picky: false });
        return;
    }
    let mut left = with_defaults.preferences.clone();
    heaviest_first(&mut left.nodes);
    heaviest_first(&mut left.affinity);
    heaviest_first(&mut left.anti_affinity);
    let mut is_picky = minds_taints;
    loop {
        list.push(Level { pod: Cow::Owned(demanding(&with_defaults, &left)), is_picky });
        if !left.affinity.is_empty() {
            left.affinity.remove(0);
        } else if !left.anti_affinity.is_empty() {
            left.anti_affinity.remove(0);
        } else if !left.nodes.is_empty() {
            left.nodes.remove(0);
        } else if !left.spread.is_empty() {
            left.spread.swap_remove(0);
        } else if is_picky {
            is_picky = false;
        } else {
            return;
        }
    }
}

fn heaviest_first<T>(terms: &mut [Weighted<T>]) {
    terms.sort_by_key(|one| Reverse(one.weight));
}

/// The pod with what it prefers among its demands. Only the heaviest preferred node affinity counts
/// at a time.
fn demanding(pod: &Pod, preferences: &Preferences) -> Pod {
    let mut pod = pod.clone();
    if let Some(Weighted { term, .. }) = preferences.nodes.first() {
        // As with volumes, this never decides which nodes a spread constraint looks at.
        let places =
            if pod.volume_terms.is_empty() { vec![Requirements::new()] } else { pod.volume_terms };
        let narrowed =
            places.into_iter().filter(|place| place.intersects(term).is_ok()).map(|mut place| {
                place.extend(term);
                place
            });
        pod.volume_terms = narrowed.collect();
        if pod.volume_terms.is_empty() {
            pod.volume_terms.push(nowhere());
        }
    }
    pod.affinity.extend(preferences.affinity.iter().map(|one| one.term.clone()));
    pod.spread.extend(preferences.spread.iter().cloned());
    pod.preferences = Preferences {
        anti_affinity: preferences.anti_affinity.clone(),
        spread: preferences.spread.clone(),
        ..Preferences::default()
    };
    pod
}

/// What no node satisfies.
fn nowhere() -> Requirements {
    let mut requirements = Requirements::new();
    requirements.add(nap_api::labels::INSTANCE_TYPE, nap_api::Requirement::is_in([""]));
    requirements
}

/// Gives a pod without spread constraints those of the cluster.
fn with_default_spread<'a>(pod: &'a Pod, options: &Options) -> Cow<'a, Pod> {
    let own = !pod.spread.is_empty() || !pod.preferences.spread.is_empty();
    let Some(workload) =
        pod.workload.as_ref().filter(|_| !own && !options.default_spread.is_empty())
    else {
        return Cow::Borrowed(pod);
    };
    let mut pod = pod.clone();
    for default in &options.default_spread {
        let mut spread = default.spread.clone();
        spread.selector = Selector::clone(workload);
        if default.must_hold {
            pod.spread.push(spread)
        } else {
            pod.preferences.spread.push(spread)
        }
    }
    Cow::Owned(pod)
}
