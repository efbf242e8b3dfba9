//! The outcome of a decision, as the NodeClaims in the cluster show it.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use nap_api::nodeclaim::condition::{DISRUPTION_REASON, INITIALIZED};
use nap_api::{NodeClaim, labels};
use nap_units::UsdPerHour;

use super::record::{DecisionRecord, Kind, Outcome, RecordedNode};
use crate::cluster::{Index, claim_is, pool_of};
use crate::disruption::candidates::price;
use crate::snapshot::Catalogues;

/// Time within which a planned NodeClaim is created, or else is not.
const CREATED_WITHIN: SignedDuration = SignedDuration::from_mins(5);

/// The record with its outcome; `None` while it is not known.
pub fn settle(
    record: &DecisionRecord,
    index: &Index,
    catalogues: &Catalogues,
    now: Timestamp,
) -> Option<DecisionRecord> {
    let outcome = match record.kind {
        Kind::Disruption => disruption(record, index),
        Kind::Provisioning => provisioning(record, index, now),
    };
    if outcome == Outcome::Pending {
        return None;
    }
    let mut settled = record.clone();
    (settled.outcome, settled.settled) = (outcome, Some(now));
    for node in &mut settled.launched {
        if let Some(claim) = index.claim(&node.node_claim) {
            observe(node, claim, catalogues);
        }
    }
    if outcome == Outcome::Realised && record.kind == Kind::Disruption {
        settled.realised_saving_micro_usd_per_hour = saving(&settled);
    }
    Some(settled)
}

fn disruption(record: &DecisionRecord, index: &Index) -> Outcome {
    let claims: Vec<&NodeClaim> = record
        .removed
        .iter()
        .filter_map(|one| index.claim(&one.node_claim).map(AsRef::as_ref))
        .collect();
    let is_kept = |claim: &&NodeClaim| {
        claim.metadata.deletion_timestamp.is_none() && !claim_is(claim, DISRUPTION_REASON)
    };
    if claims.iter().any(is_kept) {
        Outcome::RolledBack
    } else if claims.is_empty() {
        Outcome::Realised
    } else {
        Outcome::Pending
    }
}

fn provisioning(record: &DecisionRecord, index: &Index, now: Timestamp) -> Outcome {
    let mut outcome = Outcome::Realised;
    for node in &record.launched {
        if node.node_claim.is_empty() {
            if now.duration_since(record.time) > CREATED_WITHIN {
                return Outcome::Failed;
            }
            outcome = Outcome::Pending;
            continue;
        }
        match index.claim(&node.node_claim) {
            None => return Outcome::Failed,
            Some(claim) if claim_is(claim, INITIALIZED) => {}
            Some(_) => outcome = Outcome::Pending,
        }
    }
    outcome
}

/// Takes the offering that was really launched, which may be another than the planned one.
fn observe(node: &mut RecordedNode, claim: &NodeClaim, catalogues: &Catalogues) {
    let label = |key: &str| claim.labels().get(key).cloned();
    let name = claim.status.as_ref().and_then(|status| status.node_name.clone());
    node.node = name.unwrap_or_default();
    let offering =
        (label(labels::INSTANCE_TYPE), label(labels::ZONE), label(labels::CAPACITY_TYPE));
    let (Some(instance_type), Some(zone), Some(capacity_type)) = offering else { return };
    let is_planned = (&node.instance_type, &node.zone, &node.capacity_type)
        == (&instance_type, &zone, &capacity_type);
    if !is_planned {
        let types = catalogues.of(pool_of(claim).unwrap_or_default());
        let price = price(claim, types.map(|types| types.types()).unwrap_or_default());
        node.micro_usd_per_hour = price.map(UsdPerHour::micros);
    }
    (node.instance_type, node.zone, node.capacity_type) = (instance_type, zone, capacity_type);
}

/// Price of the removed nodes less that of the launched ones; `None` if one is not known.
fn saving(record: &DecisionRecord) -> Option<i64> {
    let sum = |nodes: &[RecordedNode]| -> Option<i64> {
        nodes.iter().map(|node| node.micro_usd_per_hour).sum()
    };
    Some(sum(&record.removed)? - sum(&record.launched)?)
}

#[cfg(test)]
mod tests {
    use nap_engine::{Plan, PriceEstimates};
    use serde_json::json;

    use super::*;
    use crate::testing::{at, claim, cluster_of, condition, launch, set_condition};

    /// A command that replaces `claim-0` at 300 by `new`, planned as D4 at 100.
    fn replacement() -> DecisionRecord {
        let launch = launch("D4", 100);
        let plan = Plan { launches: vec![launch.clone()], ..Plan::default() };
        let (kind, reason) = (Kind::Disruption, "Underutilized");
        let record =
            DecisionRecord::new(kind, reason, &plan, &[&launch], PriceEstimates::None, at(0));
        let removed = RecordedNode {
            node_claim: "claim-0".to_owned(),
            micro_usd_per_hour: Some(300),
            ..RecordedNode::default()
        };
        let saving = Some(UsdPerHour::from_micros(200));
        let mut record = record.removing(vec![removed], 1, saving, "replace");
        "new".clone_into(&mut record.launched[0].node_claim);
        record
    }

    fn settled(record: &DecisionRecord, index: &Index, seconds: i64) -> Option<DecisionRecord> {
        settle(record, index, &Catalogues::default(), at(seconds))
    }

    #[test]
    fn a_replacement_is_realised_once_the_old_nodeclaim_is_gone() {
        let mut index = cluster_of(1);
        set_condition(&mut index, "claim-0", "DisruptionReason", "1970-01-01T00:00:00Z");
        index.apply(claim("new", json!({})), at(0));
        assert_eq!(settled(&replacement(), &index, 60), None);
        index.delete::<NodeClaim>("claim-0");
        let done = settled(&replacement(), &index, 90).unwrap();
        assert_eq!((done.outcome, done.settled), (Outcome::Realised, Some(at(90))));
        assert_eq!(done.realised_saving_micro_usd_per_hour, Some(200), "as planned");
    }

    #[test]
    fn the_realised_saving_is_unknown_if_another_offering_without_a_price_was_launched() {
        let offering = json!({
            labels::INSTANCE_TYPE: "D8", labels::ZONE: "z-9", labels::CAPACITY_TYPE: "spot",
        });
        let index =
            crate::testing::index([claim("new", json!({ "metadata": { "labels": offering } }))]);
        let done = settled(&replacement(), &index, 90).unwrap();
        assert_eq!(done.realised_saving_micro_usd_per_hour, None);
        assert_eq!(done.launched[0].instance_type, "D8");
    }

    #[test]
    fn a_replacement_whose_old_node_stays_was_rolled_back() {
        let done = settled(&replacement(), &cluster_of(1), 700).unwrap();
        assert_eq!(done.outcome, Outcome::RolledBack);
        assert_eq!(done.realised_saving_micro_usd_per_hour, None);
    }

    #[test]
    fn new_nodes_are_realised_when_initialized_and_failed_when_gone_or_never_created() {
        let launch = launch("D4", 100);
        let plan = Plan { launches: vec![launch.clone()], ..Plan::default() };
        let mut record = DecisionRecord::new(
            Kind::Provisioning,
            "Pending",
            &plan,
            &[&launch],
            PriceEstimates::None,
            at(0),
        );
        assert_eq!(settled(&record, &Index::default(), 300), None);
        assert_eq!(settled(&record, &Index::default(), 301).unwrap().outcome, Outcome::Failed);
        "new".clone_into(&mut record.launched[0].node_claim);
        assert_eq!(settled(&record, &Index::default(), 60).unwrap().outcome, Outcome::Failed);
        let with = |status: &str| {
            let conditions = json!([condition("Initialized", status)]);
            let object = json!({ "status": { "conditions": conditions, "nodeName": "node-7" } });
            settled(&record, &crate::testing::index([claim("new", object)]), 60)
        };
        assert_eq!(with("Unknown"), None);
        let done = with("True").unwrap();
        assert_eq!((done.outcome, done.launched[0].node.as_str()), (Outcome::Realised, "node-7"));
        assert_eq!(done.realised_saving_micro_usd_per_hour, None, "it saves nothing");
    }
}
