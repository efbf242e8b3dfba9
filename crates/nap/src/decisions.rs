//! `nap decisions`: what the controllers have decided lately, and what came of it.

use std::fmt::Write as _;
use std::path::Path;

use clap::{Args, ValueEnum};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams};
use nap_controllers::decisions::{
    DecisionRecord, Document, Kind, Outcome, RecordedNode, inputs, store,
};
use nap_units::UsdPerHour;
use serde::Serialize;

use crate::cli::ClusterArgs;
use crate::connect::{connect_to, unreachable};
use crate::plan::format::{columns, wrap};
use crate::plan::show;
use crate::user_error::UserError;

/// Options of `nap decisions`.
#[derive(Clone, Debug, Args)]
pub struct DecisionsArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Number of decisions to show, from the newest back
    #[arg(short = 'n', long = "last", value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub last: u32,
    /// Show only decisions that removed or launched this Node or NodeClaim
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Write the input of a consolidation to FILE, for `nap replay`: `last`, or an `id` or `input`
    /// of -o json. The inputs of the last 8 are kept
    #[arg(long, num_args = 2, value_names = ["ID", "FILE"], conflicts_with_all = ["node", "last"])]
    pub save: Option<Vec<String>>,
    /// Output format
    #[arg(short = 'o', long, value_enum, default_value = "table")]
    pub output: DecisionsFormat,
}

/// Output formats of `nap decisions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DecisionsFormat {
    /// One row per node of a decision, newest last; with --node also the reasons in words
    Table,
    /// JSON document, described in docs/disruption.md
    Json,
}

/// The output as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown<'r> {
    version: u32,
    predicted_saving_micro_usd_per_hour: i64,
    realised_saving_micro_usd_per_hour: i64,
    records: &'r [DecisionRecord],
}

/// Prints the decisions.
pub async fn decisions(args: DecisionsArgs) -> anyhow::Result<()> {
    let Document { version, records } = read(&args.cluster).await?;
    if let Some([id, file]) = args.save.as_deref() {
        return save(&args.cluster, &records, id, Path::new(file)).await;
    }
    let is_asked =
        |record: &DecisionRecord| args.node.as_deref().is_none_or(|name| record.concerns(name));
    let recorded = records.len();
    let mut asked: Vec<DecisionRecord> = records.into_iter().filter(is_asked).collect();
    let last = usize::try_from(args.last).unwrap_or(usize::MAX);
    asked.drain(..asked.len().saturating_sub(last));
    let (predicted, realised) = totals(&asked);
    match args.output {
        DecisionsFormat::Json => {
            let shown = Shown {
                version,
                predicted_saving_micro_usd_per_hour: predicted.micros(),
                realised_saving_micro_usd_per_hour: realised.micros(),
                records: &asked,
            };
            show(&(serde_json::to_string_pretty(&shown)? + "\n"))
        }
        DecisionsFormat::Table if !asked.is_empty() => {
            let words = if args.node.is_some() { reasons(&asked) } else { String::new() };
            show(&(table(&asked, predicted, realised) + &words))
        }
        DecisionsFormat::Table => show(&match &args.node {
            Some(name) if recorded > 0 => {
                format!("None of the {recorded} recorded decisions removed or launched `{name}`\n")
            }
            _ => {
                "No decisions are recorded: nap has launched or disrupted no node yet\n".to_owned()
            }
        }),
    }
}

/// Writes the input of a decision.
async fn save(
    cluster: &ClusterArgs,
    records: &[DecisionRecord],
    id: &str,
    file: &Path,
) -> anyhow::Result<()> {
    let kept = |record: &&DecisionRecord| inputs::NAMES.contains(&record.replay.as_str());
    let hint = "`nap decisions -o json` lists them: those with `replay` can be saved";
    let found = match id {
        "last" => records.iter().rfind(kept),
        id => records.iter().rfind(|one| one.id.to_string() == id || one.input == id),
    };
    let Some(record) = found else {
        let message = match id {
            "last" => "--save: no recorded decision has its input kept".to_owned(),
            id => format!("--save: no recorded decision has the id or input `{id}`"),
        };
        return Err(UserError::new(message, hint).into());
    };
    if !kept(&record) {
        let why = match record.replay.as_str() {
            inputs::TOO_LARGE => "is too large to be kept",
            _ => "is not kept: only consolidation needs a decision of the engine",
        };
        return Err(UserError::new(format!("--save: the input of `{id}` {why}"), hint).into());
    }
    let (client, server) = connect_to(cluster).await?;
    let api: Api<ConfigMap> = Api::all(client);
    let named = ListParams::default().fields(&format!("metadata.name={}", record.replay));
    let maps = api.list(&named).await;
    let maps = maps.map_err(|error| unreachable(&server, "list", "configmaps", &error))?;
    let content = maps.items.into_iter().find_map(|map| inputs::file_of(map, &record.input));
    let Some(content) = content else {
        let number = inputs::NAMES.len();
        let message = format!(
            "--save: the input of `{id}` is not in ConfigMap `{}`: it is not written yet, or one of \
             the {number} decisions after it took its place",
            record.replay
        );
        return Err(UserError::new(message, hint).into());
    };
    std::fs::write(file, content).map_err(|error| {
        let message = format!("--save: {}: cannot be written: {error}", file.display());
        UserError::new(message, "name a file in a folder that exists").into()
    })
}

/// Reads the records from whichever namespace nap has.
async fn read(cluster: &ClusterArgs) -> anyhow::Result<Document> {
    let (client, server) = connect_to(cluster).await?;
    let api: Api<ConfigMap> = Api::all(client);
    let named = ListParams::default().fields(&format!("metadata.name={}", store::NAME));
    let found = api.list(&named).await;
    let found = found.map_err(|error| unreachable(&server, "list", "configmaps", &error))?;
    let mut texts = found.items.into_iter().filter_map(|map| map.data);
    let Some(text) = texts.find_map(|mut data| data.remove(store::KEY)) else {
        return Ok(Document::default());
    };
    Document::parse(&text).map_err(|error| {
        UserError::new(
            format!("ConfigMap `{}`: `{}` is malformed: {error}", store::NAME, store::KEY),
            "delete it; nap writes it again",
        )
        .into()
    })
}

/// Saving that disruption promised, and the part that was realised and not undone.
fn totals(records: &[DecisionRecord]) -> (UsdPerHour, UsdPerHour) {
    let predicted = records.iter().filter_map(|one| one.predicted_saving_micro_usd_per_hour);
    let realised = records.iter().filter(|one| one.outcome == Outcome::Realised);
    let realised = realised.filter_map(|one| one.realised_saving_micro_usd_per_hour);
    (UsdPerHour::from_micros(predicted.sum()), UsdPerHour::from_micros(realised.sum()))
}

fn table(records: &[DecisionRecord], predicted: UsdPerHour, realised: UsdPerHour) -> String {
    let titles =
        ["TIME", "REASON", "REMOVED", "LAUNCHED", "PODS", "PREDICTED/H", "REALISED/H", "OUTCOME"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    for record in records {
        rows.extend(rows_of(record));
    }
    let pending = records.iter().filter(|one| one.outcome == Outcome::Pending).count();
    let under_way =
        if pending == 0 { String::new() } else { format!("; {pending} still under way") };
    let is_estimated = records.iter().any(is_estimate);
    let mark = if is_estimated { "~" } else { "" };
    let note = if is_estimated { "~ marks estimated prices\n" } else { "" };
    format!(
        "{}\nPredicted saving of disruption {mark}{predicted}/h, realised {mark}{realised}/h\
         {under_way}\n{note}",
        columns(&rows)
    )
}

/// The reasons of each decision in words.
fn reasons(records: &[DecisionRecord]) -> String {
    let mut text = String::new();
    for record in records {
        let time = record.time.strftime("%FT%TZ");
        let _ = writeln!(text, "\n{time}, input {}", record.input);
        text.extend(record.why.iter().map(|why| wrap(why, 2)));
    }
    text
}

/// The rows of a decision: one for each node that it removes or launches.
fn rows_of(record: &DecisionRecord) -> Vec<Vec<String>> {
    let removed: Vec<String> = record.removed.iter().map(describe).collect();
    let mut launched: Vec<String> = record.launched.iter().map(describe).collect();
    if record.further_launches > 0 {
        launched.push(format!("and {} more", record.further_launches));
    }
    let cell = |cells: &[String], row: usize| match (cells.get(row), row) {
        (Some(cell), _) => cell.clone(),
        (None, 0) => "–".to_owned(),
        (None, _) => String::new(),
    };
    let mark = if is_estimate(record) { "~" } else { "" };
    let saving = |micros: Option<i64>| match micros {
        Some(saved) => format!("{mark}{}", UsdPerHour::from_micros(saved)),
        None => "–".to_owned(),
    };
    let reason = match record.kind {
        Kind::Provisioning => "Pending pods",
        Kind::Disruption => &record.reason,
    };
    (0..removed.len().max(launched.len()).max(1))
        .map(|row| {
            let first = |text: String| if row == 0 { text } else { String::new() };
            vec![
                first(record.time.strftime("%FT%TZ").to_string()),
                first(reason.to_owned()),
                cell(&removed, row),
                cell(&launched, row),
                first(record.pods.to_string()),
                first(saving(record.predicted_saving_micro_usd_per_hour)),
                first(saving(record.realised_saving_micro_usd_per_hour)),
                first(record.outcome.as_str().to_owned()),
            ]
        })
        .collect()
}

/// Whether the price of a node of a decision is an estimate.
fn is_estimate(record: &DecisionRecord) -> bool {
    record.removed.iter().chain(&record.launched).any(|node| node.price_is_estimate)
}

/// `default-dxlds Standard_D4als_v6 eastus-2 on-demand $0.161`.
fn describe(node: &RecordedNode) -> String {
    let mark = if node.price_is_estimate { "~" } else { "" };
    let price = node.micro_usd_per_hour;
    let price = price.map(|price| format!("{mark}{}", UsdPerHour::from_micros(price)));
    let price = price.unwrap_or_default();
    let parts = [&node.node_claim, &node.instance_type, &node.zone, &node.capacity_type, &price];
    let parts: Vec<&str> =
        parts.into_iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use nap_engine::{Plan, PriceEstimates};

    use super::*;

    #[test]
    fn estimated_prices_of_a_decision_are_marked() {
        let node = |price_is_estimate| RecordedNode {
            instance_type: "D4".to_owned(),
            micro_usd_per_hour: Some(100_000),
            price_is_estimate,
            ..RecordedNode::default()
        };
        let record = |price_is_estimate| {
            let (kind, plan) = (Kind::Disruption, Plan::default());
            let time = jiff::Timestamp::UNIX_EPOCH;
            let record = DecisionRecord::new(kind, "x", &plan, &[], PriceEstimates::None, time);
            let saving = Some(UsdPerHour::from_micros(100_000));
            record.removing(vec![node(price_is_estimate)], 1, saving, "x")
        };
        let price = UsdPerHour::from_micros(100_000);
        let listed = table(&[record(false)], price, price);
        assert!(!listed.contains('~'), "{listed}");
        let estimated = table(&[record(true)], price, price);
        assert!(estimated.contains("D4 ~$0.1") && estimated.contains("~ marks"), "{estimated}");
        assert!(estimated.contains("disruption ~$0.100/h, realised ~$0.100/h"), "{estimated}");
    }
}
