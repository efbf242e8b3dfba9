//! Memory of past decisions that the cluster itself does not show.
//!
//! Every entry only delays a decision (a nomination keeps a node from being disrupted for 20 s) or
//! spares work (a quiet pass is not repeated), so all of it may be lost in a restart. What would
//! cause churn if it were lost is recalled from the stored records ([`crate::decisions::store`]):
//! which NodePools grow and rest, and how often the pods of each workload were moved.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use nap_engine::{Plan, PodKey};

use crate::cluster::{Index, NodeKey};
use crate::decisions::inputs::Inputs;
use crate::decisions::store::{self, Stored};
use crate::decisions::{DecisionLog, Document, Kind};
use crate::disruption::{Backoff, DryRunReports, EvictionLedger, Seen};
use crate::extreme_price::PriceFindings;
use crate::node::EvictionBackoff;
use crate::nodeclaim::NominationRate;
use crate::nodeclaim::registration_health::RegistrationHealth;
use crate::provisioning::{BatchWindow, CreationBackoff, Creations, RefusedPods};
use crate::snapshot::PLAN_HOLDS;

/// Time after a launch for pending pods in which a NodePool counts as growing.
const GROWING: SignedDuration = SignedDuration::from_hours(1);

/// Memory of past decisions.
#[derive(Default)]
pub struct DecisionMemory {
    /// The batch of pending pods that is being collected.
    pub batch: BatchWindow,
    /// NodeClaims whose creation is to begin, plan by plan.
    pub creations: Vec<Creations>,
    /// Wait after creations that failed.
    pub creation_backoff: CreationBackoff,
    /// Nominations in the current second.
    pub nominations: NominationRate,
    /// Pods whose nodes kube-scheduler refused.
    pub refused: RefusedPods,
    /// Findings of disruption, and since when each has held.
    pub seen: Seen,
    /// Disruption that a dry run has found and reported.
    pub dry_run: DryRunReports,
    /// Evictions of the pods of draining nodes.
    pub evictions: EvictionBackoff,
    /// How often the pods of each workload were moved.
    pub moves: EvictionLedger,
    /// Disruption commands that failed.
    pub backoff: Backoff,
    /// Launches and registrations of each NodePool that succeeded or not.
    pub registrations: RegistrationHealth,
    /// NodePools that can reach an extreme price.
    pub prices: PriceFindings,
    /// Whether the creation of a NodeClaim was not answered: it may exist outside of the index.
    pub creation_unanswered: bool,
    /// What was learnt about the capacity of the cloud, as it was stored last; `None` until it was
    /// read.
    pub stored_capacity: Option<String>,
    /// Records of decisions.
    pub decisions: DecisionLog,
    /// Inputs of the last ones, for `nap replay`.
    pub inputs: Inputs,
    /// The ConfigMap with them, as it was stored last.
    pub stored_decisions: Stored,
    /// When a plan for pending pods last launched nodes, by NodePool.
    growth: BTreeMap<String, Timestamp>,
    /// Nodes that pods were planned onto, and until when they are not disrupted.
    nominated: BTreeMap<NodeKey, Timestamp>,
    /// Pods that the last plan could not place, and since when they are unschedulable. A pod that
    /// was scheduled in between has another time, and the entry no longer applies.
    unplaced: BTreeMap<PodKey, Timestamp>,
    quiet_pass: Option<QuietPass>,
    /// Unschedulable pods that a plan has been made for, and since when they are unschedulable.
    planned_for: BTreeMap<PodKey, Timestamp>,
}

/// A disruption pass that found nothing to do.
#[derive(Clone, Copy, Debug)]
struct QuietPass {
    generation: u64,
    until: Timestamp,
}

impl DecisionMemory {
    /// Remembers the NodePools in which a plan launches nodes for pending pods.
    pub fn remember_growth(&mut self, plan: &Plan, now: Timestamp) {
        self.growth.extend(plan.launches.iter().map(|launch| (launch.pool.clone(), now)));
    }

    /// Recalls what records of decisions and counts of evictions tell, from the ConfigMap that they
    /// are stored in. Returns what is wrong with it, by key.
    pub fn recall(
        &mut self,
        stored: &BTreeMap<String, String>,
        now: Timestamp,
    ) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        match stored.get(store::KEY).map(|text| Document::parse(text)) {
            Some(Ok(document)) => self.decisions.merge(document.records),
            Some(Err(error)) => problems.push((store::KEY, error)),
            None => {}
        }
        if let Some(text) = stored.get(store::EVICTIONS_KEY)
            && let Err(error) = self.moves.merge(text, now)
        {
            problems.push((store::EVICTIONS_KEY, error));
        }
        let plans = self.decisions.records().filter(|one| one.kind == Kind::Provisioning);
        for (pool, at) in plans.flat_map(|one| one.launched.iter().map(|it| (it, one.time))) {
            let known = self.growth.entry(pool.node_pool.clone()).or_insert(at);
            *known = at.max(*known);
        }
        self.backoff.recall(self.decisions.records());
        self.inputs.recall(self.decisions.records());
        problems
    }

    /// NodePools in which nodes were launched for pending pods a short while ago.
    pub fn growing(&self, now: Timestamp) -> BTreeSet<String> {
        let is_recent = |at: &Timestamp| now.duration_since(*at) < GROWING;
        let recent = self.growth.iter().filter(|(_, at)| is_recent(at));
        recent.map(|(pool, _)| pool.clone()).collect()
    }

    /// Remembers the existing nodes that a plan placed pods on.
    pub fn nominate(&mut self, index: &Index, plan: &Plan, now: Timestamp) {
        let holds = SignedDuration::try_from(PLAN_HOLDS).unwrap_or(SignedDuration::ZERO);
        let until = now.checked_add(holds).unwrap_or(Timestamp::MAX);
        self.nominated.retain(|_, until| *until > now);
        let keys = plan.placements.iter().filter_map(|one| index.key_of_view(&one.node));
        self.nominated.extend(keys.map(|key| (key, until)));
    }

    /// Whether pods were planned onto a node within the last 20 s.
    pub fn is_nominated(&self, node: &NodeKey, now: Timestamp) -> bool {
        self.nominated.get(node).is_some_and(|until| *until > now)
    }

    /// Whether any node is nominated.
    pub fn has_nominations(&self, now: Timestamp) -> bool {
        self.nominated.values().any(|until| *until > now)
    }

    /// Replaces the pods that could not be placed by those of a new plan.
    pub fn remember_unplaced(&mut self, index: &Index, plan: &Plan) {
        let since = |key: &PodKey| Some((key.clone(), index.unschedulable_since(key)?));
        self.unplaced = plan.unplaced.iter().filter_map(|one| since(&one.pod)).collect();
    }

    /// Remembers the pods of a plan. Returns, for each that it is the first plan of, since when it
    /// is unschedulable.
    pub fn remember_planned<'p>(
        &mut self,
        index: &Index,
        pods: impl Iterator<Item = &'p PodKey>,
    ) -> Vec<Timestamp> {
        self.planned_for.retain(|key, since| index.unschedulable_since(key) == Some(*since));
        let mut first = Vec::new();
        for key in pods {
            let Some(since) = index.unschedulable_since(key) else { continue };
            if self.planned_for.insert(key.clone(), since).is_none() {
                first.push(since);
            }
        }
        first
    }

    /// Whether a plan was made for an unschedulable pod.
    pub fn was_planned_for(&self, pod: &PodKey) -> bool {
        self.planned_for.contains_key(pod)
    }

    /// Whether the last plan could not place a pod, which therefore waits for a change of the
    /// cluster and not for a node.
    pub fn is_unplaced(&self, index: &Index, pod: &PodKey) -> bool {
        let since = self.unplaced.get(pod);
        since.is_some() && since.copied() == index.unschedulable_since(pod)
    }

    /// Remembers a disruption pass that found nothing to do at a generation of the index, and when
    /// the next is due although nothing changes.
    pub fn remember_quiet_pass(&mut self, generation: u64, until: Timestamp) {
        self.quiet_pass = Some(QuietPass { generation, until });
    }

    /// Whether the last pass found nothing to do, the index has not changed since, and no pass is
    /// due for the time that went by.
    pub fn is_quiet(&self, generation: u64, now: Timestamp) -> bool {
        self.quiet_pass.is_some_and(|pass| pass.generation == generation && now < pass.until)
    }
}

#[cfg(test)]
mod tests {
    use nap_engine::{PodKey, PriceEstimates};

    use super::*;
    use crate::decisions::DecisionRecord;
    use crate::testing::{at, claim, index, launch, node, placement};
    use serde_json::json;

    fn plan_onto(node: &str) -> Plan {
        let placements = vec![placement(&PodKey::new("shop", "web"), node)];
        Plan { placements, ..Plan::default() }
    }

    #[test]
    fn a_nodepool_grows_for_an_hour_after_a_launch() {
        let mut memory = DecisionMemory::default();
        assert!(memory.growing(at(0)).is_empty());
        let launches = vec![launch("D4", 1)];
        let pool = launches[0].pool.clone();
        memory.remember_growth(&Plan { launches, ..Plan::default() }, at(0));
        assert_eq!(memory.growing(at(3599)), [pool].into());
        assert!(memory.growing(at(3600)).is_empty());
    }

    #[test]
    fn growth_is_recalled_from_the_records_of_plans() {
        let launched = launch("D4", 1);
        let plan = Plan { launches: vec![launched.clone()], ..Plan::default() };
        let (kind, estimates) = (Kind::Provisioning, PriceEstimates::None);
        let mut before = DecisionMemory::default();
        let launches = [&launched];
        let record = DecisionRecord::new(kind, "Pending", &plan, &launches, estimates, at(0));
        before.decisions.add(record);
        let stored = BTreeMap::from([
            (store::KEY.to_owned(), before.decisions.to_text()),
            (store::EVICTIONS_KEY.to_owned(), "no document".to_owned()),
        ]);
        let mut memory = DecisionMemory::default();
        let problems = memory.recall(&stored, at(600));
        assert_eq!(memory.growing(at(3599)), [launched.pool].into());
        assert!(memory.growing(at(3600)).is_empty());
        let named: Vec<&str> = problems.iter().map(|(key, _)| *key).collect();
        assert_eq!(named, [store::EVICTIONS_KEY], "the rest is read all the same");
    }

    #[test]
    fn a_nomination_follows_the_nodeclaim_when_its_node_joins() {
        let mut index = index([claim("c", json!({}))]);
        let mut memory = DecisionMemory::default();
        memory.nominate(&index, &plan_onto("c"), at(0));
        index.apply(claim("c", json!({ "status": { "providerID": "azure:///1" } })), at(1));
        index.apply(node("n", json!({ "spec": { "providerID": "azure:///1" } })), at(1));
        let view = index.views().next().unwrap();
        assert_eq!(view.name(), "n");
        assert!(memory.is_nominated(&view.key(), at(19)));
        assert!(!memory.is_nominated(&view.key(), at(20)));
    }

    #[test]
    fn a_node_and_a_nodeclaim_of_the_same_name_are_told_apart() {
        let mut index = index([claim("other", json!({}))]);
        index.apply(node("same", json!({})), at(0));
        let mut memory = DecisionMemory::default();
        memory.nominate(&index, &plan_onto("same"), at(0));
        assert!(memory.is_nominated(&NodeKey::Node("same".to_owned()), at(0)));
        assert!(!memory.is_nominated(&NodeKey::NodeClaim("same".to_owned()), at(0)));
    }

    #[test]
    fn nominations_expire() {
        let index = index([claim("c", json!({}))]);
        let mut memory = DecisionMemory::default();
        assert!(!memory.has_nominations(at(0)));
        memory.nominate(&index, &plan_onto("c"), at(0));
        assert!(memory.has_nominations(at(19)) && !memory.has_nominations(at(20)));
    }
}
