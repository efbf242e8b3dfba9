//! Injected faults.

use std::collections::{BTreeMap, BTreeSet};

/// The faults that requests meet. A kind of fault is added with the first test that needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Size and zone label (`0` without a zone) of VMs whose creation is accepted and then fails
    /// for lack of capacity.
    pub capacity_errors: BTreeSet<(String, String)>,
    /// Number of machines from now on whose creation is refused with an internal error.
    pub internal_errors_next: u32,
    /// Whether VM creations that are accepted from now on never end.
    pub stuck_creates: bool,
    /// On-demand vCPU quota by the exact name of the quota family.
    pub family_quota: BTreeMap<String, i64>,
    /// On-demand vCPU quota of the region; `None` for that of the configuration.
    pub regional_quota: Option<i64>,
    /// Spot vCPU quota of the region; `None` for that of the configuration.
    pub spot_quota: Option<i64>,
    /// Number of authorized requests from now on that get status 429.
    pub throttle_next: u32,
    /// Number of authorized requests from now on that get status 503.
    pub unavailable_next: u32,
    /// Whether the kubelets of VMs that are created from now on never join.
    pub never_boots: bool,
}
