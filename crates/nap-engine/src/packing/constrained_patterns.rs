//! Patterns that respect topology constraints.
//!
//! Constrained pods are hard to pack well class by class: each goes where rules allow, and what
//! fits beside it is left to chance. Here a node is built as in `patterns`, but once for each
//! domain assignment, and every pod that is taken is counted at once, so that the next one sees it.
//! The counts of a node that is not opened are taken back. Classes of one shape are interchangeable
//! for packing: of those that are allowed, the most constrained is taken first. A pod is never
//! placed where binding it first would violate another pod's spread, so the packing is valid for
//! every binding order.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::rc::Rc;

use fixedbitset::FixedBitSet;

use crate::classes::PodCounts;
use crate::classes::dimensions::{add_requests, room, room_when_empty};
use crate::classes::shapes::Shapes;
use crate::ids::{BinId, ClassId, EligibilityId, Id, IndexVec, ShapeId, TermId, TypeId};
use crate::offerings::shadow_prices::shadow_prices;
use crate::packing::bins::Fit;
use crate::packing::domain_binding::labelled;
use crate::packing::packer::Packer;
use crate::packing::patterns::{STEP_DIVISOR, alignment, rate};
use crate::packing::strategy::SizeCap;
use crate::topology::counts::{Allowance, Host, HostQuery};
use crate::topology::domains::DomainAssignment;

/// All sizes are tried for one node in this many; for the others only sizes near recent winners.
const ALL_SIZES_EVERY: usize = 16;

/// Number of recently chosen sizes that are remembered.
const RECENT_SIZES: usize = 3;

/// Classes with the same requests and node constraints.
struct Shape {
    requests: Vec<i64>,
    terms: Vec<TermId>,
    /// The most constrained classes first.
    classes: Vec<ClassId>,
    /// The classes before this position have no pods left.
    first: usize,
}

/// The load of one node and its domains.
struct NodePattern {
    assignment: Rc<DomainAssignment>,
    start: EligibilityId,
    cap: i64,
    content: Vec<(ClassId, Fit)>,
    /// Price per unit of shadow value.
    rate: f64,
}

/// The types of an eligibility set by size; within a size, the lowest price per shadow value first.
type Sizes = Rc<Vec<Vec<TypeId>>>;

/// State of the search for the patterns of one priority band.
struct PatternSearch {
    shapes: IndexVec<ShapeId, Shape>,
    shape_of: IndexVec<ClassId, Option<ShapeId>>,
    prices: Vec<f64>,
    sizes: BTreeMap<EligibilityId, Sizes>,
    /// Classes that no node in the current domains may take.
    blocked: FixedBitSet,
    /// Sizes of the last patterns.
    recent: Vec<usize>,
    /// Number of patterns so far.
    patterns: usize,
}

/// A node of a certain type that a pattern is built for.
struct PatternNode<'n> {
    assignment: &'n DomainAssignment,
    instance_type: TypeId,
    /// Id of the bin that the pattern would open.
    bin: BinId,
    eligibility: EligibilityId,
    content: Vec<(ClassId, Fit)>,
}

/// Packs all pending pods, the highest priority first.
pub(super) fn pack(packer: &mut Packer<'_, '_>, pending: &mut PodCounts) {
    for band in packer.classes.priority_bands() {
        for class in &band {
            if pending[*class] > 0
                && !packer.classes[*class].is_constrained()
                && !packer.bins.is_empty()
            {
                pending[*class] = packer.fill(*class, pending[*class]);
            }
        }
        pack_band(packer, &band, pending);
        for class in band {
            if pending[class] > 0 {
                packer.place(class, pending);
            }
        }
    }
}

fn pack_band(packer: &mut Packer<'_, '_>, band: &[ClassId], pending: &mut PodCounts) {
    if packer.ledger.any_limited() {
        // Patterns keep no account of limits; the other fill rules do.
        return;
    }
    let mut search = PatternSearch::new(packer, band, pending);
    let mut next = 0;
    while let Some(position) = (next..band.len()).find(|at| pending[band[*at]] > 0) {
        next = position;
        let pattern = search.best_pattern(packer, band[position], pending);
        let placed = pattern.map_or(0, |pattern| repeat(packer, &pattern, pending));
        if placed == 0 {
            next += 1;
        }
    }
}

impl PatternSearch {
    fn new(packer: &Packer<'_, '_>, band: &[ClassId], pending: &PodCounts) -> Self {
        let classes = packer.classes;
        let waiting = || band.iter().copied().filter(|class| pending[*class] > 0);
        let mut demand = vec![0_i64; packer.offerings.width];
        for class in waiting() {
            add_requests(&mut demand, &classes[class].requests, pending[class]);
        }
        let Shapes { members, of_class } = Shapes::of(waiting(), classes.list.len(), |class| {
            let class = &classes[class];
            (&class.requests, &class.terms, class.node_constraints)
        });
        let choice = |class: &ClassId| {
            let profile = classes[*class].topology.as_ref();
            let constraints = profile.map_or(0, |profile| profile.constraints.len());
            (Reverse(constraints), profile.is_none(), *class)
        };
        let shape = |mut members: Vec<ClassId>| {
            let class = &classes[members[0]];
            let (requests, terms) = (class.requests.clone(), class.terms.clone());
            members.sort_by_key(choice);
            Shape { requests, terms, classes: members, first: 0 }
        };
        Self {
            shapes: members.into_iter().map(shape).collect(),
            shape_of: of_class,
            prices: shadow_prices(packer.offerings, &demand),
            sizes: BTreeMap::new(),
            blocked: FixedBitSet::with_capacity(classes.list.len()),
            recent: Vec::new(),
            patterns: 0,
        }
    }

    /// The pattern with the lowest price per shadow value among those that begin with a class.
    fn best_pattern(
        &mut self,
        packer: &mut Packer<'_, '_>,
        seed: ClassId,
        pending: &PodCounts,
    ) -> Option<NodePattern> {
        let class = &packer.classes[seed];
        let new_bin = packer.best_new_bin(seed, 1, &DomainAssignment::default())?;
        let eligibility = new_bin.fit.eligibility;
        if !packer.offerings.eligible(eligibility).min_values.is_empty() {
            return None;
        }
        self.patterns += 1;
        let all_sizes = self.patterns % ALL_SIZES_EVERY == 1;
        let mut best: Option<(NodePattern, usize)> = None;
        for assignment in packer.offerings.full_assignments(eligibility).iter() {
            self.blocked.clear();
            if let Some(profile) = class.topology.as_ref().filter(|_| !class.is_only_counted) {
                let domains = assignment.of_profile(profile);
                let topology = &packer.cluster.topology;
                if topology.allowance(profile, &domains, HostQuery::New).is_none() {
                    continue;
                }
            }
            let Some(start) = packer.assign_usable(eligibility, assignment) else { continue };
            let sizes = self.sizes(packer, start);
            for (size, types) in sizes.iter().enumerate() {
                let is_near = |recent: &usize| recent.abs_diff(size) <= 1;
                if !all_sizes && !self.recent.is_empty() && !self.recent.iter().any(is_near) {
                    continue;
                }
                let table = packer.offerings.table_of(start);
                let fits = |id: &TypeId| room_when_empty(table.free(*id), &class.requests, 1) == 1;
                let Some(instance_type) = types.iter().copied().find(fits) else { continue };
                let pattern = self.build(packer, seed, pending, assignment, start, instance_type);
                if let Some(pattern) = pattern
                    && best.as_ref().is_none_or(|(best, _)| pattern.rate < best.rate)
                {
                    best = Some((pattern, size));
                }
            }
        }
        let (pattern, size) = best?;
        if self.recent.last() != Some(&size) {
            self.recent.push(size);
            let from = self.recent.len().saturating_sub(RECENT_SIZES);
            self.recent.drain(..from);
        }
        Some(pattern)
    }

    fn sizes(&mut self, packer: &Packer<'_, '_>, id: EligibilityId) -> Sizes {
        if let Some(known) = self.sizes.get(&id) {
            return Rc::clone(known);
        }
        let eligible = packer.offerings.eligible(id);
        let table = packer.offerings.table(eligible);
        let cpu = |id: TypeId| table.types[id].cpu;
        let smallest = eligible.types.iter().map(|one| cpu(one.id)).min().unwrap_or(0);
        let is_capped = |id: TypeId| match packer.strategy.cap {
            SizeCap::Cpu(cap) => cpu(id) > cap.max(smallest),
            SizeCap::None | SizeCap::BestValue => false,
        };
        let mut by_size: BTreeMap<i64, Vec<(f64, TypeId)>> = BTreeMap::new();
        for one in eligible.types.iter().filter(|one| !is_capped(one.id)) {
            let rate = rate(one.price.micros(), table.free(one.id), &self.prices);
            by_size.entry(cpu(one.id)).or_default().push((rate, one.id));
        }
        // Small sizes one by one, larger ones each at least a quarter larger than the one before.
        let mut sizes: Vec<Vec<TypeId>> = Vec::new();
        let mut last = 0;
        for (cpu, mut types) in by_size {
            if cpu < last + last / 4 {
                continue;
            }
            last = cpu;
            types.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            sizes.push(types.into_iter().map(|(_, id)| id).collect());
        }
        let sizes = Rc::new(sizes);
        self.sizes.insert(id, Rc::clone(&sizes));
        sizes
    }

    /// Builds the load of one node of a type; `None` if the seed cannot begin it.
    fn build(
        &mut self,
        packer: &mut Packer<'_, '_>,
        seed: ClassId,
        pending: &PodCounts,
        assignment: &Rc<DomainAssignment>,
        start: EligibilityId,
        instance_type: TypeId,
    ) -> Option<NodePattern> {
        let table = packer.offerings.table_of(start);
        let (free, cap) = (table.free(instance_type).to_vec(), table.types[instance_type].cpu);
        let mut used = vec![0; free.len()];
        let bin = packer.bins.next_id();
        let mut node =
            PatternNode { assignment, instance_type, bin, eligibility: start, content: Vec::new() };
        let all_pending: usize = pending.iter().sum();
        let mut pods = 0;
        // Shapes of which no more pods can be taken.
        let mut exhausted = IndexVec::filled(false, self.shapes.len());
        while !packer.max_pods.less(pods).is_none() {
            packer.offerings.effort.spend(self.shapes.len());
            let mut best: Option<(f64, ShapeId)> = None;
            if pods == 0 {
                best = self.shape_of[seed].map(|shape| (0.0, shape));
            } else {
                for (id, shape) in self.shapes.enumerate() {
                    exhausted[id] |= room(&free, &used, &shape.requests, 1) == 0;
                    if exhausted[id] {
                        continue;
                    }
                    let score = alignment(&free, &used, &shape.requests);
                    if best.is_none_or(|(best, _)| score > best) {
                        best = Some((score, id));
                    }
                }
            }
            let Some((_, shape)) = best else { break };
            let only = (pods == 0).then_some(seed);
            let requests = &self.shapes[shape].requests;
            let max = room(&free, &used, requests, packer.max_pods.less(pods).of(all_pending));
            let Some((class, fit)) = self.take(packer, shape, only, pending, &node, max) else {
                if pods == 0 {
                    return None;
                }
                exhausted[shape] = true;
                continue;
            };
            node.eligibility = fit.eligibility;
            pods += fit.room;
            add_requests(&mut used, &packer.classes[class].requests, fit.room);
            node.content.push((class, fit));
        }
        let PatternNode { eligibility, content, .. } = node;
        for (class, fit) in content.iter().rev() {
            packer.uncount(*class, assignment, bin, fit.room);
        }
        let price = packer.offerings.lowest_price(eligibility, &used, &[])?;
        let rate = rate(price.micros(), &used, &self.prices);
        Some(NodePattern { assignment: Rc::clone(assignment), start, cap, content, rate })
    }

    /// Takes pods of a shape for a node: of the first class that has pods and is allowed there.
    /// The pods are counted.
    fn take(
        &mut self,
        packer: &mut Packer<'_, '_>,
        shape: ShapeId,
        only: Option<ClassId>,
        pending: &PodCounts,
        node: &PatternNode<'_>,
        max: usize,
    ) -> Option<(ClassId, Fit)> {
        let shape = &mut self.shapes[shape];
        while shape.classes.get(shape.first).is_some_and(|class| pending[*class] == 0) {
            shape.first += 1;
        }
        let pool = packer.offerings.eligible(node.eligibility).pool;
        let eligibility =
            packer.offerings.narrow_keeping(node.eligibility, &shape.terms, node.instance_type)?;
        // All classes of a shape have the same tolerations.
        let first = shape.classes.get(shape.first)?;
        if !packer.offerings.tolerates(pool, &packer.classes[*first]) {
            return None;
        }
        let host = HostQuery::On(Host::Bin(node.bin));
        for class in shape.classes[shape.first..].iter().copied() {
            let is_other = only.is_some_and(|only| only != class);
            if is_other || pending[class] == 0 || self.blocked.contains(class.index()) {
                continue;
            }
            packer.offerings.effort.spend(1);
            let allowed = packer.allowed_in_any_order(class, node.assignment, host);
            if allowed.is_none() {
                // If an empty node would be refused too, every node in these domains is.
                let on_new = packer.allowed_in_any_order(class, node.assignment, HostQuery::New);
                self.blocked.set(class.index(), on_new.is_none());
                continue;
            }
            let same = node.content.iter().filter(|(other, _)| *other == class);
            let here: usize = same.map(|(_, fit)| fit.room).sum();
            let count = allowed.of(max.min(pending[class] - here));
            let room = if count > 1 { (count / STEP_DIVISOR).max(1) } else { count };
            if room > 0 {
                packer.count(class, node.assignment, node.bin, room);
                return Some((class, Fit { eligibility, room }));
            }
        }
        None
    }
}

/// Opens bins with a pattern while there are pods for it and the rules allow, and returns the
/// number of pods placed.
fn repeat(packer: &mut Packer<'_, '_>, pattern: &NodePattern, pending: &mut PodCounts) -> usize {
    let NodePattern { assignment, content, .. } = pattern;
    let mut placed = 0;
    while content.iter().all(|(class, _)| {
        let same = content.iter().filter(|(other, _)| other == class);
        pending[*class] >= same.map(|(_, fit)| fit.room).sum()
    }) {
        let host = HostQuery::On(Host::Bin(packer.bins.next_id()));
        let next = packer.bins.next_id();
        let mut counted = 0;
        for (class, fit) in content {
            let allowed = packer.allowed_in_any_order(*class, assignment, host);
            if allowed < Allowance::AtMost(fit.room) {
                break;
            }
            packer.count(*class, assignment, next, fit.room);
            counted += 1;
        }
        for (class, fit) in content[..counted].iter().rev() {
            packer.uncount(*class, assignment, next, fit.room);
        }
        if counted < content.len() {
            break;
        }
        let bin = packer.open_bin(pattern.start, pattern.cap);
        packer.bins.set_domains(bin, labelled(assignment), Vec::new());
        for (class, fit) in content {
            packer.add(bin, *class, fit, fit.room);
            // Pods that are only counted were counted as they were added.
            if !packer.classes[*class].is_only_counted {
                packer.count(*class, assignment, bin, fit.room);
            }
            pending[*class] -= fit.room;
            placed += fit.room;
        }
    }
    placed
}

impl Packer<'_, '_> {
    /// The eligibility set in the domains of an assignment; `None` if no type is left.
    pub(super) fn assign_usable(
        &mut self,
        from: EligibilityId,
        assignment: &DomainAssignment,
    ) -> Option<EligibilityId> {
        let assigned = self.offerings.assign(from, assignment)?;
        (!self.offerings.eligible(assigned).types.is_empty()).then_some(assigned)
    }

    /// Number of pods of a class that a node may take by its own rules, and without violating the
    /// spread of other pods in any binding order.
    fn allowed_in_any_order(
        &self,
        class: ClassId,
        assignment: &DomainAssignment,
        host: HostQuery,
    ) -> Allowance {
        let Some(profile) = &self.classes[class].topology else { return Allowance::Unlimited };
        let domains = assignment.of_profile(profile);
        let topology = &self.cluster.topology;
        let allowed = topology.allowance(profile, &domains, host);
        if allowed.is_none() {
            return allowed;
        }
        let min_skews = &self.cluster.min_skews;
        allowed.min(topology.order_independent_allowance(profile, &domains, host, min_skews))
    }

    /// Counts pods of a class on a bin.
    fn count(&mut self, class: ClassId, assignment: &DomainAssignment, bin: BinId, pods: usize) {
        let class = &self.classes[class];
        if let Some(profile) = &class.topology {
            let domains = assignment.of_profile(profile);
            let (certain, host) = (&class.surely_counted, Host::Bin(bin));
            self.cluster.topology.record(profile, certain, &domains, host, pods);
        }
    }

    /// Takes back what [`Packer::count`] counted.
    fn uncount(&mut self, class: ClassId, assignment: &DomainAssignment, bin: BinId, pods: usize) {
        let class = &self.classes[class];
        if let Some(profile) = &class.topology {
            let domains = assignment.of_profile(profile);
            let (certain, host) = (&class.surely_counted, Host::Bin(bin));
            self.cluster.topology.unrecord(profile, certain, &domains, host, pods);
        }
    }
}
