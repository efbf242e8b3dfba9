//! Addresses of subnets: each machine takes its own, and none is left when the prefix is used up.

use serde_json::{Value, json};

use super::Inner;
use super::request::Refusal;
use super::state::State;

/// Prefix of a subnet that states none.
pub(super) const DEFAULT_PREFIX: &str = "10.224.0.0/16";
/// Addresses of every subnet that Azure keeps for itself.
const RESERVED: u64 = 5;
/// Pods of a node that states no number, where pods have addresses of the subnet.
const DEFAULT_PODS: u64 = 30;

impl Inner {
    /// Prefix of a subnet, and the network interfaces in it that are not of machines.
    fn subnet_facts(&self, id: &str) -> (String, u64) {
        let mut known = self.config.surroundings.resources.iter();
        let properties = known.find(|(known, _)| known.eq_ignore_ascii_case(id)).map(|one| one.1);
        let find = |pointer: &str| properties.and_then(|found| found.pointer(pointer));
        let prefix = find("/addressPrefix").or(find("/addressPrefixes/0")).and_then(Value::as_str);
        let others = find("/ipConfigurations").and_then(Value::as_array).map_or(0, Vec::len);
        (prefix.unwrap_or(DEFAULT_PREFIX).to_owned(), u64::try_from(others).unwrap_or(u64::MAX))
    }

    /// Addresses that a machine takes: one, and one for each pod unless pods have a network of
    /// their own.
    fn addresses_of(&self, properties: &Value) -> u64 {
        let network = "/properties/networkProfile/networkPluginMode";
        let mode = self.config.surroundings.cluster.pointer(network).and_then(Value::as_str);
        if mode == Some("overlay") {
            return 1;
        }
        let pods = properties.pointer("/kubernetes/maxPods").and_then(Value::as_u64);
        pods.unwrap_or(DEFAULT_PODS) + 1
    }

    /// Addresses of a subnet that machines have.
    fn taken(&self, state: &State, id: &str) -> u64 {
        let machines = state.machines.values();
        let there = machines.filter(|machine| {
            subnet_of(&machine.properties).is_some_and(|subnet| subnet.eq_ignore_ascii_case(id))
        });
        there.map(|machine| self.addresses_of(&machine.properties)).sum()
    }

    /// Refuses a machine for which its subnet has no address left.
    pub(super) fn check_subnet(&self, state: &State, properties: &Value) -> Result<(), Refusal> {
        let Some(id) = subnet_of(properties) else { return Ok(()) };
        let (prefix, others) = self.subnet_facts(id);
        let bits: u32 = prefix.rsplit('/').next().and_then(|bits| bits.parse().ok()).unwrap_or(16);
        let usable = (1_u64 << 32_u32.saturating_sub(bits)).saturating_sub(RESERVED);
        let wanted = self.addresses_of(properties);
        if self.taken(state, id) + others + wanted <= usable {
            return Ok(());
        }
        let message = format!(
            "Subnet {} with address prefix {prefix} does not have enough capacity for {wanted} IP \
             addresses.",
            id.rsplit('/').next().unwrap_or(id)
        );
        Err(Refusal::new(400, "SubnetIsFull", message))
    }

    /// Adds the network interfaces of machines to the properties of a subnet.
    pub(super) fn add_addresses(&self, id: &str, properties: &mut Value) {
        let taken = self.taken(&self.state(), id);
        if taken == 0 || !id.to_lowercase().contains("/subnets/") {
            return;
        }
        let stated = properties.get("ipConfigurations").and_then(Value::as_array);
        let mut all = stated.cloned().unwrap_or_default();
        all.extend((0..taken).map(|number| json!({ "id": format!("{id}/machines/{number}") })));
        properties["ipConfigurations"] = Value::Array(all);
    }
}

/// The subnet that a machine names; `None` if AKS chooses it.
fn subnet_of(properties: &Value) -> Option<&str> {
    let id = properties.pointer("/network/vnetSubnetID").and_then(Value::as_str);
    id.filter(|id| !id.is_empty())
}
