//! Sizes that a NodePool names although they are not offered, with sizes that serve instead.

use std::fmt::Write as _;

use nap_api::requirement::NodeSelectorRequirement;
use nap_api::{NodePool, Operator, labels};
use nap_azure::embedded::EmbeddedCatalogue;
use nap_azure::instance_types::Settings;
use nap_azure::not_offered::{NotOffered, offered, replacements};
use nap_engine::InstanceType;

use super::findings::Level;
use crate::catalogue;

/// Whether a requirement is a list of sizes.
pub fn names_sizes(requirement: &NodeSelectorRequirement) -> bool {
    [labels::INSTANCE_TYPE, labels::SKU_NAME].contains(&&*requirement.key)
        && requirement.operator == Operator::In
}

/// Levels and messages about named sizes. A requirement of which no size is left is an
/// error.
pub fn not_offered(
    pool: &NodePool,
    (sizes, region): (&EmbeddedCatalogue, &str),
    settings: &Settings,
    types: &[InstanceType],
) -> anyhow::Result<Vec<(Level, String)>> {
    let region = catalogue::region(sizes, region)?;
    let mut findings = Vec::new();
    for (index, requirement) in pool.spec.template.spec.requirements.iter().enumerate() {
        if !names_sizes(requirement) {
            continue;
        }
        let judged = requirement
            .values
            .iter()
            .map(|name| (name, offered(sizes, region, settings, name).err()));
        let gone: Vec<(&String, NotOffered)> =
            judged.filter_map(|(name, why)| Some((name, why?))).collect();
        if gone.is_empty() {
            continue;
        }
        let field = format!("spec.template.spec.requirements[{index}]");
        let all = gone.len() == requirement.values.len();
        for (name, why) in &gone {
            let instead = sizes.sku(name).map(|sku| replacements(sku, types)).unwrap_or_default();
            let instead: Vec<String> =
                instead.iter().map(|(name, price)| format!("`{name}` ({price}/h)")).collect();
            let mut text = format!("{field}: `{name}` is not offered in {}: {why}", region.name);
            if !instead.is_empty() {
                let _ = write!(text, "; instead serve {}", instead.join(", "));
            }
            findings.push((if all { Level::Error } else { Level::Warning }, text));
        }
        if all {
            let text =
                format!("{field}: no size that it names is offered, so the pool makes no nodes");
            findings.push((Level::Error, text));
        }
    }
    Ok(findings)
}
