//! Which rules between pods there are in a snapshot, and what each kind of pod has to do with them.
//!
//! Every rule is a question about a number of pods in a domain. A [`TopologyGroup`] is one such number:
//! which pods are counted, by which label's values, on which nodes. Pods that no counter is about
//! stay on the fast path.
//!
//! Most rules in real clusters say that at most so many pods of one kind may share a node. Such a
//! rule needs no counter: it is a resource of which each node has so many and each pod takes one, a
//! [`HostSlot`], and every part of the engine that understands resources understands it. That holds as
//! long as the pods which have the rule are the same as the pods which it counts.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use nap_api::{Requirements, Toleration, labels};

use crate::intern::Interner;
use crate::model::pod_rules::{PodTerm, RunningPods, Selector, Spread};
use crate::model::{Pod, Preferences, Snapshot, Weighted};

/// The most rules that become slots: each makes every resource row longer.
const MAX_SLOTS: usize = 16;

/// A rule that at most so many pods share a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HostSlot<'a> {
    /// One: they exclude each other.
    Exclusive(&'a PodTerm),
    /// So many pods of a namespace with these labels.
    Spread(&'a str, &'a Selector, u32),
}

impl HostSlot<'_> {
    /// How many a node has.
    pub(crate) fn capacity(&self) -> i64 {
        match self {
            Self::Exclusive(_) => 1,
            Self::Spread(_, _, most) => i64::from(*most),
        }
    }

    /// Whether pods that run already take one each.
    pub(crate) fn taken_by(&self, resident: &RunningPods) -> bool {
        match self {
            Self::Exclusive(term) => {
                term.matches(&resident.namespace, &resident.labels)
                    || resident.anti_affinity.contains(term)
            }
            Self::Spread(namespace, selector, _) => {
                *namespace == resident.namespace && selector.matches(&resident.labels)
            }
        }
    }

    fn owned_by(&self, shape: &Shape<'_>) -> bool {
        match self {
            Self::Exclusive(term) => shape.anti_affinity.contains(term),
            Self::Spread(namespace, selector, most) => {
                *namespace == shape.namespace
                    && shape.spread.iter().any(|spread| {
                        is_host(&spread.topology_key)
                            && spread.max_skew == *most
                            && spread.selector == **selector
                    })
            }
        }
    }

    fn counts(&self, shape: &Shape<'_>) -> bool {
        match self {
            Self::Exclusive(term) => term.matches(shape.namespace, shape.labels),
            Self::Spread(namespace, selector, _) => {
                *namespace == shape.namespace && selector.matches(shape.labels)
            }
        }
    }
}

/// One number of pods for each domain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TopologyGroup<'a> {
    /// The label whose values are the domains.
    pub(crate) key: &'a str,
    pub(crate) counted: Counted<'a>,
    /// Only nodes that pass count.
    pub(crate) filter: Option<Filter<'a>>,
}

/// Which pods are counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Counted<'a> {
    /// Those of a namespace with these labels.
    Labelled(&'a str, &'a Selector),
    /// Those that all terms mean.
    Meant(&'a [PodTerm]),
    /// Those that have this anti-affinity term.
    Owners(&'a PodTerm),
}

/// Which nodes a spread constraint looks at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Filter<'a> {
    pub(crate) terms: Option<&'a [Requirements]>,
    pub(crate) tolerations: Option<&'a [Toleration]>,
    /// Nodes must have all of these labels.
    pub(crate) keys: Vec<&'a str>,
}

impl TopologyGroup<'_> {
    /// Whether a pod is counted.
    pub(crate) fn counts(
        &self,
        namespace: &str,
        labels: &BTreeMap<String, String>,
        owned: &[PodTerm],
    ) -> bool {
        match &self.counted {
            Counted::Labelled(in_namespace, selector) => {
                *in_namespace == namespace && selector.matches(labels)
            }
            Counted::Meant(terms) => terms.iter().all(|term| term.matches(namespace, labels)),
            Counted::Owners(term) => owned.contains(term),
        }
    }

    /// Whether it looks for sure at every node that pods with these terms and tolerations go to.
    /// `keys` are the labels that those nodes have.
    pub(crate) fn looks_at_nodes_of(
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

/// Where a counter's domain is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum At {
    /// Every node is one.
    Host,
    /// The value of the label at this position of [`TopologyProfile::keys`].
    Domain(usize),
}

/// What must hold where a pod goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Constraint {
    /// The domain may exceed the emptiest by so many. `own`: the pod itself is counted.
    Spread { counter: usize, at: At, skew: i64, min_domains: usize, own: bool },
    /// The domains must have counted pods. `own`: the pod may be the first of them.
    Affinity { counters: Vec<(usize, At)>, own: bool },
    /// The domain must have no counted pod. `own`: the pod itself is counted.
    AntiAffinity { counter: usize, at: At, own: bool },
}

impl Constraint {
    /// The counters that it asks.
    pub(crate) fn counters(&self) -> Vec<usize> {
        match self {
            Self::Spread { counter, .. } | Self::AntiAffinity { counter, .. } => vec![*counter],
            Self::Affinity { counters, .. } => {
                counters.iter().map(|(counter, _)| *counter).collect()
            }
        }
    }
}

/// What a kind of pod has to do with the counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TopologyProfile {
    /// Numbers of the labels, other than the host name, on whose values it depends.
    pub(crate) keys: Vec<usize>,
    pub(crate) constraints: Vec<Constraint>,
    /// The counters that count it.
    pub(crate) counted: Vec<(usize, At)>,
}

impl TopologyProfile {
    /// Whether it is only counted: it may go anywhere, but others look at where it is.
    pub(crate) fn is_only_counted(&self) -> bool {
        self.constraints.is_empty()
    }

    /// Whether nothing depends on the very node that it is on.
    pub(crate) fn is_by_domain(&self) -> bool {
        let is_domain = |at: &At| *at != At::Host;
        self.counted.iter().all(|(_, at)| is_domain(at))
            && self.constraints.iter().all(|constraint| match constraint {
                Constraint::Spread { at, .. } | Constraint::AntiAffinity { at, .. } => {
                    is_domain(at)
                }
                Constraint::Affinity { counters, .. } => {
                    counters.iter().all(|(_, at)| is_domain(at))
                }
            })
    }

    /// Whether it must share a node with other pods: a node that is refused now may be allowed
    /// later.
    pub(crate) fn follows_hosts(&self) -> bool {
        self.constraints.iter().any(|constraint| match constraint {
            Constraint::Affinity { counters, .. } => counters.iter().any(|(_, at)| *at == At::Host),
            Constraint::Spread { .. } | Constraint::AntiAffinity { .. } => false,
        })
    }
}

/// The rules of a snapshot.
#[derive(Debug, Default)]
pub(crate) struct TopologyRules<'a> {
    pub(crate) counters: Vec<TopologyGroup<'a>>,
    /// The labels, other than the host name, whose values are domains.
    pub(crate) keys: Vec<&'a str>,
    pub(crate) slots: Vec<HostSlot<'a>>,
    /// For each slot, the spread constraints that it stands for: which nodes they look at, and how
    /// many of them they want.
    pub(crate) slot_counters: Vec<Vec<(TopologyGroup<'a>, usize)>>,
    /// What kinds of pods take part in; kinds with equal ones share a number.
    pub(crate) profiles: Vec<Profile>,
    /// The number of each kind's profile.
    pub(crate) profile_of: Vec<usize>,
}

/// What a kind of pod takes part in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Profile {
    /// Numbers of its slots.
    pub(crate) slots: Vec<usize>,
    pub(crate) coupling: Option<Rc<TopologyProfile>>,
}

/// Everything about a pod that decides which rules it takes part in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Shape<'a> {
    namespace: &'a str,
    labels: &'a BTreeMap<String, String>,
    spread: &'a [Spread],
    /// How many of them must hold; they come first.
    must_hold: usize,
    affinity: &'a [PodTerm],
    anti_affinity: &'a [PodTerm],
    /// Whom it would rather not meet: like anti-affinity, but nobody else is kept away.
    avoided: &'a [Weighted<PodTerm>],
    /// Only of pods with spread constraints.
    filter: Option<(&'a [Requirements], &'a [Toleration])>,
}

impl<'a> Shape<'a> {
    fn of(pod: &'a Pod) -> Self {
        Self {
            namespace: pod.key.parts().0,
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

/// Whether the values of a label are single nodes.
pub(crate) fn is_host(key: &str) -> bool {
    key == labels::HOSTNAME
}

impl<'a> TopologyRules<'a> {
    /// The rules that these kinds of pods and the pods that run already bring.
    pub(crate) fn of(kinds: &[&'a Pod], snapshot: &'a Snapshot) -> Self {
        let coupled = |pod: &&Pod| {
            let Pod { spread, affinity, anti_affinity, preferences, .. } = pod;
            let Preferences { anti_affinity: avoided, .. } = preferences;
            !(spread.is_empty()
                && affinity.is_empty()
                && anti_affinity.is_empty()
                && avoided.is_empty())
        };
        let residents = || snapshot.nodes.iter().flat_map(|node| &node.residents);
        let terms: BTreeSet<&PodTerm> =
            residents().flat_map(|resident| &resident.anti_affinity).collect();
        if terms.is_empty() && !kinds.iter().any(coupled) {
            let profile_of = vec![0; kinds.len()];
            return Self { profiles: vec![Profile::default()], profile_of, ..Self::default() };
        }
        let mut interner: Interner<Shape<'a>> = Interner::default();
        let shape_of: Vec<usize> =
            kinds.iter().map(|pod| interner.number(Shape::of(pod))).collect();
        let shapes = interner.items;
        let slots = slots(&shapes);
        let mut counters: BTreeSet<TopologyGroup<'a>> = BTreeSet::new();
        for shape in &shapes {
            counters.extend(counters_of(shape, &slots));
        }
        for term in terms {
            if shapes.iter().any(|shape| term.matches(shape.namespace, shape.labels))
                && !slots.contains(&HostSlot::Exclusive(term))
            {
                counters.insert(TopologyGroup {
                    key: labels::normalise(&term.topology_key),
                    counted: Counted::Owners(term),
                    filter: None,
                });
            }
        }
        let keys: BTreeSet<&str> =
            counters.iter().map(|counter| counter.key).filter(|key| !is_host(key)).collect();
        let mut rules = Self {
            counters: counters.into_iter().collect(),
            keys: keys.into_iter().collect(),
            slot_counters: slots.iter().map(|slot| slot_counters(slot, &shapes)).collect(),
            slots,
            ..Self::default()
        };
        let mut profiles: Interner<Profile> = Interner::default();
        let numbers: Vec<usize> =
            shapes.iter().map(|shape| profiles.number(rules.profile(shape))).collect();
        rules.profiles = profiles.items;
        rules.profile_of = shape_of.into_iter().map(|shape| numbers[shape]).collect();
        rules
    }

    fn profile(&self, shape: &Shape<'_>) -> Profile {
        let slots = self.slots.iter().enumerate().filter(|(_, slot)| slot.counts(shape));
        let mut coupling = TopologyProfile::default();
        let counted: Vec<usize> = (0..self.counters.len())
            .filter(|number| {
                self.counters[*number].counts(shape.namespace, shape.labels, shape.anti_affinity)
            })
            .collect();
        let is_own = |number: usize| counted.binary_search(&number).is_ok();
        for spread in shape.spread {
            let Some(counter) = self.find(&spread_counter(shape, spread)) else { continue };
            let at = self.at(&mut coupling, counter);
            coupling.constraints.push(Constraint::Spread {
                counter,
                at,
                skew: i64::from(spread.max_skew),
                min_domains: min_domains(spread),
                own: is_own(counter),
            });
        }
        if !shape.affinity.is_empty() {
            let keys: BTreeSet<&str> =
                shape.affinity.iter().map(|term| labels::normalise(&term.topology_key)).collect();
            let wanted = keys.into_iter().filter_map(|key| self.find(&meant(key, shape.affinity)));
            let wanted: Vec<usize> = wanted.collect();
            let own = wanted.iter().all(|counter| is_own(*counter));
            let counters =
                wanted.iter().map(|counter| (*counter, self.at(&mut coupling, *counter)));
            let counters = counters.collect();
            coupling.constraints.push(Constraint::Affinity { counters, own });
        }
        for term in shape.anti_affinity.iter().chain(shape.avoided.iter().map(|one| &one.term)) {
            let key = labels::normalise(&term.topology_key);
            let Some(counter) = self.find(&meant(key, std::slice::from_ref(term))) else {
                continue;
            };
            let at = self.at(&mut coupling, counter);
            coupling.constraints.push(Constraint::AntiAffinity {
                counter,
                at,
                own: is_own(counter),
            });
        }
        for (number, counter) in self.counters.iter().enumerate() {
            if let Counted::Owners(term) = counter.counted
                && term.matches(shape.namespace, shape.labels)
            {
                let at = self.at(&mut coupling, number);
                coupling.constraints.push(Constraint::AntiAffinity {
                    counter: number,
                    at,
                    own: is_own(number),
                });
            }
        }
        for number in counted {
            let at = self.at(&mut coupling, number);
            coupling.counted.push((number, at));
        }
        let is_free = coupling.constraints.is_empty() && coupling.counted.is_empty();
        Profile {
            slots: slots.map(|(number, _)| number).collect(),
            coupling: (!is_free).then(|| Rc::new(coupling)),
        }
    }

    /// The least skew that anybody insists on, for each counter.
    pub(crate) fn skews(&self) -> Vec<Option<i64>> {
        let mut skews: Vec<Option<i64>> = vec![None; self.counters.len()];
        let couplings = self.profiles.iter().filter_map(|profile| profile.coupling.as_ref());
        for constraint in couplings.flat_map(|coupling| &coupling.constraints) {
            if let Constraint::Spread { counter, skew, .. } = constraint {
                let known = &mut skews[*counter];
                *known = Some(known.map_or(*skew, |known| known.min(*skew)));
            }
        }
        skews
    }

    fn find(&self, counter: &TopologyGroup<'_>) -> Option<usize> {
        self.counters.binary_search(counter).ok()
    }

    /// Where the domain of a counter is found, noting the label if it is new.
    fn at(&self, coupling: &mut TopologyProfile, counter: usize) -> At {
        let key = self.counters[counter].key;
        let Ok(key) = self.keys.binary_search(&key) else { return At::Host };
        let known = coupling.keys.iter().position(|one| *one == key);
        At::Domain(known.unwrap_or_else(|| {
            coupling.keys.push(key);
            coupling.keys.len() - 1
        }))
    }
}

/// The rules by host name whose owners are just the pods that they count.
fn slots<'a>(shapes: &[Shape<'a>]) -> Vec<HostSlot<'a>> {
    let mut found: BTreeSet<HostSlot<'a>> = BTreeSet::new();
    for shape in shapes {
        let terms = shape.anti_affinity.iter().filter(|term| is_host(&term.topology_key));
        found.extend(terms.map(HostSlot::Exclusive));
        let spreads = shape.spread.iter().filter(|spread| is_host(&spread.topology_key));
        found
            .extend(spreads.map(|spread| {
                HostSlot::Spread(shape.namespace, &spread.selector, spread.max_skew)
            }));
    }
    let is_closed =
        |slot: &HostSlot<'a>| shapes.iter().all(|shape| slot.owned_by(shape) == slot.counts(shape));
    found
        .into_iter()
        .filter(|slot| slot.capacity() > 0 && is_closed(slot))
        .take(MAX_SLOTS)
        .collect()
}

/// The spread constraints that a slot stands for.
fn slot_counters<'a>(slot: &HostSlot<'a>, shapes: &[Shape<'a>]) -> Vec<(TopologyGroup<'a>, usize)> {
    let mut found = BTreeSet::new();
    for shape in shapes {
        for spread in shape.spread.iter().filter(|spread| is_host(&spread.topology_key)) {
            if HostSlot::Spread(shape.namespace, &spread.selector, spread.max_skew) == *slot {
                found.insert((spread_counter(shape, spread), min_domains(spread)));
            }
        }
    }
    found.into_iter().collect()
}

fn min_domains(spread: &Spread) -> usize {
    usize::try_from(spread.min_domains.unwrap_or(1)).unwrap_or(usize::MAX)
}

/// The counters that a pod's own rules need, apart from those that are slots.
fn counters_of<'a>(shape: &Shape<'a>, slots: &[HostSlot<'a>]) -> Vec<TopologyGroup<'a>> {
    let mut counters = Vec::new();
    for spread in shape.spread {
        let slot = HostSlot::Spread(shape.namespace, &spread.selector, spread.max_skew);
        if !is_host(&spread.topology_key) || !slots.contains(&slot) {
            counters.push(spread_counter(shape, spread));
        }
    }
    for term in shape.affinity {
        counters.push(meant(labels::normalise(&term.topology_key), shape.affinity));
    }
    for Weighted { term, .. } in shape.avoided {
        counters.push(meant(labels::normalise(&term.topology_key), std::slice::from_ref(term)));
    }
    for term in shape.anti_affinity {
        if !slots.contains(&HostSlot::Exclusive(term)) {
            let key = labels::normalise(&term.topology_key);
            counters.push(meant(key, std::slice::from_ref(term)));
            counters.push(TopologyGroup { key, counted: Counted::Owners(term), filter: None });
        }
    }
    counters
}

fn meant<'a>(key: &'a str, terms: &'a [PodTerm]) -> TopologyGroup<'a> {
    TopologyGroup { key, counted: Counted::Meant(terms), filter: None }
}

fn spread_counter<'a>(shape: &Shape<'a>, spread: &'a Spread) -> TopologyGroup<'a> {
    // A node without a label by which the pod must be spread is of no interest to it.
    let needed = shape.spread[..shape.must_hold].iter().chain([spread]);
    let mut keys: Vec<&str> =
        needed.map(|spread| labels::normalise(&spread.topology_key)).collect();
    keys.sort_unstable();
    keys.dedup();
    let terms = shape.filter.map(|(terms, _)| terms).filter(|_| spread.honor_affinity);
    let tolerations =
        shape.filter.map(|(_, tolerations)| tolerations).filter(|_| spread.honor_taints);
    TopologyGroup {
        key: labels::normalise(&spread.topology_key),
        counted: Counted::Labelled(shape.namespace, &spread.selector),
        filter: Some(Filter { terms, tolerations, keys }),
    }
}
