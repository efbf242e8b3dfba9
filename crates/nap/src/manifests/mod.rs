//! Manifests: reading and checking those of the user, the built-in ones, and server-side apply.

pub mod check;
mod definitions;
mod lines;
pub mod read;

use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::pinned_kind;
use kube::{Api, Client};

/// The default NodePool and AKSNodeClass of the managed product.
pub const DEFAULT_NODEPOOL: &str = include_str!("../../../../examples/default-nodepool.yaml");
/// A NodePool of spot nodes that goes before the default one.
pub const SPOT_NODEPOOL: &str = include_str!("../../../../examples/spot-nodepool.yaml");
/// Ten pods of one CPU each.
pub const INFLATE: &str = include_str!("../../../../examples/inflate.yaml");

/// Applies every document of a YAML text by server-side apply.
pub async fn apply(client: &Client, yaml: &str) -> anyhow::Result<()> {
    let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(yaml)?;
    for document in documents {
        let object: DynamicObject = serde_json::from_value(document)?;
        apply_object(client, &object).await?;
    }
    Ok(())
}

/// Applies one object by server-side apply.
pub async fn apply_object(client: &Client, object: &DynamicObject) -> anyhow::Result<()> {
    let types = object
        .types
        .as_ref()
        .ok_or_else(|| anyhow::anyhow!("an object without apiVersion and kind"))?;
    let kind = GroupVersionKind::try_from(types)?;
    let (resource, capabilities) = pinned_kind(client, &kind).await?;
    let api: Api<DynamicObject> = match capabilities.scope {
        kube::discovery::Scope::Cluster => Api::all_with(client.clone(), &resource),
        kube::discovery::Scope::Namespaced => {
            let namespace = object.metadata.namespace.as_deref().unwrap_or("default");
            Api::namespaced_with(client.clone(), namespace, &resource)
        }
    };
    let name = object.metadata.name.as_deref().unwrap_or_default();
    api.patch(name, &PatchParams::apply("nap").force(), &Patch::Apply(object)).await?;
    Ok(())
}
