//! Validation of machines that are to be created: the template that a batch shares, and what each
//! machine has for itself, with quota.

use std::collections::BTreeMap;

use nap_engine::CapacityType;
use serde_json::Value;

use super::faults::Fault;
use super::images::choose_image;
use super::maintenance::Changes;
use super::node::node_taints;
use super::region::{family_cores, family_limit, regional_limit, spot_limit};
use super::request::{ArmRequest, Refusal};
use super::sizes::VmSize;
use super::state::{MachineRecord, MachineState, State};
use super::{Inner, VmIds};

/// Maximum length of a machine's name.
const MAX_NAME: usize = 34;
/// Most minor versions of Kubernetes that a node may be behind its control plane.
const MAX_SKEW: u32 = 3;
/// Size of an OS disk whose request has none.
const DEFAULT_OS_DISK_GB: i64 = 128;

/// The validated properties that the machines of a request share.
pub(crate) struct Template {
    pub size: VmSize,
    pub capacity_type: CapacityType,
    /// As in the request, without tags and with the image.
    pub properties: Value,
}

/// What a machine has for itself.
pub(crate) struct Place<'a> {
    pub name: &'a str,
    pub zones: Vec<String>,
    pub tags: BTreeMap<String, String>,
}

impl Inner {
    /// Validates the shared part of a request.
    pub(crate) fn template(
        &self,
        changes: &Changes,
        request: &ArmRequest,
        body: &Value,
    ) -> Result<Template, Refusal> {
        let config = &self.config;
        let invalid = |message: &str| Refusal::new(400, "InvalidParameter", message);
        let properties = body.get("properties").filter(|value| value.is_object());
        let properties =
            properties.ok_or_else(|| invalid("Required parameter properties is missing."))?;
        let text =
            |pointer: &str| properties.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let name = text("/hardware/vmSize");
        let size = self.region.size(name).ok_or_else(|| {
            let message = format!(
                "The VM size of {name} is not allowed in your subscription in location '{}'.",
                config.region
            );
            Refusal::new(400, "VMSizeNotSupported", message)
        })?;
        let capacity_type = match text("/priority") {
            "" | "Regular" => CapacityType::OnDemand,
            "Spot" if size.spot => CapacityType::Spot,
            "Spot" => {
                let message = format!("The VM size {name} does not support Spot priority.");
                return Err(Refusal::new(400, "BadRequest", message));
            }
            _ => return Err(invalid("The value of parameter priority is invalid.")),
        };
        if text("/mode") == "System"
            && capacity_type == CapacityType::Spot
            && request.header("allowspotvmsystemnode") != Some("true")
        {
            return Err(invalid("A System machine cannot be Spot."));
        }
        check_version(text("/kubernetes/orchestratorVersion"), changes.kubernetes_version(config))?;
        for member in ["vnetSubnetID", "podSubnetID"] {
            let subnet = text(&format!("/network/{member}"));
            if !subnet.is_empty() && !config.has_subnet(subnet) {
                let message = format!(
                    "Resource {subnet} referenced by properties.network.{member} was not found."
                );
                return Err(Refusal::new(400, "InvalidResourceReference", message));
            }
        }
        let image = choose_image(config, changes, size, properties)?;
        let disk = properties.pointer("/operatingSystem/osDiskSizeGB").and_then(Value::as_i64);
        if text("/operatingSystem/osDiskType") == "Ephemeral"
            && disk.unwrap_or(DEFAULT_OS_DISK_GB) > size.ephemeral_gb
        {
            let message = format!(
                "OS disk of Ephemeral VM with size greater than {} GB is not allowed for VM size \
                 {name}.",
                size.ephemeral_gb
            );
            return Err(Refusal::new(400, "OperationNotAllowed", message));
        }
        if node_taints(properties).is_none() {
            return Err(invalid("A taint is not of the form key=value:effect."));
        }
        let reserved = properties
            .pointer("/kubernetes/nodeLabels")
            .and_then(Value::as_object)
            .and_then(|labels| labels.keys().find(|key| key.starts_with("kubernetes.azure.com/")));
        if let Some(key) = reserved {
            return Err(invalid(&format!("The label {key} is reserved.")));
        }
        let mut stated = properties.clone();
        if let Some(members) = stated.as_object_mut() {
            members.remove("tags");
            members.insert("nodeImageVersion".to_owned(), image.into());
        }
        if config.states_subnets {
            let named = Some(text("/network/vnetSubnetID")).filter(|id| !id.is_empty());
            let own = config.subnets.first().map(String::as_str);
            let subnet = named.or(own).map(str::to_uppercase);
            stated["network"]["vnetSubnetID"] = subnet.into();
        }
        Ok(Template { size: size.clone(), capacity_type, properties: stated })
    }

    /// Validates a machine and gives it a VM name. The state keeps no trace of a refused one.
    pub(crate) fn accept(
        &self,
        state: &mut State,
        template: &Template,
        place: Place<'_>,
    ) -> Result<MachineRecord, Refusal> {
        let (config, name, size) = (&self.config, place.name, &template.size);
        let named = name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        if name.is_empty() || name.len() > MAX_NAME || !named {
            let message = format!("The machine name '{name}' is invalid.");
            return Err(Refusal::new(400, "InvalidParameter", message));
        }
        let zones = place.zones;
        if zones.len() > 1 || zones.iter().any(|zone| !size.zones.contains(zone)) {
            let message = format!(
                "The zone(s) {zones:?} for resource '{name}' is not supported for {}.",
                size.name
            );
            return Err(Refusal::new(400, "AvailabilityZoneNotSupported", message));
        }
        if let Some(zone) = zones.iter().find(|zone| size.restricted_zones.contains(zone)) {
            let message = format!(
                "The requested size for resource '{name}' is currently not available in location \
                 '{}' zones '{zone}' for subscription '{}'.",
                config.region, config.subscription_id
            );
            return Err(Refusal::new(409, "SkuNotAvailable", message));
        }
        if state.faults.internal_errors_next > 0 {
            state.faults.internal_errors_next -= 1;
            let message = format!("The machine '{name}' could not be created.");
            return Err(Refusal::new(500, "InternalOperationError", message));
        }
        self.check_quota(state, size, template.capacity_type)?;
        self.check_subnet(state, &template.properties)?;
        let incarnation = state.next();
        let digits = self.hash(&format!("vm/{name}/{incarnation}")) % 100_000_000;
        let vm_name = if config.vm_ids == VmIds::Opaque {
            format!("vm-{digits:08}")
        } else {
            format!("aks-{}-{name}-{digits:08}-vm", config.agent_pool)
        };
        let zone_label =
            zones.first().map_or("0".to_owned(), |zone| format!("{}-{zone}", config.region));
        let machine = MachineRecord {
            name: name.to_owned(),
            incarnation,
            zones,
            properties: template.properties.clone(),
            tags: place.tags,
            version: 0,
            vm_id: format!(
                "/subscriptions/{}/resourceGroups/{}/providers/Microsoft.Compute/virtualMachines/{vm_name}",
                config.subscription_id, config.node_resource_group
            ),
            vm_name,
            size: size.clone(),
            zone_label,
            capacity_type: template.capacity_type,
            state: MachineState::Creating,
            created: config.clock.now(),
            error: None,
            billed: None,
            evicted: false,
            drift_action: None,
        };
        let mut faults = state.faults.active(machine.created);
        match faults.find_map(|fault| self.refusal(state, fault, &machine)) {
            Some(refusal) => Err(refusal),
            None => Ok(machine),
        }
    }

    /// The answer to a machine that a fault refuses at once; `None` if it does not.
    fn refusal(&self, state: &State, fault: &Fault, machine: &MachineRecord) -> Option<Refusal> {
        match fault {
            Fault::NotAvailable(place) if place.strikes(&state.machines, machine) => {
                let message = format!(
                    "The requested size for resource '{}' is currently not available in location \
                     '{}'. Please try another size or deploy to a different location or zones.",
                    machine.name, self.config.region
                );
                Some(Refusal::new(409, "SkuNotAvailable", message))
            }
            Fault::RefusedCreates { place, status, error: (code, message) }
                if place.strikes(&state.machines, machine) =>
            {
                Some(Refusal::new(*status, code.clone(), message.clone()))
            }
            _ => None,
        }
    }

    /// Refuses a VM beyond a quota: that of spot, or those of the size's family and of the region.
    fn check_quota(
        &self,
        state: &State,
        size: &VmSize,
        capacity_type: CapacityType,
    ) -> Result<(), Refusal> {
        let config = &self.config;
        let check = |what: &str, limit: i64, usage: i64| {
            let needed = usage + size.vcpus;
            if needed <= limit {
                return Ok(());
            }
            let message = format!(
                "Operation could not be completed as it results in exceeding approved {what} \
                 quota. Additional details - Deployment Model: Resource Manager, Location: {}, \
                 Current Limit: {limit}, Current Usage: {usage}, Additional Required: {}, \
                 (Minimum) New Limit Required: {needed}.",
                config.region, size.vcpus
            );
            Err(Refusal::new(409, "OperationNotAllowed", message))
        };
        let spot = state.cores(|machine| machine.capacity_type == CapacityType::Spot);
        if capacity_type == CapacityType::Spot {
            return check("LowPriorityCores", spot_limit(config, state), spot);
        }
        if !size.family.is_empty() {
            let (limit, usage) =
                (family_limit(config, state, &size.family), family_cores(state, &size.family));
            check(&format!("{} Cores", size.family), limit, usage)?;
        }
        let usage = state.cores(|_| true) - spot;
        check("Total Regional Cores", regional_limit(config, state), usage)
    }
}

/// Refuses a Kubernetes version of a machine that is newer than the control plane, or more than
/// [`MAX_SKEW`] minor versions older. Without a patch number it means the newest patch.
fn check_version(version: &str, control_plane: &str) -> Result<(), Refusal> {
    let numbers = |version: &str| {
        let parts: Option<Vec<u32>> = version.split('.').map(|part| part.parse().ok()).collect();
        parts.filter(|parts| matches!(parts.len(), 2 | 3))
    };
    if version.is_empty() {
        return Ok(());
    }
    let Some(wanted) = numbers(version) else {
        let message = format!("Version {version} is not of the form 1.30 or 1.30.2.");
        return Err(Refusal::new(400, "InvalidParameter", message));
    };
    let current = numbers(control_plane).unwrap_or_default();
    let is_newer = wanted.as_slice() > current.get(..wanted.len()).unwrap_or_default();
    let (minor, current_minor) = (wanted[1], current.get(1).copied().unwrap_or_default());
    if wanted.first() == current.first() && !is_newer && minor + MAX_SKEW >= current_minor {
        return Ok(());
    }
    let message = format!(
        "Node pool version {version} and control plane version {control_plane} are incompatible: \
         a node is not newer, and at most {MAX_SKEW} minor versions older."
    );
    Err(Refusal::new(400, "NodePoolMcVersionIncompatible", message))
}

/// `zones` of a body; none if it has none.
pub(crate) fn zones_of(body: &Value) -> Result<Vec<String>, Refusal> {
    match body.get("zones") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(zones) => serde_json::from_value(zones.clone()).map_err(|_| {
            Refusal::new(400, "InvalidParameter", "The value of parameter zones is invalid.")
        }),
    }
}

/// `properties.tags` of a body; none if it has none.
pub(crate) fn tags_of(body: &Value) -> Result<BTreeMap<String, String>, Refusal> {
    match body.pointer("/properties/tags") {
        None | Some(Value::Null) => Ok(BTreeMap::new()),
        Some(tags) => serde_json::from_value(tags.clone()).map_err(|_| {
            let message = "The value of parameter properties.tags is invalid.";
            Refusal::new(400, "InvalidParameter", message)
        }),
    }
}
