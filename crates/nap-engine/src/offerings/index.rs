//! The offering index: which offerings a node with certain pods can still become.
//!
//! Label requirements are compared once for each distinct combination of a pool and the terms of
//! the pods on a node, an [`EligibleOfferings`]; everything after that is integer arithmetic.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;

use nap_api::requirement::{Incompatible, Undefined};
use nap_api::{Requirement, Requirements, Taint};
use nap_units::{Resources, UsdPerHour};

use crate::classes::dimensions::{Dimensions, holds};
use crate::classes::{Class, Classes};
use crate::ids::{EligibilityId, IndexVec, KeyId, NodeConstraintsId, PoolId, TermId, TypeId};
use crate::model::{MinValuesPolicy, NODES, Options, RESERVATION_ID, Snapshot};
use crate::offerings::domains::OfferedDomains;
use crate::offerings::effort::EffortMeter;
use crate::offerings::eligibility::{
    EligibilityTable, EligibleOfferings, Frontier, Narrowed, PricedType,
};
use crate::offerings::pool_table::PoolTable;
use crate::offerings::solver_cache::{SolverCache, by_weight, sorted};

/// Every pool's table, and the eligibility sets met so far.
pub(crate) struct OfferingIndex<'a> {
    /// In the order of [`by_weight`].
    pub(crate) pools: IndexVec<PoolId, PoolTable<'a>>,
    /// Upper limit on the milli-cores of a new node; `None` without a limit.
    max_cpu: Option<i64>,
    /// Cost that is added to the price of each node where prices are compared.
    pub(crate) node_cost: UsdPerHour,
    pub(crate) min_values: MinValuesPolicy,
    /// Number of dimensions.
    pub(crate) width: usize,
    /// Number of dimensions that are resources; they come first.
    pub(crate) resources: usize,
    terms: TermTable<'a>,
    eligibility: EligibilityTable,
    /// Whether each pool's taints are tolerated, as far as it was asked.
    tolerated: IndexVec<PoolId, IndexVec<NodeConstraintsId, Option<bool>>>,
    pub(super) domains: OfferedDomains<'a>,
    pub(crate) effort: EffortMeter,
}

/// The terms of pods, and terms that only the engine uses.
struct TermTable<'a> {
    terms: IndexVec<TermId, Cow<'a, Requirements>>,
    /// Ids of the terms that no pod has.
    others: BTreeMap<Requirements, TermId>,
}

impl TermTable<'_> {
    fn intern(&mut self, term: &Requirements) -> TermId {
        if let Some(known) = self.others.get(term) {
            return *known;
        }
        let id = self.terms.push(Cow::Owned(term.clone()));
        self.others.insert(term.clone(), id);
        id
    }
}

impl<'a> OfferingIndex<'a> {
    pub(crate) fn new(
        cache: &'a SolverCache,
        snapshot: &'a Snapshot,
        options: &Options,
        dimensions: &Dimensions<'a>,
        classes: &Classes<'a>,
        keys: &IndexVec<KeyId, &'a str>,
    ) -> Self {
        let pools = by_weight(&snapshot.pools).into_iter().zip(cache.overheads());
        let table = |(pool, overheads)| {
            let catalogue = sorted(snapshot, pool);
            PoolTable::new(pool, overheads, catalogue, dimensions, options)
        };
        let pools: IndexVec<PoolId, PoolTable<'a>> = pools.map(table).collect();
        let mut index = Self {
            tolerated: IndexVec::filled(IndexVec::new(), pools.len()),
            pools,
            max_cpu: options.max_cpu_per_node.map(|max| max.saturating_mul(1000)),
            node_cost: options.node_cost,
            min_values: options.min_values,
            width: dimensions.len(),
            resources: dimensions.resources().len(),
            terms: TermTable { terms: classes.terms.clone(), others: BTreeMap::new() },
            eligibility: EligibilityTable::default(),
            domains: OfferedDomains::new(keys),
            effort: EffortMeter::default(),
        };
        for pool in index.pools.ids() {
            let id = index.add_eligibility(pool, index.pools[pool].pool.requirements.clone());
            debug_assert!(id == EligibilityId::of_pool(pool), "pools are the first sets");
        }
        index.intern_domains(snapshot);
        index
    }

    /// An eligibility set by its id.
    pub(crate) fn eligible(&self, id: EligibilityId) -> &Rc<EligibleOfferings> {
        self.eligibility.get(id)
    }

    /// The table behind an eligibility set.
    pub(crate) fn table(&self, eligible: &EligibleOfferings) -> &PoolTable<'a> {
        &self.pools[eligible.pool]
    }

    /// The table behind an eligibility set, by its id.
    pub(crate) fn table_of(&self, id: EligibilityId) -> &PoolTable<'a> {
        self.table(self.eligible(id))
    }

    /// Changes what may still be added under the limits of a pool by the capacity of a node that
    /// leaves (`times` 1) or comes back (-1).
    pub(crate) fn change_limits(&mut self, pool: &str, capacity: &Resources, times: i64) {
        for table in (&mut self.pools).into_iter().filter(|table| table.pool.name == pool) {
            for (name, left) in &mut table.limits {
                let amount = if *name == NODES { 1 } else { capacity.get(name) };
                *left = left.saturating_add(amount.saturating_mul(times));
            }
        }
    }

    /// The first taint of a pool that repels a class.
    pub(crate) fn repelling_taint(&self, pool: PoolId, class: &Class<'_>) -> Option<&'a Taint> {
        class.repelled_by(&self.pools[pool].pool.taints)
    }

    /// Whether a class tolerates all taints of a pool.
    pub(crate) fn tolerates(&mut self, pool: PoolId, class: &Class<'_>) -> bool {
        if let Some(Some(known)) = self.tolerated[pool].get(class.node_constraints) {
            return *known;
        }
        let tolerated = self.repelling_taint(pool, class).is_none();
        *self.tolerated[pool].grow_to(class.node_constraints, None) = Some(tolerated);
        tolerated
    }

    /// Id of a term that pods need not have.
    pub(crate) fn term(&mut self, term: &Requirements) -> TermId {
        self.terms.intern(term)
    }

    /// Id of the conjunction of some terms; `None` if they conflict.
    pub(crate) fn conjunction(&mut self, term: TermId, others: &[TermId]) -> Option<TermId> {
        if others.is_empty() {
            return Some(term);
        }
        let mut all = self.terms.terms[term].clone().into_owned();
        for other in others {
            all.intersects(&self.terms.terms[*other]).ok()?;
            all.extend(&self.terms.terms[*other]);
        }
        Some(self.terms.intern(&all))
    }

    /// The conflict between a term and an eligibility set. Labels are defined by pools only: a pod
    /// that requires the absence of a label defines nothing.
    pub(crate) fn conflict(&self, id: EligibilityId, term: TermId) -> Option<Incompatible> {
        let mine = self.eligible(id);
        let term = &self.terms.terms[term];
        let own =
            self.pools[mine.pool].pool.requirements.compatible(term, Undefined::AllowWellKnown);
        own.and_then(|()| mine.requirements.compatible(term, Undefined::AllowWellKnown)).err()
    }

    /// The eligibility set with one more term; `None` if they conflict.
    pub(crate) fn narrow(&mut self, id: EligibilityId, term: TermId) -> Option<EligibilityId> {
        match self.eligibility.narrowed(id, term) {
            Narrowed::To(narrowed) => return Some(narrowed),
            Narrowed::Conflict => return None,
            Narrowed::Unknown => {}
        }
        let narrowed = if self.conflict(id, term).is_some() {
            None
        } else {
            let mine = self.eligible(id);
            let pool = mine.pool;
            let mut requirements = Requirements::clone(&mine.requirements);
            requirements.extend(&self.terms.terms[term]);
            Some(self.eligibility_of(pool, requirements).0)
        };
        let to = narrowed.map_or(Narrowed::Conflict, Narrowed::To);
        self.eligibility.set_narrowed(id, term, to);
        narrowed
    }

    /// The eligibility set with more terms; `None` if they conflict.
    pub(crate) fn narrow_all(
        &mut self,
        id: EligibilityId,
        terms: &[TermId],
    ) -> Option<EligibilityId> {
        terms.iter().try_fold(id, |id, term| self.narrow(id, *term))
    }

    /// The first term of a class that keeps a type eligible, as the narrowed eligibility set.
    pub(crate) fn narrow_keeping(
        &mut self,
        id: EligibilityId,
        terms: &[TermId],
        instance_type: TypeId,
    ) -> Option<EligibilityId> {
        terms.iter().find_map(|term| {
            let narrowed = self.narrow(id, *term)?;
            self.eligible(narrowed).allows(instance_type).then_some(narrowed)
        })
    }

    /// The eligibility set of a pool's nodes in a capacity reservation; `None` if there are none.
    pub(crate) fn reserved(&mut self, pool: PoolId, reservation: &str) -> Option<EligibilityId> {
        let mut requirements = self.pools[pool].pool.requirements.clone();
        requirements.add(RESERVATION_ID, Requirement::is_in([reservation]));
        let (id, is_new) = self.eligibility_of(pool, requirements);
        if is_new {
            self.eligibility.add_reserved(pool, id);
        }
        (!self.eligible(id).types.is_empty()).then_some(id)
    }

    /// The eligibility sets met so far of a pool's nodes in capacity reservations.
    pub(crate) fn reserved_in(&self, pool: PoolId) -> &[EligibilityId] {
        self.eligibility.reserved(pool)
    }

    /// Finds or builds an eligibility set, and whether it is new.
    fn eligibility_of(
        &mut self,
        pool: PoolId,
        requirements: Requirements,
    ) -> (EligibilityId, bool) {
        let key = (pool, requirements);
        match self.eligibility.find(&key) {
            Some(known) => (known, false),
            None => (self.add_eligibility(pool, key.1), true),
        }
    }

    fn add_eligibility(&mut self, pool: PoolId, requirements: Requirements) -> EligibilityId {
        let table = &self.pools[pool];
        let eligible =
            EligibleOfferings::new(pool, table, requirements.clone(), self.node_cost, self.max_cpu);
        self.eligibility.insert((pool, requirements), eligible)
    }

    /// Whether a type is no larger than new nodes may be.
    pub(crate) fn allows_size(&self, pool: PoolId, id: TypeId) -> bool {
        self.max_cpu.is_none_or(|max| self.pools[pool].types[id].cpu <= max)
    }

    /// The cheapest eligible type that holds what is used within the budget of the limits; an empty
    /// budget stands for no limits.
    pub(crate) fn cheapest(
        &self,
        eligible: &EligibleOfferings,
        used: &[i64],
        budget: &[i64],
    ) -> Option<PricedType> {
        let table = self.table(eligible);
        let low = eligible.too_small(table, used);
        let found = eligible.types[low..]
            .iter()
            .position(|one| holds(table.free(one.id), used) && table.within_limits(one.id, budget));
        self.effort.spend(found.unwrap_or(eligible.types.len() - low));
        found.map(|position| eligible.types[low + position])
    }

    /// Price of [`OfferingIndex::cheapest`].
    pub(crate) fn lowest_price(
        &self,
        id: EligibilityId,
        used: &[i64],
        budget: &[i64],
    ) -> Option<UsdPerHour> {
        self.cheapest(self.eligible(id), used, budget).map(|one| one.price)
    }

    /// The frontier of the eligible types up to a size cap in milli-cores.
    pub(crate) fn frontier(&mut self, id: EligibilityId, cap: i64) -> Rc<Frontier> {
        let pool = self.eligible(id).pool;
        self.eligibility.frontier(id, &self.pools[pool], cap, self.width)
    }
}
