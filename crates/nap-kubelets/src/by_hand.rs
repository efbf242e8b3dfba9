//! Nodes that a user made by hand, as with `kubectl apply`: no VM stands behind them, and a
//! kubelet joins for each all the same.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kube::ResourceExt as _;
use nap_api::labels;
use nap_units::{CPU, EPHEMERAL_STORAGE, MEMORY, PODS, Quantity, Resources, Rounding};

use crate::node::{self, Machine};

/// Whether a Node has neither a VM nor a kubelet, and is not one of a NodeClaim.
pub(crate) fn is_by_hand(node: &Node) -> bool {
    let claimed = node.labels().contains_key(labels::NODEPOOL)
        || node.owner_references().iter().any(|owner| owner.kind == "NodeClaim");
    node::provider_id(node).is_empty()
        && !node::has_reported(node)
        && !claimed
        && node.metadata.deletion_timestamp.is_none()
}

/// The machine of such a Node: what its status says, and a small machine for the rest.
pub(crate) fn machine(node: &Node, address: String, version: String) -> Machine {
    let name = node.name_any();
    let given = |list: Option<&BTreeMap<String, ApiQuantity>>| {
        let quantities: Vec<(&String, Quantity)> = list
            .into_iter()
            .flatten()
            .filter_map(|(name, amount)| Some((name, amount.0.parse().ok()?)))
            .collect();
        let pairs = quantities.iter().map(|(name, amount)| (name, amount));
        Resources::from_quantities(pairs, Rounding::Down)
    };
    let status = node.status.as_ref();
    let small = Resources::new()
        .with(CPU, 4000)
        .with(MEMORY, 16 << 30)
        .with(EPHEMERAL_STORAGE, 128_000_000_000)
        .with(PODS, 110);
    let over = |mut base: Resources, given: &Resources| {
        for (name, amount) in given.iter() {
            base.set(name, amount);
        }
        base
    };
    let capacity = over(small, &given(status.and_then(|status| status.capacity.as_ref())));
    let allocatable =
        over(capacity.clone(), &given(status.and_then(|status| status.allocatable.as_ref())));
    let mut all = BTreeMap::from(
        [(labels::HOSTNAME, name.as_str()), (labels::ARCH, "amd64"), (labels::OS, "linux")]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    all.extend(node.labels().clone());
    Machine {
        provider_id: String::new(),
        name,
        labels: all,
        taints: Vec::new(),
        capacity,
        allocatable,
        address,
        version,
    }
}
