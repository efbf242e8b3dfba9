//! The cloud controller manager's part: the Node of a VM that is gone is deleted.
//!
//! Like the real one it leaves Nodes alone that are still ready, so the Node goes once the node
//! lifecycle controller has marked it `Unknown`. Where none does that, the Node goes at once.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;

use crate::node;
use crate::write::Write;

/// VMs that are gone and whose Nodes may exist, by Node name.
#[derive(Debug, Default)]
pub(crate) struct GoneVms(BTreeMap<String, GoneVm>);

#[derive(Debug)]
struct GoneVm {
    provider_id: String,
    /// The Node was registered, but the watch has not shown it yet.
    coming: bool,
}

impl GoneVms {
    pub(crate) fn insert(&mut self, name: String, provider_id: String, coming: bool) {
        self.0.insert(name, GoneVm { provider_id, coming });
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Deletion of the Node, if it is time for it.
    pub(crate) fn write(
        &mut self,
        name: &str,
        node: Option<&Node>,
        is_monitored: bool,
    ) -> Option<Write> {
        let gone = self.0.get(name)?;
        match node {
            None if gone.coming => None,
            Some(node) if node::provider_id(node) == gone.provider_id => {
                let leaves = node.metadata.deletion_timestamp.is_some();
                let waits = is_monitored && node::is_ready(node);
                (!leaves && !waits)
                    .then(|| Write::DeleteNode { name: name.to_owned(), uid: node.uid() })
            }
            _ => {
                self.0.remove(name);
                None
            }
        }
    }
}
