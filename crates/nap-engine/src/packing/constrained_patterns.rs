//! Packing a node at a time with pods that complement each other, rules between pods included.
//!
//! Pods that depend on others are hard to pack well one class after another: each goes where rules
//! allow, and what fits beside it is left to chance. Here a node is put together as in the module
//! `patterns`, but for each combination of domains that it could be in, and every pod that is taken
//! is counted at once, so that the next one sees it. What is counted for a node that is not taken
//! after all is counted back. Pods of one shape are interchangeable as far as packing is concerned:
//! of those that are allowed, the ones with the least choice are taken first. Nobody is put where
//! he would upset the spread of others if he were bound before them: such a plan depends on no
//! order.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use fixedbitset::FixedBitSet;

use crate::classes::room;
use crate::intern::Interner;
use crate::offerings::shadow_prices::worth;
use crate::packing::constrained::{DomainAssignment, full_pins};
use crate::packing::first_fit::{Fit, Packer, SizeCap};
use crate::packing::patterns::{alignment, rate};
use crate::topology::counts::{Domains, Host};

/// The most combinations of domains that a node is tried in.
const MAX_PLACES: usize = 9;

/// Classes that ask for the same and may go to the same nodes.
struct Shape {
    row: Vec<i64>,
    terms: Vec<usize>,
    /// Those with the least choice first.
    classes: Vec<usize>,
    /// The classes before it have no pods left.
    first: usize,
}

/// A node's load, and where it is.
struct NodePattern {
    pin: Rc<DomainAssignment>,
    start: usize,
    cap: i64,
    content: Vec<(usize, Fit)>,
    /// Price for each unit of worth: less is better.
    rate: f64,
}

/// The types of a signature by size, each size with the best value first.
type Sizes = Rc<Vec<Vec<usize>>>;

struct PatternSearch {
    shapes: Vec<Shape>,
    shape_of: Vec<usize>,
    worth: Vec<f64>,
    /// The least skew that anybody insists on, for each counter.
    skews: Rc<[Option<i64>]>,
    sizes: BTreeMap<usize, Sizes>,
    /// Classes that may not be in the place that is looked at.
    blocked: FixedBitSet,
    /// The sizes that won of late: only they and their neighbours are tried most of the time.
    recent: Vec<usize>,
    nodes: usize,
}

impl Packer<'_, '_> {
    /// Packs everything that is pending, the highest priority first.
    pub(crate) fn pack_by_weaving(&mut self, pending: &mut [usize]) {
        let classes = self.classes;
        let mut start = 0;
        while let Some(first) = classes.list.get(start) {
            let count =
                classes.list[start..].partition_point(|class| class.priority == first.priority);
            let batch = start..start + count;
            for number in batch.clone() {
                if pending[number] > 0
                    && !classes.list[number].is_bound_by_rules()
                    && !self.bins.is_empty()
                {
                    pending[number] = self.fill(number, pending[number]);
                }
            }
            self.weave(batch.clone(), pending);
            for number in batch {
                if pending[number] > 0 {
                    self.place(number, pending);
                }
            }
            start += count;
        }
    }

    fn weave(&mut self, batch: Range<usize>, pending: &mut [usize]) {
        if self.left.iter().any(|left| !left.is_empty()) {
            // Limits that are near are kept by those who keep account.
            return;
        }
        let mut loom = self.loom(batch.clone(), pending);
        let mut next = batch.start;
        while let Some(seed) = (next..batch.end).find(|number| pending[*number] > 0) {
            next = seed;
            let woven = self.best_node(&mut loom, seed, pending);
            let placed = woven.map_or(0, |woven| self.keep_node(&woven, pending, &loom.skews));
            if placed == 0 {
                next += 1;
            }
        }
    }

    fn loom(&self, batch: Range<usize>, pending: &[usize]) -> PatternSearch {
        let classes = &self.classes.list;
        let mut demand = vec![0_i64; self.zeros.len()];
        let mut numbers: Interner<(&[i64], &[usize], usize)> = Interner::default();
        let mut members: Vec<Vec<usize>> = Vec::new();
        let mut shape_of = vec![usize::MAX; classes.len()];
        for number in batch.filter(|number| pending[*number] > 0) {
            let class = &classes[number];
            let times = i64::try_from(pending[number]).unwrap_or(i64::MAX);
            for (demand, request) in demand.iter_mut().zip(&class.row) {
                *demand = demand.saturating_add(request.saturating_mul(times));
            }
            let shape = numbers.number((&class.row, &class.terms, class.wish));
            if shape == members.len() {
                members.push(Vec::new());
            }
            members[shape].push(number);
            shape_of[number] = shape;
        }
        let choice = |number: &usize| {
            let class = &classes[*number];
            let rules = class.coupling.as_ref().map_or(0, |coupling| coupling.constraints.len());
            (std::cmp::Reverse(rules), class.coupling.is_none(), *number)
        };
        let mut shapes = Vec::with_capacity(members.len());
        for ((row, terms, _), mut classes) in numbers.items.into_iter().zip(members) {
            classes.sort_by_key(choice);
            shapes.push(Shape { row: row.to_vec(), terms: terms.to_vec(), classes, first: 0 });
        }
        let worth = worth(self.offerings, &demand);
        let skews = Rc::clone(&self.ground.skews);
        let blocked = FixedBitSet::with_capacity(classes.len());
        PatternSearch {
            shapes,
            shape_of,
            worth,
            skews,
            sizes: BTreeMap::new(),
            blocked,
            recent: Vec::new(),
            nodes: 0,
        }
    }

    /// The node that costs least for the worth of what it holds, among those that begin with a
    /// class.
    fn best_node(
        &mut self,
        loom: &mut PatternSearch,
        seed: usize,
        pending: &[usize],
    ) -> Option<NodePattern> {
        let class = &self.classes.list[seed];
        let offer = self.best_offer(seed, 1, &DomainAssignment::default())?;
        if !self.offerings.signature(offer.fit.signature).diversities.is_empty() {
            return None;
        }
        loom.nodes += 1;
        let all_sizes = loom.nodes % 16 == 1;
        let pins = full_pins(self.offerings, offer.fit.signature, MAX_PLACES);
        let mut best: Option<(NodePattern, usize)> = None;
        for pin in pins.iter() {
            loom.blocked.clear();
            let vector = pin.of(class.coupling.as_deref());
            let allowed = class.coupling.as_ref().filter(|_| !class.is_only_counted);
            if allowed.is_some_and(|coupling| {
                self.ground.topology.allowance(coupling, &vector, Host::Fresh) == 0
            }) {
                continue;
            }
            let Some(start) = self.pinned(offer.fit.signature, pin) else { continue };
            let sizes = self.sizes(loom, start);
            for (size, kinds) in sizes.iter().enumerate() {
                let is_near = |recent: &usize| recent.abs_diff(size) <= 1;
                if !all_sizes && !loom.recent.is_empty() && !loom.recent.iter().any(is_near) {
                    continue;
                }
                let table = self.offerings.table(self.offerings.signature(start));
                let fits = |kind: &usize| room(table.free(*kind), &self.zeros, &class.row, 1) == 1;
                let Some(kind) = kinds.iter().copied().find(fits) else { continue };
                let woven = self.node(loom, seed, pending, Rc::clone(pin), start, kind);
                if let Some(woven) = woven
                    && best.as_ref().is_none_or(|(best, _)| woven.rate < best.rate)
                {
                    best = Some((woven, size));
                }
            }
        }
        let (woven, size) = best?;
        if loom.recent.last() != Some(&size) {
            loom.recent.push(size);
            let from = loom.recent.len().saturating_sub(3);
            loom.recent.drain(..from);
        }
        Some(woven)
    }

    pub(crate) fn pinned(&mut self, from: usize, pin: &DomainAssignment) -> Option<usize> {
        let mut signature = from;
        for term in &pin.terms {
            signature = self.offerings.step(signature, *term)?;
        }
        let lacks = pin.absent.iter().all(|key| self.offerings.lacks(signature, *key));
        (lacks && !self.offerings.signature(signature).types.is_empty()).then_some(signature)
    }

    fn sizes(&mut self, loom: &mut PatternSearch, number: usize) -> Sizes {
        if let Some(known) = loom.sizes.get(&number) {
            return Rc::clone(known);
        }
        let signature = self.offerings.signature(number);
        let table = self.offerings.table(signature);
        let types = &table.types;
        let mut by_size: BTreeMap<i64, Vec<(f64, usize)>> = BTreeMap::new();
        let most = if let SizeCap::Cpu(most) = self.strategy.cap { most } else { i64::MAX };
        let smallest = signature.types.iter().map(|(_, kind)| types[*kind].cpu).min().unwrap_or(0);
        for (price, kind) in &signature.types {
            if types[*kind].cpu > most.max(smallest) {
                continue;
            }
            let rate = rate(price.micros(), table.free(*kind), &loom.worth);
            by_size.entry(types[*kind].cpu).or_default().push((rate, *kind));
        }
        // Small sizes one by one, larger ones each about a quarter larger than the one before.
        let mut sizes: Vec<Vec<usize>> = Vec::new();
        let mut last = 0;
        for (cpu, mut kinds) in by_size {
            if cpu < last + last / 4 {
                continue;
            }
            last = cpu;
            kinds.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            sizes.push(kinds.into_iter().map(|(_, kind)| kind).collect());
        }
        let sizes = Rc::new(sizes);
        loom.sizes.insert(number, Rc::clone(&sizes));
        sizes
    }

    /// Puts together the load of one node of a type.
    fn node(
        &mut self,
        loom: &mut PatternSearch,
        seed: usize,
        pending: &[usize],
        pin: Rc<DomainAssignment>,
        start: usize,
        kind: usize,
    ) -> Option<NodePattern> {
        let classes = self.classes;
        let (free, cap) = {
            let table = self.offerings.table(self.offerings.signature(start));
            (table.free(kind).to_vec(), table.types[kind].cpu)
        };
        let host = self.host(self.bins.len());
        let mut used = self.zeros.clone();
        let mut signature = start;
        let mut content: Vec<(usize, Fit)> = Vec::new();
        let mut pods = 0;
        // Shapes of which nothing more can be taken.
        let mut done = vec![false; loom.shapes.len()];
        while pods < self.most_pods {
            self.offerings.spend(loom.shapes.len());
            let mut best: Option<(f64, usize)> = None;
            if pods == 0 {
                best = Some((0.0, loom.shape_of[seed]));
            } else {
                for (number, shape) in loom.shapes.iter().enumerate() {
                    done[number] |= room(&free, &used, &shape.row, 1) == 0;
                    if done[number] {
                        continue;
                    }
                    let score = alignment(&free, &used, &shape.row);
                    if best.is_none_or(|(best, _)| score > best) {
                        best = Some((score, number));
                    }
                }
            }
            let Some((_, number)) = best else { break };
            let most = room(&free, &used, &loom.shapes[number].row, self.most_pods - pods);
            let only = (pods == 0).then_some(seed);
            let taken = self.take(
                loom,
                number,
                only,
                pending,
                &pin,
                (signature, kind),
                &content,
                host,
                most,
            );
            let Some((class, fit)) = taken else {
                if pods == 0 {
                    return None;
                }
                done[number] = true;
                continue;
            };
            signature = fit.signature;
            pods += fit.room;
            let times = i64::try_from(fit.room).unwrap_or(i64::MAX);
            for (used, request) in used.iter_mut().zip(&classes.list[class].row) {
                *used = used.saturating_add(request.saturating_mul(times));
            }
            content.push((class, fit));
        }
        for (class, fit) in content.iter().rev() {
            self.count_woven(*class, &pin, host, fit.room, false);
        }
        let price = self.offerings.cheapest(self.offerings.signature(signature), &used, &[])?.0;
        let rate = rate(price.micros(), &used, &loom.worth);
        Some(NodePattern { pin, start, cap, content, rate })
    }

    /// Takes pods of a shape for a node: the first class that still has pods and is allowed there.
    /// They are counted.
    #[expect(clippy::too_many_arguments, reason = "these are the state of one node in the making")]
    fn take(
        &mut self,
        loom: &mut PatternSearch,
        shape: usize,
        only: Option<usize>,
        pending: &[usize],
        pin: &DomainAssignment,
        (signature, kind): (usize, usize),
        content: &[(usize, Fit)],
        host: usize,
        most: usize,
    ) -> Option<(usize, Fit)> {
        let classes = self.classes;
        let shape = &mut loom.shapes[shape];
        while shape.classes.get(shape.first).is_some_and(|class| pending[*class] == 0) {
            shape.first += 1;
        }
        let pool = self.offerings.signature(signature).pool;
        let to = shape.terms.iter().find_map(|term| {
            let next = self.offerings.step(signature, *term)?;
            self.offerings.signature(next).kinds.contains(kind).then_some(next)
        })?;
        // All of a shape tolerate the same.
        let first = shape.classes.get(shape.first)?;
        if !self.offerings.tolerates(pool, &classes.list[*first]) {
            return None;
        }
        for number in shape.classes[shape.first..].iter().copied() {
            let is_other = only.is_some_and(|only| only != number);
            if is_other || pending[number] == 0 || loom.blocked.contains(number) {
                continue;
            }
            self.offerings.spend(1);
            let allowed = self.allowed(&loom.skews, number, pin, host);
            if allowed == 0 {
                // Not because of the pods that are on this node by now: so on no node in this
                // place.
                let nobody_there = host + 1;
                loom.blocked.set(number, self.allowed(&loom.skews, number, pin, nobody_there) == 0);
                continue;
            }
            let here: usize =
                content.iter().filter(|(other, _)| *other == number).map(|(_, fit)| fit.room).sum();
            let count = most.min(pending[number] - here).min(allowed);
            // A few at a time: the direction of what is free changes with each.
            let room = if count > 1 { (count / 8).max(1) } else { count };
            if room > 0 {
                self.count_woven(number, pin, host, room, true);
                return Some((number, Fit { signature: to, room }));
            }
        }
        None
    }

    /// How many pods of a class a node may have, by its own rules and so that those of others hold
    /// whoever is bound first.
    fn allowed(
        &self,
        skews: &[Option<i64>],
        number: usize,
        pin: &DomainAssignment,
        host: usize,
    ) -> usize {
        let Some(coupling) = &self.classes.list[number].coupling else { return usize::MAX };
        let vector: Domains = pin.of(Some(coupling));
        let topology = &self.ground.topology;
        match topology.allowance(coupling, &vector, Host::Is(host)) {
            0 => 0,
            allowed => allowed.min(topology.order_independent_allowance(
                coupling,
                &vector,
                Host::Is(host),
                skews,
            )),
        }
    }

    /// Counts pods of a class on a node, or counts them back.
    fn count_woven(
        &mut self,
        number: usize,
        pin: &DomainAssignment,
        host: usize,
        count: usize,
        there: bool,
    ) {
        let class = &self.classes.list[number];
        if let Some(coupling) = &class.coupling {
            let vector = pin.of(Some(coupling));
            self.ground.topology.change(coupling, &class.certain, &vector, host, count, there);
        }
    }

    /// Makes a bin of a node, and more like it while there are pods and rules allow; how many
    /// pods were placed.
    fn keep_node(
        &mut self,
        woven: &NodePattern,
        pending: &mut [usize],
        skews: &[Option<i64>],
    ) -> usize {
        let mut placed = 0;
        while woven.content.iter().all(|(class, _)| {
            let same = woven.content.iter().filter(|(other, _)| other == class);
            pending[*class] >= same.map(|(_, fit)| fit.room).sum()
        }) {
            let index = self.bins.len();
            let host = self.host(index);
            let mut counted = 0;
            for (class, fit) in &woven.content {
                if self.allowed(skews, *class, &woven.pin, host) < fit.room {
                    break;
                }
                self.count_woven(*class, &woven.pin, host, fit.room, true);
                counted += 1;
            }
            for (class, fit) in woven.content[..counted].iter().rev() {
                self.count_woven(*class, &woven.pin, host, fit.room, false);
            }
            if counted < woven.content.len() {
                break;
            }
            self.push_bin(woven.start, woven.cap);
            self.bins[index].domains = woven.pin.domains();
            for (class, fit) in &woven.content {
                self.add(index, *class, fit, fit.room);
                // Pods that go anywhere were counted as they were added.
                if !self.classes.list[*class].is_only_counted {
                    self.count_woven(*class, &woven.pin, host, fit.room, true);
                }
                pending[*class] -= fit.room;
                placed += fit.room;
            }
        }
        placed
    }
}
