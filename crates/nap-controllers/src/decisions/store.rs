//! The log of decisions in a ConfigMap, which survives restarts and `nap decisions` reads.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::inputs;
use super::outcome::settle;
use crate::context::{Context, Doing, Error, Outcome, is_conflict, is_not_found};
use crate::metrics::catalogue::DECISION_OUTCOMES;
use crate::permissions::{Permission, Scope};

/// Name of the ConfigMap.
pub const NAME: &str = "nap-decisions";
/// Its ConfigMap is read and written, and those of the inputs are written.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new("", "configmaps", &["create"]).within(Scope::Own),
    Permission::new("", "configmaps", &["get", "patch"]).within(Scope::OwnNamed(&[NAME])),
    Permission::new("", "configmaps", &["patch"]).within(Scope::OwnNamed(&inputs::NAMES)),
];

/// Key of the records in it.
pub const KEY: &str = "decisions.json";
/// Key of the evictions of each workload in it.
pub const EVICTIONS_KEY: &str = "evictions.json";
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

/// Reads what was stored once, notices outcomes, and stores what has changed.
pub async fn reconcile(context: &Context) -> Outcome {
    let api: Api<ConfigMap> =
        Api::namespaced(context.client.clone(), context.settings.own_namespace());
    recall(context).await?;
    notice_outcomes(context);
    let waiting = context.memory().inputs.first();
    if let Some(waiting) = waiting {
        match inputs::write(&api, &waiting).await {
            // The records matter more: they do not wait for a permission.
            Err(kube::Error::Api(status)) if status.code == 403 => {
                tracing::warn!(error = status.message, "the input of a decision is not kept");
            }
            done => done.doing("storing the input of a decision for", NAME)?,
        }
        context.memory().inputs.written(&waiting);
    }
    let (stored, changes, texts) = {
        let memory = context.memory();
        let stored = memory.stored_decisions.clone();
        let changes = memory.decisions.changes() + memory.moves.changes();
        if changes == stored.changes {
            return Ok(Some(INTERVAL));
        }
        let texts = [(KEY, memory.decisions.to_text()), (EVICTIONS_KEY, memory.moves.to_text())];
        (stored, changes, texts.map(|(key, text)| (key.to_owned(), text)).into())
    };
    match store(&api, &stored, texts).await {
        Ok(version) => {
            context.memory().stored_decisions = Stored { read: true, version, changes };
        }
        // Another replica has written it: it is read and merged before the next attempt.
        Err(error) if is_conflict(&error) || is_not_found(&error) => {
            context.memory().stored_decisions.read = false;
        }
        Err(error) => return Err(error).doing("storing ConfigMap", NAME),
    }
    Ok(Some(INTERVAL))
}

/// Reads the ConfigMap if that was not done since the last conflict. One that may not be read
/// counts as empty: disruption does not wait for a permission.
pub async fn recall(context: &Context) -> Result<(), Error> {
    if context.memory().stored_decisions.read {
        return Ok(());
    }
    let api: Api<ConfigMap> =
        Api::namespaced(context.client.clone(), context.settings.own_namespace());
    let found = match api.get_opt(NAME).await {
        Err(kube::Error::Api(status)) if status.code == 403 => {
            tracing::warn!(error = status.message, configmap = NAME, "may not be read");
            None
        }
        found => found.doing("reading ConfigMap", NAME)?,
    };
    let version = found.as_ref().and_then(ResourceExt::resource_version);
    let stored = found.and_then(|found| found.data).unwrap_or_default();
    let mut memory = context.memory();
    for (key, error) in memory.recall(&stored, context.clock.now()) {
        tracing::warn!(error, configmap = NAME, key, "stored text is malformed, starting anew");
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

/// Writes the documents. Returns the new version of the ConfigMap.
async fn store(
    api: &Api<ConfigMap>,
    stored: &Stored,
    texts: BTreeMap<String, String>,
) -> Result<Option<String>, kube::Error> {
    let written = if let Some(version) = &stored.version {
        let metadata = json!({ "resourceVersion": version });
        let patch = json!({ "metadata": metadata, "data": texts });
        api.patch(NAME, &PatchParams::default(), &Patch::Merge(patch)).await?
    } else {
        let object = ConfigMap {
            metadata: ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() },
            data: Some(texts),
            ..ConfigMap::default()
        };
        api.create(&PostParams::default(), &object).await?
    };
    Ok(written.resource_version())
}
