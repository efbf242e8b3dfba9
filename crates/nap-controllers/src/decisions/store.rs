//! The log of decisions in a ConfigMap, which survives restarts and `nap decisions` reads.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::outcome::settle;
use super::record::Document;
use crate::context::{Context, Doing, Error, Outcome, is_conflict, is_not_found};
use crate::metrics::catalogue::DECISION_OUTCOMES;
use crate::permissions::{Permission, Scope};

/// Name of the ConfigMap.
pub const NAME: &str = "nap-decisions";
/// Its ConfigMap is read and written.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new("", "configmaps", &["create"]).within(Scope::Own),
    Permission::new("", "configmaps", &["get", "patch"]).within(Scope::OwnNamed(&[NAME])),
];

/// Key of the document in it.
pub const KEY: &str = "decisions.json";
/// Interval between two looks for changes, and so between two writes.
const INTERVAL: Duration = Duration::from_secs(5);

/// What is known of the ConfigMap.
#[derive(Clone, Debug, Default)]
pub struct Stored {
    /// Whether it was read since the last conflict.
    read: bool,
    /// Its version; `None` if it does not exist.
    version: Option<String>,
    /// Changes of the log that it has.
    changes: u64,
}

/// Reads the log once, notices outcomes, and stores what has changed.
pub async fn reconcile(context: &Context) -> Outcome {
    let api: Api<ConfigMap> =
        Api::namespaced(context.client.clone(), context.settings.own_namespace());
    if !context.memory().stored_decisions.read {
        restore(context, &api).await?;
    }
    notice_outcomes(context);
    let (stored, changes, text) = {
        let memory = context.memory();
        let (stored, changes) = (memory.stored_decisions.clone(), memory.decisions.changes());
        if changes == stored.changes {
            return Ok(Some(INTERVAL));
        }
        (stored, changes, memory.decisions.to_text())
    };
    match store(&api, &stored, &text).await {
        Ok(version) => {
            context.memory().stored_decisions = Stored { read: true, version, changes };
        }
        // Somebody else has written it: it is read and merged before the next attempt.
        Err(error) if is_conflict(&error) || is_not_found(&error) => {
            context.memory().stored_decisions.read = false;
        }
        Err(error) => return Err(error).doing("storing ConfigMap", NAME),
    }
    Ok(Some(INTERVAL))
}

async fn restore(context: &Context, api: &Api<ConfigMap>) -> Result<(), Error> {
    let found = api.get_opt(NAME).await.doing("reading ConfigMap", NAME)?;
    let version = found.as_ref().and_then(ResourceExt::resource_version);
    let text = found.and_then(|mut found| found.data.as_mut()?.remove(KEY));
    let mut memory = context.memory();
    match text.as_deref().map(Document::parse) {
        Some(Ok(document)) => memory.decisions.merge(document.records),
        Some(Err(error)) => {
            tracing::warn!(%error, configmap = NAME, "decision records are malformed, starting anew");
        }
        None => {}
    }
    memory.stored_decisions.read = true;
    memory.stored_decisions.version = version;
    Ok(())
}

fn notice_outcomes(context: &Context) {
    let catalogues = context.solver.catalogues();
    let (index, mut memory, now) = (context.index(), context.memory(), context.clock.now());
    let pending = memory.decisions.pending();
    let settled: Vec<_> =
        pending.filter_map(|record| settle(record, &index, &catalogues, now)).collect();
    for record in settled {
        let (kind, outcome) = (record.kind.as_str(), record.outcome.as_str());
        context.metrics.increment(&DECISION_OUTCOMES, &[kind, &record.reason, outcome]);
        memory.decisions.settle(record);
    }
}

/// Writes the document. Returns the new version of the ConfigMap.
async fn store(
    api: &Api<ConfigMap>,
    stored: &Stored,
    text: &str,
) -> Result<Option<String>, kube::Error> {
    let written = if let Some(version) = &stored.version {
        let metadata = json!({ "resourceVersion": version });
        let patch = json!({ "metadata": metadata, "data": { KEY: text } });
        api.patch(NAME, &PatchParams::default(), &Patch::Merge(patch)).await?
    } else {
        let object = ConfigMap {
            metadata: ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() },
            data: Some([(KEY.to_owned(), text.to_owned())].into()),
            ..ConfigMap::default()
        };
        api.create(&PostParams::default(), &object).await?
    };
    Ok(written.resource_version())
}
