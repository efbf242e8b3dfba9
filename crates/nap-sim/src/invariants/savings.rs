//! The VMs that replace others in consolidation cost less than these, by what Azure bills. A
//! NodeOverlay that states other prices ends the check.

use crate::azure::Emulator;

use super::State;

/// Price of a VM in micro-dollars per hour; `None` if Azure has no such VM.
pub(super) fn price(azure: &Emulator, provider_id: &str) -> Option<i64> {
    let machines = azure.machines();
    let machine = machines.iter().find(|one| one.provider_id == provider_id)?;
    Some(machine.price.micros())
}

/// Looks at a NodeClaim that has just been deleted.
pub(super) fn check(state: &State, name: &str) -> Option<String> {
    let claim = &state.claims[name];
    if claim.reason.as_deref() != Some("Underutilized") {
        return None;
    }
    let replaces = |names: &std::collections::BTreeSet<String>| names.contains(name);
    let mut new = state.claims.values().filter(|one| replaces(&one.plan.replaces)).peekable();
    let old = &new.peek()?.plan.replaces;
    let old: Option<i64> = old.iter().map(|one| state.claims.get(one)?.price).sum();
    let new: Option<i64> = new.map(|one| price(&state.azure, &one.provider_id)).sum();
    let (old, new) = (old?, new?);
    (new >= old).then(|| {
        format!("node {} is replaced for {new} micro-dollars an hour, which cost {old}", claim.node)
    })
}
