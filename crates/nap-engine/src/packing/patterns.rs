//! Patterns: one bin at a time, filled with complementary pods.
//!
//! First fit fills bins with pods of one size after another, which uses up one resource and wastes
//! the others. A *pattern* is the load of one node: it begins with the largest pod without a place
//! and then always takes the class whose request is best aligned with what is still free. Patterns
//! are built for one type of each size; the one with the lowest price for the shadow value of its
//! load wins and is repeated while there are pods for it, so that the work depends on the number of
//! classes, not of pods.

use std::collections::BTreeMap;

use crate::classes::PodCounts;
use crate::classes::dimensions::{add_requests, room, room_when_empty};
use crate::ids::{ClassId, EligibilityId, TypeId};
use crate::packing::bins::Fit;
use crate::packing::packer::Packer;
use crate::topology::domains::DomainAssignment;

/// Upper limit on the classes that a pattern is built from. Of more, an even selection is taken.
const MAX_CLASSES: usize = 64;

/// Up to this many pods, [`TYPES_PER_SIZE`] types of each size are tried instead of one.
const FEW_PODS: usize = 64;
const TYPES_PER_SIZE: usize = 4;

/// Fraction of the fitting pods that are added before the alignment is computed again.
pub(super) const STEP_DIVISOR: usize = 8;

/// The load of one node.
struct Pattern {
    start: EligibilityId,
    /// Milli-cores of the type that the pattern was built for.
    cpu: i64,
    content: Vec<(ClassId, Fit)>,
    /// Price per unit of shadow value.
    rate: f64,
}

/// Packs all pending pods, the highest priority first.
pub(super) fn pack(packer: &mut Packer<'_, '_>, pending: &mut PodCounts, prices: &[f64]) {
    for band in packer.classes.priority_bands() {
        // Constrained pods have the least choice; the others fill what they leave free.
        for class in &band {
            if pending[*class] > 0 && packer.classes[*class].is_constrained() {
                packer.place(*class, pending);
            }
        }
        // Bins of higher priorities are filled up first.
        fill_bins(packer, &band, pending);
        pack_band(packer, &band, pending, prices);
        // Where limits end before the pods do, some may still fit beside the others.
        fill_bins(packer, &band, pending);
    }
}

fn fill_bins(packer: &mut Packer<'_, '_>, band: &[ClassId], pending: &mut PodCounts) {
    for class in band.iter().copied() {
        if pending[class] > 0 && !packer.classes[class].is_constrained() {
            pending[class] = packer.fill(class, pending[class]);
        }
    }
}

fn pack_band(
    packer: &mut Packer<'_, '_>,
    band: &[ClassId],
    pending: &mut PodCounts,
    prices: &[f64],
) {
    let mut next = 0;
    while let Some(position) = (next..band.len()).find(|at| pending[band[*at]] > 0) {
        next = position;
        let seed = band[position];
        let pattern = if packer.classes[seed].is_constrained() {
            None
        } else {
            best_pattern(packer, seed, band, pending, prices)
        };
        let placed = pattern.map_or(0, |pattern| repeat(packer, &pattern, pending));
        if placed == 0 {
            // The seed has no place, and packing other pods creates none. Its next relaxation level
            // may have one.
            next += 1;
            if let Some(relaxed) = packer.classes.relaxed(seed) {
                pending[relaxed] += std::mem::take(&mut pending[seed]);
                place_relaxed(packer, relaxed, pending);
            }
        }
    }
}

/// Begins with a relaxed class: on existing nodes and open bins, or wherever its topology
/// constraints allow.
fn place_relaxed(packer: &mut Packer<'_, '_>, class: ClassId, pending: &mut PodCounts) {
    if packer.classes[class].is_constrained() {
        packer.place(class, pending);
    } else {
        let left = packer.fill_existing(class, pending[class]);
        pending[class] = packer.fill(class, left);
    }
}

fn best_pattern(
    packer: &mut Packer<'_, '_>,
    seed: ClassId,
    band: &[ClassId],
    pending: &PodCounts,
    prices: &[f64],
) -> Option<Pattern> {
    let max = packer.max_pods.of(pending[seed]);
    let start = packer.best_new_bin(seed, max, &DomainAssignment::default())?.fit.eligibility;
    let requests = &packer.classes[seed].requests;
    let eligible = packer.offerings.eligible(start);
    let table = packer.offerings.table(eligible);
    let left = packer.ledger.left(eligible.pool);
    if !eligible.min_values.is_empty() {
        // A pattern is built for one type, and this pool requires a choice of several.
        return None;
    }
    // For each size, doubling from one to the next, the types with the lowest price per shadow
    // value: one, or a few if there are few pods, because pods may narrow a node to offerings where
    // its type is expensive.
    let is_small = pending.iter().sum::<usize>() <= FEW_PODS;
    let per_size = if is_small { TYPES_PER_SIZE } else { 1 };
    let mut by_size: BTreeMap<u32, Vec<(f64, TypeId)>> = BTreeMap::new();
    for one in &eligible.types {
        let free = table.free(one.id);
        if room_when_empty(free, requests, 1) == 0 || !table.within_limits(one.id, left) {
            continue;
        }
        let size = table.types[one.id].cpu.max(1).ilog2();
        let rate = rate(one.price.micros(), free, prices);
        let best = by_size.entry(size).or_default();
        let position = best.partition_point(|(other, _)| *other <= rate);
        best.insert(position, (rate, one.id));
        best.truncate(per_size);
    }
    let others = band.iter().copied().filter(|class| {
        *class != seed && pending[*class] > 0 && !packer.classes[*class].is_constrained()
    });
    let window = window(seed, &others.collect::<Vec<_>>());
    let mut best: Option<Pattern> = None;
    for (_, instance_type) in by_size.into_values().flatten() {
        let pattern = build(packer, start, instance_type, &window, pending, prices);
        if best.as_ref().is_none_or(|best| pattern.rate < best.rate) {
            best = Some(pattern);
        }
    }
    best
}

/// Builds the load of one node of a type. The first class of the window is the seed.
fn build(
    packer: &mut Packer<'_, '_>,
    start: EligibilityId,
    instance_type: TypeId,
    window: &[ClassId],
    pending: &PodCounts,
    prices: &[f64],
) -> Pattern {
    let classes = packer.classes;
    let mut eligibility = start;
    let mut narrowed = narrow_each(packer, start, instance_type, window);
    let free = packer.offerings.table_of(start).free(instance_type).to_vec();
    let mut used = vec![0; free.len()];
    let mut content: Vec<(ClassId, Fit)> = Vec::new();
    let mut counts = vec![0; window.len()];
    let mut pods = 0;
    loop {
        packer.offerings.effort.spend(window.len());
        let mut best: Option<(f64, usize, usize)> = None;
        for (position, class) in window.iter().enumerate() {
            if narrowed[position].is_none() || (pods == 0 && position > 0) {
                continue;
            }
            let max = packer.max_pods.less(pods).of(pending[*class] - counts[position]);
            let requests = &classes[*class].requests;
            let room = room(&free, &used, requests, max);
            if room == 0 {
                continue;
            }
            let score = alignment(&free, &used, requests);
            if best.is_none_or(|(best, ..)| score > best) {
                best = Some((score, position, room));
            }
        }
        let Some((_, position, room)) = best else { break };
        let Some(next) = narrowed[position] else { break };
        let class = window[position];
        let count = (room / STEP_DIVISOR).max(1);
        counts[position] += count;
        pods += count;
        add_requests(&mut used, &classes[class].requests, count);
        match content.iter_mut().find(|(one, fit)| *one == class && fit.eligibility == next) {
            Some((_, fit)) => fit.room += count,
            None => content.push((class, Fit { eligibility: next, room: count })),
        }
        if next != eligibility {
            eligibility = next;
            narrowed = narrow_each(packer, eligibility, instance_type, window);
        }
    }
    let eligible = packer.offerings.eligible(eligibility);
    let table = packer.offerings.table(eligible);
    let priced = eligible.types.iter().find(|other| other.id == instance_type);
    let price = priced.map_or(0, |one| one.price.micros());
    let rate = rate(price, &used, prices);
    Pattern { start, cpu: table.types[instance_type].cpu, content, rate }
}

/// For each class of a window, the eligibility set with its first term that keeps the type.
fn narrow_each(
    packer: &mut Packer<'_, '_>,
    from: EligibilityId,
    instance_type: TypeId,
    window: &[ClassId],
) -> Vec<Option<EligibilityId>> {
    let classes = packer.classes;
    let pool = packer.offerings.eligible(from).pool;
    let narrow = |class: &ClassId| {
        let class = &classes[*class];
        if !packer.offerings.tolerates(pool, class) {
            return None;
        }
        packer.offerings.narrow_keeping(from, &class.terms, instance_type)
    };
    window.iter().map(narrow).collect()
}

/// Opens bins with a pattern while there are pods for it, and returns the number of pods placed.
fn repeat(packer: &mut Packer<'_, '_>, pattern: &Pattern, pending: &mut PodCounts) -> usize {
    let mut needed: BTreeMap<ClassId, usize> = BTreeMap::new();
    for (class, fit) in &pattern.content {
        *needed.entry(*class).or_default() += fit.room;
    }
    let mut placed = 0;
    while !needed.is_empty() && needed.iter().all(|(class, count)| pending[*class] >= *count) {
        let bin = packer.open_bin(pattern.start, pattern.cpu);
        let mut is_complete = true;
        for (class, fit) in &pattern.content {
            // In a limited pool the limits may end before the pods do.
            let added = packer.add(bin, *class, fit, fit.room);
            is_complete &= added == fit.room;
            pending[*class] -= added;
            placed += added;
        }
        if packer.bins[bin].content.is_empty() {
            packer.bins.pop();
        }
        if !is_complete {
            break;
        }
    }
    placed
}

/// The seed and an even selection of the other classes.
fn window(seed: ClassId, others: &[ClassId]) -> Vec<ClassId> {
    let stride = others.len().div_ceil(MAX_CLASSES).max(1);
    std::iter::once(seed).chain(others.iter().copied().step_by(stride)).collect()
}

/// Alignment of a request with what is free: their dot product, with every dimension as a fraction
/// of the node.
#[expect(clippy::cast_precision_loss, reason = "it guides a choice; the last digits do not matter")]
pub(super) fn alignment(free: &[i64], used: &[i64], request: &[i64]) -> f64 {
    let mut sum = 0.0;
    for ((free, used), request) in free.iter().zip(used).zip(request) {
        if *free > 0 {
            let whole = *free as f64;
            sum += (*request as f64 / whole) * (free.saturating_sub(*used) as f64 / whole);
        }
    }
    sum
}

/// Price per unit of shadow value.
#[expect(clippy::cast_precision_loss, reason = "it guides a choice; the last digits do not matter")]
pub(super) fn rate(micros: i64, amounts: &[i64], prices: &[f64]) -> f64 {
    let value: f64 = amounts.iter().zip(prices).map(|(amount, price)| *amount as f64 * price).sum();
    // A load without value counts as a micro-dollar, so that the cheaper of two such loads wins.
    micros as f64 / (value + 1.0)
}
