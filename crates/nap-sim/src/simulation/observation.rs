//! The state of the world at one time, read through the API server and the cloud only.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Collected, Full};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use kube::core::ObjectList;
use nap_api::{NodeClaim, NodePool};
use tower::Service as _;

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
        let pools = node_pools(world).await.map_err(failed)?;
        Ok(Self { now, pods, claims, nodes, pools, vms })
    }
}

/// Lists NodePools by a direct call of the API server. Without a client there is no trace and no
/// task switch, so this list leaves the trace hash of a seed as it is.
async fn node_pools(world: &World) -> Result<Vec<NodePool>, kube::Error> {
    let request = Request::get("/apis/karpenter.sh/v1/nodepools").body(Full::<Bytes>::default());
    let request = request.map_err(kube::Error::HttpError)?;
    let Ok(response) = world.server().clone().call(request).await;
    let body = response.into_body().collect().await.map(Collected::to_bytes);
    let body = body.map_err(|error| kube::Error::Service(error.into()))?;
    let list: ObjectList<NodePool> =
        serde_json::from_slice(&body).map_err(kube::Error::SerdeError)?;
    Ok(list.items)
}
