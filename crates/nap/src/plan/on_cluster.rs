//! Manifests on top of a cluster, which is read live or from manifests of its own.

use std::path::PathBuf;

use jiff::Timestamp;
use nap_clock::Clock;
use serde_json::Value;

use super::change::{ChangeDocument, State};
use super::cluster::{Cluster, count};
use super::live::LiveObjects;
use super::{Problem, catalogues, live, objects, overlay};
use crate::cli::{Replicas, SourceArgs, SystemDaemons};
use crate::manifests::read::Document;
use crate::manifests::{check, read};

/// Decides about a cluster before and after the change of `source.files`. Returns the state after
/// it, and what the change does.
pub async fn decide(
    source: &SourceArgs,
    state: &[PathBuf],
) -> anyhow::Result<(State, ChangeDocument)> {
    let changes = read::read(&source.files)?;
    let (objects, now) = if state.is_empty() {
        (live::objects(&source.cluster).await?, Clock::wall().now())
    } else {
        (LiveObjects { documents: read::read(state)?, ..LiveObjects::default() }, Timestamp::MAX)
    };
    let LiveObjects { mut documents, capacity_memory: memory, notes } = objects;
    let is_class =
        |document: &&Document| ["PriorityClass", "RuntimeClass"].contains(&document.text("/kind"));
    let classes = documents.iter().filter(is_class).map(|document| document.value.clone());
    check::refuse(&changes, &classes.collect::<Vec<Value>>())?;
    let replicas = source.hpa.unwrap_or(Replicas::Current);
    let overlaid = overlay::overlay(&documents, changes, replicas);
    documents.retain(|document| !overlay::makes_runs(document));
    let source = &SourceArgs {
        // A cluster has its own daemons, and its workloads their current number of pods.
        system_daemons: match &source.system_daemons {
            SystemDaemons::Aks => SystemDaemons::None,
            other => other.clone(),
        },
        hpa: Some(replicas),
        files: state.to_vec(),
        ..source.clone()
    };
    let before = state_of(source, documents, memory.clone(), now).await?;
    let after = state_of(source, overlaid.documents, memory, now).await?;
    // Those of the cluster that have nothing to do with the change are only counted.
    let known = &before.cluster.autoscaler_notes;
    let (known, new): (Vec<&String>, Vec<&String>) =
        after.cluster.autoscaler_notes.iter().partition(|note| known.contains(note));
    for note in notes.iter().chain(&overlaid.notes).chain(new).chain(&after.cluster.notes) {
        eprintln!("note: {note}");
    }
    if !known.is_empty() {
        let autoscalers = count(known.len(), "autoscaler");
        eprintln!("note: {autoscalers} of the cluster counted as before (--hpa min|max|current)");
    }
    let change = ChangeDocument::new(&before, &after, &overlaid.lines, &overlaid.ended);
    Ok((after, change))
}

async fn state_of(
    source: &SourceArgs,
    documents: Vec<Document>,
    capacity_memory: Option<String>,
    now: Timestamp,
) -> anyhow::Result<State> {
    let options = source.engine.options()?;
    let ties = !options.default_spread.is_empty();
    let cluster = objects::from_manifests(documents, source, ties)?;
    let mut cluster = Cluster { capacity_memory, ..cluster };
    let offered = catalogues::choose(source, &mut cluster, now).await?;
    let problem = Problem::new(&mut cluster, offered, options, now);
    Ok(State::new(cluster, problem))
}
