//! The launches of a plan within the quota of the subscription.
//!
//! A plan is made with offerings that fit the quota one by one; together they may exceed it. Each
//! launch is charged as it is decided, and one whose planned offering no longer fits is decided
//! with its next alternative that does.

use std::collections::BTreeMap;

use nap_api::nodeclaim::condition::LAUNCHED;
use nap_api::{OfferingRef, PlanRecord};
use nap_cloud::{CloudProvider, QuotaCharge, QuotaCount};
use nap_engine::{CapacityType, Plan};

use super::nodeclaims;
use crate::cluster::{Index, claim_is};
use crate::snapshot::Catalogues;

/// The quotas that an offering counts against.
type ChargeOf<'c> = dyn Fn(&OfferingRef) -> Option<QuotaCharge> + 'c;

/// vCPUs left by the name of the quota, what is launched or about to be taken off.
pub(crate) fn quota_left(cloud: &dyn CloudProvider, index: &Index) -> BTreeMap<String, i64> {
    QuotaLedger::of(cloud, index).left
}

/// Moves the launches of a plan to the offerings with which the controllers would decide them, so
/// that together they stay within the quota. One without such an offering stays as it is planned.
pub fn stay_within_quota(
    cloud: &dyn CloudProvider,
    index: &Index,
    catalogues: &Catalogues,
    plan: &mut Plan,
) {
    let mut quota = QuotaLedger::of(cloud, index);
    for launch in &mut plan.launches {
        let (pool, catalogue) = (index.pool(&launch.pool), catalogues.of(&launch.pool));
        let (Some(pool), Some(catalogue)) = (pool, catalogue) else { continue };
        let mut offerings = nodeclaims::offerings(pool, launch, catalogue, None);
        if !quota.take(&mut offerings) {
            continue;
        }
        let Some(OfferingRef { instance_type, zone, capacity_type, price }) =
            offerings.into_iter().next()
        else {
            continue;
        };
        launch.capacity_type = CapacityType::parse(&capacity_type).unwrap_or(launch.capacity_type);
        (launch.instance_type, launch.zone, launch.price) = (instance_type, zone, price);
    }
    plan.cost = plan.launches.iter().map(|launch| launch.price).sum();
}

/// vCPUs left of each quota while launches are decided.
pub struct QuotaLedger<'c> {
    charge_of: Box<ChargeOf<'c>>,
    left: BTreeMap<String, i64>,
}

impl<'c> QuotaLedger<'c> {
    /// The quota of a cloud.
    pub fn of(cloud: &'c dyn CloudProvider, index: &Index) -> Self {
        Self::new(cloud.quota(), Box::new(|offering| cloud.quota_charge(offering)), index)
    }

    /// The quota that is left after what was launched, and after the NodeClaims that are decided or
    /// created and have yet to be launched.
    fn new(count: QuotaCount, charge_of: Box<ChargeOf<'c>>, index: &Index) -> Self {
        let QuotaCount { left, holds } = count;
        let mut ledger = Self { charge_of, left };
        let waiting = index.claims().filter(|claim| {
            claim.metadata.deletion_timestamp.is_none() && !claim_is(claim, LAUNCHED)
        });
        let decided = index.decided().filter_map(|decided| decided.view.claim.as_ref());
        for claim in waiting.chain(decided) {
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            if holds.contains_key(name) {
                continue;
            }
            let plan = PlanRecord::of(&claim.metadata).and_then(Result::ok).unwrap_or_default();
            let charge = plan.offerings.first().and_then(|planned| (ledger.charge_of)(planned));
            if let Some(charge) = charge {
                ledger.charge(&charge);
            }
        }
        for hold in holds.values() {
            ledger.charge(hold);
        }
        ledger
    }

    fn charge(&mut self, charge: &QuotaCharge) {
        for quota in &charge.quotas {
            if let Some(left) = self.left.get_mut(quota) {
                *left -= charge.vcpus;
            }
        }
    }

    fn fits(&self, charge: &QuotaCharge) -> bool {
        let fits = |quota| self.left.get(quota).is_none_or(|left| charge.vcpus <= *left);
        charge.quotas.iter().all(fits)
    }

    /// Moves the offerings that fit to the front, in their order, and charges the first. Returns
    /// false, and charges nothing, if none fits.
    pub fn take(&mut self, offerings: &mut [OfferingRef]) -> bool {
        let charges = offerings.iter().map(|one| (self.charge_of)(one));
        let charges: Vec<Option<QuotaCharge>> = charges.collect();
        let fits =
            |charge: &Option<QuotaCharge>| charge.as_ref().is_none_or(|charge| self.fits(charge));
        let Some(first) = charges.iter().position(fits) else { return false };
        if first > 0 {
            let mut order: Vec<(bool, OfferingRef)> =
                charges.iter().map(|charge| !fits(charge)).zip(offerings.iter().cloned()).collect();
            order.sort_by_key(|(exceeds, _)| *exceeds);
            for (place, (_, offering)) in offerings.iter_mut().zip(order) {
                *place = offering;
            }
        }
        if let Some(charge) = &charges[first] {
            self.charge(charge);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use nap_units::UsdPerHour;
    use serde_json::json;

    use super::*;
    use crate::testing::{claim, index};

    fn offering(size: &str) -> OfferingRef {
        OfferingRef {
            instance_type: size.to_owned(),
            zone: "eastus-1".to_owned(),
            capacity_type: "on-demand".to_owned(),
            price: UsdPerHour::ZERO,
        }
    }

    /// Sizes such as `D4`: the family and its vCPUs.
    fn charge(offering: &OfferingRef) -> Option<QuotaCharge> {
        let (family, vcpus) = offering.instance_type.split_at(1);
        let quotas = vec![family.to_owned(), "cores".to_owned()];
        Some(QuotaCharge { quotas, vcpus: vcpus.parse().ok()? })
    }

    fn ledger(left: &[(&str, i64)], holds: &[&str], index: &Index) -> QuotaLedger<'static> {
        let left = left.iter().map(|(name, left)| ((*name).to_owned(), *left)).collect();
        let hold = |name: &&str| ((*name).to_owned(), charge(&offering("D4")).unwrap());
        let count = QuotaCount { left, holds: holds.iter().map(hold).collect() };
        QuotaLedger::new(count, Box::new(charge), index)
    }

    fn take(ledger: &mut QuotaLedger<'_>, sizes: &[&str]) -> Option<String> {
        let mut offerings: Vec<OfferingRef> = sizes.iter().map(|size| offering(size)).collect();
        ledger.take(&mut offerings).then(|| offerings[0].instance_type.clone())
    }

    #[test]
    fn launches_of_one_plan_are_split_over_families() {
        let mut ledger = ledger(&[("D", 9), ("E", 4), ("cores", 100)], &[], &index([]));
        let sizes = ["D4", "E4", "F4"];
        let taken: Vec<_> = (0..4).map(|_| take(&mut ledger, &sizes).unwrap()).collect();
        assert_eq!(taken, ["D4", "D4", "E4", "F4"], "F has no limit");
        assert_eq!(take(&mut ledger, &["D4", "E4"]), None);
        assert_eq!(take(&mut ledger, &["D1"]).as_deref(), Some("D1"), "what is left is used");
    }

    #[test]
    fn all_families_share_the_region() {
        let mut ledger = ledger(&[("cores", 6)], &[], &index([]));
        assert_eq!(take(&mut ledger, &["D4"]).as_deref(), Some("D4"));
        assert_eq!(take(&mut ledger, &["E4", "F4"]), None);
    }

    #[test]
    fn nodeclaims_that_wait_for_their_launch_are_counted_once() {
        let record = PlanRecord { offerings: vec![offering("D4")], ..PlanRecord::default() };
        let annotations = json!({ nap_api::labels::PLAN: record.to_annotation() });
        let waiting = claim("a", json!({ "metadata": { "annotations": annotations } }));
        let index = index([waiting]);
        let left = [("D", 8)];
        for holds in [&[][..], &["a"]] {
            let mut ledger = ledger(&left, holds, &index);
            assert_eq!(take(&mut ledger, &["D4"]).as_deref(), Some("D4"), "{holds:?}");
            assert_eq!(take(&mut ledger, &["D4"]), None, "{holds:?}");
        }
    }
}
