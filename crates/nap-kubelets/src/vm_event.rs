//! Events from the cloud: a VM was created, rebooted or deleted, or is about to be.

use std::collections::BTreeMap;
use std::time::Duration;

use nap_api::Taint;
use nap_units::Resources;

/// A change of the set of VMs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmEvent {
    /// A VM was created; its kubelet joins after `boot`.
    Created {
        /// `spec.providerID` of its Node.
        provider_id: String,
        /// Name of its Node.
        node_name: String,
        /// Labels that AKS and the kubelet give the Node.
        labels: BTreeMap<String, String>,
        /// Taints that the Node registers with.
        taints: Vec<Taint>,
        /// `status.capacity` of the Node.
        capacity: Resources,
        /// `status.allocatable` of the Node.
        allocatable: Resources,
        /// Time from this event until the kubelet joins.
        boot: Duration,
    },
    /// A VM restarts with the same disk; its kubelet is back after `boot`.
    Rebooted {
        /// Name of its Node.
        node_name: String,
        /// Time from this event until the kubelet is back.
        boot: Duration,
    },
    /// A condition of the Node changes, as its kubelet or a node agent reports it.
    Condition {
        /// Name of its Node.
        node_name: String,
        /// Type, such as `PreemptionScheduled`. `Ready` is the kubelet's own.
        condition: String,
        /// Whether it is `True` or `False`.
        status: bool,
        /// CamelCase reason.
        reason: String,
        /// Text for people.
        message: String,
    },
    /// A VM was deleted.
    Deleted {
        /// `spec.providerID` of its Node.
        provider_id: String,
        /// Name of its Node.
        node_name: String,
    },
}
