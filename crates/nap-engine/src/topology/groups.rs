//! Topology groups: the pod counts that the rules between pods ask about.
//!
//! Every spread constraint, affinity and anti-affinity compares numbers of pods per domain. A
//! [`TopologyGroup`] is one such number: the pods that are counted, the label whose values are the
//! domains, and the nodes that are covered. A [`TopologyProfile`] says how a pod takes part in the
//! groups. Pods outside every group have no profile and are placed without any of this.
//!
//! Most rules in real clusters limit the pods of one workload per node. Such a rule needs no group:
//! it is a resource of which each node has a few and each pod takes one, a [`HostSlot`], which
//! every stage that understands resources understands too. This holds while the pods that have the
//! rule are the pods that it counts.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use nap_api::{Requirements, Toleration, labels};

use crate::ids::{GroupId, Id, IndexVec, KeyId};
use crate::intern::Interner;
use crate::model::{Pod, PodTerm, Preferences, RunningPods, Selector, Snapshot, Spread, Weighted};
use crate::topology::lookup::GroupLookup;

/// Upper limit on host slots: each makes every request vector longer.
const MAX_SLOTS: usize = 16;

/// A limit on the pods per node, as a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HostSlot<'a> {
    /// Anti-affinity by hostname or by zone: one pod per node. By zone it is a group besides.
    Exclusive(&'a PodTerm),
    /// Spread by hostname: namespace, selector and `maxSkew` pods per node.
    Spread(&'a str, &'a Selector, u32),
}

impl HostSlot<'_> {
    /// Pods per node.
    pub(crate) fn capacity(&self) -> i64 {
        match self {
            Self::Exclusive(_) => 1,
            Self::Spread(_, _, max_skew) => i64::from(*max_skew),
        }
    }

    /// Whether running pods take one slot each.
    pub(crate) fn taken_by(&self, running: &RunningPods) -> bool {
        match self {
            Self::Exclusive(term) => {
                term.matches(&running.namespace, &running.labels)
                    || running.anti_affinity.contains(term)
            }
            Self::Spread(namespace, selector, _) => {
                *namespace == running.namespace && selector.matches(&running.labels)
            }
        }
    }

    fn owned_by(&self, pod: &PodRules<'_>) -> bool {
        match self {
            Self::Exclusive(term) => pod.anti_affinity.contains(term),
            Self::Spread(namespace, selector, max_skew) => {
                *namespace == pod.namespace
                    && pod.spread.iter().any(|spread| {
                        is_host(&spread.topology_key)
                            && spread.max_skew == *max_skew
                            && spread.selector == **selector
                    })
            }
        }
    }

    fn counts(&self, pod: &PodRules<'_>) -> bool {
        match self {
            Self::Exclusive(term) => term.matches(pod.namespace, pod.labels),
            Self::Spread(namespace, selector, _) => {
                *namespace == pod.namespace && selector.matches(pod.labels)
            }
        }
    }
}

/// A pod count for each domain of a label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TopologyGroup<'a> {
    /// Label whose values are the domains.
    pub(crate) key: &'a str,
    pub(crate) counted: Counted<'a>,
    /// Nodes that are covered; `None` means all.
    pub(crate) filter: Option<NodeFilter<'a>>,
}

/// Pods that a group counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Counted<'a> {
    /// Pods of a namespace that the selector of a spread constraint matches.
    Selected(&'a str, &'a Selector),
    /// Pods that all affinity terms match.
    Matching(&'a [PodTerm]),
    /// Pods that have this anti-affinity term.
    Owners(&'a PodTerm),
}

/// Nodes that a spread constraint covers: `nodeAffinityPolicy` and `nodeTaintsPolicy`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeFilter<'a> {
    /// Terms of which a node must satisfy one; `None` or empty means any node.
    pub(crate) terms: Option<&'a [Requirements]>,
    /// Tolerations for the taints of a node; `None` ignores taints.
    pub(crate) tolerations: Option<&'a [Toleration]>,
    /// Topology labels that a node must have.
    pub(crate) keys: Vec<&'a str>,
}

impl TopologyGroup<'_> {
    /// Whether a pod with these labels and anti-affinity terms is counted.
    pub(crate) fn counts(
        &self,
        namespace: &str,
        labels: &BTreeMap<String, String>,
        owned: &[PodTerm],
    ) -> bool {
        match &self.counted {
            Counted::Selected(in_namespace, selector) => {
                *in_namespace == namespace && selector.matches(labels)
            }
            Counted::Matching(terms) => terms.iter().all(|term| term.matches(namespace, labels)),
            Counted::Owners(term) => owned.contains(term),
        }
    }

    /// Whether the group certainly covers every node for pods with these terms and tolerations.
    /// `keys` are the topology labels that those nodes have.
    pub(crate) fn covers_nodes_of(
        &self,
        terms: &[Requirements],
        tolerations: &[Toleration],
        keys: &[&str],
    ) -> bool {
        let Some(filter) = &self.filter else { return true };
        filter.keys.iter().all(|key| is_host(key) || keys.contains(key))
            && filter
                .terms
                .is_none_or(|mine| mine == terms || mine.iter().any(Requirements::is_empty))
            && filter.tolerations.is_none_or(|mine| mine == tolerations)
    }
}

/// Position of a group's domain among the domains of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum At {
    /// Every node is a domain.
    Host,
    /// Value of the label at this position of [`TopologyProfile::keys`].
    Domain(usize),
}

/// A topology constraint of a pod. `counts_self`: the pod is counted by the group itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Constraint {
    /// The domain may exceed the emptiest one by `max_skew` pods.
    Spread { group: GroupId, at: At, max_skew: i64, min_domains: usize, counts_self: bool },
    /// Each domain must have a counted pod. A pod that is counted itself may be the first.
    Affinity { groups: Vec<(GroupId, At)>, counts_self: bool },
    /// The domain must have no counted pod.
    AntiAffinity { group: GroupId, at: At, counts_self: bool },
}

impl Constraint {
    /// Groups whose counts it compares.
    pub(crate) fn groups(&self) -> Vec<GroupId> {
        match self {
            Self::Spread { group, .. } | Self::AntiAffinity { group, .. } => vec![*group],
            Self::Affinity { groups, .. } => groups.iter().map(|(group, _)| *group).collect(),
        }
    }
}

/// Part of a pod in the topology groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TopologyProfile {
    /// Labels, other than the hostname, whose values the profile refers to.
    pub(crate) keys: Vec<KeyId>,
    pub(crate) constraints: Vec<Constraint>,
    /// Groups that count the pod.
    pub(crate) counted: Vec<(GroupId, At)>,
}

impl TopologyProfile {
    /// Whether the pod has no constraint of its own and is only counted by those of others.
    pub(crate) fn is_only_counted(&self) -> bool {
        self.constraints.is_empty()
    }

    /// Whether no constraint or count depends on the node within its domains.
    pub(crate) fn is_by_domain(&self) -> bool {
        let is_domain = |at: &At| *at != At::Host;
        self.counted.iter().all(|(_, at)| is_domain(at))
            && self.constraints.iter().all(|constraint| match constraint {
                Constraint::Spread { at, .. } | Constraint::AntiAffinity { at, .. } => {
                    is_domain(at)
                }
                Constraint::Affinity { groups, .. } => groups.iter().all(|(_, at)| is_domain(at)),
            })
    }

    /// Whether the pod must share a node with other pods, so that a node that is refused now may
    /// be allowed later.
    pub(crate) fn follows_hosts(&self) -> bool {
        self.constraints.iter().any(|constraint| match constraint {
            Constraint::Affinity { groups, .. } => groups.iter().any(|(_, at)| *at == At::Host),
            Constraint::Spread { .. } | Constraint::AntiAffinity { .. } => false,
        })
    }
}

/// The topology groups of a snapshot, and how its pods take part in them.
#[derive(Debug, Default)]
pub(crate) struct TopologyRules<'a> {
    /// Sorted.
    pub(crate) groups: IndexVec<GroupId, TopologyGroup<'a>>,
    /// Labels, other than the hostname, whose values are domains; sorted.
    pub(crate) keys: IndexVec<KeyId, &'a str>,
    pub(crate) slots: Vec<HostSlot<'a>>,
    /// For each slot, the spread constraints behind it: the nodes that they cover and their
    /// `minDomains`.
    pub(crate) slot_groups: Vec<Vec<(TopologyGroup<'a>, usize)>>,
    /// Distinct memberships of pods.
    pub(crate) memberships: Vec<Membership>,
    /// Index of each pod's membership.
    pub(crate) membership_of: Vec<usize>,
}

/// The slots and the profile of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Membership {
    /// Indices of the slots that it takes.
    pub(crate) slots: Vec<usize>,
    /// `None` for a pod outside every group.
    pub(crate) profile: Option<Rc<TopologyProfile>>,
}

/// Everything about a pod that decides its membership.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct PodRules<'a> {
    namespace: &'a str,
    labels: &'a BTreeMap<String, String>,
    spread: &'a [Spread],
    /// Number of constraints with `DoNotSchedule`; they come first.
    must_hold: usize,
    affinity: &'a [PodTerm],
    anti_affinity: &'a [PodTerm],
    /// Preferred anti-affinity that still holds; unlike the required kind it binds no other pod.
    avoided: &'a [Weighted<PodTerm>],
    /// Terms and tolerations, of pods with spread constraints only.
    filter: Option<(&'a [Requirements], &'a [Toleration])>,
}

impl<'a> PodRules<'a> {
    fn of(pod: &'a Pod) -> Self {
        Self {
            namespace: pod.key.namespace(),
            labels: &pod.labels,
            spread: &pod.spread,
            must_hold: pod.spread.len() - pod.preferences.spread.len().min(pod.spread.len()),
            affinity: &pod.affinity,
            anti_affinity: &pod.anti_affinity,
            avoided: &pod.preferences.anti_affinity,
            filter: (!pod.spread.is_empty()).then_some((&pod.terms, &pod.tolerations)),
        }
    }
}

/// Whether each value of a label is a single node.
pub(crate) fn is_host(key: &str) -> bool {
    key == labels::HOSTNAME
}

impl<'a> TopologyRules<'a> {
    /// Finds the groups of pending and running pods. `pods` has one pod for each set of equal ones.
    pub(crate) fn of(pods: &[&'a Pod], snapshot: &'a Snapshot) -> Self {
        let has_rules = |pod: &&Pod| {
            let Pod { spread, affinity, anti_affinity, preferences, .. } = pod;
            let Preferences { anti_affinity: avoided, .. } = preferences;
            !(spread.is_empty()
                && affinity.is_empty()
                && anti_affinity.is_empty()
                && avoided.is_empty())
        };
        let running = snapshot.nodes.iter().flat_map(|node| &node.residents);
        let terms: BTreeSet<&PodTerm> =
            running.flat_map(|running| &running.anti_affinity).collect();
        if terms.is_empty() && !pods.iter().any(has_rules) {
            let membership_of = vec![0; pods.len()];
            return Self {
                memberships: vec![Membership::default()],
                membership_of,
                ..Self::default()
            };
        }
        let mut interner: Interner<PodRules<'a>> = Interner::default();
        let rules_of: Vec<usize> =
            pods.iter().map(|pod| interner.intern(PodRules::of(pod))).collect();
        let distinct = interner.items;
        let slots = slots(&distinct);
        let mut groups: BTreeSet<TopologyGroup<'a>> = BTreeSet::new();
        for pod in &distinct {
            groups.extend(groups_of(pod, &slots));
        }
        for term in terms {
            if distinct.iter().any(|pod| term.matches(pod.namespace, pod.labels))
                && !is_slot(term, &slots)
            {
                groups.insert(TopologyGroup {
                    key: labels::normalise(&term.topology_key),
                    counted: Counted::Owners(term),
                    filter: None,
                });
            }
        }
        let keys: BTreeSet<&str> =
            groups.iter().map(|group| group.key).filter(|key| !is_host(key)).collect();
        let mut rules = Self {
            groups: groups.into_iter().collect(),
            keys: keys.into_iter().collect(),
            slot_groups: slots.iter().map(|slot| slot_groups(slot, &distinct)).collect(),
            slots,
            ..Self::default()
        };
        let lookup = GroupLookup::of(&rules.groups);
        let mut memberships: Interner<Membership> = Interner::default();
        let of_rules: Vec<usize> =
            distinct.iter().map(|pod| memberships.intern(rules.membership(pod, &lookup))).collect();
        rules.memberships = memberships.items;
        rules.membership_of = rules_of.into_iter().map(|rules| of_rules[rules]).collect();
        rules
    }

    fn membership(&self, pod: &PodRules<'_>, lookup: &GroupLookup<'_>) -> Membership {
        let slots = self.slots.iter().enumerate().filter(|(_, slot)| slot.counts(pod));
        let mut profile = TopologyProfile::default();
        let counted = lookup.counting(&self.groups, pod.namespace, pod.labels, pod.anti_affinity);
        let counts_self = |group: GroupId| counted.binary_search(&group).is_ok();
        for spread in pod.spread {
            let Some(group) = self.find(&spread_group(pod, spread)) else { continue };
            let at = self.at(&mut profile, group);
            profile.constraints.push(Constraint::Spread {
                group,
                at,
                max_skew: i64::from(spread.max_skew),
                min_domains: min_domains(spread),
                counts_self: counts_self(group),
            });
        }
        if !pod.affinity.is_empty() {
            let keys: BTreeSet<&str> =
                pod.affinity.iter().map(|term| labels::normalise(&term.topology_key)).collect();
            let wanted = keys.into_iter().filter_map(|key| self.find(&matching(key, pod.affinity)));
            let wanted: Vec<GroupId> = wanted.collect();
            let counts_self = wanted.iter().all(|group| counts_self(*group));
            let groups = wanted.iter().map(|group| (*group, self.at(&mut profile, *group)));
            let groups = groups.collect();
            profile.constraints.push(Constraint::Affinity { groups, counts_self });
        }
        let avoided = pod.avoided.iter().map(|one| &one.term);
        for term in pod.anti_affinity.iter().chain(avoided) {
            let key = labels::normalise(&term.topology_key);
            let Some(group) = self.find(&matching(key, std::slice::from_ref(term))) else {
                continue;
            };
            let at = self.at(&mut profile, group);
            let counts_self = counts_self(group);
            profile.constraints.push(Constraint::AntiAffinity { group, at, counts_self });
        }
        for group in lookup.repelling(pod.namespace, pod.labels) {
            if let Counted::Owners(term) = &self.groups[group].counted
                && term.matches(pod.namespace, pod.labels)
            {
                let at = self.at(&mut profile, group);
                let counts_self = counts_self(group);
                profile.constraints.push(Constraint::AntiAffinity { group, at, counts_self });
            }
        }
        for group in counted {
            let at = self.at(&mut profile, group);
            profile.counted.push((group, at));
        }
        let is_outside = profile.constraints.is_empty() && profile.counted.is_empty();
        Membership {
            slots: slots.map(|(slot, _)| slot).collect(),
            profile: (!is_outside).then(|| Rc::new(profile)),
        }
    }

    /// Smallest `maxSkew` of any spread constraint over each group; `None` without one.
    pub(crate) fn min_skews(&self) -> IndexVec<GroupId, Option<i64>> {
        let mut skews: IndexVec<GroupId, Option<i64>> = IndexVec::filled(None, self.groups.len());
        let profiles = self.memberships.iter().filter_map(|one| one.profile.as_ref());
        for constraint in profiles.flat_map(|profile| &profile.constraints) {
            if let Constraint::Spread { group, max_skew, .. } = constraint {
                let known = &mut skews[*group];
                *known = Some(known.map_or(*max_skew, |known| known.min(*max_skew)));
            }
        }
        skews
    }

    /// Id of a topology label; `None` for the hostname and labels that are no topology.
    pub(crate) fn key(&self, label: &str) -> Option<KeyId> {
        self.keys.as_slice().binary_search(&label).ok().map(KeyId::new)
    }

    fn find(&self, group: &TopologyGroup<'_>) -> Option<GroupId> {
        self.groups.as_slice().binary_search(group).ok().map(GroupId::new)
    }

    /// Position of a group's domain in a profile, which gains the label if it lacks it.
    fn at(&self, profile: &mut TopologyProfile, group: GroupId) -> At {
        let Some(key) = self.key(self.groups[group].key) else { return At::Host };
        let known = profile.keys.iter().position(|one| *one == key);
        At::Domain(known.unwrap_or_else(|| {
            profile.keys.push(key);
            profile.keys.len() - 1
        }))
    }
}

/// Finds the rules that limit the pods per node and whose owners are exactly the pods that they
/// count.
fn slots<'a>(pods: &[PodRules<'a>]) -> Vec<HostSlot<'a>> {
    let mut found: BTreeSet<HostSlot<'a>> = BTreeSet::new();
    for pod in pods {
        let is_over_nodes = |term: &&PodTerm| {
            let key = labels::normalise(&term.topology_key);
            is_host(key) || key == labels::ZONE
        };
        found.extend(pod.anti_affinity.iter().filter(is_over_nodes).map(HostSlot::Exclusive));
        let spreads = pod.spread.iter().filter(|spread| is_host(&spread.topology_key));
        found.extend(spreads.map(|spread| spread_slot(pod, spread)));
    }
    let counts_its_owners =
        |slot: &HostSlot<'a>| pods.iter().all(|pod| slot.owned_by(pod) == slot.counts(pod));
    found
        .into_iter()
        .filter(|slot| slot.capacity() > 0 && counts_its_owners(slot))
        .take(MAX_SLOTS)
        .collect()
}

/// Whether a slot alone keeps an anti-affinity term.
fn is_slot(term: &PodTerm, slots: &[HostSlot<'_>]) -> bool {
    is_host(&term.topology_key) && slots.contains(&HostSlot::Exclusive(term))
}

fn spread_slot<'a>(pod: &PodRules<'a>, spread: &'a Spread) -> HostSlot<'a> {
    HostSlot::Spread(pod.namespace, &spread.selector, spread.max_skew)
}

/// The groups and `minDomains` of the spread constraints behind a slot.
fn slot_groups<'a>(slot: &HostSlot<'a>, pods: &[PodRules<'a>]) -> Vec<(TopologyGroup<'a>, usize)> {
    let mut found = BTreeSet::new();
    for pod in pods {
        for spread in pod.spread.iter().filter(|spread| is_host(&spread.topology_key)) {
            if spread_slot(pod, spread) == *slot {
                found.insert((spread_group(pod, spread), min_domains(spread)));
            }
        }
    }
    found.into_iter().collect()
}

fn min_domains(spread: &Spread) -> usize {
    usize::try_from(spread.min_domains.unwrap_or(1)).unwrap_or(usize::MAX)
}

/// The groups of a pod's own rules, apart from those that are slots.
fn groups_of<'a>(pod: &PodRules<'a>, slots: &[HostSlot<'a>]) -> Vec<TopologyGroup<'a>> {
    let mut groups = Vec::new();
    for spread in pod.spread {
        if !is_host(&spread.topology_key) || !slots.contains(&spread_slot(pod, spread)) {
            groups.push(spread_group(pod, spread));
        }
    }
    for term in pod.affinity {
        groups.push(matching(labels::normalise(&term.topology_key), pod.affinity));
    }
    for Weighted { term, .. } in pod.avoided {
        groups.push(matching(labels::normalise(&term.topology_key), std::slice::from_ref(term)));
    }
    for term in pod.anti_affinity {
        if !is_slot(term, slots) {
            let key = labels::normalise(&term.topology_key);
            groups.push(matching(key, std::slice::from_ref(term)));
            groups.push(TopologyGroup { key, counted: Counted::Owners(term), filter: None });
        }
    }
    groups
}

fn matching<'a>(key: &'a str, terms: &'a [PodTerm]) -> TopologyGroup<'a> {
    TopologyGroup { key, counted: Counted::Matching(terms), filter: None }
}

fn spread_group<'a>(pod: &PodRules<'a>, spread: &'a Spread) -> TopologyGroup<'a> {
    // The scheduler ignores nodes that lack a label of any of the pod's spread constraints.
    let needed = pod.spread[..pod.must_hold].iter().chain([spread]);
    let mut keys: Vec<&str> =
        needed.map(|spread| labels::normalise(&spread.topology_key)).collect();
    keys.sort_unstable();
    keys.dedup();
    let terms = pod.filter.map(|(terms, _)| terms).filter(|_| spread.honor_affinity);
    let tolerations =
        pod.filter.map(|(_, tolerations)| tolerations).filter(|_| spread.honor_taints);
    TopologyGroup {
        key: labels::normalise(&spread.topology_key),
        counted: Counted::Selected(pod.namespace, &spread.selector),
        filter: Some(NodeFilter { terms, tolerations, keys }),
    }
}
