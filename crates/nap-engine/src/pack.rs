//! First-fit-decreasing onto hypothetical nodes.
//!
//! A [`Draft`] is a node that is not bought yet: a pool, what its pods insist on and ask for together, and no type. A pod is added while
//! at least one offering still holds everything; which one is bought is decided at the end. Left alone, drafts grow towards the
//! largest type on offer whatever it costs, so a [`Strategy`] can cap their size. A cap never keeps a pod out: where the pod alone is
//! larger than the cap, the smallest size that holds it counts instead.
//!
//! Limits are kept by a ledger. A draft of a limited pool reserves what the cheapest type that holds it would be charged, and grows only
//! while some type fits into the reservation and what is left together. So the sum of what is bought can never exceed a limit.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

use nap_units::UsdPerHour;

use crate::classes::{Class, Classes, holds, room};
use crate::coupled::Pin;
use crate::existing::{Seated, Standing};
use crate::market::{Market, PoolTable, Signature};
use crate::rules::Rules;
use crate::topology::Topology;

/// How large a draft may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cap {
    /// As large as anything on offer.
    None,
    /// Up to this many milli-cores.
    Cpu(i64),
    /// Up to the size that costs least per pod of the class that opens it.
    BestValue,
}

/// In which order drafts are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// The incumbent's habits: drafts with the fewest pods first, and pools of equal weight by name instead of by price.
    Incumbent,
    /// The oldest draft first, and pools of equal weight by price.
    InOrder,
    /// A draft at a time, each filled with the classes that complement each other best; see the module `patterns`.
    Patterns,
}

/// One way of packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strategy {
    pub(crate) cap: Cap,
    pub(crate) manner: Manner,
}

/// A node that is not bought yet.
pub(crate) struct Draft {
    /// Number of its signature.
    pub(crate) signature: usize,
    /// What its pods ask for together, by dimension.
    pub(crate) used: Vec<i64>,
    /// Classes with how many of their pods are here.
    pub(crate) content: Vec<(usize, usize)>,
    pub(crate) pods: usize,
    cap: i64,
    /// The domains that it is tied to: numbers of labels with their values, `None` where it will lack the label.
    pub(crate) domains: Vec<(usize, Option<Rc<str>>)>,
    /// No type that it may still become has more than this left of a resource: most pods that do not fit are told by it at once.
    slack: Vec<i64>,
    /// The most that any of those types has of each resource.
    most: Rc<[i64]>,
    /// What the ledger holds for it; empty in a pool without limits.
    pub(crate) reserved: Vec<i64>,
    /// What it costs once it is settled.
    pub(crate) price: UsdPerHour,
}

/// What a strategy made of the pods that were left.
pub(crate) struct Packing {
    pub(crate) drafts: Vec<Draft>,
    /// How many pods of each class found no place.
    pub(crate) unplaced: Vec<usize>,
    /// What is left under the limits of each pool.
    pub(crate) left: Vec<Vec<i64>>,
    /// Pods that went onto machines that exist after all, once others made it allowed.
    pub(crate) seated: Vec<Seated>,
    /// Where the pods are that others depend on.
    pub(crate) topology: Topology,
}

/// What is there before anything is packed.
#[derive(Clone)]
pub(crate) struct Ground<'r, 'a> {
    pub(crate) rules: &'r Rules<'a>,
    pub(crate) standing: Standing<'a>,
    pub(crate) topology: Topology,
}

/// A packing in the making.
pub(crate) struct Packer<'m, 'a> {
    pub(crate) market: &'m mut Market<'a>,
    pub(crate) classes: &'m Classes<'a>,
    pub(crate) strategy: Strategy,
    pub(crate) most_pods: usize,
    pub(crate) drafts: Vec<Draft>,
    pub(crate) left: Vec<Vec<i64>>,
    pub(crate) ground: Ground<'m, 'a>,
    pub(crate) seated: Vec<Seated>,
}

/// Packs what is left of each class.
pub(crate) fn pack<'m, 'a>(
    market: &'m mut Market<'a>,
    classes: &'m Classes<'a>,
    ground: Ground<'m, 'a>,
    pending: &[usize],
    most_pods: usize,
    strategy: Strategy,
) -> Packing {
    let left =
        market.pools.iter().map(|table| table.limits.iter().map(|(_, left)| *left).collect()).collect();
    let mut packer =
        Packer { market, classes, strategy, most_pods, drafts: Vec::new(), left, ground, seated: Vec::new() };
    let mut unplaced = pending.to_vec();
    if strategy.manner == Manner::Patterns {
        packer.pack_by_patterns(&mut unplaced);
    } else {
        packer.pack_by_class(&mut unplaced);
    }
    packer.try_again(&mut unplaced);
    Packing {
        drafts: packer.drafts,
        unplaced,
        left: packer.left,
        seated: packer.seated,
        topology: packer.ground.topology,
    }
}

/// Where a class would go on a draft, and how many of it fit.
pub(crate) struct Fit {
    pub(crate) signature: usize,
    pub(crate) room: usize,
}

impl Packer<'_, '_> {
    /// One class after another: first onto the drafts that can still grow, then onto new ones.
    fn pack_by_class(&mut self, pending: &mut [usize]) {
        let least = self.classes.least_to_come();
        let mut open: Vec<usize> = Vec::new();
        for (number, pending) in pending.iter_mut().enumerate() {
            if *pending == 0 {
                continue;
            }
            open.retain(|index| self.can_grow(*index, &least[number]));
            if self.classes.list[number].coupling.is_some() {
                *pending = self.place_coupled(number, *pending, &mut open);
                continue;
            }
            *pending = if self.strategy.manner == Manner::Incumbent {
                self.fill_evenly(number, *pending, &open)
            } else {
                self.fill_in_order(number, *pending, &open)
            };
            while *pending > 0 {
                let first = self.drafts.len();
                let opened = self.open(number, *pending);
                if opened == 0 {
                    break;
                }
                *pending -= opened;
                open.extend(first..self.drafts.len());
            }
        }
    }

    /// Whether a pod of the least requests to come could still fit.
    fn can_grow(&self, index: usize, least: &[i64]) -> bool {
        let draft = &self.drafts[index];
        draft.pods < self.most_pods && holds(&draft.slack, least)
    }

    pub(crate) fn fill_in_order(&mut self, number: usize, mut count: usize, open: &[usize]) -> usize {
        self.market.spend(open.len());
        for index in open {
            if count == 0 {
                break;
            }
            if let Some(fit) = self.fit(*index, number, count, &Pin::default())
                && self.is_worth_joining(*index, number, &fit)
            {
                count -= self.add(*index, number, &fit, fit.room);
            }
        }
        count
    }

    /// Whether narrowing a draft to what a pod insists on is cheaper than a node for the pod alone.
    fn is_worth_joining(&mut self, index: usize, number: usize, fit: &Fit) -> bool {
        let draft = &self.drafts[index];
        if draft.signature == fit.signature || !draft.reserved.is_empty() {
            return true;
        }
        let class = &self.classes.list[number];
        let market = &*self.market;
        let price = |signature: usize, used: &[i64]| {
            let signature = market.signature(signature);
            cheapest(&signature, market.table(&signature), used, &[]).map(|(price, _)| price.micros())
        };
        let with: Vec<i64> = draft.used.iter().zip(&class.row).map(|(a, b)| a.saturating_add(*b)).collect();
        let (Some(before), Some(after)) = (price(draft.signature, &draft.used), price(fit.signature, &with))
        else {
            return true;
        };
        let pool = market.signature(draft.signature).pool;
        let alone = class.terms.iter().find_map(|term| {
            let signature = self.market.step(pool, *term)?;
            let signature = self.market.signature(signature);
            cheapest(&signature, self.market.table(&signature), &class.row, &[])
        });
        alone.is_none_or(|(alone, _)| after - before <= alone.micros())
    }

    /// One pod at a time, always to the draft with the fewest pods.
    fn fill_evenly(&mut self, number: usize, mut count: usize, open: &[usize]) -> usize {
        let mut queue: BinaryHeap<Reverse<(usize, usize)>> = BinaryHeap::new();
        let mut fits: Vec<Option<Fit>> = Vec::with_capacity(open.len());
        for (position, index) in open.iter().enumerate() {
            let fit = self.fit(*index, number, count, &Pin::default());
            if fit.is_some() {
                queue.push(Reverse((self.drafts[*index].pods, position)));
            }
            fits.push(fit);
        }
        while count > 0
            && let Some(Reverse((_, position))) = queue.pop()
        {
            let index = open[position];
            if !self.drafts[index].reserved.is_empty() {
                // The drafts of a limited pool compete for what is left of it.
                fits[position] = self.fit(index, number, count, &Pin::default());
            }
            let Some(fit) = &mut fits[position] else { continue };
            let placed = {
                let once = Fit { signature: fit.signature, room: 1 };
                fit.room -= 1;
                self.add(index, number, &once, 1)
            };
            count -= placed;
            if placed > 0 && fits[position].as_ref().is_some_and(|fit| fit.room > 0) {
                queue.push(Reverse((self.drafts[index].pods, position)));
            }
        }
        count
    }

    /// The first term of a class that suits a draft, and how many pods of it fit.
    pub(crate) fn fit(&mut self, index: usize, number: usize, count: usize, pin: &Pin) -> Option<Fit> {
        let classes = self.classes;
        let class = &classes.list[number];
        if !holds(&self.drafts[index].slack, &class.row) {
            return None;
        }
        let (from, cap) = (self.drafts[index].signature, self.drafts[index].cap);
        let most = count.min(self.most_pods.saturating_sub(self.drafts[index].pods));
        let pool = self.market.signature(from).pool;
        if most == 0 || !self.market.tolerates(pool, class) {
            return None;
        }
        for term in &class.terms {
            let Some(signature) = self.step(from, *term, pin) else { continue };
            let draft = &self.drafts[index];
            let left = &self.left[pool];
            let room =
                largest_room(self.market, signature, cap, (&draft.used, &draft.reserved), left, class, most);
            if room > 0 {
                return Some(Fit { signature, room });
            }
        }
        None
    }

    /// Adds pods of a class to a draft; how many were added.
    pub(crate) fn add(&mut self, index: usize, number: usize, fit: &Fit, count: usize) -> usize {
        let draft = &mut self.drafts[index];
        if draft.pods == 0 || draft.signature != fit.signature {
            draft.most = self.market.most(fit.signature, draft.cap);
        }
        let times = i64::try_from(count).unwrap_or(i64::MAX);
        let row = &self.classes.list[number].row;
        let used: Vec<i64> = draft
            .used
            .iter()
            .zip(row)
            .map(|(used, request)| used.saturating_add(request.saturating_mul(times)))
            .collect();
        let signature = self.market.signature(fit.signature);
        let table = self.market.table(&signature);
        if !table.limits.is_empty() {
            let left = &mut self.left[signature.pool];
            let budget = sum(left, &draft.reserved);
            let Some((_, kind)) = cheapest(&signature, table, &used, &budget) else { return 0 };
            draft.reserved.clone_from(&table.types[kind].charge);
            *left = difference(&budget, &draft.reserved);
        }
        draft.slack.clear();
        draft.slack.extend(draft.most.iter().zip(&used).map(|(most, used)| most.saturating_sub(*used)));
        draft.used = used;
        draft.signature = fit.signature;
        draft.pods += count;
        match draft.content.last_mut() {
            Some((last, placed)) if *last == number => *placed += count,
            _ => draft.content.push((number, count)),
        }
        count
    }

    /// Opens drafts for a class in the best pool; how many of its pods went there.
    fn open(&mut self, number: usize, count: usize) -> usize {
        let most = count.min(self.most_pods);
        let Some(Offer { fit, cap, .. }) = self.best_offer(number, most, &Pin::default()) else { return 0 };
        let limited = !self.left[self.market.signature(fit.signature).pool].is_empty();
        let mut placed = 0;
        // Full drafts of a pool without limits are all alike: there is no need to look for the best pool again.
        while placed == 0 || (!limited && count - placed >= fit.room) {
            self.push_draft(fit.signature, cap);
            let added = self.add(self.drafts.len() - 1, number, &fit, fit.room);
            if added == 0 {
                self.drafts.pop();
                break;
            }
            placed += added;
        }
        placed
    }

    /// An empty draft. It must be filled or taken away again before anything else happens.
    pub(crate) fn push_draft(&mut self, signature: usize, cap: i64) {
        let limits = self.left[self.market.signature(signature).pool].len();
        let dimensions = self.classes.list.first().map_or(0, |class| class.row.len());
        self.drafts.push(Draft {
            signature,
            used: vec![0; dimensions],
            content: Vec::new(),
            pods: 0,
            cap,
            domains: Vec::new(),
            slack: Vec::new(),
            most: Rc::from([]),
            reserved: vec![0; limits],
            price: UsdPerHour::ZERO,
        });
    }

    /// The pool that a class would open a draft in, how many of its pods fit, and up to which size the draft may grow: the heaviest pool
    /// that has anything, and among equals the cheapest per pod.
    pub(crate) fn best_offer(&mut self, number: usize, most: usize, pin: &Pin) -> Option<Offer> {
        let classes = self.classes;
        let class = &classes.list[number];
        let mut best: Option<Offer> = None;
        for pool in 0..self.market.pools.len() {
            let weight = self.market.pools[pool].pool.weight;
            let by_name = self.strategy.manner == Manner::Incumbent;
            if best.as_ref().is_some_and(|best| by_name || best.weight > weight) {
                break;
            }
            if let Some(offer) = self.offer(pool, class, most, pin)
                && best.as_ref().is_none_or(|best| offer.value.cheaper_than(&best.value))
            {
                best = Some(offer);
            }
        }
        best
    }

    /// The signature with one more term and a pin, if all agree.
    pub(crate) fn step(&mut self, from: usize, term: usize, pin: &Pin) -> Option<usize> {
        let mut signature = self.market.step(from, term)?;
        for pin in &pin.terms {
            signature = self.market.step(signature, *pin)?;
        }
        pin.absent.iter().all(|key| self.market.lacks(signature, key)).then_some(signature)
    }

    /// What a pool has for a class: its best value, how many pods fit, and up to which size the draft may grow.
    fn offer(&mut self, pool: usize, class: &Class<'_>, most: usize, pin: &Pin) -> Option<Offer> {
        if !self.market.tolerates(pool, class) {
            return None;
        }
        for term in &class.terms {
            let Some(number) = self.step(pool, *term, pin) else { continue };
            let signature = self.market.signature(number);
            let table = self.market.table(&signature);
            let left = &self.left[pool];
            let unused = vec![0; class.row.len()];
            self.market.spend(signature.types.len());
            let mut best: Option<(Value, i64)> = None;
            let mut smallest: Option<i64> = None;
            for (price, kind) in &signature.types {
                let row = &table.types[*kind];
                let room = room(&row.free, &unused, &class.row, most);
                if room == 0 || !table.within(*kind, left) {
                    continue;
                }
                let value = Value { price: *price, pods: room };
                smallest = Some(smallest.map_or(row.cpu, |cpu| cpu.min(row.cpu)));
                let capped = matches!(self.strategy.cap, Cap::Cpu(cap) if row.cpu > cap);
                if !capped && best.as_ref().is_none_or(|(best, _)| value.cheaper_than(best)) {
                    best = Some((value, row.cpu));
                }
            }
            let Some(smallest) = smallest else { continue };
            let cap = match (self.strategy.cap, &best) {
                (Cap::None, _) => i64::MAX,
                (Cap::Cpu(cap), _) => cap.max(smallest),
                (Cap::BestValue, best) => best.as_ref().map_or(smallest, |(_, cpu)| *cpu),
            };
            // Above the cap only the smallest sizes are let in; what they cost per pod is close enough to compare pools by.
            let value = match best {
                Some((value, _)) => value,
                None => signature
                    .types
                    .iter()
                    .filter(|(_, kind)| table.types[*kind].cpu <= cap && table.within(*kind, left))
                    .filter(|(_, kind)| room(&table.types[*kind].free, &unused, &class.row, 1) == 1)
                    .map(|(price, _)| Value { price: *price, pods: 1 })
                    .next()?,
            };
            let reserved = vec![0; left.len()];
            let room = largest_room(self.market, number, cap, (&unused, &reserved), left, class, most);
            if room > 0 {
                let weight = self.market.pools[pool].pool.weight;
                return Some(Offer { weight, value, fit: Fit { signature: number, room }, cap });
            }
        }
        None
    }
}

/// How many of a class the largest types of a signature hold beside what is used, within what is reserved and left under the limits.
fn largest_room(
    market: &mut Market<'_>,
    number: usize,
    cap: i64,
    (used, reserved): (&[i64], &[i64]),
    left: &[i64],
    class: &Class<'_>,
    most: usize,
) -> usize {
    if left.is_empty() {
        let frontier = market.frontier(number, cap);
        let types = &market.table(&market.signature(number)).types;
        let room = |kind: &usize| room(&types[*kind].free, used, &class.row, most);
        return frontier.iter().map(room).max().unwrap_or(0);
    }
    let budget = sum(left, reserved);
    let signature = market.signature(number);
    let table = market.table(&signature);
    market.spend(signature.types.len());
    signature
        .types
        .iter()
        .map(|(_, kind)| *kind)
        .filter(|kind| table.types[*kind].cpu <= cap && table.within(*kind, &budget))
        .map(|kind| room(&table.types[kind].free, used, &class.row, most))
        .max()
        .unwrap_or(0)
}

/// What a class would open a draft with.
pub(crate) struct Offer {
    /// The weight of the pool.
    pub(crate) weight: i32,
    pub(crate) value: Value,
    pub(crate) fit: Fit,
    /// Up to which size the draft may grow.
    pub(crate) cap: i64,
}

/// A price for a number of pods.
pub(crate) struct Value {
    price: UsdPerHour,
    pods: usize,
}

impl Value {
    /// Costs less per pod, or the same for more pods at once.
    pub(crate) fn cheaper_than(&self, other: &Self) -> bool {
        let mine = i128::from(self.price.micros()).saturating_mul(other.pods as i128);
        let theirs = i128::from(other.price.micros()).saturating_mul(self.pods as i128);
        mine < theirs || (mine == theirs && self.pods > other.pods)
    }
}

/// The cheapest type of a signature that holds what is used and stays within the budget.
fn cheapest(
    signature: &Signature,
    table: &PoolTable<'_>,
    used: &[i64],
    budget: &[i64],
) -> Option<(UsdPerHour, usize)> {
    signature
        .types
        .iter()
        .find(|(_, kind)| holds(&table.types[*kind].free, used) && table.within(*kind, budget))
        .copied()
}

/// What is left together with what is given back.
pub(crate) fn sum(left: &[i64], reserved: &[i64]) -> Vec<i64> {
    left.iter().zip(reserved).map(|(left, reserved)| left.saturating_add(*reserved)).collect()
}

fn difference(all: &[i64], mine: &[i64]) -> Vec<i64> {
    all.iter().zip(mine).map(|(all, mine)| all.saturating_sub(*mine)).collect()
}

impl Packing {
    /// Settles every draft on the price of the cheapest type that holds it, and says what all cost together.
    ///
    /// Each settled draft gives back what it had reserved too much, from which the others may gain: hence the passes, of which
    /// hardly ever more than two change anything.
    pub(crate) fn settle(&mut self, market: &Market<'_>) -> UsdPerHour {
        const PASSES: usize = 4;
        for _ in 0..PASSES {
            let mut changed = false;
            for draft in &mut self.drafts {
                let signature: Rc<Signature> = market.signature(draft.signature);
                let table = market.table(&signature);
                let left = &mut self.left[signature.pool];
                let budget = sum(left, &draft.reserved);
                let Some((price, kind)) = cheapest(&signature, table, &draft.used, &budget) else { continue };
                changed |= price != draft.price;
                draft.price = price;
                draft.reserved.clone_from(&table.types[kind].charge);
                *left = difference(&budget, &draft.reserved);
            }
            if !changed {
                break;
            }
        }
        self.drafts.iter().map(|draft| draft.price).sum()
    }
}
