//! The state of the world at one time, read through the API server and the cloud only.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, Client};
use nap_api::{NodeClaim, NodePool};

use crate::azure::EmulatedMachine;
use crate::world::{World, WorldError};

/// Everything that checkers may look at.
pub(super) struct Observation {
    pub(super) now: Timestamp,
    pub(super) pods: Vec<Pod>,
    pub(super) claims: Vec<NodeClaim>,
    pub(super) nodes: Vec<Node>,
    pub(super) pools: Vec<NodePool>,
    /// The agent-pool machines that Azure has.
    pub(super) vms: Vec<EmulatedMachine>,
}

impl Observation {
    /// Reads the world.
    pub(super) async fn take(world: &World) -> Result<Self, WorldError> {
        let all = ListParams::default();
        let failed = |source| WorldError::Kube { doing: "observing the cluster", source };
        let now = world.clock().now();
        let pods = Api::<Pod>::all(world.client()).list(&all).await.map_err(failed)?.items;
        let claims = Api::<NodeClaim>::all(world.client()).list(&all).await.map_err(failed)?.items;
        let nodes = Api::<Node>::all(world.client()).list(&all).await.map_err(failed)?.items;
        let vms = world.azure().machines();
        // Not traced: reading more objects must not change the trace hash of a seed.
        let untraced = Client::new(world.server().clone(), "default");
        let pools = Api::<NodePool>::all(untraced).list(&all).await.map_err(failed)?.items;
        Ok(Self { now, pods, claims, nodes, pools, vms })
    }
}
