//! First-fit-decreasing onto hypothetical nodes.
//!
//! A [`Bin`] is a node that is not bought yet: a pool, what its pods insist on and ask for
//! together, and no type. A pod is added while at least one offering still holds everything; which
//! one is bought is decided at the end. Left alone, bins grow towards the largest type on offer
//! whatever it costs, so a [`Strategy`] can cap their size. A cap never keeps a pod out: where the
//! pod alone is larger than the cap, the smallest size that holds it counts instead.
//!
//! Limits are kept by a ledger. A bin of a limited pool reserves what the cheapest type that
//! holds it would be charged, and grows only while some type fits into the reservation and what is
//! left together. So the sum of what is bought can never exceed a limit. Limits that are far away
//! need no ledger: it is enough to see afterwards that they were kept.

use std::collections::BTreeMap;
use std::rc::Rc;

use nap_units::UsdPerHour;

use crate::classes::{Classes, holds, room};
use crate::offerings::index::{Frontier, OfferingIndex};
use crate::packing::bin_queue::{BinQueue, Cursor};
use crate::packing::constrained::DomainAssignment;
use crate::packing::existing::{ExistingNodes, ExistingPlacement};
use crate::packing::open_bin::{NewBin, largest_room};
use crate::packing::result::Packing;
use crate::packing::rounded_columns::RoundedColumns;
use crate::topology::counts::Topology;
use crate::topology::groups::TopologyRules;

/// How large a bin may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SizeCap {
    /// As large as anything on offer.
    None,
    /// Up to this many milli-cores.
    Cpu(i64),
    /// Up to the size that costs least per pod of the class that opens it.
    BestValue,
}

/// In which order bins are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FillRule {
    /// The incumbent's habits: bins with the fewest pods first, and pools of equal weight by name
    /// instead of by price.
    Incumbent,
    /// The oldest bin first, and pools of equal weight by price.
    InOrder,
    /// A bin at a time, each filled with the classes that complement each other best; see the
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
    pub(crate) cap: SizeCap,
    pub(crate) fill_rule: FillRule,
}

/// A node that is not bought yet.
pub(crate) struct Bin {
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
pub(crate) struct ClusterState<'a> {
    pub(crate) standing: ExistingNodes<'a>,
    pub(crate) topology: Topology,
    /// The least skew that anybody insists on, for each counter.
    pub(crate) skews: Rc<[Option<i64>]>,
    pub(crate) rules: Rc<TopologyRules<'a>>,
}

/// What is to be packed, and how.
#[derive(Clone, Copy)]
pub(crate) struct PackingProblem<'t, 'a> {
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
    pub(crate) offerings: &'m mut OfferingIndex<'a>,
    pub(crate) classes: &'m Classes<'a>,
    pub(crate) strategy: Strategy,
    pub(crate) most_pods: usize,
    pub(crate) bins: Vec<Bin>,
    /// What the pods of each bin ask for together, one row after another.
    pub(crate) used: Vec<i64>,
    /// No type that a bin may still become has more than this left: most pods that do not fit are
    /// told by it at once.
    pub(crate) slack: Vec<i64>,
    pub(crate) width: usize,
    pub(crate) zeros: Vec<i64>,
    pub(crate) shelf: BinQueue,
    /// Drafts that cannot hold this take no more pods.
    least: Vec<i64>,
    pub(crate) left: Vec<Vec<i64>>,
    pub(crate) ground: ClusterState<'a>,
    pub(crate) seated: Vec<ExistingPlacement>,
    /// Pods that others want to be near are placed where nobody knows.
    is_roaming: bool,
}

/// Packs what is left of each class, beginning with what was bought already. Without a ledger,
/// whoever asks must see whether the limits were kept.
pub(crate) fn pack<'m, 'a>(
    offerings: &'m mut OfferingIndex<'a>,
    task: &PackingProblem<'m, 'a>,
    ground: ClusterState<'a>,
    strategy: Strategy,
    ledger: bool,
    purchase: Option<&RoundedColumns<'_>>,
) -> Packing {
    let limits = |table: &crate::offerings::pool_table::PoolTable<'_>| {
        table.limits.iter().map(|(_, left)| *left).collect()
    };
    let left = offerings
        .pools
        .iter()
        .map(|table| if ledger { limits(table) } else { Vec::new() })
        .collect();
    let width = offerings.width;
    let mut packer = Packer {
        classes: task.classes,
        strategy,
        most_pods: task.most_pods,
        bins: Vec::new(),
        used: Vec::new(),
        slack: Vec::new(),
        width,
        zeros: vec![0; width],
        shelf: BinQueue::new(strategy.fill_rule == FillRule::Incumbent),
        least: task.least.first().cloned().unwrap_or_default(),
        left,
        ground,
        is_roaming: false,
        seated: Vec::new(),
        offerings,
    };
    let mut unplaced = task.pending.to_vec();
    packer.open_reservations(task.reservations, unplaced.iter().sum());
    match strategy.fill_rule {
        FillRule::Patterns => packer.pack_by_patterns(&mut unplaced, task.worth),
        FillRule::Woven => packer.pack_by_weaving(&mut unplaced),
        FillRule::Columns => packer.pack_by_columns(&mut unplaced, task.worth, purchase),
        FillRule::Incumbent | FillRule::InOrder => packer.pack_by_class(&mut unplaced, task.least),
    }
    packer.try_again(&mut unplaced);
    let over_host_limit = packer.last_try(&mut unplaced);
    packer.drop_empty_drafts();
    packer.tie_the_rest();
    for (number, class) in
        task.classes.list.iter().enumerate().filter(|(number, class)| *number > class.base)
    {
        unplaced[class.base] += std::mem::take(&mut unplaced[number]);
    }
    Packing {
        bins: packer.bins,
        used: packer.used,
        width,
        unplaced,
        over_host_limit,
        left: packer.left,
        seated: packer.seated,
        topology: packer.ground.topology,
    }
}

/// Where a class would go on a bin, and how many of it fit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fit {
    pub(crate) signature: usize,
    pub(crate) room: usize,
}

impl Packer<'_, '_> {
    /// One class after another: first onto the bins that can still grow, then onto new ones.
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
            if left > 0 && class.may_ignore_domains {
                self.is_roaming = true;
                left = self.place_anywhere(number, left);
                self.is_roaming = false;
            }
        } else {
            if number > class.base {
                // The first form was tried on what exists before anything else.
                let ClusterState { standing, topology, .. } = &mut self.ground;
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

    /// What the pods of a bin ask for together.
    pub(crate) fn used_by(&self, index: usize) -> &[i64] {
        &self.used[index * self.width..(index + 1) * self.width]
    }

    pub(crate) fn is_even(&self) -> bool {
        self.strategy.fill_rule == FillRule::Incumbent
    }

    /// Looks at the next bin that can still grow.
    pub(crate) fn next_draft(&mut self, cursor: &mut Cursor) -> Option<usize> {
        while let Some(index) = self.shelf.next(cursor) {
            self.offerings.spend(1);
            let slack = &self.slack[index * self.width..(index + 1) * self.width];
            if self.bins[index].pods < self.most_pods && holds(slack, &self.least) {
                return Some(index);
            }
            self.shelf.close(index);
        }
        None
    }

    /// Makes every bin available again, whoever comes.
    pub(crate) fn reopen(&mut self) {
        self.least = self.zeros.clone();
        self.shelf = BinQueue::new(self.is_even());
        for (index, bin) in self.bins.iter().enumerate() {
            self.shelf.put(index, bin.pods);
        }
    }

    /// Puts pods that no rule binds onto the bins there are; how many are left.
    pub(crate) fn fill(&mut self, number: usize, mut count: usize) -> usize {
        // Pods that others look at go where they upset nobody, as far as possible.
        if self.classes.list[number].is_only_counted {
            count = self.fill_politely(number, count, true);
        }
        self.fill_politely(number, count, false)
    }

    fn fill_politely(&mut self, number: usize, mut count: usize, order_independent: bool) -> usize {
        self.shelf.tidy();
        let even = self.is_even();
        let mut cursor = Cursor::default();
        while count > 0
            && let Some(index) = self.next_draft(&mut cursor)
        {
            // The incumbent goes to the bin with the fewest pods each time: a bin that took one
            // is met again later.
            let most = if even { 1 } else { count };
            let most =
                if order_independent { most.min(self.polite_room(index, number)) } else { most };
            if let Some(fit) = self.fit(index, number, most, &DomainAssignment::default()) {
                let wanted = if even { fit.room } else { self.worth_joining(index, number, &fit) };
                if wanted > 0 {
                    count -= self.add(index, number, &fit, wanted);
                }
            }
        }
        count
    }

    /// How many of the pods that fit are cheaper on a bin than on a node of their own: growing a
    /// bin, or narrowing it to what pods insist on, can make it dear.
    fn worth_joining(&mut self, index: usize, number: usize, fit: &Fit) -> usize {
        let bin = &self.bins[index];
        if !bin.reserved.is_empty() {
            return fit.room;
        }
        let class = &self.classes.list[number];
        let used = &self.used[index * self.width..(index + 1) * self.width];
        let offerings = &*self.offerings;
        let price = |signature: usize, used: &[i64]| {
            offerings
                .cheapest(offerings.signature(signature), used, &[])
                .map(|(price, _)| price.micros())
        };
        let Some(before) = price(bin.signature, used) else { return fit.room };
        let pool = offerings.signature(bin.signature).pool;
        let mut count = fit.room;
        while count > 0 {
            let times = i64::try_from(count).unwrap_or(i64::MAX);
            let all: Vec<i64> =
                class.row.iter().map(|request| request.saturating_mul(times)).collect();
            let with: Vec<i64> = used.iter().zip(&all).map(|(a, b)| a.saturating_add(*b)).collect();
            let offerings = &*self.offerings;
            let after = offerings.cheapest(offerings.signature(fit.signature), &with, &[]);
            let Some((after, _)) = after else { return count };
            let alone = class.terms.iter().find_map(|term| {
                let signature = self.offerings.step(pool, *term)?;
                self.offerings.cheapest(self.offerings.signature(signature), &all, &[])
            });
            if alone.is_none_or(|(alone, _)| after.micros() - before <= alone.micros()) {
                return count;
            }
            count /= 2;
        }
        0
    }

    /// The first term of a class that suits a bin, and how many pods of it fit.
    pub(crate) fn fit(
        &mut self,
        index: usize,
        number: usize,
        most: usize,
        pin: &DomainAssignment,
    ) -> Option<Fit> {
        let class = &self.classes.list[number];
        let row = index * self.width..(index + 1) * self.width;
        if !holds(&self.slack[row.clone()], &class.row) {
            return None;
        }
        let (from, cap) = (self.bins[index].signature, self.bins[index].cap);
        let most = most.min(self.most_pods.saturating_sub(self.bins[index].pods));
        let pool = self.offerings.signature(from).pool;
        if most == 0 || !self.offerings.tolerates(pool, class) {
            return None;
        }
        for term in &class.terms {
            let Some(signature) = self.step(from, *term, pin) else { continue };
            let bin = &self.bins[index];
            let used = &self.used[row.clone()];
            let left = &self.left[pool];
            let room = if signature == from && left.is_empty() {
                let table = &self.offerings.pools[pool];
                let each = bin.frontier.kinds.iter();
                each.map(|kind| room(table.free(*kind), used, &class.row, most)).max().unwrap_or(0)
            } else {
                largest_room(
                    self.offerings,
                    signature,
                    cap,
                    (used, &bin.reserved),
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

    /// How many of so many pods leave a bin the choice that its pool insists on.
    fn diverse_room(&self, index: usize, signature: usize, row: &[i64], room: usize) -> usize {
        let signature = self.offerings.signature(signature);
        if room == 0 || signature.diversities.is_empty() {
            return room;
        }
        let bin = &self.bins[index];
        let used = &self.used[index * self.width..(index + 1) * self.width];
        let budget = sum(&self.left[signature.pool], &bin.reserved);
        if bin.pods > 0 {
            return self.offerings.diverse_room(signature, &bin.keep, used, row, room, &budget);
        }
        let keep = self.offerings.values_to_keep(signature, row, &budget);
        keep.map_or(0, |keep| {
            self.offerings.diverse_room(signature, &keep, used, row, room, &budget)
        })
    }

    /// Adds pods of a class to a bin; how many were added.
    pub(crate) fn add(&mut self, index: usize, number: usize, fit: &Fit, count: usize) -> usize {
        let times = i64::try_from(count).unwrap_or(i64::MAX);
        let class = &self.classes.list[number];
        let row = index * self.width..(index + 1) * self.width;
        let bin = &mut self.bins[index];
        let pool = self.offerings.signature(fit.signature).pool;
        if bin.pods == 0 {
            let budget = sum(&self.left[pool], &bin.reserved);
            let keep = self.offerings.values_to_keep(
                self.offerings.signature(fit.signature),
                &class.row,
                &budget,
            );
            bin.keep = keep.unwrap_or_default();
        }
        if !self.left[pool].is_empty() {
            let with = self.used[row.clone()].iter().zip(&class.row);
            let with: Vec<i64> = with
                .map(|(used, request)| used.saturating_add(request.saturating_mul(times)))
                .collect();
            let left = &mut self.left[pool];
            let budget = sum(left, &bin.reserved);
            let signature = self.offerings.signature(fit.signature);
            let Some(reserved) = self.offerings.reservation(signature, &with, &bin.keep, &budget)
            else {
                return 0;
            };
            bin.reserved = reserved;
            *left = difference(&budget, &bin.reserved);
        }
        if bin.signature != fit.signature {
            bin.signature = fit.signature;
            bin.frontier = self.offerings.frontier(fit.signature, bin.cap);
        }
        let most = bin.frontier.most.iter();
        let used = self.used[row.clone()].iter_mut().zip(&mut self.slack[row]);
        for (((used, slack), request), most) in used.zip(&class.row).zip(most) {
            *used = used.saturating_add(request.saturating_mul(times));
            *slack = most.saturating_sub(*used);
        }
        bin.pods += count;
        self.shelf.put(index, bin.pods);
        match bin.content.last_mut() {
            Some((last, placed)) if *last == number => *placed += count,
            _ => bin.content.push((number, count)),
        }
        if class.is_only_counted || self.is_roaming {
            self.count_light(index, number, count);
        }
        count
    }

    /// Opens bins for a class in the best pool; how many of its pods went there.
    fn open(&mut self, number: usize, count: usize) -> usize {
        let most = count.min(self.most_pods);
        let Some(NewBin { fit, cap, .. }) =
            self.best_offer(number, most, &DomainAssignment::default())
        else {
            return 0;
        };
        let limited = !self.left[self.offerings.signature(fit.signature).pool].is_empty();
        let mut placed = 0;
        // Full bins of a pool without limits are all alike: there is no need to look for the best
        // pool again.
        while placed == 0 || (!limited && count - placed >= fit.room) {
            self.push_bin(fit.signature, cap);
            let added = self.add(self.bins.len() - 1, number, &fit, fit.room);
            if added == 0 {
                self.pop_draft();
                break;
            }
            placed += added;
        }
        placed
    }

    /// An empty bin. It must be filled or taken away again before anything else happens.
    pub(crate) fn push_bin(&mut self, signature: usize, cap: i64) {
        let limits = self.left[self.offerings.signature(signature).pool].len();
        let frontier = self.offerings.frontier(signature, cap);
        self.used.extend(&self.zeros);
        self.slack.extend(&frontier.most);
        self.bins.push(Bin {
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

    /// Begins with machines that are paid for already: an empty bin for each, as far as there are
    /// pods for them. Those that stay empty are taken away at the end.
    fn open_reservations(&mut self, reservations: &BTreeMap<String, u32>, pods: usize) {
        for (reservation, count) in reservations {
            let count = usize::try_from(*count).unwrap_or(usize::MAX).min(pods);
            let pools = 0..self.offerings.pools.len();
            let signatures: Vec<usize> =
                pools.filter_map(|pool| self.offerings.reserved(pool, reservation)).collect();
            // Pools that share a reservation share its machines: the heaviest has them.
            let Some(signature) = signatures.first().copied() else { continue };
            for _ in 0..count {
                self.push_bin(signature, i64::MAX);
                self.shelf.put(self.bins.len() - 1, 0);
            }
        }
    }

    /// Whether a pod may be the first on a bin: a machine of a reservation is no reason to pass
    /// over a heavier pool.
    fn may_begin(&mut self, index: usize, number: usize) -> bool {
        if self.bins[index].pods > 0 {
            return true;
        }
        let weight = self.offerings.pools
            [self.offerings.signature(self.bins[index].signature).pool]
            .pool
            .weight;
        self.best_offer(number, 1, &DomainAssignment::default())
            .is_none_or(|best| best.weight <= weight)
    }

    fn drop_empty_drafts(&mut self) {
        if self.bins.iter().all(|bin| bin.pods > 0) {
            return;
        }
        let width = self.width;
        let is_used = |index: usize| self.bins[index].pods > 0;
        let kept: Vec<usize> = (0..self.bins.len()).filter(|index| is_used(*index)).collect();
        self.used = kept
            .iter()
            .flat_map(|index| &self.used[index * width..(index + 1) * width])
            .copied()
            .collect();
        self.bins.retain(|bin| bin.pods > 0);
    }

    /// Takes the last bin away, which is empty.
    pub(crate) fn pop_draft(&mut self) {
        self.bins.pop();
        self.used.truncate(self.bins.len() * self.width);
        self.slack.truncate(self.bins.len() * self.width);
    }

    /// The signature with one more term and a pin, if all agree.
    pub(crate) fn step(
        &mut self,
        from: usize,
        term: usize,
        pin: &DomainAssignment,
    ) -> Option<usize> {
        let mut signature = self.offerings.step(from, term)?;
        for pin in &pin.terms {
            signature = self.offerings.step(signature, *pin)?;
        }
        pin.absent.iter().all(|key| self.offerings.lacks(signature, *key)).then_some(signature)
    }
}

/// What is left together with what is given back.
pub(crate) fn sum(left: &[i64], reserved: &[i64]) -> Vec<i64> {
    left.iter().zip(reserved).map(|(left, reserved)| left.saturating_add(*reserved)).collect()
}

fn difference(all: &[i64], mine: &[i64]) -> Vec<i64> {
    all.iter().zip(mine).map(|(all, mine)| all.saturating_sub(*mine)).collect()
}
