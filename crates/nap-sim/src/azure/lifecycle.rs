//! What happens to machines after their requests: creation, failure, update, deletion, eviction.

use std::hash::Hasher as _;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use fnv::FnvHasher;
use nap_kubelets::VmEvent;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::Inner;
use super::faults::Fault;
use super::node::{node_labels, node_resources, node_taints};
use super::state::{BilledMachine, MachineRecord, MachineState, State};

/// Time from the request until a creation fails, such as for lack of capacity.
const CREATE_FAILURE: Duration = Duration::from_secs(8);

/// An accepted machine whose creation begins.
pub(crate) struct Created {
    name: String,
    vm_name: String,
    incarnation: u64,
    operation: u64,
    fate: Fate,
}

/// How a creation goes on.
enum Fate {
    /// It takes longer by this factor.
    Succeeds(u32),
    /// It fails with this code and text.
    Fails(String, String),
    NeverEnds,
}

impl Created {
    /// Adds an accepted machine. Its fate is decided by the faults of this moment.
    pub(crate) fn new(state: &mut State, machine: MachineRecord, operation: u64) -> Self {
        let created = Self {
            fate: fate(state, &machine),
            name: machine.name.clone(),
            vm_name: machine.vm_name.clone(),
            incarnation: machine.incarnation,
            operation,
        };
        state.machines.insert(machine.name.clone(), machine);
        created
    }
}

impl Inner {
    /// Starts the timers of creations.
    pub(crate) fn begin_creates(self: &Arc<Self>, machines: Vec<Created>) {
        for Created { name, vm_name, incarnation, operation, fate } in machines {
            match fate {
                Fate::Fails(code, message) => self.later_with(CREATE_FAILURE, move |inner| {
                    inner.fail(&name, incarnation, operation, (&code, &message));
                }),
                Fate::Succeeds(factor) => {
                    let delay = self.jitter(&self.config.vm_create, &format!("create/{vm_name}"));
                    self.later(delay.saturating_mul(factor), move |inner| {
                        inner.finish_create(&name, incarnation, operation)
                    });
                }
                Fate::NeverEnds => {}
            }
        }
    }

    fn finish_create(&self, name: &str, incarnation: u64, operation: u64) -> Option<VmEvent> {
        let mut guard = self.state();
        let state = &mut *guard;
        let now = self.config.clock.now();
        let never_joins = state.machines.get(name).is_some_and(|machine| {
            let strikes = |fault: &Fault| matches!(fault, Fault::NeverJoin(place) if place.strikes(&state.machines, machine));
            state.faults.never_boots || state.faults.active(now).any(strikes)
        });
        let machine = state.machines.get_mut(name).filter(|machine| {
            machine.incarnation == incarnation && machine.state == MachineState::Creating
        });
        let Some(machine) = machine else {
            state.end_part(operation, Some(("OperationPreempted", "the machine was deleted")));
            return None;
        };
        machine.enter(MachineState::Succeeded);
        machine.billed = Some(state.bill.len());
        state.bill.push(BilledMachine {
            name: name.to_owned(),
            size: machine.size.name.clone(),
            zone: machine.zone_label.clone(),
            capacity_type: machine.capacity_type,
            price: self.region.price(&machine.size.name, machine.capacity_type),
            created: now,
            deleted: None,
        });
        let event = (!never_joins).then(|| {
            let (capacity, allocatable) = node_resources(&self.config, machine);
            VmEvent::Created {
                provider_id: machine.provider_id(),
                node_name: machine.vm_name.clone(),
                labels: node_labels(&self.config, machine),
                taints: node_taints(&machine.properties).unwrap_or_default(),
                capacity,
                allocatable,
                boot: self.jitter(&self.config.node_boot, &format!("boot/{}", machine.vm_name)),
            }
        });
        state.end_part(operation, None);
        event
    }

    /// Fails a creation.
    fn fail(&self, name: &str, incarnation: u64, operation: u64, error: (&str, &str)) {
        let mut guard = self.state();
        let state = &mut *guard;
        let code = match state.machines.get_mut(name) {
            Some(machine)
                if machine.incarnation == incarnation
                    && machine.state == MachineState::Creating =>
            {
                machine.enter(MachineState::Failed);
                machine.error = Some((error.0.to_owned(), error.1.to_owned()));
                error.0
            }
            _ => "OperationPreempted",
        };
        state.end_part(operation, Some((code, "the machine could not be provisioned")));
    }

    /// Ends an update of tags.
    pub(crate) fn finish_update(&self, name: &str, incarnation: u64, operation: u64) {
        let mut state = self.state();
        let machine = state.machines.get_mut(name);
        if let Some(machine) = machine.filter(|machine| machine.incarnation == incarnation)
            && machine.state == MachineState::Updating
        {
            machine.enter(MachineState::Succeeded);
        }
        state.end_part(operation, None);
    }

    pub(crate) fn finish_delete(
        &self,
        name: &str,
        incarnation: u64,
        operation: u64,
    ) -> Option<VmEvent> {
        let mut state = self.state();
        state.end_part(operation, None);
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
        machine.version += 1;
        let (provider_id, node_name) = (machine.provider_id(), machine.vm_name.clone());
        drop(guard);
        self.later(Duration::ZERO, move |_| Some(VmEvent::Deleted { provider_id, node_name }));
        true
    }

    /// A random number that depends on the seed and the name only, not on the order of requests.
    pub(crate) fn hash(&self, name: &str) -> u64 {
        let mut hasher = FnvHasher::default();
        hasher.write(name.as_bytes());
        Pcg64Mcg::seed_from_u64(hasher.finish() ^ self.config.seed.rotate_left(32)).random()
    }

    /// A GUID that depends on the seed and the name only.
    pub(crate) fn guid(&self, name: &str) -> String {
        let (high, low) = (self.hash(name), self.hash(&format!("{name}/low")));
        format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xffff,
            low >> 48,
            low & 0xffff_ffff_ffff
        )
    }

    pub(crate) fn jitter(&self, range: &RangeInclusive<Duration>, name: &str) -> Duration {
        let millis = |duration: &Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let (low, high) = (millis(range.start()), millis(range.end()));
        let mut random = Pcg64Mcg::seed_from_u64(self.hash(name));
        Duration::from_millis(random.random_range(low..=high.max(low)))
    }
}

/// How the faults of this moment let a creation go on. An accepted VM that Azure has no room for
/// fails a little later.
fn fate(state: &State, machine: &MachineRecord) -> Fate {
    let State { faults, machines, .. } = state;
    let code = if machine.zones.is_empty() { "AllocationFailed" } else { "ZonalAllocationFailed" };
    let no_room = || {
        let message =
            "Allocation failed. We do not have sufficient capacity for the requested VM size.";
        Fate::Fails(code.to_owned(), message.to_owned())
    };
    let place = (machine.size.name.clone(), machine.zone_label.clone());
    if faults.capacity_errors.contains(&place) {
        return no_room();
    }
    if faults.stuck_creates {
        return Fate::NeverEnds;
    }
    let mut factor = 1;
    for fault in faults.active(machine.created) {
        match fault {
            Fault::FailedCreates { place, error } if place.strikes(machines, machine) => {
                return match error {
                    Some((code, message)) => Fate::Fails(code.clone(), message.clone()),
                    None => no_room(),
                };
            }
            Fault::LostCreates(place) if place.strikes(machines, machine) => {
                return Fate::NeverEnds;
            }
            Fault::SlowCreates(slower) => factor = factor.max(*slower),
            _ => {}
        }
    }
    Fate::Succeeds(factor)
}
