//! Classes: interchangeable pods are decided together.
//!
//! Real clusters have thousands of pods and a few dozen distinct ones. A [`Class`] is a set of pods
//! with the same requests, node constraints, tolerations, priority and topology profile. Everything
//! after this stage works per class, never per pod, until the plan is written.
//!
//! [`grouping`] finds pods with equal specs, [`relaxation`] unfolds their preferences into levels,
//! [`dimensions`] turns requests into integer vectors, and this module joins groups whose remaining
//! differences do not matter.

pub(crate) mod dimensions;
pub(crate) mod grouping;
pub(crate) mod relaxation;
pub(crate) mod shapes;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;
use std::rc::Rc;

use nap_api::{Requirements, Taint, Toleration};
use nap_units::{CPU, MEMORY, Resources};

use crate::classes::dimensions::{Dimensions, add_requests};
use crate::classes::grouping::Group;
use crate::classes::relaxation::{Level, Levels, Places};
use crate::ids::{ClassId, GroupId, Id, Ids, IndexVec, NodeConstraintsId, TermId};
use crate::intern::Interner;
use crate::model::{HostPort, Pod, PodKey};
use crate::topology::groups::{Constraint, TopologyProfile, TopologyRules};

/// A number of pods for each class.
pub(crate) type PodCounts = IndexVec<ClassId, usize>;

/// Constraints on the nodes of a pod.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct NodeConstraints<'a> {
    terms: &'a [Requirements],
    places: &'a Places<'a>,
    tolerations: &'a [Toleration],
    avoids_soft_taints: bool,
}

/// Everything about a pod at one relaxation level that matters to its placement.
#[derive(PartialEq, Eq, Hash)]
struct ClassKey<'a> {
    priority: i32,
    requests: &'a Resources,
    host_ports: &'a [HostPort],
    nodes: NodeConstraints<'a>,
    /// Index of the topology membership.
    membership: usize,
    blocks_disruption: bool,
}

impl<'a> ClassKey<'a> {
    fn of(level: &'a Level<'a>, membership: usize) -> Self {
        let pod: &'a Pod = &level.pod;
        let nodes = NodeConstraints {
            terms: &pod.terms,
            places: &level.places,
            tolerations: &pod.tolerations,
            avoids_soft_taints: level.avoids_soft_taints,
        };
        Self {
            priority: pod.priority,
            requests: &pod.requests,
            host_ports: &pod.host_ports,
            nodes,
            membership,
            blocks_disruption: pod.blocks_disruption,
        }
    }
}

/// Interchangeable pods at one relaxation level.
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on each other")]
pub(crate) struct Class<'a> {
    /// The pods, in key order; empty unless this is their first level.
    pub(crate) pods: Vec<&'a PodKey>,
    /// First level of these pods, which owns them.
    pub(crate) base: ClassId,
    /// Last level of these pods, which has the fewest requirements. All levels are adjacent.
    pub(crate) last: ClassId,
    /// Request of each pod, by dimension.
    pub(crate) requests: Vec<i64>,
    /// CPU request of each pod, in milli-cores.
    pub(crate) cpu: i64,
    /// Alternative node requirements, in order of preference. Empty if the pod's volumes or its
    /// preferred node affinity exclude its terms.
    pub(crate) terms: Vec<TermId>,
    /// Node selector and required node affinity without the topology of volumes.
    pub(crate) own_terms: &'a [Requirements],
    tolerations: &'a [Toleration],
    avoids_soft_taints: bool,
    pub(crate) node_constraints: NodeConstraintsId,
    pub(crate) priority: i32,
    /// Part in the topology groups; `None` outside every group.
    pub(crate) topology: Option<Rc<TopologyProfile>>,
    /// For each group that counts the class, whether it covers every new node of these pods.
    pub(crate) surely_counted: Vec<bool>,
    /// The class has no constraint of its own, and its pods can be bound after the pods whose
    /// constraints count them: it goes anywhere and counts where its node's domain is known.
    pub(crate) is_only_counted: bool,
    /// Like `is_only_counted`, but some affinity asks for these pods: they go anywhere and count
    /// nowhere if no node can be restricted to a domain.
    pub(crate) may_ignore_domains: bool,
    /// Whether a running pod keeps its node from voluntary disruption.
    pub(crate) blocks_disruption: bool,
}

impl<'a> Class<'a> {
    /// The same pods with other terms and without topology constraints.
    pub(crate) fn without_topology(&self, id: ClassId, terms: Vec<TermId>) -> Class<'a> {
        Class {
            pods: Vec::new(),
            base: id,
            last: id,
            requests: self.requests.clone(),
            cpu: self.cpu,
            terms,
            own_terms: self.own_terms,
            tolerations: self.tolerations,
            avoids_soft_taints: self.avoids_soft_taints,
            node_constraints: self.node_constraints,
            priority: self.priority,
            topology: None,
            surely_counted: Vec::new(),
            is_only_counted: false,
            may_ignore_domains: false,
            blocks_disruption: self.blocks_disruption,
        }
    }

    /// Whether a pod may move to another node of the same domains without affecting any rule.
    pub(crate) fn is_movable(&self) -> bool {
        let is_by_domain = |profile: &Rc<TopologyProfile>| {
            profile.is_by_domain() && self.surely_counted.iter().all(|certain| *certain)
        };
        !self.has_preferences() && self.topology.as_ref().is_none_or(is_by_domain)
    }

    /// The first taint that repels the class.
    pub(crate) fn repelled_by<'t>(&self, taints: &'t [Taint]) -> Option<&'t Taint> {
        let tolerated = |taint: &Taint| self.tolerations.iter().any(|one| one.tolerates(taint));
        let repels =
            |taint: &&Taint| (self.avoids_soft_taints || taint.repels()) && !tolerated(taint);
        taints.iter().find(repels)
    }

    /// Whether the pods have several relaxation levels.
    pub(crate) fn has_preferences(&self) -> bool {
        self.base != self.last
    }

    /// Whether topology constraints decide where the pods may go.
    pub(crate) fn is_constrained(&self) -> bool {
        self.topology.is_some() && !self.is_only_counted
    }
}

/// The classes of a snapshot, in the order in which they are placed: by priority, then size.
pub(crate) struct Classes<'a> {
    pub(crate) list: IndexVec<ClassId, Class<'a>>,
    /// Distinct terms that [`Class::terms`] refers to.
    pub(crate) terms: IndexVec<TermId, Cow<'a, Requirements>>,
}

impl<'a> Index<ClassId> for Classes<'a> {
    type Output = Class<'a>;

    fn index(&self, class: ClassId) -> &Class<'a> {
        &self.list[class]
    }
}

impl<'a> Classes<'a> {
    /// Joins groups of pods that are equal at every relaxation level.
    pub(crate) fn of(
        groups: &[Group<'a>],
        levels: &'a Levels<'a>,
        dimensions: &Dimensions<'a>,
        rules: &TopologyRules<'a>,
    ) -> Self {
        let mut keys: Interner<Vec<ClassKey<'a>>> = Interner::default();
        let mut members: Vec<Vec<&'a PodKey>> = Vec::new();
        for (group, range) in groups.iter().zip(levels.starts.windows(2)) {
            let key = |level: usize| ClassKey::of(&levels.list[level], rules.membership_of[level]);
            let number = keys.intern((range[0]..range[1]).map(key).collect());
            if number == members.len() {
                members.push(Vec::new());
            }
            members[number].extend(&group.pods);
        }
        let size = |levels: &[ClassKey<'_>]| {
            let [first, ..] = levels else { return (0, 0, 0) };
            (first.priority, first.requests.get(CPU), first.requests.get(MEMORY))
        };
        let mut families: Vec<_> = keys
            .items
            .into_iter()
            .zip(members)
            .map(|(levels, mut pods)| {
                pods.sort_unstable();
                (Reverse(size(&levels)), levels, pods)
            })
            .collect();
        families.sort_by(|(a, _, a_pods), (b, _, b_pods)| {
            a.cmp(b).then_with(|| a_pods.first().cmp(&b_pods.first()))
        });
        let mut terms: Interner<Cow<'a, Requirements>> = Interner::default();
        let mut constraints: Interner<NodeConstraints<'a>> = Interner::default();
        let mut list: IndexVec<ClassId, Class<'a>> = IndexVec::with_capacity(families.len());
        for (_, levels, pods) in families {
            let base = list.next_id();
            let last = ClassId::new(base.index() + levels.len() - 1);
            let mut pods = Some(pods);
            for key in levels {
                let NodeConstraints { terms: own_terms, places, tolerations, avoids_soft_taints } =
                    key.nodes;
                let membership = &rules.memberships[key.membership];
                let topology = membership.profile.clone();
                let surely_counted = topology.as_ref().map(|profile| {
                    let labels: Vec<&str> =
                        profile.keys.iter().map(|key| rules.keys[*key]).collect();
                    let covers = |(group, _): &(GroupId, _)| {
                        rules.groups[*group].covers_nodes_of(own_terms, tolerations, &labels)
                    };
                    profile.counted.iter().map(covers).collect()
                });
                let alternatives = places.narrow(own_terms).into_iter();
                let alternatives = alternatives.map(|term| TermId::new(terms.intern(term)));
                list.push(Class {
                    pods: pods.take().unwrap_or_default(),
                    base,
                    last,
                    cpu: key.requests.get(CPU).max(0),
                    requests: dimensions.request(key.requests, key.host_ports, &membership.slots),
                    terms: alternatives.collect(),
                    own_terms,
                    tolerations,
                    avoids_soft_taints,
                    node_constraints: NodeConstraintsId::new(constraints.intern(key.nodes)),
                    priority: key.priority,
                    topology,
                    surely_counted: surely_counted.unwrap_or_default(),
                    is_only_counted: false,
                    may_ignore_domains: false,
                    blocks_disruption: key.blocks_disruption,
                });
            }
        }
        let mut classes = Self { list, terms: terms.items.into() };
        classes.find_only_counted();
        classes
    }

    /// Names the pods of a class.
    pub(crate) fn set_pods(&mut self, class: ClassId, pods: Vec<&'a PodKey>) {
        self.list[class].pods = pods;
    }

    /// All classes, in placement order.
    pub(crate) fn ids(&self) -> Ids<ClassId> {
        self.list.ids()
    }

    /// The classes by priority, highest first; each band in placement order.
    pub(crate) fn priority_bands(&self) -> Vec<Vec<ClassId>> {
        let ids: Vec<ClassId> = self.ids().collect();
        let bands = ids.chunk_by(|a, b| self[*a].priority == self[*b].priority);
        bands.map(<[ClassId]>::to_vec).collect()
    }

    /// The next relaxation level of a class, if it has one.
    pub(crate) fn relaxed(&self, class: ClassId) -> Option<ClassId> {
        (class < self[class].last).then(|| ClassId::new(class.index() + 1))
    }

    /// Finds the classes that can be bound after every pod whose constraints count them: no
    /// affinity asks for them, and no pod of a lower priority counts them.
    fn find_only_counted(&mut self) {
        let mut wanted: BTreeSet<GroupId> = BTreeSet::new();
        let mut lowest_priority: BTreeMap<GroupId, i32> = BTreeMap::new();
        for class in &self.list {
            for constraint in class.topology.iter().flat_map(|profile| &profile.constraints) {
                if matches!(constraint, Constraint::Affinity { .. }) {
                    wanted.extend(constraint.groups());
                    continue;
                }
                for group in constraint.groups() {
                    let lowest = lowest_priority.entry(group).or_insert(i32::MAX);
                    *lowest = (*lowest).min(class.priority);
                }
            }
        }
        for class in &mut self.list {
            let Some(profile) = class.topology.as_ref().filter(|one| one.is_only_counted()) else {
                continue;
            };
            let mut groups = profile.counted.iter().map(|(group, _)| group);
            let can_wait = |group: &GroupId| {
                lowest_priority.get(group).is_none_or(|lowest| *lowest >= class.priority)
            };
            class.may_ignore_domains = groups.clone().all(can_wait);
            class.is_only_counted =
                class.may_ignore_domains && !groups.any(|group| wanted.contains(group));
        }
    }

    /// Sum of the requests of a number of pods of each class, at their last relaxation level.
    pub(crate) fn demand(&self, counts: &PodCounts) -> Vec<i64> {
        let mut demand = vec![0_i64; self.list.iter().next().map_or(0, |one| one.requests.len())];
        for (class, count) in self.list.iter().zip(counts).filter(|(_, count)| **count > 0) {
            add_requests(&mut demand, &self[class.last].requests, *count);
        }
        demand
    }

    /// For each class, the smallest request of it and all classes after it, by dimension.
    pub(crate) fn smallest_ahead(&self) -> IndexVec<ClassId, Vec<i64>> {
        let mut smallest: Vec<Vec<i64>> = Vec::with_capacity(self.list.len());
        for class in self.list.iter().rev() {
            let requests = match smallest.last() {
                Some(after) => class.requests.iter().zip(after).map(|(a, b)| *a.min(b)).collect(),
                None => class.requests.clone(),
            };
            smallest.push(requests);
        }
        smallest.reverse();
        smallest.into()
    }
}
