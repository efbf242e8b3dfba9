//! The fleet as classes, free capacity and topology counts; removals and their undoing.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::classes::dimensions::{Dimensions, add_requests, holds};
use crate::classes::{Class, Classes};
use crate::consolidate::receivers::{Divisions, Receivers};
use crate::ids::{ClassId, EligibilityId, IndexVec, NodeIdx};
use crate::intern::digest;
use crate::model::{Candidate, ConsolidationOptions, Fleet, Pod, PodKey, Snapshot};
use crate::offerings::index::OfferingIndex;
use crate::offerings::shadow_prices::shadow_prices;
use crate::packing::existing::ExistingNodes;
use crate::packing::packer::ClusterState;
use crate::plan::launches::nodes_by_zone;
use crate::topology::counts::{Host, Topology};
use crate::topology::groups::TopologyRules;

/// The fleet during a decision.
pub(super) struct FleetState<'a> {
    pub(super) options: &'a ConsolidationOptions,
    pub(super) dimensions: &'a Dimensions<'a>,
    pub(super) classes: Classes<'a>,
    pub(super) offerings: OfferingIndex<'a>,
    pub(super) cluster: ClusterState<'a>,
    /// In the order in which they are tried: the largest saving for its disruption first.
    pub(super) nodes: Vec<FleetNode<'a>>,
    /// Shadow price of one unit of each dimension.
    pub(super) shadow_prices: Vec<f64>,
    /// Number of nodes in each zone.
    pub(super) zones: BTreeMap<&'a str, usize>,
    pub(super) fleet: &'a Fleet,
    /// Content of each class that is the same in every decision.
    pub(super) digests: IndexVec<ClassId, u64>,
    /// The nodes that may take pods of a class, as far as it was asked.
    pub(super) receivers: IndexVec<ClassId, Option<Receivers>>,
    pub(super) divisions: Divisions,
    /// Initialized nodes in the order in which they are filled: those that stay in any case first,
    /// then the last candidates.
    pub(super) order: Vec<NodeIdx>,
    /// Nodes that are removed, for good or on trial.
    pub(super) leaving: IndexVec<NodeIdx, bool>,
    /// Nodes that are removed for good.
    pub(super) gone: IndexVec<NodeIdx, bool>,
    /// Nodes that have taken pods.
    pub(super) receives: IndexVec<NodeIdx, bool>,
    /// Number of moves to each node that may still be undone.
    pub(super) on_trial: IndexVec<NodeIdx, usize>,
    /// Class of each template; `None` if it cannot be planned for.
    of_templates: Vec<Option<ClassId>>,
}

/// A candidate as the search sees it.
pub(super) struct FleetNode<'a> {
    pub(super) candidate: &'a Candidate,
    pub(super) node: NodeIdx,
    /// Its pods by class, at the level at which they are placed; in placement order.
    pub(super) content: Vec<(ClassId, usize)>,
    /// A pod that cannot be planned for, and its template.
    pub(super) unsupported: Option<(&'a PodKey, usize)>,
}

/// Pods of a class on an existing node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Move {
    pub(super) class: ClassId,
    pub(super) node: NodeIdx,
    pub(super) count: usize,
}

/// Room on nodes that stay, by the class of the pods that it is for.
pub(super) type Places = BTreeMap<ClassId, Vec<(NodeIdx, usize)>>;

/// Nodes that are removed on trial.
pub(super) struct Trial {
    /// Positions in [`FleetState::nodes`].
    pub(super) removed: Vec<usize>,
    pub(super) moves: Vec<Move>,
    /// Pods that found no place on the nodes that stay.
    pub(super) remainder: Vec<(ClassId, usize)>,
}

impl<'a> FleetState<'a> {
    pub(super) fn new(
        fleet: &'a Fleet,
        options: &'a ConsolidationOptions,
        snapshot: &'a Snapshot,
        dimensions: &'a Dimensions<'a>,
        classes: Classes<'a>,
        mut offerings: OfferingIndex<'a>,
        rules: Rc<TopologyRules<'a>>,
    ) -> Self {
        let existing = ExistingNodes::of(snapshot, dimensions, &mut offerings);
        let launchable = offerings.launchable_domains(&rules, &snapshot.reservations);
        let topology = Topology::new(
            &rules,
            &existing.nodes,
            &existing.labels,
            &existing.domains,
            &launchable,
        );
        let min_skews = Rc::new(rules.min_skews());
        let cluster = ClusterState { existing, topology, min_skews, rules };
        let of_templates = classes_of_templates(fleet, &classes, &mut offerings);
        let nodes = fleet_nodes(fleet, &of_templates, &cluster);
        let mut counts = IndexVec::filled(0, classes.list.len());
        for (class, count) in nodes.iter().flat_map(|node| &node.content) {
            counts[classes[*class].base] += count;
        }
        let shadow_prices = shadow_prices(&offerings, &classes.demand(&counts));
        let order = filling_order(&cluster, &nodes);
        let templates: BTreeMap<&PodKey, &Pod> =
            fleet.templates.iter().map(|pod| (&pod.key, pod)).collect();
        let of_class = |class: &Class<'_>| {
            let first = classes[class.base].pods.first();
            first.and_then(|key| templates.get(*key)).map_or(0, |pod| content_digest(pod))
        };
        Self {
            options,
            dimensions,
            shadow_prices,
            zones: nodes_by_zone(snapshot),
            fleet,
            digests: classes.list.iter().map(of_class).collect(),
            receivers: IndexVec::from(classes.list.iter().map(|_| None).collect::<Vec<_>>()),
            divisions: Divisions::default(),
            order,
            leaving: IndexVec::filled(false, cluster.existing.nodes.len()),
            gone: IndexVec::filled(false, cluster.existing.nodes.len()),
            receives: IndexVec::filled(false, cluster.existing.nodes.len()),
            on_trial: IndexVec::filled(0, cluster.existing.nodes.len()),
            of_templates,
            classes,
            offerings,
            cluster,
            nodes,
        }
    }

    /// First level of the class of a template.
    pub(super) fn base_of(&self, template: usize) -> Option<ClassId> {
        let class = self.of_templates.get(template).copied().flatten()?;
        Some(self.classes[class].base)
    }

    /// Removes nodes on trial and moves their pods to nodes that stay, as far as there is room.
    pub(super) fn remove(&mut self, removed: Vec<usize>) -> Trial {
        let content = self.begin(&removed);
        let mut trial = Trial { removed, moves: Vec::new(), remainder: Vec::new() };
        for (class, count) in content {
            let left = self.place(class, count, &mut trial.moves);
            if left > 0 {
                trial.remainder.push((class, left));
            }
        }
        trial
    }

    /// Removes nodes on trial whose pods all fit on nodes that stay; `None`, with nothing removed,
    /// if they do not.
    fn remove_wholly(&mut self, removed: Vec<usize>) -> Option<Trial> {
        let content = self.begin(&removed);
        let mut trial = Trial { removed, moves: Vec::new(), remainder: Vec::new() };
        for (class, count) in content {
            if self.place(class, count, &mut trial.moves) > 0 {
                self.undo(trial);
                return None;
            }
        }
        Some(trial)
    }

    /// Takes nodes away; returns their pods by class.
    fn begin(&mut self, removed: &[usize]) -> BTreeMap<ClassId, usize> {
        let mut content: BTreeMap<ClassId, usize> = BTreeMap::new();
        for number in removed.iter().copied() {
            self.count_pods_of(number, false);
            let node = &self.nodes[number];
            self.leaving[node.node] = true;
            self.offerings.change_limits(&node.candidate.pool, &node.candidate.capacity, 1);
            for (class, count) in &node.content {
                *content.entry(*class).or_default() += count;
            }
        }
        content
    }

    /// Places on the other nodes for all pods of some nodes; `None` if a pod has none.
    pub(super) fn places_together(&mut self, removed: Vec<usize>) -> Option<Places> {
        let trial = self.remove_wholly(removed)?;
        let mut places = Places::new();
        for one in &trial.moves {
            places.entry(one.class).or_default().push((one.node, one.count));
        }
        self.undo(trial);
        Some(places)
    }

    /// Whether all pods of some nodes fit on the other nodes.
    pub(super) fn fit_together(&mut self, removed: Vec<usize>) -> bool {
        let trial = self.remove_wholly(removed);
        let fit = trial.is_some();
        if let Some(trial) = trial {
            self.undo(trial);
        }
        fit
    }

    /// Removes a node on trial and moves its pods to some of the places, which are then taken.
    /// `None`, with nothing removed, if topology rules forbid that while other nodes are there.
    pub(super) fn remove_to(&mut self, number: usize, places: &mut Places) -> Option<Trial> {
        let content = self.begin(&[number]);
        let mut trial = Trial { removed: vec![number], moves: Vec::new(), remainder: Vec::new() };
        for (class, count) in content {
            let of_class = places.entry(class).or_default();
            if !self.place_at(class, count, of_class, &mut trial.moves) {
                for one in &trial.moves {
                    places.entry(one.class).or_default().push((one.node, one.count));
                }
                self.undo(trial);
                return None;
            }
        }
        Some(trial)
    }

    /// Undoes a trial.
    pub(super) fn undo(&mut self, trial: Trial) {
        for one in trial.moves.into_iter().rev() {
            self.take_back(one);
        }
        for number in trial.removed {
            self.count_pods_of(number, true);
            let node = &self.nodes[number];
            self.leaving[node.node] = false;
            self.offerings.change_limits(&node.candidate.pool, &node.candidate.capacity, -1);
        }
    }

    /// Makes a trial final. Pods on new nodes count in the domains of the nodes that they leave
    /// if `keeps_domains`; otherwise the caller has counted them.
    pub(super) fn commit(&mut self, trial: &Trial, keeps_domains: bool) {
        for one in &trial.moves {
            self.receives[one.node] = true;
            self.on_trial[one.node] -= 1;
        }
        for number in &trial.removed {
            let node = self.nodes[*number].node;
            self.cluster.existing.close(node);
            self.gone[node] = true;
        }
        let Some(first) = trial.removed.first().filter(|_| keeps_domains) else { return };
        let node = self.nodes[*first].node;
        for (class, count) in trial.remainder.iter().copied() {
            self.count(Move { class, node, count }, true);
        }
    }

    /// Whether an earlier step moves pods to a node.
    pub(super) fn is_receiver(&self, number: usize) -> bool {
        self.receives[self.nodes[number].node]
    }

    /// Whether a node is removed.
    pub(super) fn is_leaving(&self, number: usize) -> bool {
        self.leaving[self.nodes[number].node]
    }

    /// Value of pods at the shadow prices, in micro-dollars per hour: no new nodes for them cost
    /// less.
    #[expect(clippy::cast_precision_loss, reason = "the value is rounded down afterwards")]
    pub(super) fn value(&self, pods: &[(ClassId, usize)]) -> f64 {
        let mut sum = vec![0_i64; self.shadow_prices.len()];
        for (class, count) in pods {
            add_requests(&mut sum, &self.classes[*class].requests, *count);
        }
        sum.iter().zip(&self.shadow_prices).map(|(amount, price)| *amount as f64 * price).sum()
    }

    /// Counts the pods of a candidate on its node, or no longer.
    fn count_pods_of(&mut self, number: usize, counted: bool) {
        let node = self.nodes[number].node;
        for position in 0..self.nodes[number].content.len() {
            let (class, count) = self.nodes[number].content[position];
            self.count(Move { class, node, count }, counted);
        }
    }

    /// Counts pods on a node for the topology rules, or no longer.
    pub(super) fn count(&mut self, one: Move, counted: bool) {
        let class = &self.classes[one.class];
        let Some(profile) = &class.topology else { return };
        let ClusterState { existing, topology, .. } = &mut self.cluster;
        let domains = existing.domains_of(one.node, profile);
        let (host, certain) = (Host::Existing(one.node), &class.surely_counted);
        if counted {
            topology.record(profile, certain, &domains, host, one.count);
        } else {
            topology.unrecord(profile, certain, &domains, host, one.count);
        }
    }
}

/// The class of each template, at the level at which its pods are placed.
fn classes_of_templates(
    fleet: &Fleet,
    classes: &Classes<'_>,
    offerings: &mut OfferingIndex<'_>,
) -> Vec<Option<ClassId>> {
    let owners = classes.list.enumerate().flat_map(|(id, class)| {
        let pods = class.pods.iter();
        pods.map(move |key| (*key, id))
    });
    let owners: BTreeMap<&PodKey, ClassId> = owners.collect();
    let mut levels: BTreeMap<ClassId, ClassId> = BTreeMap::new();
    let mut level = |pod: &Pod| {
        let base = owners.get(&pod.key).copied()?;
        let level = levels.entry(base);
        Some(*level.or_insert_with(|| working_level(base, classes, offerings)))
    };
    fleet.templates.iter().map(&mut level).collect()
}

/// The candidates that exist, in the order in which they are tried.
fn fleet_nodes<'a>(
    fleet: &'a Fleet,
    of_templates: &[Option<ClassId>],
    cluster: &ClusterState<'a>,
) -> Vec<FleetNode<'a>> {
    let by_name: BTreeMap<&str, NodeIdx> =
        cluster.existing.nodes.enumerate().map(|(id, node)| (node.name.as_str(), id)).collect();
    let mut nodes = Vec::with_capacity(fleet.candidates.len());
    for candidate in &fleet.candidates {
        let Some(node) = by_name.get(candidate.node.as_str()).copied() else { continue };
        let mut content: BTreeMap<ClassId, usize> = BTreeMap::new();
        let mut unsupported = None;
        for pod in &candidate.pods {
            match of_templates.get(pod.template).copied().flatten() {
                Some(class) => *content.entry(class).or_default() += 1,
                None => unsupported = unsupported.or(Some((&pod.key, pod.template))),
            }
        }
        let content = content.into_iter().collect();
        nodes.push(FleetNode { candidate, node, content, unsupported });
    }
    // Compared as fractions: saving by one's disruption cost against the other's.
    nodes.sort_by(|a, b| {
        let (one, other) = (a.candidate, b.candidate);
        let ratio = |mine: &Candidate, theirs: &Candidate| {
            i128::from(mine.price.micros()) * i128::from(theirs.disruption_cost.max(1))
        };
        ratio(other, one).cmp(&ratio(one, other)).then_with(|| one.node.cmp(&other.node))
    });
    nodes
}

/// The first relaxation level at which a new node could take a pod: the level at which it would be
/// provisioned. The last one if none could.
fn working_level(
    base: ClassId,
    classes: &Classes<'_>,
    offerings: &mut OfferingIndex<'_>,
) -> ClassId {
    let mut level = base;
    loop {
        let class = &classes[level];
        let pools: Vec<_> = offerings.pools.ids().collect();
        let can_launch = pools.into_iter().any(|pool| {
            offerings.tolerates(pool, class)
                && class.terms.iter().any(|term| {
                    let Some(id) = offerings.narrow(EligibilityId::of_pool(pool), *term) else {
                        return false;
                    };
                    let eligible = offerings.eligible(id);
                    let table = offerings.table(eligible);
                    eligible.types.iter().any(|one| holds(table.free(one.id), &class.requests))
                })
        });
        match classes.relaxed(level) {
            Some(relaxed) if !can_launch => level = relaxed,
            _ => return level,
        }
    }
}

/// Initialized nodes: those that are no candidates, then the candidates that are tried last.
fn filling_order(cluster: &ClusterState<'_>, nodes: &[FleetNode<'_>]) -> Vec<NodeIdx> {
    let existing = &cluster.existing.nodes;
    let mut is_candidate = IndexVec::filled(false, existing.len());
    for node in nodes {
        is_candidate[node.node] = true;
    }
    let is_initialized = |id: &NodeIdx| existing[*id].initialized;
    let staying = existing.ids().filter(|id| !is_candidate[*id]);
    let candidates = nodes.iter().rev().map(|node| node.node);
    staying.chain(candidates).filter(is_initialized).collect()
}

/// Digest of everything about a pod but its name.
fn content_digest(pod: &Pod) -> u64 {
    let rules = (&pod.spread, &pod.affinity, &pod.anti_affinity, &pod.workload);
    let node = (&pod.requests, &pod.terms, &pod.tolerations, &pod.host_ports, &pod.volume_terms);
    digest(&(pod.key.namespace(), &pod.labels, pod.priority, node, rules, &pod.preferences))
}
