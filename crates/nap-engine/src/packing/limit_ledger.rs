//! The limit ledger: the amounts left under the limits of each pool while bins grow.
//!
//! A bin of a limited pool is charged for the cheapest type that holds it, and grows only while
//! some type fits its charge and what is left together. So the sum of all launches never exceeds a
//! limit. Limits that are far away need no ledger: it is enough to check them at the end.

use crate::ids::{IndexVec, PoolId};
use crate::offerings::index::OfferingIndex;

/// Amounts left under the limits of each pool, in the order of the limits. Pools without
/// limits, and all pools of an inactive ledger, have an empty list.
#[derive(Clone, Debug, Default)]
pub(crate) struct LimitLedger {
    left: IndexVec<PoolId, Vec<i64>>,
}

impl LimitLedger {
    /// Ledger of the limits of all pools.
    pub(crate) fn active(offerings: &OfferingIndex<'_>) -> Self {
        let limits = offerings.pools.iter().map(|table| table.limits.iter());
        Self { left: limits.map(|limits| limits.map(|(_, left)| *left).collect()).collect() }
    }

    /// Ledger that keeps no account.
    pub(crate) fn inactive(offerings: &OfferingIndex<'_>) -> Self {
        Self { left: IndexVec::filled(Vec::new(), offerings.pools.len()) }
    }

    /// Amounts left under the limits of a pool.
    pub(crate) fn left(&self, pool: PoolId) -> &[i64] {
        &self.left[pool]
    }

    /// Whether a pool has limits that are kept account of.
    pub(crate) fn is_limited(&self, pool: PoolId) -> bool {
        !self.left[pool].is_empty()
    }

    /// Whether any pool has limits that are kept account of.
    pub(crate) fn any_limited(&self) -> bool {
        self.left.iter().any(|left| !left.is_empty())
    }

    /// Budget of a bin: its charge and the amounts left under the limits.
    pub(crate) fn budget(&self, pool: PoolId, charge: &[i64]) -> Vec<i64> {
        let both = self.left[pool].iter().zip(charge);
        both.map(|(left, charge)| left.saturating_add(*charge)).collect()
    }

    /// Replaces the charge of a bin.
    pub(crate) fn recharge(&mut self, pool: PoolId, old: &[i64], new: &[i64]) {
        for ((left, old), new) in self.left[pool].iter_mut().zip(old).zip(new) {
            *left = left.saturating_add(*old).saturating_sub(*new);
        }
    }

    /// Gives the charge of a bin back.
    pub(crate) fn refund(&mut self, pool: PoolId, charge: &[i64]) {
        for (left, charge) in self.left[pool].iter_mut().zip(charge) {
            *left = left.saturating_add(*charge);
        }
    }

    /// Charges a new bin.
    pub(crate) fn charge(&mut self, pool: PoolId, charge: &[i64]) {
        for (left, charge) in self.left[pool].iter_mut().zip(charge) {
            *left = left.saturating_sub(*charge);
        }
    }

    /// Whether a limit is exceeded.
    pub(crate) fn is_overdrawn(&self) -> bool {
        self.left.iter().flatten().any(|left| *left < 0)
    }
}
