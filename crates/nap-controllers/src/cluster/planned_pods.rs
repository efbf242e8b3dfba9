//! Which NodeClaims pods were planned onto, and which of these pods still wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nap_api::{PlanRecord, ReleaseSlot};
use nap_engine::PodKey;

/// Plan records by NodeClaim, and the pods of them that are unschedulable.
#[derive(Debug, Default)]
pub(super) struct PlannedPods {
    plans: BTreeMap<Arc<str>, Arc<PlanRecord>>,
    claims_by_pod: BTreeMap<PodKey, Vec<Arc<str>>>,
    waiting: BTreeMap<Arc<str>, BTreeSet<PodKey>>,
    /// NodeClaims with waiting pods by plan and number of their release slot.
    slots: BTreeMap<String, BTreeMap<u32, BTreeSet<Arc<str>>>>,
}

impl PlannedPods {
    /// The plan record of a NodeClaim.
    pub(super) fn plan(&self, claim: &str) -> Option<&Arc<PlanRecord>> {
        self.plans.get(claim)
    }

    /// Planned pods of a NodeClaim that are unschedulable, in key order.
    pub(super) fn waiting(&self, claim: &str) -> impl Iterator<Item = &PodKey> {
        self.waiting.get(claim).into_iter().flatten()
    }

    /// NodeClaims that a pod was planned onto.
    pub(super) fn claims_of(&self, pod: &PodKey) -> impl Iterator<Item = &str> {
        self.claims_by_pod.get(pod).into_iter().flatten().map(AsRef::as_ref)
    }

    /// The key of a planned pod as the plans have it, to be shared.
    pub(super) fn key_of(&self, pod: &PodKey) -> Option<&PodKey> {
        self.claims_by_pod.get_key_value(pod).map(|(key, _)| key)
    }

    /// Whether pods wait for NodeClaims that precede a slot in its plan.
    pub(super) fn is_preceded(&self, slot: &ReleaseSlot) -> bool {
        let first = self.slots.get(&slot.plan).and_then(|numbers| numbers.keys().next());
        first.is_some_and(|first| *first < slot.number)
    }

    /// Stores the plan record of a NodeClaim in place of an earlier one.
    pub(super) fn insert(
        &mut self,
        claim: &str,
        plan: PlanRecord,
        is_unschedulable: impl Fn(&PodKey) -> bool,
    ) {
        if self.plans.get(claim).is_some_and(|known| **known == plan) {
            return;
        }
        self.remove(claim);
        let claim: Arc<str> = claim.into();
        for key in plan.pods.iter().map(|key| PodKey::from(key.as_str())) {
            // Nearly every pod is planned once.
            let claims = self.claims_by_pod.entry(key.clone()).or_default();
            claims.reserve_exact(1);
            claims.push(Arc::clone(&claim));
            if is_unschedulable(&key) {
                self.waiting.entry(Arc::clone(&claim)).or_default().insert(key);
            }
        }
        self.plans.insert(Arc::clone(&claim), Arc::new(plan));
        self.update_slot(&claim);
    }

    /// Forgets the plan record of a NodeClaim.
    pub(super) fn remove(&mut self, claim: &str) {
        self.end(claim);
        self.plans.remove(claim);
    }

    /// Ends the plan of a NodeClaim that is being deleted: no pod waits for it any more.
    pub(super) fn end(&mut self, claim: &str) {
        self.waiting.remove(claim);
        self.update_slot(claim);
        let Some(plan) = self.plans.get(claim) else { return };
        for key in plan.pods.iter().map(|key| PodKey::from(key.as_str())) {
            if let Some(claims) = self.claims_by_pod.get_mut(&key) {
                claims.retain(|one| **one != *claim);
                if claims.is_empty() {
                    self.claims_by_pod.remove(&key);
                }
            }
        }
    }

    /// A pod has become unschedulable, or ceased to be.
    pub(super) fn set_waiting(&mut self, pod: &PodKey, waits: bool) {
        for claim in self.claims_by_pod.get(pod).cloned().unwrap_or_default() {
            let pods = self.waiting.entry(Arc::clone(&claim)).or_default();
            if waits {
                pods.insert(pod.clone());
            } else {
                pods.remove(pod);
            }
            if pods.is_empty() {
                self.waiting.remove(&claim);
            }
            self.update_slot(&claim);
        }
    }

    fn update_slot(&mut self, claim: &str) {
        let Some((claim, plan)) = self.plans.get_key_value(claim) else { return };
        let Some(slot) = &plan.release else { return };
        if self.waiting.contains_key(claim) {
            let numbers = self.slots.entry(slot.plan.clone()).or_default();
            numbers.entry(slot.number).or_default().insert(Arc::clone(claim));
            return;
        }
        let Some(numbers) = self.slots.get_mut(&slot.plan) else { return };
        if let Some(claims) = numbers.get_mut(&slot.number) {
            claims.remove(claim);
            if claims.is_empty() {
                numbers.remove(&slot.number);
            }
        }
        if numbers.is_empty() {
            self.slots.remove(&slot.plan);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(pods: &[&str], number: u32) -> PlanRecord {
        let release = Some(ReleaseSlot { plan: "p".to_owned(), number });
        let pods = pods.iter().map(|name| format!("shop/{name}")).collect();
        PlanRecord { pods, release, ..PlanRecord::default() }
    }

    fn waiting(planned: &PlannedPods, claim: &str) -> Vec<String> {
        planned.waiting(claim).map(ToString::to_string).collect()
    }

    #[test]
    fn pods_wait_while_they_are_planned_and_unschedulable() {
        let mut planned = PlannedPods::default();
        let web = PodKey::from("shop/web");
        planned.insert("a", plan(&["db", "web"], 0), |key| *key == web);
        assert_eq!(waiting(&planned, "a"), ["shop/web"]);
        planned.set_waiting(&PodKey::from("shop/db"), true);
        planned.set_waiting(&PodKey::from("shop/other"), true);
        assert_eq!(waiting(&planned, "a"), ["shop/db", "shop/web"]);
        planned.set_waiting(&web, false);
        assert_eq!(waiting(&planned, "a"), ["shop/db"]);
        planned.insert("a", plan(&["web"], 0), |_| true);
        assert_eq!(waiting(&planned, "a"), ["shop/web"], "another record");
    }

    #[test]
    fn a_slot_is_preceded_while_pods_wait_for_an_earlier_one() {
        let mut planned = PlannedPods::default();
        planned.insert("a", plan(&["x"], 0), |_| true);
        planned.insert("b", plan(&["y"], 1), |_| true);
        let slot = |number| ReleaseSlot { plan: "p".to_owned(), number };
        assert!(planned.is_preceded(&slot(1)) && !planned.is_preceded(&slot(0)));
        assert!(!planned.is_preceded(&ReleaseSlot { plan: "q".to_owned(), number: 9 }));
        planned.set_waiting(&PodKey::from("shop/x"), false);
        assert!(!planned.is_preceded(&slot(1)));
        planned.set_waiting(&PodKey::from("shop/x"), true);
        assert!(planned.is_preceded(&slot(1)));
        planned.end("a");
        planned.set_waiting(&PodKey::from("shop/x"), true);
        assert!(!planned.is_preceded(&slot(1)) && planned.plan("a").is_some());
    }

    #[test]
    fn nothing_is_left_of_plans_that_are_gone() {
        let mut planned = PlannedPods::default();
        planned.insert("a", plan(&["x", "y"], 0), |_| true);
        planned.insert("b", plan(&["x"], 1), |_| true);
        planned.remove("a");
        planned.remove("b");
        assert!(planned.plans.is_empty() && planned.claims_by_pod.is_empty());
        assert!(planned.waiting.is_empty() && planned.slots.is_empty());
    }
}
