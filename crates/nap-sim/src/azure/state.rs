//! What the emulated Azure remembers.

use std::collections::BTreeMap;

use jiff::Timestamp;
use nap_azure::skus::Sku;
use nap_engine::CapacityType;
use nap_units::UsdPerHour;
use serde_json::Value;

use super::FaultPlan;

/// Operations that are remembered; older ones are asked for by nobody.
const MAX_OPERATIONS: usize = 10_000;

/// Everything that changes.
pub(crate) struct State {
    pub machines: BTreeMap<String, MachineRecord>,
    pub operations: BTreeMap<u64, OperationRecord>,
    pub tokens: BTreeMap<String, Timestamp>,
    pub bill: Vec<BilledMachine>,
    pub faults: FaultPlan,
    pub requests: BTreeMap<String, u64>,
    /// Counts whatever needs a number of its own.
    pub counter: u64,
}

impl State {
    pub(crate) fn new(faults: FaultPlan) -> Self {
        Self {
            machines: BTreeMap::new(),
            operations: BTreeMap::new(),
            tokens: BTreeMap::new(),
            bill: Vec::new(),
            faults,
            requests: BTreeMap::new(),
            counter: 0,
        }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    pub(crate) fn begin_operation(&mut self) -> u64 {
        let id = self.next();
        self.operations.insert(id, OperationRecord::InProgress);
        if self.operations.len() > MAX_OPERATIONS {
            self.operations.pop_first();
        }
        id
    }

    /// Cores that are in use: of one quota family on demand, or of all spot machines.
    pub(crate) fn cores(&self, counts: impl Fn(&MachineRecord) -> bool) -> i64 {
        self.machines
            .values()
            .filter(|machine| machine.state != MachineState::Failed && counts(machine))
            .map(|machine| machine.sku.vcpus)
            .sum()
    }
}

/// Where an operation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OperationRecord {
    InProgress,
    Succeeded,
    Failed { code: String, message: String },
}

/// Where a machine is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MachineState {
    Creating,
    Succeeded,
    Failed,
    Deleting,
}

impl MachineState {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "Creating",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Deleting => "Deleting",
        }
    }
}

/// A machine of the agent pool.
#[derive(Clone, Debug)]
pub(crate) struct MachineRecord {
    pub name: String,
    /// Tells machines of one name apart.
    pub incarnation: u64,
    /// As it was asked for.
    pub zones: Vec<String>,
    pub properties: Value,
    pub sku: Sku,
    pub zone_label: String,
    pub capacity_type: CapacityType,
    pub vm_name: String,
    pub vm_id: String,
    pub state: MachineState,
    pub created: Timestamp,
    pub error: Option<(String, String)>,
    /// The VM's place on the bill, once it exists.
    pub billed: Option<usize>,
    /// The VM was taken away.
    pub evicted: bool,
}

impl MachineRecord {
    pub(crate) fn provider_id(&self) -> String {
        let mut parts: Vec<String> = self.vm_id.split('/').map(str::to_owned).collect();
        if let Some(group) = parts.get_mut(4) {
            *group = group.to_lowercase();
        }
        format!("azure://{}", parts.join("/"))
    }

    pub(crate) fn shown(&self, price: UsdPerHour) -> EmulatedMachine {
        EmulatedMachine {
            name: self.name.clone(),
            node_name: self.vm_name.clone(),
            provider_id: self.provider_id(),
            size: self.sku.name.clone(),
            zone: self.zone_label.clone(),
            capacity_type: self.capacity_type,
            price,
            state: self.state.as_str(),
        }
    }
}

/// A machine as tests and demos see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmulatedMachine {
    /// Its name in the agent pool.
    pub name: String,
    /// The name of its VM and its Node.
    pub node_name: String,
    /// What its Node carries in `spec.providerID`.
    pub provider_id: String,
    /// The VM size.
    pub size: String,
    /// The zone label's value.
    pub zone: String,
    /// How it is paid for.
    pub capacity_type: CapacityType,
    /// What it costs while it runs.
    pub price: UsdPerHour,
    /// `Creating`, `Succeeded`, `Failed` or `Deleting`.
    pub state: &'static str,
}

/// A VM on the bill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BilledMachine {
    /// Its machine's name.
    pub name: String,
    /// The VM size.
    pub size: String,
    /// The zone label's value.
    pub zone: String,
    /// How it is paid for.
    pub capacity_type: CapacityType,
    /// What it costs.
    pub price: UsdPerHour,
    /// When it came into being.
    pub created: Timestamp,
    /// When it was gone.
    pub deleted: Option<Timestamp>,
}

impl BilledMachine {
    /// What it has cost until a time, in millionths of a dollar.
    pub fn cost_micros(&self, now: Timestamp) -> i64 {
        let end = self.deleted.unwrap_or(now).min(now);
        self.price.cost_micros(end.duration_since(self.created).as_secs().max(0))
    }
}
