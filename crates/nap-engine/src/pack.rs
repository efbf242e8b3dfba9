//! First-fit-decreasing onto hypothetical nodes.
//!
//! A [`Draft`] is a node that is not bought yet: a pool, what its pods insist on and ask for
//! together, and no type. A pod is added while at least one offering still holds everything; which
//! one is bought is decided at the end. Left alone, drafts grow towards the largest type on offer
//! whatever it costs, so a [`Strategy`] can cap their size. A cap never keeps a pod out: where the
//! pod alone is larger than the cap, the smallest size that holds it counts instead.
//!
//! Limits are kept by a ledger. A draft of a limited pool reserves what the cheapest type that
//! holds it would be charged, and grows only while some type fits into the reservation and what is
//! left together. So the sum of what is bought can never exceed a limit. Limits that are far away
//! need no ledger: it is enough to see afterwards that they were kept.

use std::collections::BTreeMap;
use std::rc::Rc;

use nap_units::UsdPerHour;

use crate::classes::{Classes, holds, room};
use crate::coupled::Pin;
use crate::existing::{Seated, Standing};
use crate::market::{Frontier, Market};
use crate::offer::{Offer, largest_room};
use crate::packing::Packing;
use crate::recipes::Purchase;
use crate::rules::Rules;
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
    /// The incumbent's habits: drafts with the fewest pods first, and pools of equal weight by name
    /// instead of by price.
    Incumbent,
    /// The oldest draft first, and pools of equal weight by price.
    InOrder,
    /// A draft at a time, each filled with the classes that complement each other best; see the
    /// module `patterns`.
    Patterns,
    /// The same with rules between pods taken into account; see the module `weave`.
    Woven,
    /// Nodes that column generation found, and patterns for the rest; see the module `recipes`.
    Columns,
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
    pub(crate) cap: i64,
    /// The domains that it is tied to: numbers of labels with the numbers of their values.
    pub(crate) domains: Vec<(usize, u32)>,
    /// Pods that somebody counts by a domain which is not known yet.
    pub(crate) uncounted: Vec<(usize, usize)>,
    /// How many values it must keep of each label of which its pool wants several.
    pub(crate) keep: Vec<usize>,
    /// The types that it may still grow to.
    pub(crate) frontier: Rc<Frontier>,
    /// What the ledger holds for it; empty without a ledger.
    pub(crate) reserved: Vec<i64>,
    /// What it costs once it is settled.
    pub(crate) price: UsdPerHour,
}

/// What is there before anything is packed.
#[derive(Clone)]
pub(crate) struct Ground<'a> {
    pub(crate) standing: Standing<'a>,
    pub(crate) topology: Topology,
    /// The least skew that anybody insists on, for each counter.
    pub(crate) skews: Rc<[Option<i64>]>,
    pub(crate) rules: Rc<Rules<'a>>,
}

/// What is to be packed, and how.
#[derive(Clone, Copy)]
pub(crate) struct Task<'t, 'a> {
    pub(crate) classes: &'t Classes<'a>,
    /// How many pods of each class.
    pub(crate) pending: &'t [usize],
    /// The most pods of a node.
    pub(crate) most_pods: usize,
    /// How many machines each reservation still has.
    pub(crate) reservations: &'t BTreeMap<String, u32>,
    /// For each class, the least that it or any class after it asks for.
    pub(crate) least: &'t [Vec<i64>],
    /// What a unit of each resource is worth.
    pub(crate) worth: &'t [f64],
}

/// A packing in the making.
pub(crate) struct Packer<'m, 'a> {
    pub(crate) market: &'m mut Market<'a>,
    pub(crate) classes: &'m Classes<'a>,
    pub(crate) strategy: Strategy,
    pub(crate) most_pods: usize,
    pub(crate) drafts: Vec<Draft>,
    /// What the pods of each draft ask for together, one row after another.
    pub(crate) used: Vec<i64>,
    /// No type that a draft may still become has more than this left: most pods that do not fit are
    /// told by it at once.
    pub(crate) slack: Vec<i64>,
    pub(crate) width: usize,
    pub(crate) zeros: Vec<i64>,
    pub(crate) shelf: Shelf,
    /// Drafts that cannot hold this take no more pods.
    least: Vec<i64>,
    pub(crate) left: Vec<Vec<i64>>,
    pub(crate) ground: Ground<'a>,
    pub(crate) seated: Vec<Seated>,
    /// Pods that others want to be near are placed where nobody knows.
    is_roaming: bool,
}

/// Packs what is left of each class, beginning with what was bought already. Without a ledger,
/// whoever asks must see whether the limits were kept.
pub(crate) fn pack<'m, 'a>(
    market: &'m mut Market<'a>,
    task: &Task<'m, 'a>,
    ground: Ground<'a>,
    strategy: Strategy,
    ledger: bool,
    purchase: Option<&Purchase<'_>>,
) -> Packing {
    let limits =
        |table: &crate::table::PoolTable<'_>| table.limits.iter().map(|(_, left)| *left).collect();
    let left =
        market.pools.iter().map(|table| if ledger { limits(table) } else { Vec::new() }).collect();
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
        is_roaming: false,
        seated: Vec::new(),
        market,
    };
    let mut unplaced = task.pending.to_vec();
    packer.open_reservations(task.reservations, unplaced.iter().sum());
    match strategy.manner {
        Manner::Patterns => packer.pack_by_patterns(&mut unplaced, task.worth),
        Manner::Woven => packer.pack_by_weaving(&mut unplaced),
        Manner::Columns => packer.pack_by_columns(&mut unplaced, task.worth, purchase),
        Manner::Incumbent | Manner::InOrder => packer.pack_by_class(&mut unplaced, task.least),
    }
    packer.try_again(&mut unplaced);
    let crowded = packer.last_try(&mut unplaced);
    packer.drop_empty_drafts();
    packer.tie_the_rest();
    for (number, class) in
        task.classes.list.iter().enumerate().filter(|(number, class)| *number > class.base)
    {
        unplaced[class.base] += std::mem::take(&mut unplaced[number]);
    }
    Packing {
        drafts: packer.drafts,
        used: packer.used,
        width,
        unplaced,
        crowded,
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
        for number in 0..pending.len() {
            if pending[number] > 0 {
                self.least.clone_from(&least[number]);
                self.place(number, pending);
            }
        }
    }

    /// Places the pods of a class; those without a place are left to the form of them that demands
    /// less.
    pub(crate) fn place(&mut self, number: usize, pending: &mut [usize]) {
        let class = &self.classes.list[number];
        let mut left = pending[number];
        if class.is_bound_by_rules() {
            left = self.place_coupled(number, left);
            if left > 0 && class.may_roam {
                self.is_roaming = true;
                left = self.place_anywhere(number, left);
                self.is_roaming = false;
            }
        } else {
            if number > class.base {
                // The first form was tried on what exists before anything else.
                let Ground { standing, topology, .. } = &mut self.ground;
                left = standing.fill_with(number, left, self.classes, topology, &mut self.seated);
            }
            left = self.place_anywhere(number, left);
        }
        pending[number] = left;
        if let Some(next) = self.classes.fallback(number) {
            pending[next] += std::mem::take(&mut pending[number]);
        }
    }

    /// Places pods that no rule binds to a domain; how many are left.
    fn place_anywhere(&mut self, number: usize, count: usize) -> usize {
        let mut left = self.fill(number, count);
        while left > 0 {
            let opened = self.open(number, left);
            if opened == 0 {
                break;
            }
            left -= opened;
        }
        left
    }

    /// What the pods of a draft ask for together.
    pub(crate) fn used_by(&self, index: usize) -> &[i64] {
        &self.used[index * self.width..(index + 1) * self.width]
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
        // Pods that others look at go where they upset nobody, as far as possible.
        if self.classes.list[number].is_light {
            count = self.fill_politely(number, count, true);
        }
        self.fill_politely(number, count, false)
    }

    fn fill_politely(&mut self, number: usize, mut count: usize, polite: bool) -> usize {
        self.shelf.tidy();
        let even = self.is_even();
        let mut cursor = Cursor::default();
        while count > 0
            && let Some(index) = self.next_draft(&mut cursor)
        {
            // The incumbent goes to the draft with the fewest pods each time: a draft that took one
            // is met again later.
            let most = if even { 1 } else { count };
            let most = if polite { most.min(self.polite_room(index, number)) } else { most };
            if let Some(fit) = self.fit(index, number, most, &Pin::default()) {
                let wanted = if even { fit.room } else { self.worth_joining(index, number, &fit) };
                if wanted > 0 {
                    count -= self.add(index, number, &fit, wanted);
                }
            }
        }
        count
    }

    /// How many of the pods that fit are cheaper on a draft than on a node of their own: growing a
    /// draft, or narrowing it to what pods insist on, can make it dear.
    fn worth_joining(&mut self, index: usize, number: usize, fit: &Fit) -> usize {
        let draft = &self.drafts[index];
        if !draft.reserved.is_empty() {
            return fit.room;
        }
        let class = &self.classes.list[number];
        let used = &self.used[index * self.width..(index + 1) * self.width];
        let market = &*self.market;
        let price = |signature: usize, used: &[i64]| {
            market.cheapest(market.signature(signature), used, &[]).map(|(price, _)| price.micros())
        };
        let Some(before) = price(draft.signature, used) else { return fit.room };
        let pool = market.signature(draft.signature).pool;
        let mut count = fit.room;
        while count > 0 {
            let times = i64::try_from(count).unwrap_or(i64::MAX);
            let all: Vec<i64> =
                class.row.iter().map(|request| request.saturating_mul(times)).collect();
            let with: Vec<i64> = used.iter().zip(&all).map(|(a, b)| a.saturating_add(*b)).collect();
            let market = &*self.market;
            let after = market.cheapest(market.signature(fit.signature), &with, &[]);
            let Some((after, _)) = after else { return count };
            let alone = class.terms.iter().find_map(|term| {
                let signature = self.market.step(pool, *term)?;
                self.market.cheapest(self.market.signature(signature), &all, &[])
            });
            if alone.is_none_or(|(alone, _)| after.micros() - before <= alone.micros()) {
                return count;
            }
            count /= 2;
        }
        0
    }

    /// The first term of a class that suits a draft, and how many pods of it fit.
    pub(crate) fn fit(
        &mut self,
        index: usize,
        number: usize,
        most: usize,
        pin: &Pin,
    ) -> Option<Fit> {
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
                let table = &self.market.pools[pool];
                let each = draft.frontier.kinds.iter();
                each.map(|kind| room(table.free(*kind), used, &class.row, most)).max().unwrap_or(0)
            } else {
                largest_room(
                    self.market,
                    signature,
                    cap,
                    (used, &draft.reserved),
                    left,
                    class,
                    most,
                )
            };
            let room = self.diverse_room(index, signature, &class.row, room);
            if room > 0 && self.may_begin(index, number) {
                return Some(Fit { signature, room });
            }
        }
        None
    }

    /// How many of so many pods leave a draft the choice that its pool insists on.
    fn diverse_room(&self, index: usize, signature: usize, row: &[i64], room: usize) -> usize {
        let signature = self.market.signature(signature);
        if room == 0 || signature.diversities.is_empty() {
            return room;
        }
        let draft = &self.drafts[index];
        let used = &self.used[index * self.width..(index + 1) * self.width];
        let budget = sum(&self.left[signature.pool], &draft.reserved);
        if draft.pods > 0 {
            return self.market.diverse_room(signature, &draft.keep, used, row, room, &budget);
        }
        let keep = self.market.values_to_keep(signature, row, &budget);
        keep.map_or(0, |keep| self.market.diverse_room(signature, &keep, used, row, room, &budget))
    }

    /// Adds pods of a class to a draft; how many were added.
    pub(crate) fn add(&mut self, index: usize, number: usize, fit: &Fit, count: usize) -> usize {
        let times = i64::try_from(count).unwrap_or(i64::MAX);
        let class = &self.classes.list[number];
        let row = index * self.width..(index + 1) * self.width;
        let draft = &mut self.drafts[index];
        let pool = self.market.signature(fit.signature).pool;
        if draft.pods == 0 {
            let budget = sum(&self.left[pool], &draft.reserved);
            let keep = self.market.values_to_keep(
                self.market.signature(fit.signature),
                &class.row,
                &budget,
            );
            draft.keep = keep.unwrap_or_default();
        }
        if !self.left[pool].is_empty() {
            let with = self.used[row.clone()].iter().zip(&class.row);
            let with: Vec<i64> = with
                .map(|(used, request)| used.saturating_add(request.saturating_mul(times)))
                .collect();
            let left = &mut self.left[pool];
            let budget = sum(left, &draft.reserved);
            let signature = self.market.signature(fit.signature);
            let Some(reserved) = self.market.reservation(signature, &with, &draft.keep, &budget)
            else {
                return 0;
            };
            draft.reserved = reserved;
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
        if class.is_light || self.is_roaming {
            self.count_light(index, number, count);
        }
        count
    }

    /// Opens drafts for a class in the best pool; how many of its pods went there.
    fn open(&mut self, number: usize, count: usize) -> usize {
        let most = count.min(self.most_pods);
        let Some(Offer { fit, cap, .. }) = self.best_offer(number, most, &Pin::default()) else {
            return 0;
        };
        let limited = !self.left[self.market.signature(fit.signature).pool].is_empty();
        let mut placed = 0;
        // Full drafts of a pool without limits are all alike: there is no need to look for the best
        // pool again.
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
            keep: Vec::new(),
            frontier,
            reserved: vec![0; limits],
            price: UsdPerHour::ZERO,
        });
    }

    /// Begins with machines that are paid for already: an empty draft for each, as far as there are
    /// pods for them. Those that stay empty are taken away at the end.
    fn open_reservations(&mut self, reservations: &BTreeMap<String, u32>, pods: usize) {
        for (reservation, count) in reservations {
            let count = usize::try_from(*count).unwrap_or(usize::MAX).min(pods);
            let pools = 0..self.market.pools.len();
            let signatures: Vec<usize> =
                pools.filter_map(|pool| self.market.reserved(pool, reservation)).collect();
            // Pools that share a reservation share its machines: the heaviest has them.
            let Some(signature) = signatures.first().copied() else { continue };
            for _ in 0..count {
                self.push_draft(signature, i64::MAX);
                self.shelf.put(self.drafts.len() - 1, 0);
            }
        }
    }

    /// Whether a pod may be the first on a draft: a machine of a reservation is no reason to pass
    /// over a heavier pool.
    fn may_begin(&mut self, index: usize, number: usize) -> bool {
        if self.drafts[index].pods > 0 {
            return true;
        }
        let weight =
            self.market.pools[self.market.signature(self.drafts[index].signature).pool].pool.weight;
        self.best_offer(number, 1, &Pin::default()).is_none_or(|best| best.weight <= weight)
    }

    fn drop_empty_drafts(&mut self) {
        if self.drafts.iter().all(|draft| draft.pods > 0) {
            return;
        }
        let width = self.width;
        let is_used = |index: usize| self.drafts[index].pods > 0;
        let kept: Vec<usize> = (0..self.drafts.len()).filter(|index| is_used(*index)).collect();
        self.used = kept
            .iter()
            .flat_map(|index| &self.used[index * width..(index + 1) * width])
            .copied()
            .collect();
        self.drafts.retain(|draft| draft.pods > 0);
    }

    /// Takes the last draft away, which is empty.
    pub(crate) fn pop_draft(&mut self) {
        self.drafts.pop();
        self.used.truncate(self.drafts.len() * self.width);
        self.slack.truncate(self.drafts.len() * self.width);
    }

    /// The signature with one more term and a pin, if all agree.
    pub(crate) fn step(&mut self, from: usize, term: usize, pin: &Pin) -> Option<usize> {
        let mut signature = self.market.step(from, term)?;
        for pin in &pin.terms {
            signature = self.market.step(signature, *pin)?;
        }
        pin.absent.iter().all(|key| self.market.lacks(signature, *key)).then_some(signature)
    }
}

/// What is left together with what is given back.
pub(crate) fn sum(left: &[i64], reserved: &[i64]) -> Vec<i64> {
    left.iter().zip(reserved).map(|(left, reserved)| left.saturating_add(*reserved)).collect()
}

fn difference(all: &[i64], mine: &[i64]) -> Vec<i64> {
    all.iter().zip(mine).map(|(all, mine)| all.saturating_sub(*mine)).collect()
}
