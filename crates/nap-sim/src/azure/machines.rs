//! The agent-pool machines API: asynchronous create and delete, list and get.

use std::hash::Hasher as _;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use fnv::FnvHasher;
use nap_engine::CapacityType;
use nap_kubelets::VmEvent;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde_json::{Value, json};

use super::Inner;
use super::node::{node_labels, node_resources, node_taints};
use super::region::{family_cores, family_limit, published_images};
use super::request::{Answer, ArmRequest, Refusal, page, refuse, reply, reply_with};
use super::state::{BilledMachine, MachineRecord, MachineState, OperationRecord, State};

/// Time from the request until a VM fails for lack of capacity.
const CAPACITY_FAILURE: Duration = Duration::from_secs(8);
/// Maximum length of a machine's name.
const MAX_NAME: usize = 34;

impl Inner {
    pub(crate) fn list_machines(&self, request: &ArmRequest) -> Answer {
        let state = self.state();
        let all: Vec<Value> = state.machines.values().map(|machine| self.show(machine)).collect();
        page(request, &all, self.config.page_size, ("value", "nextLink"))
    }

    pub(crate) fn get_machine(&self, name: &str) -> Answer {
        match self.state().machines.get(name) {
            Some(machine) => reply(200, &self.show(machine)),
            None => refuse(404, "NotFound", &format!("Machine {name} not found.")),
        }
    }

    pub(crate) fn put_machine(self: &Arc<Self>, request: &ArmRequest, name: &str) -> Answer {
        let Ok(body) = serde_json::from_slice::<Value>(&request.body) else {
            return refuse(400, "InvalidRequestContent", "the request content was invalid");
        };
        let mut state = self.state();
        if let Some(existing) = state.machines.get(name) {
            let size = body.pointer("/properties/hardware/vmSize").and_then(Value::as_str);
            if existing.state == MachineState::Deleting {
                let message = format!("machine {name} is being deleted");
                return refuse(409, "AnotherOperationInProgress", &message);
            }
            if size != Some(&existing.sku.name) {
                let message = "Changing property 'properties.hardware.vmSize' is not allowed.";
                return refuse(400, "PropertyChangeNotAllowed", message);
            }
            return reply(200, &self.show(existing));
        }
        let machine = match self.accept(&mut state, request, name, &body) {
            Ok(machine) => machine,
            Err(refusal) => return refusal.answer(),
        };
        let operation = state.begin_operation();
        let (incarnation, vm_name) = (machine.incarnation, machine.vm_name.clone());
        let shown = self.show(&machine);
        let place = (machine.sku.name.clone(), machine.zone_label.clone());
        let fails = state.faults.capacity_errors.contains(&place);
        let stuck = state.faults.stuck_creates;
        state.machines.insert(name.to_owned(), machine);
        drop(state);
        let key = name.to_owned();
        if fails {
            self.later(CAPACITY_FAILURE, move |inner| {
                inner.fail(&key, incarnation, operation);
                None
            });
        } else if !stuck {
            let delay = self.jitter(&self.config.vm_create, &format!("create/{vm_name}"));
            self.later(delay, move |inner| inner.finish_create(&key, incarnation, operation));
        }
        reply_with(201, &shown, &self.operation_headers(request, operation))
    }

    pub(crate) fn delete_machines(self: &Arc<Self>, request: &ArmRequest) -> Answer {
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let names: Vec<String> = body
            .get("machineNames")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|name| name.as_str().map(str::to_owned))
            .collect();
        let mut state = self.state();
        let known: Vec<String> =
            names.into_iter().filter(|name| state.machines.contains_key(name)).collect();
        if known.is_empty() {
            return refuse(400, "InvalidParameter", "Cannot find any valid machines to delete.");
        }
        let operation = state.begin_operation();
        let mut delays = Vec::new();
        for name in known {
            let Some(machine) = state.machines.get_mut(&name) else { continue };
            if machine.state == MachineState::Deleting {
                continue;
            }
            machine.state = MachineState::Deleting;
            let delay = self.jitter(&self.config.vm_delete, &format!("delete/{}", machine.vm_name));
            delays.push((delay, name, machine.incarnation));
        }
        drop(state);
        // The operation ends with its slowest VM; ties end in name order.
        delays.sort();
        let last = delays.len().saturating_sub(1);
        if delays.is_empty() {
            self.state().operations.insert(operation, OperationRecord::Succeeded);
        }
        for (index, (delay, name, incarnation)) in delays.into_iter().enumerate() {
            let ends = (index == last).then_some(operation);
            self.later(delay, move |inner| inner.finish_delete(&name, incarnation, ends));
        }
        reply_with(202, &Value::Null, &self.operation_headers(request, operation))
    }

    /// Validates a request. The state is unchanged if it is refused.
    fn accept(
        &self,
        state: &mut State,
        request: &ArmRequest,
        name: &str,
        body: &Value,
    ) -> Result<MachineRecord, Refusal> {
        let config = &self.config;
        let invalid = |message: &str| Refusal::new(400, "InvalidParameter", message);
        let properties = body.get("properties").filter(|value| value.is_object());
        let properties =
            properties.ok_or_else(|| invalid("Required parameter properties is missing."))?;
        let text =
            |pointer: &str| properties.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let named = name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        if name.is_empty() || name.len() > MAX_NAME || !named {
            return Err(invalid("The machine name is invalid."));
        }
        let size = text("/hardware/vmSize");
        let sku = self.region.sku(config, size).ok_or_else(|| {
            let message = format!(
                "The VM size of {size} is not allowed in your subscription in location '{}'.",
                config.region
            );
            Refusal::new(400, "VMSizeNotSupported", message)
        })?;
        let zones: Vec<String> = body
            .get("zones")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|zone| zone.as_str().map(str::to_owned))
            .collect();
        if zones.len() > 1 || zones.iter().any(|zone| !sku.zones.contains(zone)) {
            let message =
                format!("The zone(s) {zones:?} for resource '{name}' is not supported for {size}.");
            return Err(Refusal::new(400, "AvailabilityZoneNotSupported", message));
        }
        let capacity_type = match text("/priority") {
            "" | "Regular" => CapacityType::OnDemand,
            "Spot" if sku.spot => CapacityType::Spot,
            "Spot" => {
                let message = format!("The VM size {size} does not support Spot priority.");
                return Err(Refusal::new(400, "BadRequest", message));
            }
            _ => return Err(invalid("The value of parameter priority is invalid.")),
        };
        let system = text("/mode") == "System";
        if system
            && capacity_type == CapacityType::Spot
            && request.header("allowspotvmsystemnode") != Some("true")
        {
            return Err(invalid("A System machine cannot be Spot."));
        }
        let image = text("/nodeImageVersion");
        let published = published_images(config);
        if !published
            .iter()
            .any(|(gallery, sku, version)| format!("{gallery}-{sku}-{version}") == image)
        {
            return Err(invalid(&format!("The node image version '{image}' is not available.")));
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
        check_quota(self, state, &sku, capacity_type)?;
        let incarnation = state.next();
        let digits = self.hash(&format!("vm/{name}/{incarnation}")) % 100_000_000;
        let vm_name = format!("aks-{}-{name}-{digits:08}-vm", config.agent_pool);
        let zone_label =
            zones.first().map_or("0".to_owned(), |zone| format!("{}-{zone}", config.region));
        Ok(MachineRecord {
            name: name.to_owned(),
            incarnation,
            zones,
            properties: properties.clone(),
            vm_id: format!(
                "/subscriptions/{}/resourceGroups/{}/providers/Microsoft.Compute/virtualMachines/{vm_name}",
                config.subscription_id, config.node_resource_group
            ),
            vm_name,
            sku,
            zone_label,
            capacity_type,
            state: MachineState::Creating,
            created: config.clock.now(),
            error: None,
            billed: None,
            evicted: false,
        })
    }

    fn finish_create(&self, name: &str, incarnation: u64, operation: u64) -> Option<VmEvent> {
        let mut guard = self.state();
        let state = &mut *guard;
        let machine = state.machines.get_mut(name).filter(|machine| {
            machine.incarnation == incarnation && machine.state == MachineState::Creating
        });
        let Some(machine) = machine else {
            let (code, message) =
                ("OperationPreempted".to_owned(), "the machine was deleted".to_owned());
            state.operations.insert(operation, OperationRecord::Failed { code, message });
            return None;
        };
        machine.state = MachineState::Succeeded;
        machine.billed = Some(state.bill.len());
        state.bill.push(BilledMachine {
            name: name.to_owned(),
            size: machine.sku.name.clone(),
            zone: machine.zone_label.clone(),
            capacity_type: machine.capacity_type,
            price: self.region.price(&machine.sku.name, machine.capacity_type),
            created: self.config.clock.now(),
            deleted: None,
        });
        state.operations.insert(operation, OperationRecord::Succeeded);
        if state.faults.never_boots {
            return None;
        }
        let (capacity, allocatable) = node_resources(&self.config, machine);
        Some(VmEvent::Created {
            provider_id: machine.provider_id(),
            node_name: machine.vm_name.clone(),
            labels: node_labels(&self.config, machine),
            taints: node_taints(&machine.properties).unwrap_or_default(),
            capacity,
            allocatable,
            boot: self.jitter(&self.config.node_boot, &format!("boot/{}", machine.vm_name)),
        })
    }

    fn fail(&self, name: &str, incarnation: u64, operation: u64) {
        let mut guard = self.state();
        let state = &mut *guard;
        let code = match state.machines.get_mut(name) {
            Some(machine)
                if machine.incarnation == incarnation
                    && machine.state == MachineState::Creating =>
            {
                let code = if machine.zones.is_empty() {
                    "AllocationFailed"
                } else {
                    "ZonalAllocationFailed"
                };
                let message = "Allocation failed. We do not have sufficient capacity for the requested VM size.";
                machine.state = MachineState::Failed;
                machine.error = Some((code.to_owned(), message.to_owned()));
                code
            }
            _ => "OperationPreempted",
        };
        let message = "the machine could not be provisioned".to_owned();
        state
            .operations
            .insert(operation, OperationRecord::Failed { code: code.to_owned(), message });
    }

    fn finish_delete(
        &self,
        name: &str,
        incarnation: u64,
        operation: Option<u64>,
    ) -> Option<VmEvent> {
        let mut state = self.state();
        if let Some(operation) = operation {
            state.operations.insert(operation, OperationRecord::Succeeded);
        }
        state.machines.get(name).filter(|machine| machine.incarnation == incarnation)?;
        let machine = state.machines.remove(name)?;
        let billed = state.bill.get_mut(machine.billed?)?;
        billed.deleted = Some(self.config.clock.now());
        Some(VmEvent::Deleted { provider_id: machine.provider_id(), node_name: machine.vm_name })
    }

    /// Evicts a running VM; the machine object stays. Returns whether there was a VM.
    pub(crate) fn evict(self: &Arc<Self>, name: &str) -> bool {
        let mut guard = self.state();
        let state = &mut *guard;
        let Some(machine) = state.machines.get_mut(name) else { return false };
        let Some(billed) = machine.billed.take().and_then(|index| state.bill.get_mut(index)) else {
            return false;
        };
        billed.deleted = Some(self.config.clock.now());
        machine.evicted = true;
        let (provider_id, node_name) = (machine.provider_id(), machine.vm_name.clone());
        drop(guard);
        self.later(Duration::ZERO, move |_| Some(VmEvent::Deleted { provider_id, node_name }));
        true
    }

    fn show(&self, machine: &MachineRecord) -> Value {
        let mut properties = machine.properties.clone();
        properties["provisioningState"] = machine.state.as_str().into();
        properties["resourceId"] = machine.vm_id.clone().into();
        let vm_state = if machine.evicted { "Deleted" } else { "Running" };
        let mut status =
            json!({ "creationTimestamp": machine.created.to_string(), "vmState": vm_state });
        properties["kubernetes"]["nodeName"] = machine.vm_name.clone().into();
        if let Some((code, message)) = &machine.error {
            status["provisioningError"] = json!({
                "code": "ProvisioningFailed", "message": message,
                "details": [{ "code": code, "message": message }],
            });
        }
        properties["status"] = status;
        json!({
            "id": format!("{}/machines/{}", self.config.azure_config().agent_pool_path(), machine.name),
            "name": machine.name,
            "type": "Microsoft.ContainerService/managedClusters/agentPools/machines",
            "zones": machine.zones,
            "properties": properties,
        })
    }

    fn operation_headers(
        &self,
        request: &ArmRequest,
        operation: u64,
    ) -> Vec<(&'static str, String)> {
        let version = request.query.get("api-version").map(String::as_str).unwrap_or_default();
        let url = format!(
            "{}/subscriptions/{}/providers/Microsoft.ContainerService/locations/{}/operations/{operation:016x}?api-version={version}",
            request.base, self.config.subscription_id, self.config.region
        );
        vec![("azure-asyncoperation", url)]
    }

    /// A random number that depends on the seed and the name only, not on the order of requests.
    pub(crate) fn hash(&self, name: &str) -> u64 {
        let mut hasher = FnvHasher::default();
        hasher.write(name.as_bytes());
        Pcg64Mcg::seed_from_u64(hasher.finish() ^ self.config.seed.rotate_left(32)).random()
    }

    fn jitter(&self, range: &RangeInclusive<Duration>, name: &str) -> Duration {
        let millis = |duration: &Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let (low, high) = (millis(range.start()), millis(range.end()));
        let mut random = Pcg64Mcg::seed_from_u64(self.hash(name));
        Duration::from_millis(random.random_range(low..=high.max(low)))
    }
}

fn check_quota(
    inner: &Inner,
    state: &State,
    sku: &nap_azure::skus::Sku,
    capacity_type: CapacityType,
) -> Result<(), Refusal> {
    let exceeded = |what: &str, limit: i64, usage: i64| {
        let message = format!(
            "Operation could not be completed as it results in exceeding approved {what} quota. Additional details - \
             Location: {}, Current Limit: {limit}, Current Usage: {usage}, Additional Required: {}.",
            inner.config.region, sku.vcpus
        );
        Err(Refusal::new(409, "OperationNotAllowed", message))
    };
    if capacity_type == CapacityType::Spot {
        let usage = state.cores(|machine| machine.capacity_type == CapacityType::Spot);
        return match state.faults.spot_quota {
            Some(limit) if usage + sku.vcpus > limit => exceeded("LowPriorityCores", limit, usage),
            _ => Ok(()),
        };
    }
    let usage = family_cores(state, &sku.family);
    let limit = family_limit(&inner.config, state, &sku.family);
    if !sku.family.is_empty() && usage + sku.vcpus > limit {
        return exceeded(&format!("{} Family Cores", sku.family), limit, usage);
    }
    Ok(())
}
