//! What was learnt about the capacity of the cloud, kept in a ConfigMap: a restart does not try
//! again what has just failed, and people can read it.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::context::{Context, Doing, Error, Outcome, is_not_found};
use crate::permissions::{Permission, Scope};

/// Name of the ConfigMap.
pub const NAME: &str = "nap-capacity-memory";
/// Its ConfigMap is read and written.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new("", "configmaps", &["create"]).within(Scope::Own),
    Permission::new("", "configmaps", &["get", "patch"]).within(Scope::OwnNamed(&[NAME])),
];

/// Key of the text in it.
pub const KEY: &str = "memory.json";
/// Interval between two looks for changes.
const INTERVAL: Duration = Duration::from_secs(10);

/// Restores the memory once, and then stores what has changed.
pub async fn reconcile(context: &Context) -> Outcome {
    let api: Api<ConfigMap> =
        Api::namespaced(context.client.clone(), context.settings.own_namespace());
    let known = context.memory().stored_capacity.clone();
    let Some(known) = known else {
        restore(context, &api).await?;
        return Ok(Some(INTERVAL));
    };
    if context.settings.dry_run {
        return Ok(None);
    }
    if let Some(text) = context.cloud.capacity_memory(Some(&known)) {
        store(&api, &text).await?;
        context.memory().stored_capacity = Some(text);
    }
    Ok(Some(INTERVAL))
}

async fn restore(context: &Context, api: &Api<ConfigMap>) -> Result<(), Error> {
    let stored = api.get_opt(NAME).await.doing("reading ConfigMap", NAME)?;
    let text = stored.and_then(|mut stored| stored.data.as_mut()?.remove(KEY));
    if let Some(text) = &text {
        context.cloud.restore_capacity_memory(text);
    }
    // Nothing is stored until something was learnt.
    let text = text.or_else(|| context.cloud.capacity_memory(None)).unwrap_or_default();
    context.memory().stored_capacity = Some(text);
    Ok(())
}

async fn store(api: &Api<ConfigMap>, text: &str) -> Result<(), Error> {
    let data = json!({ "data": { KEY: text } });
    match api.patch(NAME, &PatchParams::default(), &Patch::Merge(data)).await {
        Ok(_) => return Ok(()),
        Err(error) if is_not_found(&error) => {}
        Err(error) => return Err(error).doing("storing ConfigMap", NAME),
    }
    let object = ConfigMap {
        metadata: ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() },
        data: Some([(KEY.to_owned(), text.to_owned())].into()),
        ..ConfigMap::default()
    };
    api.create(&PostParams::default(), &object).await.doing("storing ConfigMap", NAME)?;
    Ok(())
}
