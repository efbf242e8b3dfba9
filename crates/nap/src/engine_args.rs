//! Options of the engine: the same flags and variables for `nap run` and `nap plan`, with the
//! incumbent's names where it has them.

use anyhow::ensure;
use clap::{Args, ValueEnum};
use nap_engine::{DefaultSpread, MinValuesPolicy, Options, PreferencePolicy, Selector, Spread};
use nap_units::UsdPerHour;
use serde::Deserialize;

use crate::user_error::UserError;

/// Options that change decisions.
#[derive(Clone, Debug, Args)]
pub struct EngineArgs {
    /// Whether preferred scheduling rules are honored as long as they can be satisfied
    #[arg(long, env = "PREFERENCE_POLICY", value_name = "POLICY", default_value = "Respect")]
    preference_policy: Preferences,
    /// Handling of a NodePool whose `minValues` cannot be satisfied
    #[arg(long, env = "MIN_VALUES_POLICY", value_name = "POLICY", default_value = "Strict")]
    min_values_policy: MinValues,
    /// The scheduler's default topology spread constraints, as YAML or JSON: `podTopologySpread:
    /// {defaultConstraints: [...]}`
    #[arg(
        long,
        env = "SCHEDULER_CONFIG",
        value_name = "YAML",
        default_value = "",
        hide_default_value = true
    )]
    scheduler_config: String,
    /// Maximum number of pods on a new node
    #[arg(long, env = "NAP_MAX_PODS_PER_NODE", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    max_pods_per_node: Option<u32>,
    /// Maximum number of vCPUs of a new node
    #[arg(long, env = "NAP_MAX_VCPUS_PER_NODE", value_name = "COUNT", value_parser = clap::value_parser!(i64).range(1..))]
    max_vcpus_per_node: Option<i64>,
    /// Highest price of a new node in dollars per hour; a lower ceiling of a NodePool counts
    #[arg(long, env = "NAP_MAX_NODE_PRICE", value_name = "DOLLARS", value_parser = price)]
    max_node_price: Option<UsdPerHour>,
    /// Overhead cost of each node in dollars per hour, which decides between packings of nearly the
    /// same price; a higher cost favors fewer and larger nodes
    #[arg(long, env = "NAP_NODE_COST", value_name = "DOLLARS", default_value = "0.001", value_parser = dollars)]
    node_cost: UsdPerHour,
    /// Percentage of a new node's CPU and memory to leave free, so that the scheduler can bind all
    /// pods of a plan in its own order; for clusters where nap may not nominate pods
    #[arg(long, env = "NAP_SLACK_PERCENT", value_name = "PERCENT", default_value = "0", value_parser = clap::value_parser!(u8).range(0..=90))]
    slack_percent: u8,
}

fn price(text: &str) -> Result<UsdPerHour, String> {
    let price = dollars(text)?;
    if price > UsdPerHour::ZERO { Ok(price) } else { Err(format!("`{text}` is not above zero")) }
}

fn dollars(text: &str) -> Result<UsdPerHour, String> {
    UsdPerHour::parse(text)
        .ok_or_else(|| format!("`{text}` is not a number of dollars such as `0.01`"))
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Preferences {
    /// Honor preferences
    #[value(name = "Respect")]
    Respect,
    /// Ignore preferences
    #[value(name = "Ignore")]
    Ignore,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MinValues {
    /// Launch no node that violates `minValues`
    #[value(name = "Strict")]
    Strict,
    /// Relax `minValues` to the available number of values
    #[value(name = "BestEffort")]
    BestEffort,
}

impl EngineArgs {
    /// The options in the engine's form.
    pub fn options(&self) -> anyhow::Result<Options> {
        Ok(Options {
            preferences: match self.preference_policy {
                Preferences::Respect => PreferencePolicy::Respect,
                Preferences::Ignore => PreferencePolicy::Ignore,
            },
            min_values: match self.min_values_policy {
                MinValues::Strict => MinValuesPolicy::Strict,
                MinValues::BestEffort => MinValuesPolicy::BestEffort,
            },
            default_spread: default_spread(&self.scheduler_config)?,
            max_pods_per_node: self.max_pods_per_node,
            max_cpu_per_node: self.max_vcpus_per_node,
            max_node_price: self.max_node_price,
            node_cost: self.node_cost,
            slack_percent: self.slack_percent,
        })
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct SchedulerConfig {
    pod_topology_spread: PodTopologySpread,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct PodTopologySpread {
    default_constraints: Vec<Constraint>,
}

/// A default spread constraint. Its selector comes from the workload of each pod, as in
/// kube-scheduler.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Constraint {
    max_skew: i64,
    topology_key: String,
    when_unsatisfiable: WhenUnsatisfiable,
    #[serde(default)]
    min_domains: Option<u32>,
    #[serde(default)]
    node_affinity_policy: Option<Policy>,
    #[serde(default)]
    node_taints_policy: Option<Policy>,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
enum WhenUnsatisfiable {
    DoNotSchedule,
    ScheduleAnyway,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
enum Policy {
    Honor,
    Ignore,
}

fn default_spread(text: &str) -> anyhow::Result<Vec<DefaultSpread>> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let refuse = |problem: String| {
        let hint = "podTopologySpread: {defaultConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, \
                    whenUnsatisfiable: ScheduleAnyway}]}";
        UserError::new(format!("--scheduler-config: {problem}"), hint)
    };
    let config: SchedulerConfig = serde_saphyr::from_str(text)
        .map_err(|error| refuse(error.to_string().replace('\n', " ")))?;
    let mut found: Vec<DefaultSpread> = Vec::new();
    for one in config.pod_topology_spread.default_constraints {
        let max_skew = u32::try_from(one.max_skew).unwrap_or(0);
        ensure!(max_skew > 0, refuse(format!("maxSkew: {} is not above zero", one.max_skew)));
        ensure!(!one.topology_key.is_empty(), refuse("topologyKey: must not be empty".to_owned()));
        let must_hold = one.when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule;
        let twice = found.iter().any(|other| {
            other.must_hold == must_hold && other.spread.topology_key == one.topology_key
        });
        ensure!(!twice, refuse(format!("topologyKey: `{}` is there twice", one.topology_key)));
        let spread = Spread {
            topology_key: one.topology_key,
            max_skew,
            min_domains: one.min_domains,
            selector: Selector::nothing(),
            honor_affinity: one.node_affinity_policy != Some(Policy::Ignore),
            honor_taints: one.node_taints_policy == Some(Policy::Honor),
        };
        found.push(DefaultSpread { spread, must_hold });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_cost_the_same_in_plans_and_in_controllers() {
        #[derive(clap::Parser)]
        struct Only {
            #[command(flatten)]
            engine: EngineArgs,
        }
        let Only { engine } = clap::Parser::parse_from(["nap"]);
        assert_eq!(engine.options().unwrap().node_cost, nap_engine::DEFAULT_NODE_COST);
        let settings = nap_controllers::Settings::default();
        assert_eq!(settings.engine.node_cost, nap_engine::DEFAULT_NODE_COST);
    }

    #[test]
    fn default_constraints_are_read_as_the_incumbent_reads_them() {
        assert_eq!(default_spread("").unwrap(), []);
        let one = "{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}";
        let text = |list: &str| format!("podTopologySpread: {{defaultConstraints: [{list}]}}");
        let found = default_spread(&text(one)).unwrap();
        assert_eq!((found.len(), found[0].must_hold, found[0].spread.max_skew), (1, true, 1));
        assert!(found[0].spread.honor_affinity && !found[0].spread.honor_taints);
        for (wrong, says) in [
            (text(&format!("{one}, {one}")), "twice"),
            (text(&one.replace('1', "0")), "not above zero"),
            (text(&one.replace("zone,", "zone, labelSelector: {},")), "labelSelector"),
            (text(&one.replace("DoNotSchedule", "Never")), "Never"),
        ] {
            let error = default_spread(&wrong).unwrap_err().to_string();
            assert!(error.contains(says), "{wrong}: {error}");
        }
    }
}
