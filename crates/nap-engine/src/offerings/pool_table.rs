//! A pool's types as flat tables: what each has for pods, and what it counts against the limits.

use nap_units::CPU;

use crate::classes::Dimensions;
use crate::model::catalogue::{OfferingRow, SortedCatalogue};
use crate::model::{InstanceType, Offering, Pool};
use crate::offerings::daemon_overhead::{DaemonOverhead, PoolCache};

/// The resource by which a pool's limits count machines.
const NODES: &str = "nodes";

/// One instance type as a pool would run it.
pub(crate) struct TypeRow<'a> {
    pub(crate) instance_type: &'a InstanceType,
    /// What its daemons take.
    pub(crate) daemons: &'a DaemonOverhead,
    /// What it counts against the pool's limits, in their order.
    pub(crate) charge: Vec<i64>,
    /// Its vCPUs, by which the size of a node can be capped.
    pub(crate) cpu: i64,
}

/// A pool and its tables.
pub(crate) struct PoolTable<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) stock: SortedCatalogue<'a>,
    /// By name.
    pub(crate) types: Vec<TypeRow<'a>>,
    /// What each type has for pods once the daemons run: so many dimensions of the first, then of
    /// the next.
    free: Vec<i64>,
    width: usize,
    /// The types, those that have most come first.
    pub(crate) by_size: Vec<usize>,
    /// The limited resources and what may still be added of each.
    pub(crate) limits: Vec<(&'a str, i64)>,
}

impl<'a> PoolTable<'a> {
    pub(crate) fn new(
        pool: &'a Pool,
        ready: &'a PoolCache,
        stock: SortedCatalogue<'a>,
        dimensions: &Dimensions<'a>,
        slack_percent: u8,
    ) -> Self {
        let limits: Vec<(&str, i64)> = pool.headroom.iter().collect();
        let amount = |amounts: Option<&[Option<i64>]>, kind: usize| {
            amounts.and_then(|amounts| amounts[kind]).unwrap_or(0).max(0)
        };
        let charges: Vec<_> =
            limits.iter().map(|(name, _)| (*name == NODES, stock.capacity(name))).collect();
        let cpu = stock.capacity(CPU);
        let row = |kind: usize| {
            let charge = |(is_nodes, amounts): &(bool, Option<&[Option<i64>]>)| {
                if *is_nodes { 1 } else { amount(*amounts, kind) }
            };
            TypeRow {
                instance_type: stock.kind(kind),
                daemons: &ready.loads[ready.load_of[kind]],
                charge: charges.iter().map(charge).collect(),
                cpu: amount(cpu, kind),
            }
        };
        let types: Vec<TypeRow<'a>> = (0..stock.len()).map(row).collect();
        let width = dimensions.len();
        let mut free = dimensions.machines(stock);
        for (row, free) in types.iter().zip(free.chunks_exact_mut(width.max(1))) {
            dimensions.take_daemons(free, row.daemons);
            dimensions.take_slack(free, slack_percent);
        }
        let of = |kind: usize| &free[kind * width..][..width];
        let mut by_size: Vec<usize> = (0..types.len()).collect();
        by_size.sort_by(|a, b| of(*b).cmp(of(*a)).then_with(|| a.cmp(b)));
        Self { pool, stock, types, free, width, by_size, limits }
    }

    /// What a type has for pods once the daemons run, by dimension.
    pub(crate) fn free(&self, kind: usize) -> &[i64] {
        &self.free[kind * self.width..][..self.width]
    }

    /// Whether a type still fits under the limits when this much is left of each. Nothing is
    /// limited where nothing is said.
    pub(crate) fn within(&self, kind: usize, left: &[i64]) -> bool {
        self.types[kind].charge.iter().zip(left).all(|(charge, left)| charge <= left)
    }

    /// How many offerings there are.
    pub(crate) fn offers(&self) -> usize {
        self.stock.offers().len()
    }

    /// An offering by its place in the order of prices.
    pub(crate) fn offering(&self, index: usize) -> (OfferingRow, &'a Offering) {
        let offer = self.stock.offers()[index];
        (offer, self.stock.offering(offer))
    }
}
