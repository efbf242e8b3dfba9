//! The provider trait.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use nap_api::aksnodeclass::NodeImage;
use nap_api::{AKSNodeClass, NodeClaim};
use nap_engine::Catalogue;
use nap_units::Resources;

use crate::CloudError;

/// A machine in the cloud.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance {
    /// Its id, as the Node carries it in `spec.providerID`.
    pub provider_id: String,
    /// The NodeClaim that it was made for, from its tags.
    pub node_claim: Option<String>,
    /// The NodePool that it was made for, from its tags.
    pub node_pool: Option<String>,
    /// The image that it runs.
    pub image_id: Option<String>,
    /// The labels that follow from what was chosen: instance type, zone, capacity type, SKU facts.
    pub labels: BTreeMap<String, String>,
    /// Annotations that the provider needs on the NodeClaim.
    pub annotations: BTreeMap<String, String>,
    /// What it has in all.
    pub capacity: Resources,
    /// What it has for pods.
    pub allocatable: Resources,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// It is being deleted.
    pub deleting: bool,
}

/// What the provider found out about a node class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeClassReport {
    /// The Kubernetes version of new machines, or why it is unknown.
    pub kubernetes_version: Option<String>,
    /// The images of new machines, in order of preference.
    pub images: Vec<NodeImage>,
    /// Reason and message for each condition type that does not hold; a type that is absent holds.
    pub problems: BTreeMap<String, (String, String)>,
}

/// A cloud that makes machines. Every method may be called again after a crash and does nothing
/// twice.
#[async_trait]
pub trait CloudProvider: Send + Sync {
    /// Makes the machine for a claim, or finds the one that an earlier call made. Returns when it
    /// exists.
    async fn create(&self, claim: &NodeClaim, class: &AKSNodeClass)
    -> Result<Instance, CloudError>;

    /// Asks for a claim's machine to be deleted. [`crate::ErrorClass::NotFound`] means that it is
    /// gone.
    async fn delete(&self, claim: &NodeClaim) -> Result<(), CloudError>;

    /// Deletes a machine that no claim names, by its provider id.
    async fn delete_orphan(&self, provider_id: &str) -> Result<(), CloudError>;

    /// The machine with a provider id.
    async fn get(&self, provider_id: &str) -> Result<Instance, CloudError>;

    /// Every machine that was made for a NodePool of this cluster.
    async fn list(&self) -> Result<Vec<Instance>, CloudError>;

    /// Every instance type for a node class, also those that cannot be had at present.
    async fn instance_types(&self, class: &AKSNodeClass) -> Result<Arc<Catalogue>, CloudError>;

    /// Why a machine no longer matches its node class, if it does not.
    async fn drifted(
        &self,
        claim: &NodeClaim,
        class: &AKSNodeClass,
    ) -> Result<Option<String>, CloudError>;

    /// What has to be known about a node class before machines are made from it.
    async fn inspect_node_class(&self, class: &AKSNodeClass)
    -> Result<NodeClassReport, CloudError>;
}
