//! Every VM must have a NodeClaim: one without costs money and is never deleted.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::Observation;

/// A VM that is without a NodeClaim for longer is a fault.
const MAX_UNCLAIMED: SignedDuration = SignedDuration::from_mins(15);

/// The VMs without a NodeClaim, by provider id, with the time since when.
#[derive(Default)]
pub(super) struct Leaks(BTreeMap<String, Timestamp>);

impl Leaks {
    pub(super) fn check(&mut self, seen: &Observation) -> Vec<String> {
        let claimed = |id: &str| {
            seen.claims.iter().any(|claim| {
                claim.status.as_ref().and_then(|status| status.provider_id.as_deref()) == Some(id)
            })
        };
        self.0.retain(|id, _| seen.vms.iter().any(|vm| vm.provider_id == *id) && !claimed(id));
        let mut faults = Vec::new();
        for vm in seen.vms.iter().filter(|vm| !claimed(&vm.provider_id)) {
            let since = *self.0.entry(vm.provider_id.clone()).or_insert(seen.now);
            if seen.now.duration_since(since) > MAX_UNCLAIMED {
                faults.push(format!("VM {} has no NodeClaim", vm.name));
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::nothing;
    use super::*;
    use crate::azure::EmulatedMachine;
    use nap_engine::CapacityType;
    use nap_units::UsdPerHour;

    #[test]
    fn vm_without_nodeclaim_for_fifteen_minutes_is_a_fault() {
        let vm = EmulatedMachine {
            name: "a".to_owned(),
            node_name: "node".to_owned(),
            provider_id: "azure://a".to_owned(),
            size: "size".to_owned(),
            zone: "1".to_owned(),
            capacity_type: CapacityType::OnDemand,
            price: UsdPerHour::ZERO,
            state: "Succeeded",
        };
        let at = |minutes| {
            let now = nothing().now + SignedDuration::from_mins(minutes);
            Observation { now, vms: vec![vm.clone()], ..nothing() }
        };
        let mut leaks = Leaks::default();
        assert_eq!(leaks.check(&at(0)).len(), 0);
        assert_eq!(leaks.check(&at(14)).len(), 0);
        assert_eq!(leaks.check(&at(16)).len(), 1);
    }
}
