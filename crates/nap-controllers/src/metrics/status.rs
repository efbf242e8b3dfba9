//! Metrics of conditions and terminations by kind, with the names of the library that the
//! incumbent is built on: `operator_<kind>_status_condition_*` and `operator_<kind>_termination_*`.
//!
//! They have labels of the object that the metrics without a kind in their name lack.

use std::collections::BTreeMap;

use nap_api::labels::{AKS_NODE_CLASS, INITIALIZED, NODEPOOL};

use super::catalogue::TRANSITIONS;
use super::registry::{Metric, MetricKind};

/// The metrics of one kind.
pub struct StatusMetrics {
    /// Kind of the objects.
    pub kind: &'static str,
    /// Keys of the labels of an object that are the last labels of each metric.
    pub keys: &'static [&'static str],
    /// Whether the metrics without a kind in their name have this kind too.
    pub is_in_kindless: bool,
    /// Conditions; always 1.
    pub count: Metric,
    /// Time since the last transition.
    pub current_status_seconds: Metric,
    /// Transitions into a status.
    pub transitions_total: Metric,
    /// Time in a status before a transition.
    pub transition_seconds: Metric,
    /// Time since the deletion of an object that is still there.
    pub termination_current_time_seconds: Metric,
    /// Time from the deletion of an object until it is gone.
    pub termination_duration_seconds: Metric,
}

impl StatusMetrics {
    /// Values of the labels that are the object's own; empty for one that it lacks.
    pub fn label_values<'l>(&self, labels: &'l BTreeMap<String, String>) -> Vec<&'l str> {
        let value = |key: &&str| labels.get(*key).map_or("", String::as_str);
        self.keys.iter().map(value).collect()
    }

    /// Every metric of the kind.
    pub fn metrics(&'static self) -> [&'static Metric; 6] {
        [
            &self.count,
            &self.current_status_seconds,
            &self.transitions_total,
            &self.transition_seconds,
            &self.termination_current_time_seconds,
            &self.termination_duration_seconds,
        ]
    }
}

macro_rules! status_metrics {
    ($kind:literal, $prefix:literal, $kindless:literal, [$($key:ident = $label:literal),*]) => {
        StatusMetrics {
            kind: $kind,
            keys: &[$($key),*],
            is_in_kindless: $kindless,
            count: Metric {
                name: concat!("operator_", $prefix, "_status_condition_count"),
                kind: MetricKind::Gauge,
                labels: &["namespace", "name", "type", "status", "reason", $($label),*],
                help: concat!("Conditions of a ", $kind, "; always 1"),
            },
            current_status_seconds: Metric {
                name: concat!("operator_", $prefix, "_status_condition_current_status_seconds"),
                kind: MetricKind::Gauge,
                labels: &["namespace", "name", "type", "status", "reason", $($label),*],
                help: concat!("Time since the last transition of a condition of a ", $kind),
            },
            transitions_total: Metric {
                name: concat!("operator_", $prefix, "_status_condition_transitions_total"),
                kind: MetricKind::Counter,
                labels: &["type", "status", "reason", $($label),*],
                help: concat!("Transitions of a condition of a ", $kind, " into a status"),
            },
            transition_seconds: Metric {
                name: concat!("operator_", $prefix, "_status_condition_transition_seconds"),
                kind: MetricKind::Histogram(TRANSITIONS),
                labels: &["type", "status", "to_status", $($label),*],
                help: concat!(
                    "Time that a condition of a ", $kind, " was in a status before it changed"
                ),
            },
            termination_current_time_seconds: Metric {
                name: concat!("operator_", $prefix, "_termination_current_time_seconds"),
                kind: MetricKind::Gauge,
                labels: &["namespace", "name", $($label),*],
                help: concat!("Time since the deletion of a ", $kind, " that is still there"),
            },
            termination_duration_seconds: Metric {
                name: concat!("operator_", $prefix, "_termination_duration_seconds"),
                kind: MetricKind::Histogram(TRANSITIONS),
                labels: &[$($label),*],
                help: concat!("Time from the deletion of a ", $kind, " until it is gone"),
            },
        }
    };
}

/// The metrics of every kind.
pub static KINDS: [StatusMetrics; 4] = [
    status_metrics!(
        "NodeClaim",
        "nodeclaim",
        true,
        [AKS_NODE_CLASS = "karpenter_azure_com_aksnodeclass", NODEPOOL = "karpenter_sh_nodepool"]
    ),
    status_metrics!("NodePool", "nodepool", true, []),
    status_metrics!(
        "Node",
        "node",
        false,
        [
            AKS_NODE_CLASS = "karpenter_azure_com_aksnodeclass",
            NODEPOOL = "karpenter_sh_nodepool",
            INITIALIZED = "karpenter_sh_initialized"
        ]
    ),
    status_metrics!("AKSNodeClass", "aksnodeclass", false, []),
];

/// The metrics of a kind; `None` if its conditions are not reported.
pub fn of_kind(kind: &str) -> Option<&'static StatusMetrics> {
    KINDS.iter().find(|metrics| metrics.kind == kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_the_keys_in_the_spelling_of_prometheus() {
        for kind in &KINDS {
            let labels = kind.keys.iter().map(|key| key.replace(['/', '.', '-'], "_"));
            let labels: Vec<String> = labels.collect();
            for metric in kind.metrics() {
                assert!(
                    metric
                        .labels
                        .ends_with(&labels.iter().map(String::as_str).collect::<Vec<&str>>()),
                    "{}",
                    metric.name
                );
            }
        }
    }
}
