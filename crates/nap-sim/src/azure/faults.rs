//! What goes wrong: a plan, so that a failure can be repeated.

use std::collections::{BTreeMap, BTreeSet};

/// Failures to come. Thin on purpose: each kind is added with the first test that needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Size and zone label (`0` without a zone) of machines that are accepted and then fail for
    /// lack of room.
    pub capacity_errors: BTreeSet<(String, String)>,
    /// On-demand cores that a quota family may have, by its exact name.
    pub family_quota: BTreeMap<String, i64>,
    /// Spot cores that the subscription may have; `None` is no limit.
    pub spot_quota: Option<i64>,
    /// So many of the next authorised requests are answered with 429.
    pub throttle_next: u32,
    /// So many of the next authorised requests are answered with 503.
    pub unavailable_next: u32,
}
