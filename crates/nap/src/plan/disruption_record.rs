//! Saved decisions about running nodes: `nap plan disruption --save`, and their replay.

use std::fmt::Write as _;
use std::path::Path;

use nap_controllers::decisions::Digests;
use nap_controllers::preview::Preview;
use nap_engine::{Consolidation, ConsolidationCache, ConsolidationOptions, Fleet, consolidate};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::format::{columns, wrap};
use super::record::{self, DISRUPTION_KIND, Stored, VERSION};
use super::{Problem, show};
use crate::catalogue::Origin;
use crate::cli::Format;

/// The file that `nap plan disruption --save` writes, and the controllers without region and origin
/// ([`nap_controllers::decisions::inputs`]).
#[derive(Serialize, Deserialize)]
pub struct DisruptionRecord {
    kind: String,
    version: u32,
    /// Region of the sizes and prices.
    region: String,
    /// Where the prices and zones come from.
    #[serde(default)]
    origin: Origin,
    /// Input of the engine.
    fleet: Fleet,
    /// Options of the engine.
    options: ConsolidationOptions,
    /// The decision, as the engine made it.
    decision: Value,
}

impl DisruptionRecord {
    /// The record of what the engine decided.
    pub fn new(problem: &Problem, preview: &Preview) -> anyhow::Result<Self> {
        let (fleet, options, decision) = &preview.consolidation;
        Ok(Self {
            kind: DISRUPTION_KIND.to_owned(),
            version: VERSION,
            region: problem.region.clone(),
            origin: problem.origin.clone(),
            fleet: fleet.clone(),
            options: options.clone(),
            decision: serde_json::to_value(decision)?,
        })
    }

    /// Writes the file.
    pub fn save(&self, file: &Path) -> anyhow::Result<()> {
        record::write(file, self)
    }
}

/// Decides again with an empty cache, and compares.
pub fn replay(stored: &Stored, format: Format) -> anyhow::Result<()> {
    let record: DisruptionRecord = stored.parse()?;
    let DisruptionRecord { fleet, options, decision: before, origin, .. } = record;
    let decision = if fleet.candidates.is_empty() {
        Consolidation::default()
    } else {
        consolidate(&fleet, &options, &mut ConsolidationCache::default())
    };
    show(&match format {
        Format::Table => table(&fleet, &decision, &origin, false),
        Format::Wide => table(&fleet, &decision, &origin, true),
        Format::Json => serde_json::to_string_pretty(&decision)? + "\n",
        Format::Yaml => serde_saphyr::to_string(&decision)?,
    })?;
    let differences = record::differences(&before, &decision)?;
    record::verdict(&stored.file, "decision", &differences, format)
}

fn table(fleet: &Fleet, decision: &Consolidation, origin: &Origin, wide: bool) -> String {
    let Consolidation { steps, kept, surplus, cost_before, cost_after } = decision;
    let input = Digests::default().fleet(fleet);
    let estimates = origin.price_estimates();
    let removed = fleet.candidates.iter().filter_map(|one| one.capacity_type);
    let launched = steps.iter().flat_map(|step| &step.plan.launches);
    let mark = estimates.mark_sum(removed.chain(launched.map(|one| one.capacity_type)));
    let mut text = format!(
        "{} candidates for {mark}{cost_before}/h, {mark}{cost_after}/h after {} steps; input {input}\n",
        fleet.candidates.len(),
        steps.len()
    );
    if !steps.is_empty() {
        let titles = ["STEP", "REMOVE", "LAUNCH", "PODS", "SAVES/H"];
        let mut rows = vec![titles.map(str::to_owned).to_vec()];
        for (number, step) in steps.iter().enumerate() {
            let launches = step.plan.launches.iter();
            let launches: Vec<String> =
                launches.map(|one| format!("{} {}", one.instance_type, one.zone)).collect();
            let launches = if launches.is_empty() { "–".to_owned() } else { launches.join(", ") };
            rows.push(vec![
                (number + 1).to_string(),
                step.remove.join(", "),
                launches,
                step.evictions.to_string(),
                format!("{mark}{}", step.saving),
            ]);
        }
        text.push('\n');
        text.push_str(&columns(&rows));
    }
    if wide && !kept.is_empty() {
        text.push('\n');
        for node in kept {
            let _ = writeln!(text, "{} stays: {}", node.node, node.reason);
        }
    }
    if wide && !surplus.is_empty() {
        let _ = writeln!(text, "\nsurplus, new pods avoid them: {}", surplus.join(", "));
    }
    if *origin == Origin::default() {
        return text;
    }
    text.push('\n');
    text.push_str(&wrap(&origin.text(!mark.is_empty()), 0));
    text
}
