//! Packing a node at a time, with pods that complement each other.
//!
//! First fit fills nodes with pods of one size after another, and so with what is large in one
//! resource and wasteful in the others. A *pattern* is one node's load put together deliberately:
//! it begins with the largest pod that has no place, and then always takes the class that points
//! most in the direction of what is still free. Patterns are made for one type of each size, and
//! the one wins that costs least for the worth of what it holds. It is then repeated while there
//! are pods for it, so that the work depends on the number of classes, not of pods.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::classes::room;
use crate::packing::constrained::DomainAssignment;
use crate::packing::first_fit::{ClusterState, Fit, Packer};

/// The most classes that a pattern is put together from. Of more, an even selection is taken.
const MAX_CLASSES: usize = 64;

/// Up to so many pods, a few types of each size are tried.
const FEW_PODS: usize = 64;

/// One node's load: classes with where they lead and how many, and the size of the type it was made
/// for.
struct Pattern {
    start: usize,
    cpu: i64,
    content: Vec<(usize, Fit)>,
    /// Price for each unit of worth: less is better.
    rate: f64,
}

impl Packer<'_, '_> {
    /// Packs everything that is pending, the highest priority first.
    pub(crate) fn pack_by_patterns(&mut self, pending: &mut [usize], worth: &[f64]) {
        let classes = self.classes;
        let mut start = 0;
        while let Some(first) = classes.list.get(start) {
            let count =
                classes.list[start..].partition_point(|class| class.priority == first.priority);
            let batch = start..start + count;
            // Pods that depend on others have the least choice, and what they leave free is filled
            // with the rest.
            for number in batch.clone() {
                if pending[number] > 0 && !self.is_plain(number) {
                    self.place(number, pending);
                }
            }
            // What more important pods have left free comes first.
            self.fill_drafts(batch.clone(), pending);
            self.pack_batch(batch.clone(), pending, worth);
            // Where limits end before the pods do, some may still fit beside the others.
            self.fill_drafts(batch, pending);
            start += count;
        }
    }

    /// Whether pods of a class can be part of any pattern.
    fn is_plain(&self, number: usize) -> bool {
        !self.classes.list[number].is_bound_by_rules()
    }

    fn fill_drafts(&mut self, batch: Range<usize>, pending: &mut [usize]) {
        for number in batch {
            if pending[number] > 0 && self.is_plain(number) {
                pending[number] = self.fill(number, pending[number]);
            }
        }
    }

    fn pack_batch(&mut self, batch: Range<usize>, pending: &mut [usize], worth: &[f64]) {
        let mut next = batch.start;
        while let Some(seed) = (next..batch.end).find(|number| pending[*number] > 0) {
            next = seed;
            let plain = self.is_plain(seed);
            let pattern =
                plain.then(|| self.best_pattern(seed, batch.clone(), pending, worth)).flatten();
            let placed = pattern.map_or(0, |pattern| self.repeat(&pattern, pending));
            if placed == 0 {
                // There is no place for it, and what others take meanwhile makes none. In a form
                // that demands less there may be.
                next += 1;
                if let Some(fallback) = self.classes.fallback(seed) {
                    pending[fallback] += std::mem::take(&mut pending[seed]);
                    self.seat_or_place(fallback, pending);
                }
            }
        }
    }

    /// Begins with a form of pods that demands less: on what exists, or wherever rules between pods
    /// allow.
    fn seat_or_place(&mut self, number: usize, pending: &mut [usize]) {
        if self.is_plain(number) {
            let ClusterState { standing, topology, .. } = &mut self.ground;
            let left = standing.fill_with(
                number,
                pending[number],
                self.classes,
                topology,
                &mut self.seated,
            );
            pending[number] = self.fill(number, left);
        } else {
            self.place(number, pending);
        }
    }

    fn best_pattern(
        &mut self,
        seed: usize,
        batch: Range<usize>,
        pending: &[usize],
        worth: &[f64],
    ) -> Option<Pattern> {
        let fit = self
            .best_offer(seed, pending[seed].min(self.most_pods), &DomainAssignment::default())?
            .fit;
        let row = &self.classes.list[seed].row;
        let unused = vec![0; row.len()];
        let signature = self.offerings.signature(fit.signature);
        let table = self.offerings.table(signature);
        let left = &self.left[signature.pool];
        if !signature.diversities.is_empty() {
            // A pattern is made for one type, and this pool wants a choice of several.
            return None;
        }
        // For each size, doubling from one to the next, the types that cost least for the worth of
        // what they have: one, or a few if there is little to do, since pods may narrow a node to
        // where its type is dear.
        let most = if pending.iter().sum::<usize>() > FEW_PODS { 1 } else { 4 };
        let mut by_size: BTreeMap<u32, Vec<(f64, usize)>> = BTreeMap::new();
        for (price, kind) in &signature.types {
            let free = table.free(*kind);
            if room(free, &unused, row, 1) == 0 || !table.within(*kind, left) {
                continue;
            }
            let size = table.types[*kind].cpu.max(1).ilog2();
            let rate = rate(price.micros(), free, worth);
            let best = by_size.entry(size).or_default();
            let position = best.partition_point(|(other, _)| *other <= rate);
            best.insert(position, (rate, *kind));
            best.truncate(most);
        }
        let others = batch
            .filter(|number| *number != seed && pending[*number] > 0 && self.is_plain(*number));
        let window = window(seed, &others.collect::<Vec<_>>());
        let mut best: Option<Pattern> = None;
        for (_, kind) in by_size.into_values().flatten() {
            let pattern = self.pattern(fit.signature, kind, &window, pending, worth);
            if best.as_ref().is_none_or(|best| pattern.rate < best.rate) {
                best = Some(pattern);
            }
        }
        best
    }

    /// Puts together the load of one node of a type. The window's first class is the seed.
    fn pattern(
        &mut self,
        start: usize,
        kind: usize,
        window: &[usize],
        pending: &[usize],
        worth: &[f64],
    ) -> Pattern {
        let classes = self.classes;
        let mut signature = start;
        let mut leads_to = self.steps(start, kind, window);
        let free = self.offerings.table(self.offerings.signature(start)).free(kind).to_vec();
        let mut used = vec![0; free.len()];
        let mut content: Vec<(usize, Fit)> = Vec::new();
        let mut counts = vec![0; window.len()];
        let mut pods = 0;
        loop {
            self.offerings.spend(window.len());
            let mut best: Option<(f64, usize, usize)> = None;
            for (position, number) in window.iter().enumerate() {
                if leads_to[position].is_none() || (pods == 0 && position > 0) {
                    continue;
                }
                let most = (pending[*number] - counts[position]).min(self.most_pods - pods);
                let row = &classes.list[*number].row;
                let room = room(&free, &used, row, most);
                if room == 0 {
                    continue;
                }
                let score = alignment(&free, &used, row);
                if best.is_none_or(|(best, ..)| score > best) {
                    best = Some((score, position, room));
                }
            }
            let Some((_, position, room)) = best else { break };
            let Some(next) = leads_to[position] else { break };
            // A few at a time: the direction of what is free changes with each.
            let count = (room / 8).max(1);
            counts[position] += count;
            pods += count;
            let times = i64::try_from(count).unwrap_or(i64::MAX);
            for (used, request) in used.iter_mut().zip(&classes.list[window[position]].row) {
                *used = used.saturating_add(request.saturating_mul(times));
            }
            match content
                .iter_mut()
                .find(|(number, fit)| *number == window[position] && fit.signature == next)
            {
                Some((_, fit)) => fit.room += count,
                None => content.push((window[position], Fit { signature: next, room: count })),
            }
            if next != signature {
                signature = next;
                leads_to = self.steps(signature, kind, window);
            }
        }
        let signature = self.offerings.signature(signature);
        let table = self.offerings.table(signature);
        let price = signature
            .types
            .iter()
            .find(|(_, other)| *other == kind)
            .map_or(0, |(price, _)| price.micros());
        Pattern { start, cpu: table.types[kind].cpu, content, rate: rate(price, &used, worth) }
    }

    /// For each class of a window, the signature with its first term that still allows the type.
    fn steps(&mut self, signature: usize, kind: usize, window: &[usize]) -> Vec<Option<usize>> {
        let classes = self.classes;
        let pool = self.offerings.signature(signature).pool;
        let mut steps = Vec::with_capacity(window.len());
        for number in window {
            let class = &classes.list[*number];
            let mut step = None;
            if self.offerings.tolerates(pool, class) {
                step = class.terms.iter().find_map(|term| {
                    let next = self.offerings.step(signature, *term)?;
                    self.offerings.signature(next).kinds.contains(kind).then_some(next)
                });
            }
            steps.push(step);
        }
        steps
    }

    /// Opens bins with a pattern while there are pods for it; how many pods were placed.
    fn repeat(&mut self, pattern: &Pattern, pending: &mut [usize]) -> usize {
        let mut placed = 0;
        loop {
            let complete = {
                let mut asked: BTreeMap<usize, usize> = BTreeMap::new();
                for (number, fit) in &pattern.content {
                    *asked.entry(*number).or_default() += fit.room;
                }
                !asked.is_empty() && asked.iter().all(|(number, count)| pending[*number] >= *count)
            };
            if !complete {
                return placed;
            }
            self.push_bin(pattern.start, pattern.cpu);
            let index = self.bins.len() - 1;
            let mut whole = true;
            for (number, fit) in &pattern.content {
                // In a limited pool the limits may end before the pods do.
                let added = self.add(index, *number, fit, fit.room);
                whole &= added == fit.room;
                pending[*number] -= added;
                placed += added;
            }
            if self.bins[index].content.is_empty() {
                self.pop_draft();
            }
            if !whole {
                return placed;
            }
        }
    }
}

/// The seed, and then an even selection of the other classes that have pods.
fn window(seed: usize, others: &[usize]) -> Vec<usize> {
    let stride = others.len().div_ceil(MAX_CLASSES).max(1);
    std::iter::once(seed).chain(others.iter().copied().step_by(stride)).collect()
}

/// How much a request points in the direction of what is free, each resource counted in parts of
/// the whole node.
#[expect(clippy::cast_precision_loss, reason = "it guides a choice; the last digits do not matter")]
pub(crate) fn alignment(free: &[i64], used: &[i64], request: &[i64]) -> f64 {
    let mut sum = 0.0;
    for ((free, used), request) in free.iter().zip(used).zip(request) {
        if *free > 0 {
            let whole = *free as f64;
            sum += (*request as f64 / whole) * (free.saturating_sub(*used) as f64 / whole);
        }
    }
    sum
}

/// The price for each unit of worth.
#[expect(clippy::cast_precision_loss, reason = "it guides a choice; the last digits do not matter")]
pub(crate) fn rate(micros: i64, amounts: &[i64], worth: &[f64]) -> f64 {
    let total: f64 = amounts.iter().zip(worth).map(|(amount, worth)| *amount as f64 * worth).sum();
    // Something without worth is as good as a millionth of a dollar, so that the cheaper one wins.
    micros as f64 / (total + 1.0)
}
