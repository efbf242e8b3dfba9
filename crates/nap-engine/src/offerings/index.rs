//! What can be bought: the offerings of each pool as flat, sorted tables, and which of them suit
//! which requirements.
//!
//! Label requirements are compared once per distinct combination of a pool and the terms of its
//! pods, a [`EligibleOfferings`]; after that everything is integers. A signature knows its offerings as a
//! set of bits over the pool's table, and its types in price order. While a node grows, only the
//! types that no other type exceeds in every resource matter: its [`Frontier`], which is a handful.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use fixedbitset::FixedBitSet;
use nap_api::requirement::{Incompatible, Undefined};
use nap_api::{Operator, Requirement, Requirements, Taint, labels};
use nap_units::UsdPerHour;

use crate::classes::{Class, Classes, Dimensions, holds};
use crate::model::{MinValuesPolicy, Options, RESERVATION_ID, Snapshot};
use crate::offerings::daemon_overhead::{SolverCache, in_order, stock};
use crate::offerings::min_values::MinValuesRule;
use crate::offerings::pool_table::PoolTable;
use crate::packing::constrained::DomainAssignment;

/// How many types share one note of what they and cheaper ones have at most.
const STRIDE: usize = 16;

/// The values that a requirement names, unless it names what is excluded.
pub(crate) fn listed(requirement: &Requirement) -> impl Iterator<Item = &str> {
    let named = requirement.operator() == Operator::In;
    requirement.values().iter().filter(move |_| named).map(String::as_str)
}

/// Whether an offering with these requirements is not tied to a zone. Such ones come last among
/// equals: a machine with a zone is worth more.
pub(crate) fn is_regional(requirements: &Requirements) -> bool {
    let scope = requirements.get(labels::PLACEMENT_SCOPE);
    scope.and_then(Requirement::single) == Some("regional")
}

/// A pool and everything that the pods of a node insist on, and what of the pool's table suits
/// that.
pub(crate) struct EligibleOfferings {
    /// Index of the pool.
    pub(crate) pool: usize,
    pub(crate) requirements: Arc<Requirements>,
    /// Offerings that suit, whether or not they can be had.
    pub(crate) compatible: FixedBitSet,
    /// Those that can be had and whose type holds at least its daemons.
    pub(crate) usable: FixedBitSet,
    /// The distinct requirements that the usable ones have.
    wishes: FixedBitSet,
    /// The types of the usable ones with their lowest price, cheapest first.
    pub(crate) types: Vec<(UsdPerHour, usize)>,
    /// The cheapest usable offering of each.
    pub(crate) first: Vec<usize>,
    /// The same types as a set.
    pub(crate) kinds: FixedBitSet,
    /// The labels of which the pool wants several values.
    pub(crate) diversities: Vec<MinValuesRule>,
    /// For each so many of `types`, the most that they or cheaper ones have of each dimension:
    /// where a search may begin.
    reach: Vec<i64>,
}

/// The types that no other type exceeds in every dimension, and the most that any has of each.
pub(crate) struct Frontier {
    pub(crate) kinds: Vec<usize>,
    pub(crate) most: Vec<i64>,
}

/// Where a signature leads with one more term.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Unknown,
    Nowhere,
    To(usize),
}

/// Every pool's table, and the signatures met so far.
pub(crate) struct OfferingIndex<'a> {
    /// By weight (highest first), then number of taints, then name.
    pub(crate) pools: Vec<PoolTable<'a>>,
    /// The most milli-cores of a new node.
    most_cpu: i64,
    /// What is added to the price of each node where prices are compared.
    pub(crate) node_cost: UsdPerHour,
    /// What to do where there are too few values of a label.
    pub(crate) min_values: MinValuesPolicy,
    /// How many dimensions there are.
    pub(crate) width: usize,
    /// How many of them are resources; they come first.
    pub(crate) resources: usize,
    terms: Vec<Cow<'a, Requirements>>,
    /// Numbers of the terms that no pod has: pins to a domain, and what else was asked about.
    other_terms: BTreeMap<Requirements, usize>,
    /// The labels whose values are domains.
    keys: Vec<&'a str>,
    /// The values met so far of each of these labels, with their numbers.
    values: Vec<BTreeMap<Rc<str>, u32>>,
    names: Vec<Vec<Rc<str>>>,
    /// The values of a label that a signature's offerings have between them.
    domains: BTreeMap<(usize, usize), Rc<[u32]>>,
    signatures: Vec<Rc<EligibleOfferings>>,
    numbers: BTreeMap<(usize, Requirements), usize>,
    steps: Vec<Vec<Step>>,
    frontiers: BTreeMap<(usize, i64), Rc<Frontier>>,
    /// By pool, the signatures of machines that are part of a reservation.
    reserved: BTreeMap<usize, Vec<usize>>,
    tolerated: Vec<Vec<Option<bool>>>,
    /// The combinations of domains that a wish has by some labels.
    pub(crate) pins: BTreeMap<(usize, Vec<usize>), Rc<[DomainAssignment]>>,
    /// The combinations of domains by all labels that a signature has.
    pub(crate) full_pins: BTreeMap<usize, Rc<[Rc<DomainAssignment>]>>,
    /// How many comparisons were made so far, roughly.
    effort: Cell<usize>,
}

impl<'a> OfferingIndex<'a> {
    pub(crate) fn new(
        prepared: &'a SolverCache,
        snapshot: &'a Snapshot,
        options: &Options,
        dimensions: &Dimensions<'a>,
        classes: &Classes<'a>,
        keys: &[&'a str],
    ) -> Self {
        let pools = in_order(&snapshot.pools).into_iter().zip(&prepared.pools);
        let mut offerings = Self {
            pools: pools
                .map(|(pool, ready)| {
                    let stock = stock(snapshot, pool);
                    PoolTable::new(pool, ready, stock, dimensions, options.slack_percent)
                })
                .collect(),
            most_cpu: options.max_cpu_per_node.map_or(i64::MAX, |most| most.saturating_mul(1000)),
            node_cost: options.node_cost,
            min_values: options.min_values,
            width: dimensions.len(),
            resources: dimensions.resources().len(),
            terms: classes.terms.clone(),
            other_terms: BTreeMap::new(),
            keys: keys.to_vec(),
            values: vec![BTreeMap::new(); keys.len()],
            names: vec![Vec::new(); keys.len()],
            domains: BTreeMap::new(),
            signatures: Vec::new(),
            numbers: BTreeMap::new(),
            steps: Vec::new(),
            frontiers: BTreeMap::new(),
            reserved: BTreeMap::new(),
            tolerated: Vec::new(),
            pins: BTreeMap::new(),
            full_pins: BTreeMap::new(),
            effort: Cell::new(0),
        };
        for pool in 0..offerings.pools.len() {
            // The signature of a pool without pods has the pool's own number.
            offerings.add_signature(pool, offerings.pools[pool].pool.requirements.clone());
            offerings.tolerated.push(Vec::new());
        }
        offerings.name_domains(snapshot);
        offerings
    }

    /// Numbers the domains that exist or can be bought in the order of their names.
    fn name_domains(&mut self, snapshot: &'a Snapshot) {
        for key in 0..self.keys.len() {
            let label = self.keys[key];
            let mut names: BTreeSet<&str> = snapshot
                .nodes
                .iter()
                .filter_map(|node| node.labels.get(label))
                .map(String::as_str)
                .collect();
            for (pool, table) in self.pools.iter().enumerate() {
                names.extend(self.offered_values(pool, label));
                names.extend(table.pool.requirements.get(label).into_iter().flat_map(listed));
            }
            let names: Vec<Rc<str>> = names.into_iter().map(Rc::from).collect();
            for name in names {
                self.domain(key, &name);
            }
        }
    }

    /// How many labels have values that are domains.
    pub(crate) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// The number of a value of one of the labels whose values are domains.
    pub(crate) fn domain(&mut self, key: usize, value: &str) -> u32 {
        if let Some(known) = self.values[key].get(value) {
            return *known;
        }
        let number = u32::try_from(self.names[key].len()).unwrap_or(u32::MAX - 1);
        let name: Rc<str> = Rc::from(value);
        self.names[key].push(Rc::clone(&name));
        self.values[key].insert(name, number);
        number
    }

    /// A signature by its number. The number of a pool is the number of the signature without pods.
    pub(crate) fn signature(&self, number: usize) -> &Rc<EligibleOfferings> {
        &self.signatures[number]
    }

    /// The table behind a signature.
    pub(crate) fn table(&self, signature: &EligibleOfferings) -> &PoolTable<'a> {
        &self.pools[signature.pool]
    }

    /// The taint of a pool that keeps a class away.
    pub(crate) fn repelling_taint(&self, pool: usize, class: &Class<'_>) -> Option<&'a Taint> {
        class.repelled_by(&self.pools[pool].pool.taints)
    }

    /// Whether a class tolerates all taints of a pool.
    pub(crate) fn tolerates(&mut self, pool: usize, class: &Class<'_>) -> bool {
        if let Some(Some(known)) = self.tolerated[pool].get(class.wish) {
            return *known;
        }
        let tolerated = self.repelling_taint(pool, class).is_none();
        let row = &mut self.tolerated[pool];
        row.resize(row.len().max(class.wish + 1), None);
        row[class.wish] = Some(tolerated);
        tolerated
    }

    /// The number of a term that no pod need have.
    pub(crate) fn term(&mut self, term: &Requirements) -> usize {
        if let Some(known) = self.other_terms.get(term) {
            return *known;
        }
        let number = self.terms.len();
        self.terms.push(Cow::Owned(term.clone()));
        self.other_terms.insert(term.clone(), number);
        number
    }

    /// The number of the term that says all that some terms say, if they agree.
    pub(crate) fn merged(&mut self, term: usize, others: &[usize]) -> Option<usize> {
        if others.is_empty() {
            return Some(term);
        }
        let mut merged = self.terms[term].clone().into_owned();
        for other in others {
            merged.intersects(&self.terms[*other]).ok()?;
            merged.extend(&self.terms[*other]);
        }
        Some(self.term(&merged))
    }

    /// The number of the term that ties a node to a domain.
    pub(crate) fn pin(&mut self, key: usize, value: u32) -> usize {
        let name = self.names[key].get(usize::try_from(value).unwrap_or(usize::MAX)).cloned();
        let mut pin = Requirements::new();
        pin.add(self.keys[key], Requirement::is_in(name.as_deref()));
        self.term(&pin)
    }

    /// The values of a label that the offerings of a signature have between them, those that can be
    /// had. A zone that stands for no zone in particular counts only where there is nothing else.
    fn offered_values(&self, signature: usize, key: &str) -> BTreeSet<&'a str> {
        let entry = &self.signatures[signature];
        let table = &self.pools[entry.pool];
        let insisted = entry.requirements.get(key);
        let mut values: BTreeSet<&'a str> = BTreeSet::new();
        let mut vague: BTreeSet<&'a str> = BTreeSet::new();
        let allowed = |value: &&str| insisted.is_none_or(|insisted| insisted.allows(value));
        let mut silent = FixedBitSet::with_capacity(entry.wishes.len());
        for (wish, requirements) in
            table.stock.wishes().enumerate().filter(|(wish, _)| entry.wishes.contains(*wish))
        {
            let set = if key == labels::ZONE && is_regional(requirements) {
                &mut vague
            } else {
                &mut values
            };
            match requirements.get(key) {
                Some(requirement) => set.extend(listed(requirement).filter(allowed)),
                None => silent.insert(wish),
            }
        }
        // Where offerings say nothing, their types may.
        if let Some(column) = table.stock.column(key).filter(|_| !silent.is_clear()) {
            for offer in entry.usable.ones().map(|index| table.stock.offers()[index]) {
                if let Some(value) =
                    column.value_of[offer.kind()].filter(|_| silent.contains(offer.wish()))
                {
                    let is_vague = key == labels::ZONE
                        && is_regional(&table.stock.offering(offer).requirements);
                    let set = if is_vague { &mut vague } else { &mut values };
                    set.extend(listed(&column.values[value]).filter(allowed));
                }
            }
        }
        if values.is_empty() { vague } else { values }
    }

    /// The domains of a label that the offerings of a signature have between them.
    pub(crate) fn domains(&mut self, signature: usize, key: usize) -> Rc<[u32]> {
        if let Some(known) = self.domains.get(&(signature, key)) {
            return Rc::clone(known);
        }
        let label = self.keys[key];
        let mut values: BTreeSet<Rc<str>> =
            self.offered_values(signature, label).into_iter().map(Rc::from).collect();
        // Where only the pods say what the label is, a node has what they say.
        if let Some(insisted) = self.signatures[signature].requirements.get(label)
            && self.offers_unlabelled(signature, label)
        {
            values.extend(listed(insisted).map(Rc::from));
        }
        let domains: Rc<[u32]> = values.iter().map(|value| self.domain(key, value)).collect();
        self.domains.insert((signature, key), Rc::clone(&domains));
        domains
    }

    /// Whether some usable offering says nothing about a label, and neither does its type.
    fn offers_unlabelled(&self, signature: usize, key: &str) -> bool {
        let entry = &self.signatures[signature];
        let table = &self.pools[entry.pool];
        let silent: Vec<bool> = table.stock.wishes().map(|wish| wish.get(key).is_none()).collect();
        let column = table.stock.column(key);
        let is_silent = |kind: usize| column.is_none_or(|column| column.value_of[kind].is_none());
        entry.wishes.ones().any(|wish| silent[wish])
            && entry
                .usable
                .ones()
                .map(|index| table.stock.offers()[index])
                .any(|offer| silent[offer.wish()] && is_silent(offer.kind()))
    }

    /// Whether nodes of a signature will certainly not have a label.
    pub(crate) fn lacks(&mut self, signature: usize, key: usize) -> bool {
        if !self.domains(signature, key).is_empty() {
            return false;
        }
        let insisted = self.signatures[signature].requirements.get(self.keys[key]);
        insisted
            .is_none_or(|insisted| insisted.allows_absent() && listed(insisted).next().is_none())
    }

    /// Why a term cannot be added to a signature. Only the pool gives nodes a label: a pod that
    /// does not want one defines nothing.
    pub(crate) fn conflict(&self, signature: usize, term: usize) -> Option<Incompatible> {
        let mine = &self.signatures[signature];
        let term = &self.terms[term];
        let own =
            self.pools[mine.pool].pool.requirements.compatible(term, Undefined::AllowWellKnown);
        own.and_then(|()| mine.requirements.compatible(term, Undefined::AllowWellKnown)).err()
    }

    /// The signature with one more term, if they agree.
    pub(crate) fn step(&mut self, signature: usize, term: usize) -> Option<usize> {
        match self.steps[signature].get(term) {
            Some(Step::To(next)) => return Some(*next),
            Some(Step::Nowhere) => return None,
            Some(Step::Unknown) | None => {}
        }
        let next = if self.conflict(signature, term).is_some() {
            None
        } else {
            let mine = &self.signatures[signature];
            let pool = mine.pool;
            let mut requirements = Requirements::clone(&mine.requirements);
            requirements.extend(&self.terms[term]);
            let known = self.numbers.get(&(pool, requirements.clone())).copied();
            Some(known.unwrap_or_else(|| self.add_signature(pool, requirements)))
        };
        let steps = &mut self.steps[signature];
        steps.resize(steps.len().max(term + 1), Step::Unknown);
        steps[term] = next.map_or(Step::Nowhere, Step::To);
        next
    }

    /// The signature of a pool for machines that are part of a reservation, if the pool has any.
    pub(crate) fn reserved(&mut self, pool: usize, reservation: &str) -> Option<usize> {
        let mut requirements = self.pools[pool].pool.requirements.clone();
        requirements.add(RESERVATION_ID, Requirement::is_in([reservation]));
        let known = self.numbers.get(&(pool, requirements.clone())).copied();
        let number = known.unwrap_or_else(|| {
            let number = self.add_signature(pool, requirements);
            self.reserved.entry(pool).or_default().push(number);
            number
        });
        (!self.signatures[number].types.is_empty()).then_some(number)
    }

    /// The signatures met so far of a pool's machines that are part of a reservation.
    pub(crate) fn reserved_in(&self, pool: usize) -> &[usize] {
        self.reserved.get(&pool).map_or(&[], Vec::as_slice)
    }

    fn add_signature(&mut self, pool: usize, requirements: Requirements) -> usize {
        let number = self.signatures.len();
        let signature = self.build_eligibility(pool, requirements.clone());
        self.signatures.push(Rc::new(signature));
        self.steps.push(Vec::new());
        self.numbers.insert((pool, requirements), number);
        number
    }

    /// Whether a type is no larger than nodes may be.
    pub(crate) fn allows_size(&self, pool: usize, kind: usize) -> bool {
        self.pools[pool].types[kind].cpu <= self.most_cpu
    }

    fn build_eligibility(&self, pool: usize, requirements: Requirements) -> EligibleOfferings {
        let table = &self.pools[pool];
        let stock = table.stock;
        let mut suits: Vec<bool> = vec![true; table.types.len()];
        for (key, ours) in requirements.iter() {
            let Some(column) = stock.column(key) else { continue };
            let agrees = |theirs: &Requirement| {
                (ours.allows_absent() && theirs.allows_absent()) || ours.intersects(theirs)
            };
            let agrees: Vec<bool> = column.values.iter().map(agrees).collect();
            for (suits, value) in suits.iter_mut().zip(&column.value_of) {
                *suits &= value.is_none_or(|value| agrees[value]);
            }
        }
        // What is reserved is counted, and so only for nodes that were meant to be part of a
        // reservation.
        let reservation = requirements.get(RESERVATION_ID);
        let is_meant =
            |wish: &Requirements| reservation.is_some() == wish.get(RESERVATION_ID).is_some();
        let suits_wish =
            |wish: &&Requirements| is_meant(wish) && requirements.intersects(wish).is_ok();
        let wishes = stock.wishes().enumerate().filter(|(_, wish)| suits_wish(wish));
        let suited = stock.offers_of(wishes.map(|(number, _)| number));
        let has_room: Vec<bool> = (0..table.types.len())
            .map(|kind| {
                self.allows_size(pool, kind) && table.free(kind).iter().all(|free| *free >= 0)
            })
            .collect();
        let mut compatible = FixedBitSet::with_capacity(table.offers());
        let mut usable = FixedBitSet::with_capacity(table.offers());
        let mut kinds = FixedBitSet::with_capacity(table.types.len());
        let mut types: Vec<(UsdPerHour, usize)> = Vec::new();
        let mut first: Vec<usize> = Vec::new();
        let mut used_wishes = FixedBitSet::with_capacity(stock.wishes().len());
        let mut reach: Vec<i64> = Vec::new();
        let mut most = vec![i64::MIN; self.width];
        for index in suited.ones() {
            let offer = stock.offers()[index];
            let kind = offer.kind();
            if !suits[kind] {
                continue;
            }
            compatible.insert(index);
            if !offer.is_available || !has_room[kind] {
                continue;
            }
            usable.insert(index);
            used_wishes.insert(offer.wish());
            if !kinds.put(kind) {
                types.push((offer.price + self.node_cost, kind));
                first.push(index);
                for (most, free) in most.iter_mut().zip(table.free(kind)) {
                    *most = (*most).max(*free);
                }
                if types.len().is_multiple_of(STRIDE) {
                    reach.extend(&most);
                }
            }
        }
        let wants_values = requirements.iter().any(|(_, one)| one.min_values().is_some());
        let requirements = Arc::new(requirements);
        let diversities = Vec::new();
        let mut signature = EligibleOfferings {
            pool,
            requirements,
            compatible,
            usable,
            wishes: used_wishes,
            types,
            first,
            kinds,
            diversities,
            reach,
        };
        if wants_values {
            signature.diversities = self.diversities(&signature);
        }
        signature
    }

    /// The cheapest type of a signature that holds what is used and stays within the budget.
    pub(crate) fn cheapest(
        &self,
        signature: &EligibleOfferings,
        used: &[i64],
        budget: &[i64],
    ) -> Option<(UsdPerHour, usize)> {
        let table = self.table(signature);
        let low = self.too_small(signature, used);
        let found = signature.types[low..]
            .iter()
            .position(|(_, kind)| holds(table.free(*kind), used) && table.within(*kind, budget));
        self.spend(found.unwrap_or(signature.types.len() - low));
        found.map(|position| signature.types[low + position])
    }

    /// How many of a signature's cheapest types certainly do not hold what is used.
    pub(crate) fn too_small(&self, signature: &EligibleOfferings, used: &[i64]) -> usize {
        let reach = |block: usize| &signature.reach[block * self.width..(block + 1) * self.width];
        let (mut low, mut high) = (0, signature.types.len() / STRIDE);
        while low < high {
            let middle = usize::midpoint(low, high);
            if holds(reach(middle), used) { high = middle } else { low = middle + 1 }
        }
        let before = if low > 0 { Some(reach(low - 1)) } else { None };
        let begin = low * STRIDE;
        // Of what the types before have too little, the first that has enough.
        let table = self.table(signature);
        let block = &signature.types[begin..];
        let lacking = (0..used.len())
            .filter(|dimension| before.is_none_or(|before| before[*dimension] < used[*dimension]));
        let first = lacking.map(|dimension| {
            let enough =
                |(_, kind): &(UsdPerHour, usize)| table.free(*kind)[dimension] >= used[dimension];
            block.iter().position(enough).unwrap_or(block.len())
        });
        begin + first.max().unwrap_or(0)
    }

    /// The frontier of a signature's types that are no larger than the cap.
    pub(crate) fn frontier(&mut self, signature: usize, cap: i64) -> Rc<Frontier> {
        if let Some(known) = self.frontiers.get(&(signature, cap)) {
            return Rc::clone(known);
        }
        let entry = &self.signatures[signature];
        let table = &self.pools[entry.pool];
        let types = &table.types;
        let mut kinds: Vec<usize> = Vec::new();
        // The lexicographically largest come first, so that what is kept is never exceeded by what
        // follows.
        for kind in table.by_size.iter().copied() {
            if types[kind].cpu > cap || !entry.kinds.contains(kind) {
                continue;
            }
            if !kinds.iter().any(|other| holds(table.free(*other), table.free(kind))) {
                kinds.push(kind);
            }
        }
        let most = |dimension: usize| {
            kinds.iter().map(|kind| table.free(*kind)[dimension]).max().unwrap_or(0)
        };
        let most = (0..self.width).map(most).collect();
        let frontier = Rc::new(Frontier { kinds, most });
        self.frontiers.insert((signature, cap), Rc::clone(&frontier));
        frontier
    }

    /// Notes that comparisons were made.
    pub(crate) fn spend(&self, comparisons: usize) {
        self.effort.set(self.effort.get().saturating_add(comparisons));
    }

    /// How many comparisons were made so far, roughly: a measure of time that is the same on every
    /// machine.
    pub(crate) fn effort(&self) -> usize {
        self.effort.get()
    }
}
