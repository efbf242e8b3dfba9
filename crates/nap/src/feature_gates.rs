//! Feature gates, in the incumbent's spelling: `--feature-gates NodeRepair=true`.

use clap::Args;

/// Gates of the incumbent, and whether nap does what each stands for. `NodeRepair` and
/// `SpotToSpotConsolidation` are choices.
const GATES: [(&str, bool); 9] = [
    ("NodeRepair", false),
    ("ReservedCapacity", false),
    ("SpotToSpotConsolidation", false),
    ("NodeOverlay", true),
    ("StaticCapacity", false),
    ("CapacityBuffer", false),
    ("TerminateFirstDrift", false),
    ("TerminateFirstRepair", false),
    ("PodDeletionCostManagement", false),
];

/// The option of the feature gates.
#[derive(Clone, Debug, Args)]
pub struct FeatureGateArgs {
    /// Feature gates as `NAME=BOOL`, separated by commas; `NodeRepair=true` replaces unhealthy
    /// nodes, `SpotToSpotConsolidation=true` replaces spot nodes by cheaper spot nodes
    #[arg(
        long,
        env = "FEATURE_GATES",
        value_name = "GATES",
        default_value = "",
        hide_default_value = true,
        value_parser = parse
    )]
    pub feature_gates: FeatureGates,
}

/// Feature gates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates {
    /// Whether unhealthy nodes are replaced.
    pub node_repair: bool,
    /// Whether spot nodes are replaced by cheaper spot nodes where a NodePool does not say.
    pub spot_to_spot: bool,
    /// Gates that were set to a value that nap does not have.
    ignored: Vec<(&'static str, bool)>,
}

impl FeatureGates {
    /// Logs the gates that are set and make no difference.
    pub fn warn(&self) {
        for (gate, wanted) in &self.ignored {
            tracing::warn!(gate, wanted, "this feature gate makes no difference to nap");
        }
    }
}

fn parse(text: &str) -> Result<FeatureGates, String> {
    let mut gates = FeatureGates::default();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let (name, value) = item
            .split_once('=')
            .ok_or_else(|| format!("`{item}` has no value; write `{item}=true`"))?;
        let (name, value) = (name.trim(), value.trim());
        let wanted =
            boolean(value).ok_or_else(|| format!("{name}: `{value}` is not `true` or `false`"))?;
        let Some((gate, given)) = GATES.into_iter().find(|(gate, _)| *gate == name) else {
            let known = GATES.map(|(gate, _)| gate).join(", ");
            return Err(format!("there is no feature gate `{name}`; known: {known}"));
        };
        if gate == "NodeRepair" {
            gates.node_repair = wanted;
        } else if gate == "SpotToSpotConsolidation" {
            gates.spot_to_spot = wanted;
        } else if wanted != given {
            gates.ignored.push((gate, wanted));
        }
    }
    Ok(gates)
}

/// A boolean in any of the spellings that the incumbent accepts.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_incumbents_default_string_is_accepted() {
        let default = "NodeRepair=false,ReservedCapacity=true,SpotToSpotConsolidation=false,\
                       NodeOverlay=false,StaticCapacity=true";
        let gates = parse(default).unwrap();
        assert!(!gates.node_repair);
        let ignored: Vec<&str> = gates.ignored.iter().map(|(gate, _)| *gate).collect();
        assert_eq!(ignored, ["ReservedCapacity", "NodeOverlay", "StaticCapacity"]);
        assert_eq!(parse(""), Ok(FeatureGates::default()));
    }

    #[test]
    fn node_repair_is_a_choice_in_every_spelling_of_a_boolean() {
        for on in ["NodeRepair=true", " NodeRepair=True ,", "NodeRepair=1", "NodeRepair=t"] {
            assert!(parse(on).unwrap().node_repair, "{on}");
        }
        assert!(!parse("NodeRepair=true,NodeRepair=false").unwrap().node_repair);
        let gates = parse("SpotToSpotConsolidation=true").unwrap();
        assert!(gates.spot_to_spot && gates.ignored.is_empty());
    }

    #[test]
    fn a_mistake_is_named() {
        assert!(parse("NodeRepair").unwrap_err().contains("`NodeRepair=true`"));
        assert!(parse("NodeRepair=yes").unwrap_err().contains("NodeRepair: `yes`"));
        assert!(parse("nodeRepair=true").unwrap_err().contains("known: NodeRepair"));
    }
}
