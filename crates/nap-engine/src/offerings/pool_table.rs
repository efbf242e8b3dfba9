//! The types of a pool as integer tables: capacity for pods, and charges against the limits.

use nap_units::{CPU, UsdPerHour};

use crate::classes::dimensions::{Dimensions, amount_if_unnamed};
use crate::ids::{Id, IndexVec, OfferingId, TypeId};
use crate::model::{InstanceType, NODES, Offering, Options, Pool};
use crate::offerings::daemon_overhead::{DaemonOverhead, DaemonOverheads};
use crate::offerings::sorted_catalogue::{AmountColumn, OfferingRow, SortedCatalogue};

/// One instance type in a pool.
pub(crate) struct TypeRow<'a> {
    pub(crate) instance_type: &'a InstanceType,
    pub(crate) daemons: &'a DaemonOverhead,
    /// Amounts that a node counts against the pool's limits, in their order.
    pub(crate) charge: Vec<i64>,
    /// Milli-cores, by which the size of a node can be capped.
    pub(crate) cpu: i64,
}

/// A pool with its tables.
pub(crate) struct PoolTable<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) catalogue: SortedCatalogue<'a>,
    pub(crate) types: IndexVec<TypeId, TypeRow<'a>>,
    /// Capacity for pods of each type, one row of `width` dimensions after another.
    free: Vec<i64>,
    width: usize,
    /// The types in descending lexicographic order of their capacity for pods.
    pub(crate) by_size: Vec<TypeId>,
    /// Limited resources with the amount that may still be added.
    pub(crate) limits: Vec<(&'a str, i64)>,
    /// Highest price of a node.
    pub(crate) ceiling: Option<UsdPerHour>,
}

impl<'a> PoolTable<'a> {
    pub(crate) fn new(
        pool: &'a Pool,
        overheads: &'a DaemonOverheads,
        catalogue: SortedCatalogue<'a>,
        dimensions: &Dimensions<'a>,
        options: &Options,
    ) -> Self {
        let ceiling = pool.max_price.into_iter().chain(options.max_node_price).min();
        let limits: Vec<(&str, i64)> = pool.headroom.iter().collect();
        let amount = |amounts: Option<&AmountColumn>, id: TypeId| {
            amounts.and_then(|amounts| amounts[id]).unwrap_or(0).max(0)
        };
        let charges: Vec<_> =
            limits.iter().map(|(name, _)| (*name == NODES, catalogue.capacity(name))).collect();
        let cpu = catalogue.capacity(CPU);
        let row = |id: TypeId| {
            let charge = |(is_nodes, amounts): &(bool, Option<&AmountColumn>)| {
                if *is_nodes { 1 } else { amount(*amounts, id) }
            };
            TypeRow {
                instance_type: catalogue.instance_type(id),
                daemons: overheads.of(id),
                charge: charges.iter().map(charge).collect(),
                cpu: amount(cpu, id),
            }
        };
        let types: IndexVec<TypeId, TypeRow<'a>> = catalogue.ids().map(row).collect();
        let width = dimensions.len();
        let mut free = allocatable(catalogue, dimensions);
        for (row, free) in types.iter().zip(free.chunks_exact_mut(width.max(1))) {
            dimensions.take(free, &row.daemons.requests, &row.daemons.ports);
            dimensions.take_slack(free, options.slack_percent);
        }
        let of = |id: TypeId| &free[id.index() * width..][..width];
        let mut by_size: Vec<TypeId> = types.ids().collect();
        by_size.sort_by(|a, b| of(*b).cmp(of(*a)).then_with(|| a.cmp(b)));
        Self { pool, catalogue, types, free, width, by_size, limits, ceiling }
    }

    /// Capacity of a type for pods, by dimension, beside its daemons.
    pub(crate) fn free(&self, id: TypeId) -> &[i64] {
        &self.free[id.index() * self.width..][..self.width]
    }

    /// Whether a node of a type fits under the limits when this much is left of each. An empty
    /// `left` stands for no limits.
    pub(crate) fn within_limits(&self, id: TypeId, left: &[i64]) -> bool {
        self.types[id].charge.iter().zip(left).all(|(charge, left)| charge <= left)
    }

    /// Whether a node at this price is within the ceiling.
    pub(crate) fn affords(&self, price: UsdPerHour) -> bool {
        self.ceiling.is_none_or(|ceiling| price <= ceiling)
    }

    /// Number of offerings in the catalogue.
    pub(crate) fn offering_count(&self) -> usize {
        self.catalogue.offerings().len()
    }

    /// An offering with its row.
    pub(crate) fn offering(&self, id: OfferingId) -> (OfferingRow, &'a Offering) {
        let row = self.catalogue.offerings()[id];
        (row, self.catalogue.offering(row))
    }
}

/// Amount that a node of a type counts against a limit.
pub(crate) fn charge_of(instance_type: &InstanceType, limit: &str) -> i64 {
    if limit == NODES { 1 } else { instance_type.capacity.get(limit).max(0) }
}

/// Allocatable capacity of each type, one row of dimensions after another.
fn allocatable(catalogue: SortedCatalogue<'_>, dimensions: &Dimensions<'_>) -> Vec<i64> {
    let width = dimensions.len();
    let mut free = vec![0; width * catalogue.len()];
    for (dimension, name) in dimensions.resources().iter().enumerate() {
        let unnamed = amount_if_unnamed(name);
        let amounts = catalogue.allocatable(name);
        for id in catalogue.ids() {
            let amount = amounts.and_then(|amounts| amounts[id]);
            free[id.index() * width + dimension] = amount.unwrap_or(unnamed);
        }
    }
    let others: Vec<i64> = dimensions.ports_and_slots().collect();
    for free in free.chunks_exact_mut(width.max(1)) {
        free[dimensions.resources().len()..].copy_from_slice(&others);
    }
    free
}
