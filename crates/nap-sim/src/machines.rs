//! What the cloud tells the cluster: machines that came into being and machines that are gone.

use std::collections::BTreeMap;
use std::time::Duration;

use nap_api::Taint;
use nap_units::Resources;

/// A change of the machines that exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MachineEvent {
    /// A VM came into being; its kubelet joins after `boot`.
    Created {
        /// What its Node will carry in `spec.providerID`.
        provider_id: String,
        /// The name of its Node.
        node_name: String,
        /// What AKS and the kubelet will put on the Node.
        labels: BTreeMap<String, String>,
        /// The taints that it registers with.
        taints: Vec<Taint>,
        /// What it has in all.
        capacity: Resources,
        /// What it has for pods.
        allocatable: Resources,
        /// How long it takes from now until its kubelet joins.
        boot: Duration,
    },
    /// A VM is gone.
    Deleted {
        /// What its Node carried in `spec.providerID`.
        provider_id: String,
        /// The name of its Node.
        node_name: String,
    },
}
