//! A NodeClaim joined with the Node that it became.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::ResourceExt;
use nap_api::nodeclaim::condition;
use nap_api::{NodeClaim, conditions, labels};

/// Identity of a [`NodeView`]. A NodeClaim keeps its key when its Node joins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeKey {
    /// A NodeClaim, with or without a Node.
    NodeClaim(String),
    /// A Node without a NodeClaim.
    Node(String),
}

impl fmt::Display for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NodeClaim(name) => write!(f, "nodeclaim/{name}"),
            Self::Node(name) => write!(f, "node/{name}"),
        }
    }
}

/// A NodeClaim, its Node, or both.
#[derive(Clone, Debug)]
pub struct NodeView {
    /// The NodeClaim; `None` for a Node that nap did not launch.
    pub claim: Option<Arc<NodeClaim>>,
    /// The Node; `None` until it joins.
    pub node: Option<Arc<Node>>,
}

impl NodeView {
    /// The name that snapshots and plans use: the Node's, or the NodeClaim's before the Node joins.
    pub fn name(&self) -> String {
        match (&self.node, &self.claim) {
            (Some(node), _) => node.name_any(),
            (None, Some(claim)) => claim.name_any(),
            (None, None) => String::new(),
        }
    }

    /// Whether both views show the same versions of the same objects.
    pub fn is_same_version(&self, other: &Self) -> bool {
        fn same<T>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
            one.map(Arc::as_ptr) == other.map(Arc::as_ptr)
        }
        same(self.claim.as_ref(), other.claim.as_ref())
            && same(self.node.as_ref(), other.node.as_ref())
    }

    /// The key of this view in the index.
    pub fn key(&self) -> NodeKey {
        match &self.claim {
            Some(claim) => NodeKey::NodeClaim(claim.name_any()),
            None => NodeKey::Node(self.name()),
        }
    }

    /// Whether the NodeClaim or the Node is being deleted.
    pub fn is_deleting(&self) -> bool {
        let deleting = |meta: &ObjectMeta| meta.deletion_timestamp.is_some();
        self.claim.as_ref().is_some_and(|claim| deleting(&claim.metadata))
            || self.node.as_ref().is_some_and(|node| deleting(&node.metadata))
    }

    /// Whether it is being deleted or part of a disruption command.
    pub fn is_leaving(&self) -> bool {
        let chosen = |claim: &Arc<NodeClaim>| claim_is(claim, condition::DISRUPTION_REASON);
        self.is_deleting() || self.claim.as_ref().is_some_and(chosen)
    }

    /// Whether the Node takes pods. A Node without a NodeClaim always counts as initialized.
    pub fn is_initialized(&self) -> bool {
        match &self.claim {
            Some(claim) => self.node.is_some() && claim_is(claim, condition::INITIALIZED),
            None => self.node.is_some(),
        }
    }

    /// The NodePool of the NodeClaim; `None` without a NodeClaim.
    pub fn pool(&self) -> Option<&str> {
        self.claim.as_ref().and_then(|claim| pool_of(claim.as_ref()))
    }
}

/// The provider id of a Node; `None` until the cloud's node controller has set it.
pub fn provider_id(node: &Node) -> Option<&str> {
    node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).filter(|id| !id.is_empty())
}

/// The provider id of a NodeClaim; `None` until it is launched.
pub(crate) fn provider_id_of_claim(claim: &NodeClaim) -> Option<&str> {
    claim.status.as_ref()?.provider_id.as_deref().filter(|id| !id.is_empty())
}

/// A provider id in the form in which two of them are compared. Azure treats resource ids without
/// regard to case, and its components write them differently.
pub(crate) fn provider_key(id: &str) -> String {
    id.to_ascii_lowercase()
}

/// Whether a Node reports `Ready=True`.
pub fn is_ready(node: &Node) -> bool {
    readiness(node).is_some()
}

/// The `Ready` condition of a Node; `None` unless its status is `True`.
pub fn readiness(node: &Node) -> Option<&NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The status conditions of a NodeClaim.
pub(crate) fn claim_conditions(claim: &NodeClaim) -> &[Condition] {
    claim.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
}

/// Whether a condition of a NodeClaim is true.
pub fn claim_is(claim: &NodeClaim, condition: &str) -> bool {
    conditions::is_true(claim_conditions(claim), condition)
}

/// The value of the NodePool label.
pub fn pool_of<K: ResourceExt>(object: &K) -> Option<&str> {
    object.labels().get(labels::NODEPOOL).map(String::as_str)
}
