//! The provider trait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use nap_api::aksnodeclass::{NodeImage, condition};
use nap_api::disruption::{Maintenance, MaintenanceSchedule, Span};
use nap_api::{AKSNodeClass, NodeClaim, OfferingRef, Requirements};
use nap_engine::{CapacityType, Catalogue, PriceEstimates};
use nap_units::Resources;

use crate::CloudError;

/// An instance in the cloud.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance {
    /// Provider id, as the Node carries it in `spec.providerID`.
    pub provider_id: String,
    /// Name of its NodeClaim, from its tags.
    pub node_claim: Option<String>,
    /// Name of its NodePool, from its tags.
    pub node_pool: Option<String>,
    /// Image that it runs.
    pub image_id: Option<String>,
    /// Labels that follow from its offering: instance type, zone, capacity type, SKU properties.
    pub labels: BTreeMap<String, String>,
    /// Annotations that the provider needs on the NodeClaim.
    pub annotations: BTreeMap<String, String>,
    /// Total resources.
    pub capacity: Resources,
    /// Resources for pods.
    pub allocatable: Resources,
    /// Time of creation; `None` if the cloud does not tell.
    pub created: Option<Timestamp>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether the VM is gone without a request, as after a spot eviction, and only the cloud's
    /// record of it is left. [`CloudProvider::get`] reports such an instance as not found.
    pub lost: bool,
}

/// A condition of a node class that the provider can find violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeClassCondition {
    /// `KubernetesVersionReady`.
    KubernetesVersion,
    /// `ImagesReady`.
    Images,
    /// `SubnetsReady`.
    Subnets,
    /// `ValidationSucceeded`.
    Validation,
}

impl NodeClassCondition {
    /// Type of the condition.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::KubernetesVersion => condition::KUBERNETES_VERSION_READY,
            Self::Images => condition::IMAGES_READY,
            Self::Subnets => condition::SUBNETS_READY,
            Self::Validation => condition::VALIDATION_SUCCEEDED,
        }
    }
}

/// Finding about a condition of a node class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeClassFinding {
    /// The condition holds, and the message says something that people may want to know.
    Holds {
        /// Message of the condition.
        message: String,
    },
    /// The condition is violated.
    Violated {
        /// Reason of the condition.
        reason: String,
        /// Message of the condition.
        message: String,
    },
    /// The cloud could not be asked; the condition stays as it was.
    Unknown {
        /// The cloud's error.
        message: String,
    },
}

impl NodeClassFinding {
    /// A violated condition.
    pub fn violated(reason: &str, message: impl Into<String>) -> Self {
        Self::Violated { reason: reason.to_owned(), message: message.into() }
    }
}

/// Result of inspecting a node class. A part that could not be read does not hide the others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeClassReport {
    /// Kubernetes version of new instances; `None` if it is unknown.
    pub kubernetes_version: Option<String>,
    /// Images of new instances, in order of preference; `None` if they are unknown.
    pub images: Option<Vec<NodeImage>>,
    /// Findings by condition. A condition that is absent holds.
    pub findings: BTreeMap<NodeClassCondition, NodeClassFinding>,
}

/// Difference between an instance and its node class or the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceDrift {
    /// Kind of the difference.
    pub kind: InstanceDriftKind,
    /// The difference, for people: what the instance has, and what it should have.
    pub message: String,
}

/// Kind of an [`InstanceDrift`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceDriftKind {
    /// Another node image is to be used.
    Image,
    /// Another Kubernetes version is to be used.
    KubernetesVersion,
    /// Another subnet is to be used.
    Subnet,
    /// The cloud asks for a new instance, because the configuration of the cluster has changed.
    ClusterConfig,
}

impl InstanceDriftKind {
    /// Reason of the `Drifted` condition, as the incumbent names it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Image => "ImageDrift",
            Self::KubernetesVersion => "K8sVersionDrift",
            Self::Subnet => "SubnetDrift",
            Self::ClusterConfig => "ClusterConfigDrift",
        }
    }
}

/// Progress of an instance that the cloud has accepted.
#[derive(Clone, Debug)]
pub enum Creation {
    /// The instance is being created.
    InProgress,
    /// The instance exists.
    Succeeded,
    /// The instance could not be created, or is gone again.
    Failed(CloudError),
}

/// Amounts of a quota that the instances of an offering count against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaCharge {
    /// Names of the quotas, such as that of the VM family and that of the region.
    pub quotas: Vec<String>,
    /// vCPUs of one instance.
    pub vcpus: i64,
}

/// Quota of the subscription, as counted and held by NodeClaims that were launched since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaCount {
    /// vCPUs left by the name of the quota, before any hold. A quota that is absent has no limit.
    pub left: BTreeMap<String, i64>,
    /// Holds by the name of their NodeClaim.
    pub holds: BTreeMap<String, QuotaCharge>,
}

/// Announcement that an instance will be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminationNotice {
    /// Time of the loss.
    pub deadline: Timestamp,
    /// Whether the cloud takes the instance back for lack of capacity, as it does with spot.
    pub is_eviction: bool,
}

/// A condition of a Node that makes it unhealthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairPolicy {
    /// Type of the condition.
    pub condition: &'static str,
    /// Status of the condition in which the Node is unhealthy.
    pub status: &'static str,
    /// Time for which that is tolerated.
    pub toleration: Duration,
    /// Longest drain of such a Node; `None` leaves it to its `terminationGracePeriod`.
    pub drain_bound: Option<Duration>,
}

/// A cloud that launches instances. Every method may be repeated after a crash and does nothing
/// twice.
#[async_trait]
pub trait CloudProvider: Send + Sync {
    /// Creates the instance of a NodeClaim, or adopts the one that an earlier call created. Returns
    /// when the cloud has accepted it and its provider id is known;
    /// [`CloudProvider::creation`] tells whether it comes to exist.
    ///
    /// Tries the offerings in their order, skips those that do not satisfy the NodeClaim, and falls
    /// through on a capacity failure. Nothing else is launched; of neighbours at one price, those
    /// that failed lately may come last. Only a NodeClaim without a plan record has no offerings:
    /// then the provider takes the cheapest that satisfies the NodeClaim.
    async fn create(
        &self,
        claim: &NodeClaim,
        class: &AKSNodeClass,
        offerings: &[OfferingRef],
    ) -> Result<Instance, CloudError>;

    /// Progress of the instance of a NodeClaim that was created. It is cheap: instances are watched
    /// together, however many are asked for.
    async fn creation(&self, claim: &NodeClaim) -> Result<Creation, CloudError>;

    /// Requests the deletion of every instance of a NodeClaim: the one with its provider id, and
    /// one that an interrupted [`CloudProvider::create`] left under its name. An instance that
    /// belongs to another NodeClaim is left alone. [`crate::ErrorClass::NotFound`] means that there
    /// is none (any more).
    async fn delete(&self, claim: &NodeClaim) -> Result<(), CloudError>;

    /// Why the instance of a NodeClaim exists in the cloud and cannot be managed by this provider,
    /// for people; `None` if it can be, or if that is not known.
    async fn why_unmanaged(&self, _claim: &NodeClaim) -> Option<String> {
        None
    }

    /// Requests the deletion of an instance that no NodeClaim names.
    async fn delete_orphan(&self, provider_id: &str) -> Result<(), CloudError>;

    /// The instance with a provider id. An id that is not one of this cluster's instances is
    /// [`crate::ErrorClass::NotFound`].
    async fn get(&self, provider_id: &str) -> Result<Instance, CloudError>;

    /// Every instance that was launched for a NodeClaim of this cluster, in a NodePool or not.
    /// Fails rather than leaving out an instance that exists.
    async fn list(&self) -> Result<Vec<Instance>, CloudError>;

    /// Every instance type for a node class, unavailable ones included.
    async fn instance_types(&self, class: &AKSNodeClass) -> Result<Arc<Catalogue>, CloudError>;

    /// Why an instance type that [`CloudProvider::instance_types`] lacks cannot be had, for people;
    /// `None` if nothing is known about it.
    fn why_not_offered(&self, _instance_type: &str) -> Option<String> {
        None
    }

    /// Quota that is left, so that a plan can stay within it. Nothing is limited by default.
    fn quota(&self) -> QuotaCount {
        QuotaCount::default()
    }

    /// Quotas that an instance of an offering counts against; `None` if it counts against none.
    fn quota_charge(&self, _offering: &OfferingRef) -> Option<QuotaCharge> {
        None
    }

    /// What was learnt about the capacity of the cloud, as text for
    /// [`CloudProvider::restore_capacity_memory`]; `None` if nothing has changed since `known`, the
    /// text of the last call.
    fn capacity_memory(&self, _known: Option<&str>) -> Option<String> {
        None
    }

    /// Time at which the first of the offerings that failed lately is tried again; `None` if there
    /// are none.
    fn next_retry(&self) -> Option<Timestamp> {
        None
    }

    /// Prices of the instance types that are estimates. None before they are asked for.
    fn price_estimates(&self) -> PriceEstimates {
        PriceEstimates::None
    }

    /// Number of offerings, and of groups of them, that are not tried for a while, by capacity type
    /// and cause.
    fn unavailable_offerings(&self) -> BTreeMap<(CapacityType, &'static str), usize> {
        BTreeMap::new()
    }

    /// Offerings within requirements that are not tried for a while, for people: until when, and
    /// why. The first to be tried again comes first.
    fn shortages(&self, _requirements: &Requirements) -> Vec<String> {
        Vec::new()
    }

    /// Takes up what another process learnt. What was learnt here since is kept.
    fn restore_capacity_memory(&self, _text: &str) {}

    /// Drift of an instance from its node class; `None` if there is none.
    async fn drift(
        &self,
        claim: &NodeClaim,
        class: &AKSNodeClass,
    ) -> Result<Option<InstanceDrift>, CloudError>;

    /// Inspects what instances of a node class depend on: version, images, subnets.
    async fn inspect_node_class(&self, class: &AKSNodeClass) -> NodeClassReport;

    /// The window of a maintenance configuration of the cluster, as far as a span reaches. There is
    /// none by default.
    async fn maintenance(
        &self,
        _schedule: MaintenanceSchedule,
        _within: Span,
    ) -> Result<Maintenance, CloudError> {
        Ok(Maintenance::Absent)
    }

    /// Hash of the settings of an instance that can be changed while it runs, such as its tags.
    /// `None` if there are none.
    fn in_place_hash(&self, _claim: &NodeClaim, _class: &AKSNodeClass) -> Option<String> {
        None
    }

    /// Changes the settings of a running instance that [`CloudProvider::in_place_hash`] covers.
    async fn update_in_place(
        &self,
        _claim: &NodeClaim,
        _class: &AKSNodeClass,
    ) -> Result<(), CloudError> {
        Ok(())
    }

    /// The notice in a condition of a Node that is true, given its type, its message and the time
    /// since when it holds; `None` if it announces no loss of the instance.
    fn termination_notice(
        &self,
        _condition: &str,
        _message: &str,
        _since: Timestamp,
    ) -> Option<TerminationNotice> {
        None
    }

    /// Remembers that the instance of a NodeClaim was evicted, so that its offering is not taken
    /// again at once. An instance that cannot be evicted is ignored.
    async fn remember_eviction(&self, _claim: &NodeClaim) {}

    /// Conditions of Nodes that call for a repair.
    fn repair_policies(&self) -> &[RepairPolicy] {
        &[]
    }
}
