//! Writes to the API server.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, ResourceExt as _};
use serde_json::Value;

use crate::due::PodKey;

/// Namespace of the Leases of all Nodes.
const LEASES: &str = "kube-node-lease";

/// Field manager of the writes.
const MANAGER: &str = "kubelet";

/// Time limit of a write: all kubelets wait for the slowest of a batch.
const TIMEOUT: Duration = Duration::from_secs(10);

/// One write.
#[derive(Debug)]
pub(crate) enum Write {
    CreateNode(Box<Node>),
    /// Strategic merge of a Node's status: conditions merge by type, so others' survive.
    NodeStatus {
        name: String,
        patch: Value,
    },
    /// Renews a Lease, or creates it.
    Lease(Box<Lease>),
    /// Strategic merge of a pod's status.
    PodStatus {
        pod: PodKey,
        patch: Value,
    },
    /// Removes a stopped pod from the API server.
    DeletePod {
        pod: PodKey,
        uid: Option<String>,
    },
    DeleteNode {
        name: String,
        uid: Option<String>,
    },
}

impl Write {
    /// The action and the name of its object, for logs.
    fn subject(&self) -> (&'static str, String) {
        match self {
            Self::CreateNode(node) => ("create node", node.name_any()),
            Self::NodeStatus { name, .. } => ("patch node status", name.clone()),
            Self::Lease(lease) => ("renew lease", lease.name_any()),
            Self::PodStatus { pod, .. } => ("patch pod status", pod.1.clone()),
            Self::DeletePod { pod, .. } => ("delete pod", pod.1.clone()),
            Self::DeleteNode { name, .. } => ("delete node", name.clone()),
        }
    }
}

/// Result of a write.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done,
    /// The object is gone, was replaced, or exists already.
    Conflict,
    /// Anything else: refused by admission, not reachable. To be tried again.
    Failed,
}

/// Performs a write. Never fails in a way that ends the kubelets.
pub(crate) async fn perform(client: Client, write: Write) -> Outcome {
    let (what, name) = write.subject();
    let Ok(result) = tokio::time::timeout(TIMEOUT, send(client, write)).await else {
        tracing::warn!(what, name, "write timed out, trying again");
        return Outcome::Failed;
    };
    match result {
        Ok(()) => Outcome::Done,
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
            tracing::debug!(what, name, message = status.message, "write conflict");
            Outcome::Conflict
        }
        Err(error) => {
            tracing::warn!(what, name, %error, "write failed, trying again");
            Outcome::Failed
        }
    }
}

async fn send(client: Client, write: Write) -> kube::Result<()> {
    let parameters = patching();
    match write {
        Write::CreateNode(node) => {
            Api::<Node>::all(client).create(&posting(), &node).await?;
        }
        Write::NodeStatus { name, patch } => {
            let api = Api::<Node>::all(client);
            api.patch_status(&name, &parameters, &Patch::Strategic(patch)).await?;
        }
        Write::Lease(lease) => renew(&Api::namespaced(client, LEASES), &lease).await?,
        Write::PodStatus { pod: (namespace, name), patch } => {
            let api = Api::<Pod>::namespaced(client, &namespace);
            api.patch_status(&name, &parameters, &Patch::Strategic(patch)).await?;
        }
        Write::DeletePod { pod: (namespace, name), uid } => {
            let parameters = delete(uid).grace_period(0);
            Api::<Pod>::namespaced(client, &namespace).delete(&name, &parameters).await?;
        }
        Write::DeleteNode { name, uid } => {
            Api::<Node>::all(client).delete(&name, &delete(uid)).await?;
        }
    }
    Ok(())
}

fn posting() -> PostParams {
    PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() }
}

fn patching() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
}

/// With the uid as precondition, so that a new object of the same name stays.
fn delete(uid: Option<String>) -> DeleteParams {
    let preconditions = Some(Preconditions { uid, resource_version: None });
    DeleteParams { preconditions, ..DeleteParams::background() }
}

async fn renew(api: &Api<Lease>, lease: &Lease) -> kube::Result<()> {
    let renewed = api.patch(&lease.name_any(), &patching(), &Patch::Merge(lease)).await;
    match renewed {
        Err(kube::Error::Api(status)) if status.code == 404 => {
            api.create(&posting(), lease).await?;
        }
        other => drop(other?),
    }
    Ok(())
}
