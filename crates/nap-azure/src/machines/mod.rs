//! Agent-pool machines: the AKS resource that stands for one VM and its bootstrapped node.

mod api;
mod batches;
mod listed;
mod model;
pub(crate) mod names;
mod profiles;
mod request;
pub(crate) mod tags;

pub use api::{API_VERSION, Accepted, Machines};
pub use batches::{Batches, Created, MAX_BATCH, NewMachine};
pub use listed::{Listed, MachineList};
pub use model::{
    Machine, MachineHardware, MachineKubernetes, MachineNetwork, MachineOperatingSystem,
    MachineProperties, MachineStatus, ProvisioningState, VmState,
};
pub use names::{is_vm_in, machine_name, machine_name_in, machine_name_of};
pub use request::MachineRequest;
pub(crate) use request::machine_tags;

/// Tag with the name of the NodePool.
pub const NODEPOOL_TAG: &str = "karpenter.sh_nodepool";
/// Tag with the name of the NodeClaim.
pub const NODECLAIM_TAG: &str = "karpenter.azure.com_aksmachine_nodeclaim";
/// Tag with the name of the cluster.
pub const CLUSTER_TAG: &str = "karpenter.azure.com_cluster";
