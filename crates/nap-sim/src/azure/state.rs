//! State of the emulator.

use std::collections::BTreeMap;

use jiff::Timestamp;
use nap_engine::CapacityType;
use nap_units::UsdPerHour;
use serde_json::Value;

use super::FaultPlan;
use super::maintenance::{Changes, DriftAction};
use super::sizes::VmSize;
use super::throttle::Buckets;

/// Maximum number of operations kept; clients poll recent ones only.
const MAX_OPERATIONS: usize = 10_000;

/// Machines, operations, tokens, bill and faults.
pub(crate) struct State {
    pub machines: BTreeMap<String, MachineRecord>,
    pub operations: BTreeMap<u64, OperationRecord>,
    pub tokens: BTreeMap<String, TokenRecord>,
    pub buckets: Buckets,
    pub bill: Vec<BilledMachine>,
    pub faults: FaultPlan,
    /// Number of times that the faults were cleared.
    pub fault_generation: u64,
    pub changes: Changes,
    pub requests: BTreeMap<String, u64>,
    /// Source of unique numbers.
    pub counter: u64,
    /// Number of responses, for their ids.
    pub responses: u64,
}

impl State {
    pub(crate) fn new(faults: FaultPlan) -> Self {
        Self {
            machines: BTreeMap::new(),
            operations: BTreeMap::new(),
            tokens: BTreeMap::new(),
            buckets: Buckets::default(),
            bill: Vec::new(),
            faults,
            fault_generation: 0,
            changes: Changes::default(),
            requests: BTreeMap::new(),
            counter: 0,
            responses: 0,
        }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// Begins an operation on a number of machines; with none it has ended.
    pub(crate) fn begin_operation(
        &mut self,
        started: Timestamp,
        machine: Option<&str>,
        pending: usize,
    ) -> u64 {
        let id = self.next();
        let machine = machine.map(str::to_owned);
        self.operations.insert(id, OperationRecord { started, machine, pending, failure: None });
        if self.operations.len() > MAX_OPERATIONS {
            self.operations.pop_first();
        }
        id
    }

    /// Ends an operation's part on one machine. The first failure is that of the operation.
    pub(crate) fn end_part(&mut self, operation: u64, failure: Option<(&str, &str)>) {
        let Some(record) = self.operations.get_mut(&operation) else { return };
        record.pending = record.pending.saturating_sub(1);
        if let (None, Some((code, message))) = (&record.failure, failure) {
            record.failure = Some((code.to_owned(), message.to_owned()));
        }
    }

    /// vCPUs of the machines that `counts` selects. A failed one counts until it is deleted, an
    /// evicted one has no VM.
    pub(crate) fn cores(&self, counts: impl Fn(&MachineRecord) -> bool) -> i64 {
        self.machines
            .values()
            .filter(|machine| !machine.evicted && counts(machine))
            .map(|machine| machine.size.vcpus)
            .sum()
    }
}

/// An access token.
pub(crate) struct TokenRecord {
    pub expires: Timestamp,
    /// The identity that it was issued to.
    pub principal: String,
}

/// An asynchronous operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OperationRecord {
    pub started: Timestamp,
    /// The machine that a create operation returns; `None` for a delete.
    pub machine: Option<String>,
    /// Number of machines that it still works on.
    pub pending: usize,
    /// Code and text of the first failure.
    pub failure: Option<(String, String)>,
}

/// `provisioningState` of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MachineState {
    Creating,
    Updating,
    Succeeded,
    Failed,
    Deleting,
}

impl MachineState {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "Creating",
            Self::Updating => "Updating",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Deleting => "Deleting",
        }
    }
}

/// An agent-pool machine and its VM.
#[derive(Clone, Debug)]
pub(crate) struct MachineRecord {
    pub name: String,
    /// Distinguishes machines that had the same name.
    pub incarnation: u64,
    /// As in the request.
    pub zones: Vec<String>,
    /// As in the request, without tags.
    pub properties: Value,
    pub tags: BTreeMap<String, String>,
    /// Number of changes, for the ETag.
    pub version: u64,
    pub size: VmSize,
    pub zone_label: String,
    pub capacity_type: CapacityType,
    pub vm_name: String,
    pub vm_id: String,
    pub state: MachineState,
    pub created: Timestamp,
    pub error: Option<(String, String)>,
    /// Index of the VM in the bill; `None` before it exists.
    pub billed: Option<usize>,
    /// Whether the VM was evicted.
    pub evicted: bool,
    /// What AKS wants to be done with it; `None` for nothing.
    pub drift_action: Option<DriftAction>,
}

impl MachineRecord {
    /// Enters a state, which changes the ETag.
    pub(crate) fn enter(&mut self, state: MachineState) {
        self.state = state;
        self.version += 1;
    }

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
            size: self.size.name.clone(),
            zone: self.zone_label.clone(),
            capacity_type: self.capacity_type,
            price,
            state: self.state.as_str(),
        }
    }
}

/// An agent-pool machine as tests and demos see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmulatedMachine {
    /// Name in the agent pool.
    pub name: String,
    /// Name of its VM and its Node.
    pub node_name: String,
    /// `spec.providerID` of its Node.
    pub provider_id: String,
    /// The VM size.
    pub size: String,
    /// Value of the zone label; `0` without a zone.
    pub zone: String,
    /// On-demand or spot.
    pub capacity_type: CapacityType,
    /// Price while it runs.
    pub price: UsdPerHour,
    /// `Creating`, `Updating`, `Succeeded`, `Failed` or `Deleting`.
    pub state: &'static str,
}

/// A VM on the bill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BilledMachine {
    /// Name of its agent-pool machine.
    pub name: String,
    /// The VM size.
    pub size: String,
    /// Value of the zone label; `0` without a zone.
    pub zone: String,
    /// On-demand or spot.
    pub capacity_type: CapacityType,
    /// Price while it runs.
    pub price: UsdPerHour,
    /// Time of creation.
    pub created: Timestamp,
    /// Time of deletion; `None` while it runs.
    pub deleted: Option<Timestamp>,
}

impl BilledMachine {
    /// Cost until `now`, in micro-dollars.
    pub fn cost_micros(&self, now: Timestamp) -> i64 {
        let end = self.deleted.unwrap_or(now).min(now);
        self.price.cost_micros(end.duration_since(self.created).as_secs().max(0))
    }
}
