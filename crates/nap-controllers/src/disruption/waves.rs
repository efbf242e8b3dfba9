//! Waves of drift: one canary, then a tenth of the NodePool, then the rest.
//!
//! The state is derived from the NodeClaims alone, so a restart changes nothing. A NodeClaim of the
//! new kind has not drifted, carries the hashes of its NodePool and node class, and either differs
//! in hashes or image from every drifted one, or was created after the first of them drifted. A
//! wave has soaked once as many nodes of the new kind as it has were initialized for the soak time.
//!
//! Drift halts while a node of the new kind is not ready, and while a pod that was created since
//! the first of them is pending for long: it may have been moved.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use nap_api::nodeclaim::condition::{DISRUPTION_REASON, DRIFTED, INITIALIZED};
use nap_api::{NodeClaim, NodePool, conditions, labels};

use crate::cluster::{Index, NodeKey, Pod, claim_conditions, claim_is, is_ready};
use crate::hash_migration::HashStamp;
use crate::nodeclaim::EXPIRED;

/// Share of the nodes that the second wave has: a tenth.
pub const SECOND_WAVE: usize = 10;
/// Time that a node of the new kind may take to be initialized.
const MAX_STARTUP: SignedDuration = SignedDuration::from_mins(10);
/// Time that a pod may be pending.
const MAX_PENDING: SignedDuration = SignedDuration::from_mins(5);

/// The wave that a NodePool is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wave {
    /// Drifted nodes that may be replaced now.
    pub left: usize,
    /// Whether something is wrong with the new nodes.
    pub is_halted: bool,
    /// What is waited for, or what is wrong.
    pub message: String,
}

/// What the nodes of one kind have in common: hashes of the NodePool and the node class, and image.
type Kind<'a> = [Option<&'a String>; 3];

/// The wave of a NodePool with `nodes` nodes; `None` if no node has drifted, or the last wave has
/// begun and nothing is wrong. An expired node is not of an old kind.
pub fn wave(
    index: &Index,
    pool: &NodePool,
    nodes: usize,
    soak: SignedDuration,
    now: Timestamp,
) -> Option<Wave> {
    let name = pool.name_any();
    let drifted: Vec<&NodeClaim> =
        index.claims_of_pool(&name).map(Arc::as_ref).filter(|one| has_old_kind(one)).collect();
    let since = |claim: &NodeClaim| conditions::since(claim_conditions(claim), DRIFTED);
    let onset = drifted.iter().filter_map(|claim| since(claim)).min()?;
    let new = new_kind(index, pool, &drifted, onset);
    let begin = new.iter().filter_map(|claim| created(claim)).min().unwrap_or(onset);
    if let Some(problem) = unready(index, &new, now).or_else(|| pending(index, &name, begin, now)) {
        let message = format!("Drift is halted: {problem}");
        return Some(Wave { left: 0, is_halted: true, message });
    }
    let mut initialized: Vec<Timestamp> = new
        .iter()
        .filter(|claim| claim_is(claim, INITIALIZED))
        .filter_map(|claim| conditions::since(claim_conditions(claim), INITIALIZED))
        .collect();
    initialized.sort_unstable();
    let soaked = initialized.iter().filter(|at| now.duration_since(**at) >= soak).count();
    let second = nodes.div_ceil(SECOND_WAVE).max(1);
    if soaked >= second {
        return None;
    }
    let size = if soaked == 0 { 1 } else { second };
    let is_going = |claim: &&&NodeClaim| {
        claim.metadata.deletion_timestamp.is_some() || claim_is(claim, DISRUPTION_REASON)
    };
    let going = drifted.iter().filter(is_going).count();
    let done = initialized.len();
    let message = match initialized.get(size - 1).and_then(|at| at.checked_add(soak).ok()) {
        Some(until) => format!(
            "Drift goes on at {until}, if the {done} new of {nodes} nodes stay ready until then"
        ),
        None => format!("Drift goes on when {size} new of {nodes} nodes are ready: {done} are"),
    };
    Some(Wave { left: size.saturating_sub(done + going), is_halted: false, message })
}

/// Whether a NodeClaim has drifted because something changed, not just time passed.
fn has_old_kind(claim: &NodeClaim) -> bool {
    let drifted = conditions::get(claim_conditions(claim), DRIFTED);
    claim_is(claim, DRIFTED) && drifted.is_some_and(|drifted| drifted.reason != EXPIRED)
}

/// NodeClaims of the new kind that stay.
fn new_kind<'a>(
    index: &'a Index,
    pool: &NodePool,
    drifted: &[&NodeClaim],
    onset: Timestamp,
) -> Vec<&'a NodeClaim> {
    let old: BTreeSet<Kind<'_>> = drifted.iter().map(|claim| kind(claim)).collect();
    let pool_stamp = HashStamp::of_pool(pool);
    let class = index.class(&pool.spec.template.spec.node_class_ref.name);
    let class_stamp = class.map(|class| HashStamp::of_class(class));
    let is_new = |claim: &&NodeClaim| {
        claim.metadata.deletion_timestamp.is_none()
            && !claim_is(claim, DRIFTED)
            && pool_stamp.is_on(*claim)
            && class_stamp.as_ref().is_none_or(|stamp| stamp.is_on(*claim))
            && (!old.contains(&kind(claim)) || created(claim).is_some_and(|at| at >= onset))
    };
    index.claims_of_pool(&pool.name_any()).map(Arc::as_ref).filter(is_new).collect()
}

fn kind(claim: &NodeClaim) -> Kind<'_> {
    let hash = |key| claim.annotations().get(key);
    let image = claim.status.as_ref().and_then(|status| status.image_id.as_ref());
    [hash(labels::NODEPOOL_HASH), hash(labels::AKS_NODE_CLASS_HASH), image]
}

fn created(claim: &NodeClaim) -> Option<Timestamp> {
    claim.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

/// The first node of the new kind that is not ready, or not in time.
fn unready(index: &Index, new: &[&NodeClaim], now: Timestamp) -> Option<String> {
    new.iter().find_map(|claim| {
        let name = claim.name_any();
        let view = index.view(&NodeKey::NodeClaim(name.clone()))?;
        if view.is_initialized() {
            let node = view.node.as_ref().filter(|node| !is_ready(node))?;
            return Some(format!(
                "new node `{}` is not ready; repair or delete it",
                node.name_any()
            ));
        }
        let age = now.duration_since(created(claim)?);
        (age >= MAX_STARTUP).then(|| {
            let minutes = MAX_STARTUP.as_mins();
            format!("new node of NodeClaim `{name}` is not initialized after {minutes} min")
        })
    })
}

/// The first pod that was created since `begin` and is pending for too long.
fn pending(index: &Index, pool: &str, begin: Timestamp, now: Timestamp) -> Option<String> {
    let may_be_moved = |pod: &Pod| {
        let selector = pod.spec().node_selector.as_ref();
        let wanted = selector.and_then(|selector| selector.get(labels::NODEPOOL));
        wanted.is_none_or(|wanted| wanted == pool)
    };
    index.unschedulable_pods().find_map(|(key, pod)| {
        let created = pod.created().filter(|created| *created >= begin)?;
        let waits = now.duration_since(created);
        (waits >= MAX_PENDING && may_be_moved(pod))
            .then(|| format!("pod `{key}` is pending for more than {} min", MAX_PENDING.as_mins()))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{at, claim, condition, node, pending_pod, pool};

    const SOAK: SignedDuration = SignedDuration::from_mins(30);

    fn since(type_: &str, reason: &str, seconds: i64) -> Value {
        let mut condition = condition(type_, "True");
        condition["reason"] = json!(reason);
        condition["lastTransitionTime"] = json!(at(seconds).to_string());
        condition
    }

    fn node_pool() -> NodePool {
        pool("p", json!({}))
    }

    fn apply(index: &mut Index, name: &str, hash: &str, created: i64, conditions: &[Value]) {
        let id = format!("azure:///{name}");
        let annotations = json!({
            labels::NODEPOOL_HASH: hash,
            labels::NODEPOOL_HASH_VERSION: nap_api::hash::NODEPOOL_HASH_VERSION,
        });
        let object = json!({
            "metadata": {
                "labels": { labels::NODEPOOL: "p" }, "annotations": annotations,
                "creationTimestamp": at(created).to_string(),
            },
            "status": { "providerID": id, "nodeName": name, "conditions": conditions },
        });
        index.apply(claim(name, object), at(created));
        let ready = json!([{ "type": "Ready", "status": "True" }]);
        let object = json!({ "spec": { "providerID": id }, "status": { "conditions": ready } });
        index.apply(node(name, object), at(created));
    }

    /// A node of the old kind that drifted at 0 s.
    fn old(index: &mut Index, name: &str, reason: &str) {
        let conditions = [since("Initialized", "", -9000), since("Drifted", reason, 0)];
        apply(index, name, "old", -9999, &conditions);
    }

    /// A node of the new kind that was created a minute before it was initialized.
    fn new(index: &mut Index, name: &str, initialized: i64) {
        let hash = nap_api::hash::nodepool_hash(&node_pool().spec);
        apply(index, name, &hash, initialized - 60, &[since("Initialized", "", initialized)]);
    }

    /// A NodePool with 30 nodes, of which `replaced` are of the new kind.
    fn thirty(replaced: &[i64]) -> Index {
        let mut index = Index::default();
        index.apply(node_pool(), at(-10_000));
        for number in replaced.len()..30 {
            old(&mut index, &format!("old-{number:02}"), "NodePoolDrifted");
        }
        for (number, initialized) in replaced.iter().enumerate() {
            new(&mut index, &format!("new-{number:02}"), *initialized);
        }
        index
    }

    fn wave_at(index: &Index, seconds: i64) -> Option<Wave> {
        wave(index, &node_pool(), 30, SOAK, at(seconds))
    }

    fn left(index: &Index, seconds: i64) -> Option<usize> {
        wave_at(index, seconds).map(|wave| wave.left)
    }

    #[test]
    fn one_node_goes_first_then_a_tenth_then_the_rest() {
        assert_eq!(left(&thirty(&[]), 10), Some(1));
        let canary = thirty(&[100]);
        assert_eq!(left(&canary, 1899), Some(0), "the canary soaks");
        assert_eq!(left(&canary, 1900), Some(2), "three of thirty");
        let tenth = thirty(&[100, 2000, 2060]);
        let waits = wave_at(&tenth, 3000).unwrap();
        assert_eq!(waits.left, 0);
        let expected = "Drift goes on at 1970-01-01T01:04:20Z, if the 3 new of 30 nodes stay ready \
                        until then";
        assert_eq!(waits.message, expected);
        assert_eq!(left(&tenth, 3859), Some(0));
        assert_eq!(left(&tenth, 3860), None, "no limit");
    }

    #[test]
    fn nodes_that_are_being_replaced_count() {
        let mut index = thirty(&[100]);
        let going = [
            since("Initialized", "", -9000),
            since("Drifted", "NodePoolDrifted", 0),
            since("DisruptionReason", "Drifted", 2000),
        ];
        apply(&mut index, "old-07", "old", -9999, &going);
        assert_eq!(left(&index, 2000), Some(1));
    }

    #[test]
    fn a_node_that_is_not_yet_marked_is_no_evidence_for_the_new_kind() {
        let mut index = thirty(&[]);
        // An old image that no check has found yet: the same kind as those that have drifted.
        let hash = nap_api::hash::nodepool_hash(&node_pool().spec);
        let drifted = [since("Initialized", "", -9000), since("Drifted", "ImageDrift", 0)];
        apply(&mut index, "old-00", &hash, -9999, &drifted);
        apply(&mut index, "old-01", &hash, -9999, &[since("Initialized", "", -9000)]);
        assert_eq!(left(&index, 4000), Some(1));
        // And a template that has changed, before the hash was compared.
        apply(&mut index, "old-02", "old", -9999, &[since("Initialized", "", -9000)]);
        assert_eq!(left(&index, 4000), Some(1));
    }

    #[test]
    fn a_new_node_that_is_not_ready_halts_drift() {
        let mut index = thirty(&[100, 2000, 2060]);
        let mut broken = index.node("new-01").unwrap().as_ref().clone();
        broken.status = None;
        index.apply(broken, at(5000));
        let wave = wave_at(&index, 5000).unwrap();
        assert!(wave.is_halted && wave.left == 0);
        let expected = "Drift is halted: new node `new-01` is not ready; repair or delete it";
        assert_eq!(wave.message, expected);
    }

    #[test]
    fn a_new_node_that_does_not_start_halts_drift() {
        let mut index = thirty(&[100]);
        let hash = nap_api::hash::nodepool_hash(&node_pool().spec);
        apply(&mut index, "new-01", &hash, 2000, &[]);
        assert_eq!(left(&index, 2599), Some(2));
        let wave = wave_at(&index, 2600).unwrap();
        assert!(wave.is_halted, "{}", wave.message);
    }

    #[test]
    fn a_pod_that_stays_pending_halts_drift() {
        let pending = |created: i64, selector: Value| {
            let mut pod = pending_pod("shop", "web");
            pod.metadata.creation_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(created)));
            pod.spec.as_mut().unwrap().node_selector = serde_json::from_value(selector).unwrap();
            let mut index = thirty(&[100]);
            index.apply(pod, at(created));
            index
        };
        let index = pending(200, Value::Null);
        assert!(!wave_at(&index, 499).unwrap().is_halted);
        let wave = wave_at(&index, 500).unwrap();
        let expected = "Drift is halted: pod `shop/web` is pending for more than 5 min";
        assert_eq!((wave.message.as_str(), wave.is_halted), (expected, true));
        let earlier = pending(39, Value::Null);
        assert!(!wave_at(&earlier, 500).unwrap().is_halted, "it waited before the canary");
        let elsewhere = pending(200, json!({ labels::NODEPOOL: "other" }));
        assert!(!wave_at(&elsewhere, 500).unwrap().is_halted, "it is not for this NodePool");
    }

    #[test]
    fn expired_nodes_need_no_canary() {
        let mut index = thirty(&[]);
        for number in 0..30 {
            old(&mut index, &format!("old-{number:02}"), EXPIRED);
        }
        assert_eq!(wave_at(&index, 10), None);
        old(&mut index, "old-00", "ImageDrift");
        assert_eq!(left(&index, 10), Some(1));
    }
}
