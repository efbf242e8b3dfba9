//! What can be bought: the offerings of each pool as flat, sorted tables, and which of them suit which requirements.
//!
//! Label requirements are compared once per distinct combination of a pool and the terms of its pods, a [`Signature`]; after that
//! everything is integers. A signature knows its offerings as a set of bits over the pool's table, and its types in price order.
//! While a node grows, only the types that no other type exceeds in every resource matter: its *frontier*, which is a handful.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use fixedbitset::FixedBitSet;
use nap_api::requirement::{Incompatible, Undefined};
use nap_api::taints::first_untolerated;
use nap_api::{Operator, Requirement, Requirements, Taint, labels};
use nap_units::{CPU, Resources, UsdPerHour};

use crate::classes::{Class, Classes, Dimensions};
use crate::coupling::HostPort;
use crate::model::{Daemon, InstanceType, Offering, Options, Pool, Snapshot};

/// The resource by which a pool's limits count machines.
const NODES: &str = "nodes";

/// One instance type as a pool would run it.
pub(crate) struct TypeRow<'a> {
    pub(crate) instance_type: &'a InstanceType,
    /// What it has for pods once the daemons run, by dimension.
    pub(crate) free: Vec<i64>,
    /// What its daemons ask for.
    pub(crate) daemons: Resources,
    /// What it counts against the pool's limits, in their order.
    pub(crate) charge: Vec<i64>,
    /// Its vCPUs, by which the size of a node can be capped.
    pub(crate) cpu: i64,
}

/// One way to have one of the types.
pub(crate) struct OfferingRow<'a> {
    /// Index of the type.
    pub(crate) kind: usize,
    pub(crate) offering: &'a Offering,
}

/// A pool and its tables.
pub(crate) struct PoolTable<'a> {
    pub(crate) pool: &'a Pool,
    /// By name.
    pub(crate) types: Vec<TypeRow<'a>>,
    /// By price, then type, zone and capacity type.
    pub(crate) offerings: Vec<OfferingRow<'a>>,
    /// The limited resources and what may still be added of each.
    pub(crate) limits: Vec<(&'a str, i64)>,
}

impl<'a> PoolTable<'a> {
    fn new(pool: &'a Pool, snapshot: &'a Snapshot, dimensions: &Dimensions<'a>) -> Self {
        let limits: Vec<(&str, i64)> = pool.headroom.iter().collect();
        let mut catalogue: Vec<&InstanceType> =
            snapshot.catalogues.get(&pool.catalogue).into_iter().flat_map(|types| types.iter()).collect();
        catalogue.sort_by(|a, b| a.name.cmp(&b.name).then_with(|| a.allocatable.cmp(&b.allocatable)));
        let daemons: Vec<&Daemon> = snapshot
            .daemons
            .iter()
            .filter(|daemon| first_untolerated(&pool.taints, &daemon.tolerations).is_none())
            .collect();
        let types: Vec<TypeRow<'a>> = catalogue
            .into_iter()
            .map(|instance_type| {
                let mut overhead = Resources::new();
                let mut ports: Vec<&HostPort> = Vec::new();
                for daemon in daemons.iter().filter(|daemon| runs_on(daemon, pool, instance_type)) {
                    overhead.add(&daemon.requests);
                    ports.extend(&daemon.host_ports);
                }
                let free = dimensions.whole(&instance_type.allocatable);
                let free = dimensions.without(free, &overhead, &ports);
                let charge = |name: &str| {
                    if name == NODES { 1 } else { instance_type.capacity.get(name).max(0) }
                };
                let charge = limits.iter().map(|(name, _)| charge(name)).collect();
                let cpu = instance_type.capacity.get(CPU);
                TypeRow { instance_type, free, daemons: overhead, charge, cpu }
            })
            .collect();
        let mut offerings: Vec<OfferingRow<'a>> = types
            .iter()
            .enumerate()
            .flat_map(|(kind, row)| {
                row.instance_type.offerings.iter().map(move |offering| OfferingRow { kind, offering })
            })
            .collect();
        offerings.sort_by(|a, b| {
            let order = |row: &OfferingRow<'a>| {
                (row.offering.price, row.kind, row.offering.zone.as_str(), row.offering.capacity_type)
            };
            order(a).cmp(&order(b)).then_with(|| b.offering.available.cmp(&a.offering.available))
        });
        Self { pool, types, offerings, limits }
    }

    /// Whether a type still fits under the limits when this much is left of each.
    pub(crate) fn within(&self, kind: usize, left: &[i64]) -> bool {
        self.types[kind].charge.iter().zip(left).all(|(charge, left)| charge <= left)
    }
}

/// Whether a daemon whose tolerations suit the pool runs on this type: one of its terms must suit the pool and the type.
fn runs_on(daemon: &Daemon, pool: &Pool, instance_type: &InstanceType) -> bool {
    daemon.terms.is_empty()
        || daemon.terms.iter().any(|term| {
            pool.requirements.compatible(term, Undefined::AllowWellKnown).is_ok()
                && instance_type.requirements.intersects(term).is_ok()
        })
}

/// The values that a requirement names, unless it names what is excluded.
fn listed(requirement: &Requirement) -> impl Iterator<Item = &str> {
    let named = requirement.operator() == Operator::In;
    requirement.values().iter().filter(move |_| named).map(String::as_str)
}

/// Whether the offering is not tied to a zone. Such ones come last among equals: a machine with a zone is worth more.
pub(crate) fn is_regional(offering: &Offering) -> bool {
    let scope = offering.requirements.get(labels::PLACEMENT_SCOPE);
    scope.and_then(Requirement::single) == Some("regional")
}

/// A pool and everything that the pods of a node insist on, and what of the pool's table suits that.
pub(crate) struct Signature {
    /// Index of the pool.
    pub(crate) pool: usize,
    pub(crate) requirements: Requirements,
    /// Offerings that suit, whether or not they can be had.
    pub(crate) compatible: FixedBitSet,
    /// Those that can be had and whose type holds at least its daemons.
    pub(crate) usable: FixedBitSet,
    /// The types of the usable ones with their lowest price, cheapest first.
    pub(crate) types: Vec<(UsdPerHour, usize)>,
    /// The same types as a set.
    pub(crate) kinds: FixedBitSet,
}

/// Every pool's table, and the signatures met so far.
pub(crate) struct Market<'a> {
    /// By weight (highest first), then number of taints, then name.
    pub(crate) pools: Vec<PoolTable<'a>>,
    /// The most milli-cores of a new node.
    most_cpu: i64,
    /// What is added to the price of each node where prices are compared.
    pub(crate) node_cost: UsdPerHour,
    terms: Vec<Cow<'a, Requirements>>,
    /// Numbers of the terms that no pod has: pins to a domain, and what else was asked about.
    other_terms: BTreeMap<Requirements, usize>,
    /// The values of a label that a signature's offerings have between them.
    domains: BTreeMap<(usize, String), Rc<[Rc<str>]>>,
    signatures: Vec<Rc<Signature>>,
    numbers: BTreeMap<(usize, Requirements), usize>,
    /// Where a signature leads when one more term is insisted on.
    steps: BTreeMap<(usize, usize), Option<usize>>,
    frontiers: BTreeMap<(usize, i64), Rc<[usize]>>,
    tolerated: BTreeMap<(usize, usize), bool>,
    most: BTreeMap<(usize, i64), Rc<[i64]>>,
    /// How many comparisons were made so far, roughly.
    effort: Cell<usize>,
}

impl<'a> Market<'a> {
    pub(crate) fn new(
        snapshot: &'a Snapshot,
        options: &Options,
        dimensions: &Dimensions<'a>,
        classes: &Classes<'a>,
    ) -> Self {
        let mut pools: Vec<&Pool> = snapshot.pools.iter().collect();
        // Where all else is equal, a pool that keeps fewer pods away is the better place to begin a node in.
        pools.sort_by(|a, b| (b.weight, a.taints.len(), &a.name).cmp(&(a.weight, b.taints.len(), &b.name)));
        let mut market = Self {
            pools: pools.into_iter().map(|pool| PoolTable::new(pool, snapshot, dimensions)).collect(),
            most_cpu: options.max_cpu_per_node.map_or(i64::MAX, |most| most.saturating_mul(1000)),
            node_cost: options.node_cost,
            terms: classes.terms.clone(),
            other_terms: BTreeMap::new(),
            domains: BTreeMap::new(),
            signatures: Vec::new(),
            numbers: BTreeMap::new(),
            steps: BTreeMap::new(),
            frontiers: BTreeMap::new(),
            tolerated: BTreeMap::new(),
            most: BTreeMap::new(),
            effort: Cell::new(0),
        };
        for pool in 0..market.pools.len() {
            // The signature of a pool without pods has the pool's own number.
            let signature = market.appraise(pool, market.pools[pool].pool.requirements.clone());
            market.numbers.insert((pool, signature.requirements.clone()), pool);
            market.signatures.push(Rc::new(signature));
        }
        market
    }

    /// A signature by its number. The number of a pool is the number of the signature without pods.
    pub(crate) fn signature(&self, number: usize) -> Rc<Signature> {
        Rc::clone(&self.signatures[number])
    }

    /// The table behind a signature.
    pub(crate) fn table(&self, signature: &Signature) -> &PoolTable<'a> {
        &self.pools[signature.pool]
    }

    /// The taint of a pool that keeps a class away.
    pub(crate) fn repelling_taint(&self, pool: usize, class: &Class<'_>) -> Option<&'a Taint> {
        first_untolerated(&self.pools[pool].pool.taints, class.tolerations)
    }

    /// Whether a class tolerates all taints of a pool.
    pub(crate) fn tolerates(&mut self, pool: usize, class: &Class<'_>) -> bool {
        if let Some(known) = self.tolerated.get(&(pool, class.wish)) {
            return *known;
        }
        let tolerated = self.repelling_taint(pool, class).is_none();
        self.tolerated.insert((pool, class.wish), tolerated);
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

    /// The number of the term that ties a node to a domain.
    pub(crate) fn pin(&mut self, key: &str, value: &str) -> usize {
        let mut pin = Requirements::new();
        pin.add(key, Requirement::is_in([value]));
        self.term(&pin)
    }

    /// The values of a label that the offerings of a signature have between them, those that can be had. A zone that stands for no zone in
    /// particular counts only where there is nothing else.
    pub(crate) fn domains(&mut self, signature: usize, key: &str) -> Rc<[Rc<str>]> {
        if let Some(known) = self.domains.get(&(signature, key.to_owned())) {
            return Rc::clone(known);
        }
        let entry = &self.signatures[signature];
        let table = &self.pools[entry.pool];
        let insisted = entry.requirements.get(key);
        let mut values: BTreeSet<&str> = BTreeSet::new();
        let mut vague: BTreeSet<&str> = BTreeSet::new();
        for row in entry.usable.ones().map(|index| &table.offerings[index]) {
            let of_type = || table.types[row.kind].instance_type.requirements.get(key);
            let offered = row.offering.requirements.get(key).or_else(of_type).or(insisted);
            let set = if key == labels::ZONE && is_regional(row.offering) { &mut vague } else { &mut values };
            set.extend(
                offered
                    .into_iter()
                    .flat_map(listed)
                    .filter(|value| insisted.is_none_or(|insisted| insisted.allows(value))),
            );
        }
        let values = if values.is_empty() { vague } else { values };
        let values: Rc<[Rc<str>]> = values.into_iter().map(Rc::from).collect();
        self.domains.insert((signature, key.to_owned()), Rc::clone(&values));
        values
    }

    /// Whether nodes of a signature will certainly not have a label.
    pub(crate) fn lacks(&mut self, signature: usize, key: &str) -> bool {
        if !self.domains(signature, key).is_empty() {
            return false;
        }
        let insisted = self.signatures[signature].requirements.get(key);
        insisted.is_none_or(|insisted| insisted.allows_absent() && listed(insisted).next().is_none())
    }

    /// Why a term cannot be added to a signature.
    pub(crate) fn conflict(&self, signature: usize, term: usize) -> Option<Incompatible> {
        let mine = &self.signatures[signature].requirements;
        mine.compatible(&self.terms[term], Undefined::AllowWellKnown).err()
    }

    /// The signature with one more term, if they agree.
    pub(crate) fn step(&mut self, signature: usize, term: usize) -> Option<usize> {
        if let Some(known) = self.steps.get(&(signature, term)) {
            return *known;
        }
        let next = if self.conflict(signature, term).is_some() {
            None
        } else {
            let mine = &self.signatures[signature];
            let pool = mine.pool;
            let mut requirements = mine.requirements.clone();
            requirements.extend(&self.terms[term]);
            let key = (pool, requirements);
            let known = self.numbers.get(&key).copied();
            Some(known.unwrap_or_else(|| {
                let number = self.signatures.len();
                let signature = self.appraise(pool, key.1.clone());
                self.signatures.push(Rc::new(signature));
                self.numbers.insert(key, number);
                number
            }))
        };
        self.steps.insert((signature, term), next);
        next
    }

    /// Whether a type is no larger than nodes may be.
    pub(crate) fn allows_size(&self, pool: usize, kind: usize) -> bool {
        self.pools[pool].types[kind].cpu <= self.most_cpu
    }

    fn appraise(&self, pool: usize, requirements: Requirements) -> Signature {
        let table = &self.pools[pool];
        let suits: Vec<bool> = table
            .types
            .iter()
            .map(|row| requirements.intersects(&row.instance_type.requirements).is_ok())
            .collect();
        let mut compatible = FixedBitSet::with_capacity(table.offerings.len());
        let mut usable = FixedBitSet::with_capacity(table.offerings.len());
        let mut kinds = FixedBitSet::with_capacity(table.types.len());
        let mut types = Vec::new();
        for (index, row) in table.offerings.iter().enumerate() {
            if !suits[row.kind] || requirements.intersects(&row.offering.requirements).is_err() {
                continue;
            }
            compatible.insert(index);
            let kind = &table.types[row.kind];
            let has_room = self.allows_size(pool, row.kind) && kind.free.iter().all(|free| *free >= 0);
            if !row.offering.available || !has_room {
                continue;
            }
            usable.insert(index);
            if !kinds.put(row.kind) {
                types.push(([row.offering.price, self.node_cost].into_iter().sum(), row.kind));
            }
        }
        Signature { pool, requirements, compatible, usable, types, kinds }
    }

    /// The types of a signature, no larger than the cap, that no other such type exceeds in every resource.
    pub(crate) fn frontier(&mut self, signature: usize, cap: i64) -> Rc<[usize]> {
        if let Some(known) = self.frontiers.get(&(signature, cap)) {
            return Rc::clone(known);
        }
        let entry = &self.signatures[signature];
        let types = &self.pools[entry.pool].types;
        let mut kinds: Vec<usize> =
            entry.types.iter().map(|(_, kind)| *kind).filter(|kind| types[*kind].cpu <= cap).collect();
        // The lexicographically largest come first, so that what is kept is never exceeded by what follows.
        kinds.sort_by(|a, b| types[*b].free.cmp(&types[*a].free).then_with(|| a.cmp(b)));
        let mut kept: Vec<usize> = Vec::new();
        for kind in kinds {
            let free = &types[kind].free;
            let exceeded =
                |other: &usize| types[*other].free.iter().zip(free).all(|(other, mine)| other >= mine);
            if !kept.iter().any(exceeded) {
                kept.push(kind);
            }
        }
        let frontier: Rc<[usize]> = kept.into();
        self.frontiers.insert((signature, cap), Rc::clone(&frontier));
        frontier
    }

    /// The most that any type of a signature, no larger than the cap, has of each resource.
    pub(crate) fn most(&mut self, signature: usize, cap: i64) -> Rc<[i64]> {
        if let Some(known) = self.most.get(&(signature, cap)) {
            return Rc::clone(known);
        }
        let frontier = self.frontier(signature, cap);
        let types = &self.pools[self.signatures[signature].pool].types;
        let width = types.first().map_or(0, |row| row.free.len());
        let most =
            |dimension: usize| frontier.iter().map(|kind| types[*kind].free[dimension]).max().unwrap_or(0);
        let most: Rc<[i64]> = (0..width).map(most).collect();
        self.most.insert((signature, cap), Rc::clone(&most));
        most
    }

    /// Notes that comparisons were made.
    pub(crate) fn spend(&self, comparisons: usize) {
        self.effort.set(self.effort.get().saturating_add(comparisons));
    }

    /// How many comparisons were made so far, roughly: a measure of time that is the same on every machine.
    pub(crate) fn effort(&self) -> usize {
        self.effort.get()
    }

    /// Sizes at which growing nodes can be capped: vCPU counts on offer, each about twice the one before.
    pub(crate) fn levels(&self, most: usize) -> Vec<i64> {
        let mut sizes: Vec<i64> =
            self.pools.iter().flat_map(|table| table.types.iter().map(|row| row.cpu)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        if sizes.len() <= most {
            return sizes;
        }
        let mut levels: Vec<i64> = Vec::new();
        let mut target = sizes.first().copied().unwrap_or(1).max(1);
        while levels.len() < most && sizes.last().is_some_and(|largest| target <= *largest) {
            let at_most = sizes.partition_point(|size| *size <= target);
            levels.extend(at_most.checked_sub(1).map(|index| sizes[index]));
            target = target.saturating_mul(2);
        }
        levels.dedup();
        levels
    }
}
