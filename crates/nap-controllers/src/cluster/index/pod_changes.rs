//! Changes of pods, and what they make dirty.

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use nap_api::labels;
use nap_engine::PodKey;

use super::{Index, Unschedulable};
use crate::cluster::milestones::of_pod;
use crate::cluster::{Dirty, Pod, pods};

impl Index {
    pub(in crate::cluster) fn insert_pod(&mut self, mut pod: Pod, now: Timestamp) {
        let old = self.pods.get(pod.key()).cloned();
        if old.as_ref().is_some_and(|old| !pod.is_newer_than(old)) {
            return;
        }
        self.shared_parts.share(&mut pod);
        if let Some(key) = self.planned.key_of(pod.key()) {
            pod.share_key(key);
        }
        let key = pod.key().clone();
        if let Some(old) = &old {
            let since = self.unschedulable_since(&key).or(self.provisioned.get(&key).copied());
            self.report(of_pod(old, &pod, since, now));
            match since {
                Some(since) if pod.node().is_some() && pod.ready() != Some(true) => {
                    self.provisioned.insert(key.clone(), since);
                }
                _ => drop(self.provisioned.remove(&key)),
            }
        }
        let moved = old.as_ref().is_none_or(|old| {
            old.node() != pod.node()
                || old.is_terminal() != pod.is_terminal()
                || pods::is_terminating(old) != pods::is_terminating(&pod)
        });
        let protection = |pod: &Pod| pod.annotations().get(labels::DO_NOT_DISRUPT).cloned();
        if moved || old.as_ref().is_none_or(|old| protection(old) != protection(&pod)) {
            self.bump_generation();
        }
        if pods::was_retried(old.as_deref(), &pod) {
            self.last_retry = Some(now);
            if let Some(known) = self.unschedulable.get_mut(&key) {
                known.tried = now;
            }
        }
        if old.as_ref().is_some_and(|old| pods::lost_nomination(old, &pod)) {
            self.scheduler_woken = Some(now);
            self.mark_planned_for(&key);
        }
        let old_node = old.as_ref().and_then(|old| old.node());
        if let Some(node) = old_node.filter(|node| Some(*node) != pod.node()) {
            self.unbind(node, &key);
        }
        if !pods::is_provisionable(&pod) {
            self.no_longer_unschedulable(&key);
        } else if !self.unschedulable.contains_key(&key) {
            self.unschedulable.insert(key.clone(), Unschedulable { since: now, tried: now });
            self.planned.set_waiting(&key, true);
            self.mark(Dirty::PendingPod);
        }
        let counts = !pods::is_daemon(&pod) && !pods::is_mirror(&pod);
        let node = pod.node().map(|node| self.bind(node, &key));
        if let Some(node) = &node {
            pod.share_node(node);
        }
        if let Some(old) = &old {
            self.release(old);
        }
        if let Some(daemon_set) = daemon_set_of(&pod) {
            self.daemon_pods.entry(daemon_set).or_default().insert((pod.created(), key.clone()));
        }
        self.pods.insert(key.clone(), Arc::new(pod));
        let Some(node) = node.filter(|_| moved) else { return };
        if counts && self.is_synced() {
            self.pod_events.insert(node.to_string(), now);
        }
        self.mark_node_of_pod(&node);
        self.mark_lost_places(&node, &key);
    }

    pub(in crate::cluster) fn remove_pod(&mut self, key: &PodKey) {
        let Some(pod) = self.pods.remove(key) else { return };
        self.bump_generation();
        self.no_longer_unschedulable(key);
        self.provisioned.remove(key);
        if let Some(node) = pod.node() {
            self.unbind(node, key);
            self.mark_node_of_pod(node);
        }
        self.release(&pod);
    }

    fn no_longer_unschedulable(&mut self, key: &PodKey) {
        if self.unschedulable.remove(key).is_some() {
            self.planned.set_waiting(key, false);
        }
    }

    /// Forgets what is kept about a pod besides the pod itself.
    fn release(&mut self, pod: &Pod) {
        self.shared_parts.release(pod);
        let Some(daemon_set) = daemon_set_of(pod) else { return };
        if let Some(pods) = self.daemon_pods.get_mut(&daemon_set) {
            pods.remove(&(pod.created(), pod.key().clone()));
            if pods.is_empty() {
                self.daemon_pods.remove(&daemon_set);
            }
        }
    }

    /// Counts a pod as bound to a node. Returns the name of the node as the index has it.
    fn bind(&mut self, node: &str, key: &PodKey) -> Arc<str> {
        let known = self.pods_by_node.get_key_value(node).map(|(node, _)| Arc::clone(node));
        let node = known.unwrap_or_else(|| Arc::from(node));
        let bound = self.pods_by_node.entry(Arc::clone(&node)).or_default();
        bound.keys.insert(key.clone());
        bound.stamp = self.stamps.next();
        node
    }

    fn unbind(&mut self, node: &str, key: &PodKey) {
        if let Some(bound) = self.pods_by_node.get_mut(node) {
            bound.keys.remove(key);
            bound.stamp = self.stamps.next();
            if bound.keys.is_empty() {
                self.pods_by_node.remove(node);
            }
        }
    }

    /// A pod was bound to a node that it was not planned for. Planned pods that wait for the node
    /// may have lost their places, several of them in a row: they are planned in one batch.
    fn mark_lost_places(&mut self, node: &str, pod: &PodKey) {
        let claim = self.nodes.get(node).and_then(|node| self.claim_of_node(node));
        let plan = claim.and_then(|claim| self.planned.plan(&claim.name_any()));
        let lost = plan.filter(|plan| !plan.pods.contains(pod.as_str())).is_some_and(|plan| {
            plan.pods.iter().any(|one| self.unschedulable.contains_key(&PodKey::from(one.as_str())))
        });
        if lost {
            self.mark(Dirty::PendingPod);
        }
    }

    /// A planned pod lost its nomination, and other pods may take its room until it is nominated
    /// again.
    fn mark_planned_for(&mut self, pod: &PodKey) {
        let claims: Vec<String> = self.planned.claims_of(pod).map(str::to_owned).collect();
        for claim in claims {
            self.mark(Dirty::NodeClaim(claim));
        }
    }

    /// A pod was bound to a node or left it: the node's drain and its NodeClaim depend on that.
    fn mark_node_of_pod(&mut self, name: &str) {
        let Some(node) = self.nodes.get(name) else { return };
        let deleting = node.metadata.deletion_timestamp.is_some();
        let claim = self.claim_of_node(node).map(|claim| claim.name_any());
        if deleting {
            self.mark(Dirty::Node(name.to_owned()));
        }
        if let Some(claim) = claim {
            self.mark(Dirty::NodeClaim(claim));
        }
    }
}

/// `namespace/name` of the DaemonSet of a pod.
fn daemon_set_of(pod: &Pod) -> Option<String> {
    let owner = pod.owners().iter().find(|owner| owner.kind == "DaemonSet")?;
    Some(format!("{}/{}", pod.namespace(), owner.name))
}
