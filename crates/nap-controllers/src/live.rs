//! Reads from the API server, for steps that cannot be undone.
//!
//! The index may lag behind the cluster or lack part of it. The deletion of an instance and the
//! removal of a finalizer therefore never rest on the absence of an object from the index alone.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Resource, ResourceExt};
use nap_api::{AKSNodeClass, NodeClaim};

use crate::cluster::{Pod, WatchedPod, provider_id, provider_id_of_claim};
use crate::context::{Context, Doing, Error};
use crate::permissions::{AZURE, KARPENTER, Permission};

/// Objects that the index may lack are read before anything that cannot be undone.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new("", "pods", &["list"]),
    Permission::new("", "nodes", &["get", "list"]),
    Permission::new(KARPENTER, "nodeclaims", &["get", "list"]),
    Permission::new(AZURE, "aksnodeclasses", &["get"]),
];

impl Context {
    /// The pods that are bound to a Node.
    pub async fn read_pods_on(&self, node: &str) -> Result<Vec<Arc<Pod>>, Error> {
        let api: Api<WatchedPod> = Api::all(self.client.clone());
        let bound = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let pods = api.list(&bound).await.doing("listing the Pods of Node", node)?;
        Ok(pods.items.into_iter().map(Pod::from).map(Arc::new).collect())
    }

    /// The Node that a registered NodeClaim became, or every Node with its provider id if the
    /// NodeClaim does not name one.
    pub async fn read_nodes_of(&self, claim: &NodeClaim) -> Result<Vec<Node>, Error> {
        let Some(id) = provider_id_of_claim(claim) else { return Ok(Vec::new()) };
        let api: Api<Node> = Api::all(self.client.clone());
        let name = claim.status.as_ref().and_then(|status| status.node_name.as_deref());
        let mut nodes: Vec<Node> = if let Some(name) = name.filter(|name| !name.is_empty()) {
            api.get_opt(name).await.doing("reading Node", name)?.into_iter().collect()
        } else {
            let all = api.list(&ListParams::default()).await;
            all.doing("listing the Nodes of NodeClaim", &claim.name_any())?.items
        };
        nodes.retain(|node| provider_id(node).is_some_and(|one| one.eq_ignore_ascii_case(id)));
        Ok(nodes)
    }

    /// The NodeClaim that owns a Node; `None` if it is gone or the Node has no owner.
    pub async fn read_owner(&self, node: &Node) -> Result<Option<NodeClaim>, Error> {
        let kind = NodeClaim::kind(&());
        let Some(owner) = node.owner_references().iter().find(|owner| owner.kind == kind) else {
            return Ok(None);
        };
        let claim = self.read_claim(&owner.name).await?;
        Ok(claim.filter(|claim| claim.uid().as_deref() == Some(owner.uid.as_str())))
    }

    /// A NodeClaim; `None` if it is gone.
    pub async fn read_claim(&self, name: &str) -> Result<Option<NodeClaim>, Error> {
        let api: Api<NodeClaim> = Api::all(self.client.clone());
        api.get_opt(name).await.doing("reading NodeClaim", name)
    }

    /// Every NodeClaim.
    pub async fn read_claims(&self) -> Result<Vec<NodeClaim>, Error> {
        let api: Api<NodeClaim> = Api::all(self.client.clone());
        Ok(api.list(&ListParams::default()).await.doing("listing", "NodeClaims")?.items)
    }

    /// An AKSNodeClass; `None` if it is gone.
    pub async fn read_class(&self, name: &str) -> Result<Option<AKSNodeClass>, Error> {
        let api: Api<AKSNodeClass> = Api::all(self.client.clone());
        api.get_opt(name).await.doing("reading AKSNodeClass", name)
    }
}
