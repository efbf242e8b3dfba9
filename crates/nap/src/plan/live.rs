//! Reads the user's cluster; writes nothing.

use std::fmt::Debug;

use kube::api::{Api, ListParams};
use kube::{Client, Resource, ResourceExt};
use nap_api::labels;
use serde::de::DeserializeOwned;

use super::cluster::Cluster;
use crate::cli::ClusterArgs;
use crate::connect::connect;
use crate::user_error::UserError;

/// Page size of lists.
const PAGE: u32 = 500;

/// Reads every object that a decision depends on. With `keep_ties`, also the workload selectors
/// that default spread constraints need.
pub async fn from_cluster(args: &ClusterArgs, keep_ties: bool) -> anyhow::Result<Cluster> {
    let client = connect(args).await.map_err(|error| {
        UserError::new(
            format!("{error:#}"),
            "name manifests with -f, or set KUBECONFIG or pass --kubeconfig",
        )
    })?;
    let mut cluster = Cluster::default();
    let state = &mut cluster.state;
    for pod in list(&client).await? {
        state.apply_pod(pod);
    }
    list(&client).await?.into_iter().for_each(|node| state.apply_node(node));
    list(&client).await?.into_iter().for_each(|claim| state.apply_claim(claim));
    list(&client).await?.into_iter().for_each(|pool| state.apply_pool(pool));
    list(&client).await?.into_iter().for_each(|class| state.apply_class(class));
    list(&client).await?.into_iter().for_each(|daemon| state.apply_daemon(daemon));
    list(&client).await?.into_iter().for_each(|budget| state.apply_budget(budget));
    list(&client).await?.into_iter().for_each(|namespace| state.apply_namespace(namespace));
    list(&client).await?.into_iter().for_each(|claim| state.apply_volume_claim(claim));
    list(&client).await?.into_iter().for_each(|volume| state.apply_volume(volume));
    list(&client).await?.into_iter().for_each(|class| state.apply_storage_class(class));
    list(&client).await?.into_iter().for_each(|node| state.apply_csi_node(node));
    list(&client).await?.into_iter().for_each(|overlay| state.apply_overlay(overlay));
    if keep_ties {
        let known = &mut state.workloads;
        list(&client).await?.iter().for_each(|service| known.apply_service(service));
        list(&client).await?.iter().for_each(|one| known.apply_replication_controller(one));
        list(&client).await?.iter().for_each(|set| known.apply_replica_set(set));
        list(&client).await?.iter().for_each(|set| known.apply_stateful_set(set));
    }
    cluster.add_default_pool()?;
    cluster.make_ready();
    Ok(cluster)
}

/// All objects of a kind; empty if the server does not serve the kind.
async fn list<K>(client: &Client) -> anyhow::Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::all(client.clone());
    let mut found = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        match api.list(&params).await {
            Ok(page) => {
                found.extend(page.items);
                match page.metadata.continue_.filter(|token| !token.is_empty()) {
                    Some(token) => params = params.continue_token(&token),
                    None => return Ok(found),
                }
            }
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Vec::new()),
            Err(error) => {
                let message = format!("could not list {}: {error}", K::plural(&()));
                let hint =
                    "`kubectl get` of the same kind says more; reading is all that is needed";
                return Err(UserError::new(message, hint).into());
            }
        }
    }
}

/// The region of the nodes; `None` if no node has one.
pub fn region_of(cluster: &Cluster) -> Option<String> {
    cluster.state.nodes.values().find_map(|node| node.labels().get(labels::REGION).cloned())
}
