//! Changes of pods, and what they make dirty.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use nap_api::labels;
use nap_engine::PodKey;

use super::Index;
use crate::cluster::kinds::is_news;
use crate::cluster::{Dirty, pods};

impl Index {
    pub(in crate::cluster) fn insert_pod(&mut self, key: PodKey, pod: Pod, now: Timestamp) {
        let old = self.pods.get(&key).cloned();
        if !is_news(old.as_ref(), &pod) {
            return;
        }
        let moved = old.as_ref().is_none_or(|old| {
            pods::node_of(old) != pods::node_of(&pod)
                || pods::is_terminal(old) != pods::is_terminal(&pod)
                || pods::is_terminating(old) != pods::is_terminating(&pod)
        });
        let protection = |pod: &Pod| pod.annotations().get(labels::DO_NOT_DISRUPT).cloned();
        if moved || old.as_ref().is_none_or(|old| protection(old) != protection(&pod)) {
            self.bump_generation();
        }
        if pods::was_tried(old.as_deref(), &pod) {
            self.last_attempt = Some(now);
        }
        let old_node = old.as_ref().and_then(|old| pods::node_of(old));
        if let Some(node) = old_node.filter(|node| Some(*node) != pods::node_of(&pod)) {
            self.unbind(node, &key);
        }
        if !pods::is_provisionable(&pod) {
            self.unschedulable.remove(&key);
        } else if !self.unschedulable.contains_key(&key) {
            self.unschedulable.insert(key.clone(), now);
            self.mark(Dirty::PendingPod);
        }
        let node = pods::node_of(&pod).map(str::to_owned);
        let counts = !pods::is_daemon(&pod) && !pods::is_mirror(&pod);
        self.pods.insert(key.clone(), Arc::new(pod));
        let Some(node) = node else { return };
        if moved {
            if counts && self.is_synced() {
                self.pod_events.insert(node.clone(), now);
            }
            self.mark_node_of_pod(&node);
            self.mark_lost_places(&node, &key);
        }
        self.pods_by_node.entry(node).or_default().insert(key);
    }

    pub(in crate::cluster) fn remove_pod(&mut self, key: &PodKey) {
        let Some(pod) = self.pods.remove(key) else { return };
        self.bump_generation();
        self.unschedulable.remove(key);
        if let Some(node) = pods::node_of(&pod) {
            self.unbind(node, key);
            self.mark_node_of_pod(node);
        }
    }

    fn unbind(&mut self, node: &str, key: &PodKey) {
        if let Some(pods) = self.pods_by_node.get_mut(node) {
            pods.remove(key);
            if pods.is_empty() {
                self.pods_by_node.remove(node);
            }
        }
    }

    /// A pod was bound to a node that it was not planned for. Planned pods that wait for the node
    /// may have lost their places.
    fn mark_lost_places(&mut self, node: &str, pod: &PodKey) {
        let claim = self.nodes.get(node).and_then(|node| self.claim_of_node(node));
        let plan = claim.and_then(|claim| self.plans.get(&claim.name_any()));
        let lost = plan.filter(|plan| !plan.pods.contains(&pod.0)).is_some_and(|plan| {
            plan.pods.iter().any(|one| self.unschedulable.contains_key(&PodKey(one.clone())))
        });
        if lost {
            self.mark(Dirty::Provisioning);
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
