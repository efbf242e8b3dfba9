//! The taint eviction controller: pods that do not tolerate a `NoExecute` taint of their node are
//! deleted, at once or when the `tolerationSeconds` of their toleration are over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod, Taint};

use super::index::{Index, Reader, key};
use super::scheduler::matches_taint;
use super::write::Writer;
use super::{earliest, pods};

const COMPONENT: &str = "taint-eviction-controller";

/// Nodes whose pods are to be looked at.
#[derive(Debug, Default)]
pub(super) struct TaintEviction {
    changed: BTreeSet<String>,
    /// When the first pod of a node is to be deleted.
    due: BTreeMap<String, Timestamp>,
    /// When a taint was first seen, by node, key and value; the taint itself may not say.
    seen: BTreeMap<String, BTreeMap<(String, String), Timestamp>>,
}

impl TaintEviction {
    /// Deletes the pods whose time is over; returns when the next one is due.
    pub(super) async fn pass(
        &mut self,
        index: &mut Index,
        writer: &mut Writer,
        all: bool,
    ) -> Option<Timestamp> {
        self.read(index, all);
        let now = writer.now();
        let due = self.due.iter().filter(|(_, at)| **at <= now);
        self.changed.extend(due.map(|(node, _)| node.clone()));
        for name in std::mem::take(&mut self.changed) {
            self.due.remove(&name);
            let node = index.nodes.get(&(String::new(), name.clone())).cloned();
            let taints: Vec<&Taint> = node.iter().flat_map(|node| no_execute(node)).collect();
            if taints.is_empty() {
                self.seen.remove(&name);
                continue;
            }
            let seen = self.seen.entry(name.clone()).or_default();
            let identity =
                |taint: &Taint| (taint.key.clone(), taint.value.clone().unwrap_or_default());
            seen.retain(|held, _| taints.iter().any(|taint| identity(taint) == *held));
            let mut next = None;
            let pods: Vec<Arc<Pod>> = index.pods.on_node(&name).cloned().collect();
            for taint in &taints {
                seen.entry(identity(taint)).or_insert(now);
            }
            for pod in pods.iter().filter(|pod| !pods::is_deleting(pod)) {
                let ends = taints.iter().filter_map(|taint| {
                    let since = seen.get(&identity(taint)).copied().unwrap_or(now);
                    leaves_at(pod, taint, since)
                });
                let Some(at) = ends.min() else { continue };
                if at > now {
                    next = earliest(next, Some(at));
                    continue;
                }
                let (namespace, pod_name) = key(&**pod);
                let message = format!("Marking for deletion Pod {namespace}/{pod_name}");
                writer.event(&**pod, COMPONENT, "Normal", "TaintManagerEviction", &message).await;
                writer.delete(&mut index.pods, &**pod, None).await;
            }
            if let Some(next) = next {
                self.due.insert(name, next);
            }
        }
        self.due.values().min().copied()
    }

    fn read(&mut self, index: &mut Index, all: bool) {
        const READER: Reader = Reader::TaintEviction;
        for change in index.nodes.changes(READER) {
            let tainted =
                change.after.as_ref().is_some_and(|node| no_execute(node).next().is_some());
            if tainted || self.seen.contains_key(&change.key.1) {
                self.changed.insert(change.key.1.clone());
            }
        }
        for change in index.pods.changes(READER) {
            let node = change.after.as_ref().map(|pod| pods::node_of(pod)).unwrap_or_default();
            if self.seen.contains_key(node) {
                self.changed.insert(node.to_owned());
            }
        }
        if all {
            self.changed.extend(index.nodes.keys().map(|key| key.1.clone()));
        }
    }
}

fn no_execute(node: &Node) -> impl Iterator<Item = &Taint> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.filter(|taint| taint.effect == "NoExecute")
}

/// When a pod has to leave a node for a taint; `None` if it may stay.
fn leaves_at(pod: &Pod, taint: &Taint, since: Timestamp) -> Option<Timestamp> {
    let tolerations = pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
    let mut matching = tolerations.filter(|toleration| matches_taint(toleration, taint)).peekable();
    if matching.peek().is_none() {
        return Some(since);
    }
    // The shortest time counts; a toleration without one holds for ever.
    let seconds = matching.filter_map(|toleration| toleration.toleration_seconds).min()?;
    since.checked_add(SignedDuration::from_secs(seconds.max(0))).ok()
}
