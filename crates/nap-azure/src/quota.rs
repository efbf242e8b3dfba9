//! Quota of vCPUs by family, region and for spot, with a hold for every launch that Azure has not
//! counted yet.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use nap_cloud::{CloudError, QuotaCharge, QuotaCount};
use nap_engine::CapacityType;
use serde::Deserialize;

use crate::arm::ArmClient;

/// Name of the quota of all on-demand vCPUs of the region, lower-cased.
pub const REGIONAL_CORES: &str = "cores";
/// Name of the quota of all spot vCPUs of the region, lower-cased.
pub const SPOT_CORES: &str = "lowprioritycores";
/// Age from which a launch is certain to be in a count.
const COUNTED_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// Quotas that a VM counts against: on demand that of its family and of the region, on spot that of
/// all spot VMs.
pub fn charge(family: &str, vcpus: i64, capacity_type: CapacityType) -> QuotaCharge {
    let quotas = match capacity_type {
        CapacityType::Spot => vec![SPOT_CORES.to_owned()],
        CapacityType::OnDemand => vec![family.to_lowercase(), REGIONAL_CORES.to_owned()],
        CapacityType::Reserved => Vec::new(),
    };
    QuotaCharge { quotas, vcpus }
}

/// Remaining vCPUs by quota. A quota that Azure does not report has no limit.
#[derive(Clone, Debug, Default)]
pub struct Quota {
    /// vCPUs left at the last count, by the lower-cased name of the quota.
    left: BTreeMap<String, i64>,
    /// Launches that the last count may lack, by NodeClaim.
    holds: BTreeMap<String, Hold>,
    /// Sums of the holds by quota.
    held: BTreeMap<String, i64>,
}

#[derive(Clone, Debug)]
struct Hold {
    charge: QuotaCharge,
    since: Timestamp,
}

impl Quota {
    /// A quota as counted, without holds.
    pub fn counted(left: BTreeMap<String, i64>) -> Self {
        Self { left, ..Self::default() }
    }

    /// vCPUs left of a quota; `None` if it has no limit.
    pub fn left(&self, quota: &str) -> Option<i64> {
        let held = self.held.get(quota).copied().unwrap_or(0);
        self.left.get(quota).map(|left| left - held)
    }

    /// Whether a VM fits into all of its quotas.
    pub fn fits(&self, charge: &QuotaCharge) -> bool {
        charge.quotas.iter().all(|quota| self.left(quota).is_none_or(|left| charge.vcpus <= left))
    }

    /// Holds quota for the launch of a NodeClaim, in place of an earlier hold of it.
    pub fn hold(&mut self, claim: &str, charge: QuotaCharge, now: Timestamp) {
        self.release(claim);
        self.add(&charge, 1);
        self.holds.insert(claim.to_owned(), Hold { charge, since: now });
    }

    /// Releases the hold of a NodeClaim, if there is one.
    pub fn release(&mut self, claim: &str) {
        if let Some(hold) = self.holds.remove(claim) {
            self.add(&hold.charge, -1);
        }
    }

    fn add(&mut self, charge: &QuotaCharge, times: i64) {
        for quota in &charge.quotas {
            *self.held.entry(quota.clone()).or_default() += charge.vcpus * times;
        }
    }

    /// Takes over a count that was asked for at a time. Launches of the last minute before stay
    /// held: Azure may not have counted them.
    pub fn recount(&mut self, left: BTreeMap<String, i64>, at: Timestamp) {
        self.left = left;
        let counted =
            self.holds.iter().filter(|(_, hold)| at.duration_since(hold.since) >= COUNTED_AFTER);
        let counted: Vec<String> = counted.map(|(claim, _)| claim.clone()).collect();
        for claim in counted {
            self.release(&claim);
        }
    }

    /// Forgets the count: nothing is limited until the next one.
    pub fn forget_count(&mut self) {
        self.left.clear();
    }

    /// Records that Azure refused a launch for a quota: nothing is left of it until the next count.
    pub fn exhausted(&mut self, quota: &str) {
        let held = self.held.get(quota).copied().unwrap_or(0);
        self.left.insert(quota.to_owned(), held);
    }

    /// The count and the holds, for plans.
    pub fn count(&self) -> QuotaCount {
        let holds = self.holds.iter().map(|(claim, hold)| (claim.clone(), hold.charge.clone()));
        QuotaCount { left: self.left.clone(), holds: holds.collect() }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Usage {
    current_value: Option<i64>,
    limit: Option<i64>,
    name: UsageName,
}

#[derive(Deserialize)]
struct UsageName {
    value: Option<String>,
}

/// Fetches the vCPUs left in a region, by the lower-cased name of the quota.
pub async fn fetch(
    arm: &ArmClient,
    subscription: &str,
    region: &str,
) -> Result<BTreeMap<String, i64>, CloudError> {
    let path = format!(
        "/subscriptions/{subscription}/providers/Microsoft.Compute/locations/{region}/usages?api-version=2025-04-01"
    );
    let usages: Vec<Usage> = arm.list(&format!("list quota usage in {region}"), &path).await?;
    let left = |usage: Usage| {
        Some((usage.name.value?.to_lowercase(), usage.limit? - usage.current_value?))
    };
    Ok(usages.into_iter().filter_map(left).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota() -> Quota {
        let left = [("f", 10), ("g", 100), (REGIONAL_CORES, 30), (SPOT_CORES, 8)];
        Quota::counted(left.map(|(name, left)| (name.to_owned(), left)).into())
    }

    fn on_demand(family: &str, vcpus: i64) -> QuotaCharge {
        charge(family, vcpus, CapacityType::OnDemand)
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn held_cores_count_against_the_family() {
        let mut quota = quota();
        assert!(quota.fits(&on_demand("F", 8)));
        quota.hold("a", on_demand("F", 8), at(0));
        assert!(!quota.fits(&on_demand("f", 4)));
        assert!(quota.fits(&on_demand("f", 2)));
        quota.release("a");
        assert!(quota.fits(&on_demand("f", 10)));
        quota.release("a");
        assert!(!quota.fits(&on_demand("f", 11)), "a second release adds nothing");
    }

    #[test]
    fn families_share_the_regional_quota_and_spot_has_its_own() {
        let mut quota = quota();
        quota.hold("a", on_demand("g", 28), at(0));
        assert!(!quota.fits(&on_demand("f", 4)), "2 of the region are left");
        let spot = |vcpus| charge("f", vcpus, CapacityType::Spot);
        assert!(quota.fits(&spot(8)) && !quota.fits(&spot(9)));
        quota.hold("b", spot(8), at(0));
        assert!(!quota.fits(&spot(1)) && quota.fits(&on_demand("f", 2)));
    }

    #[test]
    fn a_count_keeps_the_launches_that_azure_may_have_missed() {
        let mut quota = quota();
        quota.hold("old", on_demand("f", 4), at(0));
        quota.hold("young", on_demand("f", 2), at(90));
        // Azure has counted the old one.
        quota.recount([("f".to_owned(), 6)].into(), at(100));
        assert!(quota.fits(&on_demand("f", 4)) && !quota.fits(&on_demand("f", 5)));
        quota.recount([("f".to_owned(), 4)].into(), at(200));
        assert!(quota.fits(&on_demand("f", 4)) && !quota.fits(&on_demand("f", 5)));
    }

    #[test]
    fn a_refused_quota_is_empty_until_the_next_count() {
        let mut quota = quota();
        quota.hold("a", on_demand("g", 4), at(0));
        quota.exhausted(REGIONAL_CORES);
        assert!(!quota.fits(&on_demand("f", 1)));
        quota.recount([(REGIONAL_CORES.to_owned(), 8)].into(), at(100));
        assert!(quota.fits(&on_demand("f", 8)));
    }

    #[test]
    fn a_quota_without_a_count_has_no_limit() {
        assert!(Quota::default().fits(&on_demand("unknown", 1000)));
    }
}
