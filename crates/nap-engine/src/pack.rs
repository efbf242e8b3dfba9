//! First-fit-decreasing onto hypothetical nodes.
//!
//! A [`Draft`] is a node that is not bought yet: a pool, what its pods insist on and ask for together, and no type. A pod is added while
//! at least one offering still holds everything; which one is bought is decided at the end. Left alone, drafts grow towards the
//! largest type on offer whatever it costs, so a [`Strategy`] can cap their size. A cap never keeps a pod out: where the pod alone is
//! larger than the cap, the smallest size that holds it counts instead.
//!
//! Limits are kept by a ledger. A draft of a limited pool reserves what the cheapest type that holds it would be charged, and grows only
//! while some type fits into the reservation and what is left together. So the sum of what is bought can never exceed a limit. Limits
//! that are far away need no ledger: it is enough to see afterwards that they were kept.

use std::rc::Rc;

use nap_units::UsdPerHour;

use crate::classes::{Class, Classes, holds, room};
use crate::coupled::Pin;
use crate::existing::{Seated, Standing};
use crate::market::{Frontier, Market};
use crate::shelf::{Cursor, Shelf};
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
    /// Classes with how many of their pods are here.
    pub(crate) content: Vec<(usize, usize)>,
    pub(crate) pods: usize,
    cap: i64,
    /// The domains that it is tied to: numbers of labels with the numbers of their values.
    pub(crate) domains: Vec<(usize, u32)>,
    /// Pods that somebody counts by a domain which is not known yet.
    pub(crate) uncounted: Vec<(usize, usize)>,
    /// The types that it may still grow to.
    frontier: Rc<Frontier>,
    /// What the ledger holds for it; empty without a ledger.
    pub(crate) reserved: Vec<i64>,
    /// What it costs once it is settled.
    pub(crate) price: UsdPerHour,
}

/// What a strategy made of the pods that were left.
pub(crate) struct Packing {
    pub(crate) drafts: Vec<Draft>,
    /// What the pods of each draft ask for together, one row after another.
    used: Vec<i64>,
    width: usize,
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
pub(crate) struct Ground<'a> {
    pub(crate) standing: Standing<'a>,
    pub(crate) topology: Topology,
}

/// What is to be packed, and how.
pub(crate) struct Task<'t, 'a> {
    pub(crate) classes: &'t Classes<'a>,
    /// How many pods of each class.
    pub(crate) pending: &'t [usize],
    /// The most pods of a node.
    pub(crate) most_pods: usize,
    /// For each class, the least that it or any class after it asks for.
    pub(crate) least: &'t [Vec<i64>],
}

/// A packing in the making.
pub(crate) struct Packer<'m, 'a> {
    pub(crate) market: &'m mut Market<'a>,
    pub(crate) classes: &'m Classes<'a>,
    pub(crate) strategy: Strategy,
    pub(crate) most_pods: usize,
    pub(crate) drafts: Vec<Draft>,
    /// What the pods of each draft ask for together, one row after another.
    used: Vec<i64>,
    /// No type that a draft may still become has more than this left: most pods that do not fit are told by it at once.
    slack: Vec<i64>,
    width: usize,
    zeros: Vec<i64>,
    pub(crate) shelf: Shelf,
    /// Drafts that cannot hold this take no more pods.
    least: Vec<i64>,
    pub(crate) left: Vec<Vec<i64>>,
    pub(crate) ground: Ground<'a>,
    pub(crate) seated: Vec<Seated>,
}

/// Packs what is left of each class. Without a ledger, whoever asks must see whether the limits were kept.
pub(crate) fn pack<'m, 'a>(
    market: &'m mut Market<'a>,
    task: &Task<'m, 'a>,
    ground: Ground<'a>,
    strategy: Strategy,
    ledger: bool,
) -> Packing {
    let limits = |table: &crate::market::PoolTable<'_>| table.limits.iter().map(|(_, left)| *left).collect();
    let left = market.pools.iter().map(|table| if ledger { limits(table) } else { Vec::new() }).collect();
    let width = market.width;
    let mut packer = Packer {
        classes: task.classes,
        strategy,
        most_pods: task.most_pods,
        drafts: Vec::new(),
        used: Vec::new(),
        slack: Vec::new(),
        width,
        zeros: vec![0; width],
        shelf: Shelf::new(strategy.manner == Manner::Incumbent),
        least: task.least.first().cloned().unwrap_or_default(),
        left,
        ground,
        seated: Vec::new(),
        market,
    };
    let mut unplaced = task.pending.to_vec();
    if strategy.manner == Manner::Patterns {
        packer.pack_by_patterns(&mut unplaced);
    } else {
        packer.pack_by_class(&mut unplaced, task.least);
    }
    packer.try_again(&mut unplaced);
    Packing {
        drafts: packer.drafts,
        used: packer.used,
        width,
        unplaced,
        left: packer.left,
        seated: packer.seated,
        topology: packer.ground.topology,
    }
}

/// Where a class would go on a draft, and how many of it fit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fit {
    pub(crate) signature: usize,
    pub(crate) room: usize,
}

impl Packer<'_, '_> {
    /// One class after another: first onto the drafts that can still grow, then onto new ones.
    fn pack_by_class(&mut self, pending: &mut [usize], least: &[Vec<i64>]) {
        for (number, pending) in pending.iter_mut().enumerate() {
            if *pending == 0 {
                continue;
            }
            self.least.clone_from(&least[number]);
            if self.classes.list[number].is_bound_by_rules() {
                *pending = self.place_coupled(number, *pending);
                continue;
            }
            *pending = self.fill(number, *pending);
            while *pending > 0 {
                let opened = self.open(number, *pending);
                if opened == 0 {
                    break;
                }
                *pending -= opened;
            }
        }
    }

    pub(crate) fn is_even(&self) -> bool {
        self.strategy.manner == Manner::Incumbent
    }

    /// Looks at the next draft that can still grow.
    pub(crate) fn next_draft(&mut self, cursor: &mut Cursor) -> Option<usize> {
        while let Some(index) = self.shelf.next(cursor) {
            self.market.spend(1);
            let slack = &self.slack[index * self.width..(index + 1) * self.width];
            if self.drafts[index].pods < self.most_pods && holds(slack, &self.least) {
                return Some(index);
            }
            self.shelf.close(index);
        }
        None
    }

    /// Makes every draft available again, whoever comes.
    pub(crate) fn reopen(&mut self) {
        self.least = self.zeros.clone();
        self.shelf = Shelf::new(self.is_even());
        for (index, draft) in self.drafts.iter().enumerate() {
            self.shelf.put(index, draft.pods);
        }
    }

    /// Puts pods that no rule binds onto the drafts there are; how many are left.
    pub(crate) fn fill(&mut self, number: usize, mut count: usize) -> usize {
        self.shelf.tidy();
        let even = self.is_even();
        let mut cursor = Cursor::default();
        while count > 0
            && let Some(index) = self.next_draft(&mut cursor)
        {
            // The incumbent goes to the draft with the fewest pods each time: a draft that took one is met again later.
            let most = if even { 1 } else { count };
            if let Some(fit) = self.fit(index, number, most, &Pin::default())
                && (even || self.is_worth_joining(index, number, &fit))
            {
                count -= self.add(index, number, &fit, fit.room);
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
            market.cheapest(market.signature(signature), used, &[]).map(|(price, _)| price.micros())
        };
        let used = &self.used[index * self.width..(index + 1) * self.width];
        let with: Vec<i64> = used.iter().zip(&class.row).map(|(a, b)| a.saturating_add(*b)).collect();
        let (Some(before), Some(after)) = (price(draft.signature, used), price(fit.signature, &with)) else {
            return true;
        };
        let pool = market.signature(draft.signature).pool;
        let alone = class.terms.iter().find_map(|term| {
            let signature = self.market.step(pool, *term)?;
            self.market.cheapest(self.market.signature(signature), &class.row, &[])
        });
        alone.is_none_or(|(alone, _)| after - before <= alone.micros())
    }

    /// The first term of a class that suits a draft, and how many pods of it fit.
    pub(crate) fn fit(&mut self, index: usize, number: usize, most: usize, pin: &Pin) -> Option<Fit> {
        let class = &self.classes.list[number];
        let row = index * self.width..(index + 1) * self.width;
        if !holds(&self.slack[row.clone()], &class.row) {
            return None;
        }
        let (from, cap) = (self.drafts[index].signature, self.drafts[index].cap);
        let most = most.min(self.most_pods.saturating_sub(self.drafts[index].pods));
        let pool = self.market.signature(from).pool;
        if most == 0 || !self.market.tolerates(pool, class) {
            return None;
        }
        for term in &class.terms {
            let Some(signature) = self.step(from, *term, pin) else { continue };
            let draft = &self.drafts[index];
            let used = &self.used[row.clone()];
            let left = &self.left[pool];
            let room = if signature == from && left.is_empty() {
                let types = &self.market.pools[pool].types;
                let each = draft.frontier.kinds.iter();
                each.map(|kind| room(&types[*kind].free, used, &class.row, most)).max().unwrap_or(0)
            } else {
                largest_room(self.market, signature, cap, (used, &draft.reserved), left, class, most)
            };
            if room > 0 {
                return Some(Fit { signature, room });
            }
        }
        None
    }

    /// Adds pods of a class to a draft; how many were added.
    pub(crate) fn add(&mut self, index: usize, number: usize, fit: &Fit, count: usize) -> usize {
        let times = i64::try_from(count).unwrap_or(i64::MAX);
        let class = &self.classes.list[number];
        let row = index * self.width..(index + 1) * self.width;
        let draft = &mut self.drafts[index];
        let pool = self.market.signature(fit.signature).pool;
        if !self.left[pool].is_empty() {
            let with = self.used[row.clone()].iter().zip(&class.row);
            let with: Vec<i64> =
                with.map(|(used, request)| used.saturating_add(request.saturating_mul(times))).collect();
            let left = &mut self.left[pool];
            let budget = sum(left, &draft.reserved);
            let cheapest = self.market.cheapest(self.market.signature(fit.signature), &with, &budget);
            let Some((_, kind)) = cheapest else { return 0 };
            draft.reserved.clone_from(&self.market.pools[pool].types[kind].charge);
            *left = difference(&budget, &draft.reserved);
        }
        if draft.signature != fit.signature {
            draft.signature = fit.signature;
            draft.frontier = self.market.frontier(fit.signature, draft.cap);
        }
        let most = draft.frontier.most.iter();
        let used = self.used[row.clone()].iter_mut().zip(&mut self.slack[row]);
        for (((used, slack), request), most) in used.zip(&class.row).zip(most) {
            *used = used.saturating_add(request.saturating_mul(times));
            *slack = most.saturating_sub(*used);
        }
        draft.pods += count;
        self.shelf.put(index, draft.pods);
        match draft.content.last_mut() {
            Some((last, placed)) if *last == number => *placed += count,
            _ => draft.content.push((number, count)),
        }
        if class.is_light {
            self.count_light(index, number, count);
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
                self.pop_draft();
                break;
            }
            placed += added;
        }
        placed
    }

    /// An empty draft. It must be filled or taken away again before anything else happens.
    pub(crate) fn push_draft(&mut self, signature: usize, cap: i64) {
        let limits = self.left[self.market.signature(signature).pool].len();
        let frontier = self.market.frontier(signature, cap);
        self.used.extend(&self.zeros);
        self.slack.extend(&frontier.most);
        self.drafts.push(Draft {
            signature,
            content: Vec::new(),
            pods: 0,
            cap,
            domains: Vec::new(),
            uncounted: Vec::new(),
            frontier,
            reserved: vec![0; limits],
            price: UsdPerHour::ZERO,
        });
    }

    /// Takes the last draft away, which is empty.
    pub(crate) fn pop_draft(&mut self) {
        self.drafts.pop();
        self.used.truncate(self.drafts.len() * self.width);
        self.slack.truncate(self.drafts.len() * self.width);
    }

    /// The pool that a class would open a draft in, how many of its pods fit, and up to which size the draft may grow: the heaviest pool
    /// that has anything, and among equals the cheapest per pod.
    pub(crate) fn best_offer(&mut self, number: usize, most: usize, pin: &Pin) -> Option<Offer> {
        let class = &self.classes.list[number];
        let mut best: Option<Offer> = None;
        for pool in 0..self.market.pools.len() {
            let weight = self.market.pools[pool].pool.weight;
            if best.as_ref().is_some_and(|best| self.is_even() || best.weight > weight) {
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
        pin.absent.iter().all(|key| self.market.lacks(signature, *key)).then_some(signature)
    }

    /// What a pool has for a class: its best value, how many pods fit, and up to which size the draft may grow.
    fn offer(&mut self, pool: usize, class: &Class<'_>, most: usize, pin: &Pin) -> Option<Offer> {
        if !self.market.tolerates(pool, class) {
            return None;
        }
        for term in &class.terms {
            let Some(number) = self.step(pool, *term, pin) else { continue };
            let (value, cap) = if self.is_even() {
                // Neither the price nor the size of anything matters to the incumbent.
                (Value { price: UsdPerHour::ZERO, pods: 1 }, i64::MAX)
            } else {
                match self.best_value(number, class, most) {
                    Some(found) => found,
                    None => continue,
                }
            };
            let left = &self.left[pool];
            let reserved = vec![0; left.len()];
            let room = largest_room(self.market, number, cap, (&self.zeros, &reserved), left, class, most);
            if room > 0 {
                let weight = self.market.pools[pool].pool.weight;
                return Some(Offer { weight, value, fit: Fit { signature: number, room }, cap });
            }
        }
        None
    }

    /// The best value that a signature has for a class, and up to which size a draft may grow for it.
    fn best_value(&self, number: usize, class: &Class<'_>, most: usize) -> Option<(Value, i64)> {
        let signature = self.market.signature(number);
        let table = self.market.table(signature);
        let left = &self.left[signature.pool];
        self.market.spend(signature.types.len());
        let mut best: Option<(Value, i64)> = None;
        let mut smallest: Option<i64> = None;
        for (price, kind) in &signature.types {
            let row = &table.types[*kind];
            let room = room(&row.free, &self.zeros, &class.row, most);
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
        let smallest = smallest?;
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
                .filter(|(_, kind)| room(&table.types[*kind].free, &self.zeros, &class.row, 1) == 1)
                .map(|(price, _)| Value { price: *price, pods: 1 })
                .next()?,
        };
        Some((value, cap))
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
        let types = &market.table(market.signature(number)).types;
        let room = |kind: &usize| room(&types[*kind].free, used, &class.row, most);
        return frontier.kinds.iter().map(room).max().unwrap_or(0);
    }
    let budget = sum(left, reserved);
    let signature = market.signature(number);
    let table = market.table(signature);
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
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    /// The weight of the pool.
    pub(crate) weight: i32,
    pub(crate) value: Value,
    pub(crate) fit: Fit,
    /// Up to which size the draft may grow.
    pub(crate) cap: i64,
}

/// A price for a number of pods.
#[derive(Clone, Copy, Debug)]
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

/// What is left together with what is given back.
pub(crate) fn sum(left: &[i64], reserved: &[i64]) -> Vec<i64> {
    left.iter().zip(reserved).map(|(left, reserved)| left.saturating_add(*reserved)).collect()
}

fn difference(all: &[i64], mine: &[i64]) -> Vec<i64> {
    all.iter().zip(mine).map(|(all, mine)| all.saturating_sub(*mine)).collect()
}

impl Packing {
    /// What the pods of a draft ask for together.
    pub(crate) fn used(&self, draft: usize) -> &[i64] {
        &self.used[draft * self.width..(draft + 1) * self.width]
    }

    /// Settles every draft on the price of the cheapest type that holds it, and says what all cost together. `None` if that breaks a limit,
    /// which happens only without a ledger.
    ///
    /// Each settled draft gives back what it had reserved too much, from which the others may gain: hence the passes, of which
    /// hardly ever more than two change anything.
    pub(crate) fn settle(&mut self, market: &Market<'_>, ledger: bool) -> Option<UsdPerHour> {
        const PASSES: usize = 4;
        if !ledger {
            let limits =
                market.pools.iter().map(|table| table.limits.iter().map(|(_, left)| *left).collect());
            self.left = limits.collect();
        }
        for pass in 0..PASSES {
            let mut changed = false;
            for (index, draft) in self.drafts.iter_mut().enumerate() {
                let signature = market.signature(draft.signature);
                let left = &mut self.left[signature.pool];
                let budget = if ledger { sum(left, &draft.reserved) } else { Vec::new() };
                let used = &self.used[index * self.width..(index + 1) * self.width];
                let Some((price, kind)) = market.cheapest(signature, used, &budget) else { continue };
                changed |= price != draft.price;
                draft.price = price;
                if !ledger {
                    draft.reserved = vec![0; left.len()];
                }
                let charge = &market.table(signature).types[kind].charge;
                for ((left, reserved), charge) in left.iter_mut().zip(&mut draft.reserved).zip(charge) {
                    *left = left.saturating_add(*reserved).saturating_sub(*charge);
                    *reserved = *charge;
                }
            }
            if !ledger || !changed || pass + 1 == PASSES {
                break;
            }
        }
        let broken = self.left.iter().flatten().any(|left| *left < 0);
        (ledger || !broken).then(|| self.drafts.iter().map(|draft| draft.price).sum())
    }
}
