//! `docs/metrics.md`, made from the table of metrics.

use std::fmt::Write as _;

use super::catalogue::all;
use super::registry::{MAX_SERIES, Metric, MetricKind, Registry};

const HEAD: &str = "# Metrics

<!-- Made from the table in crates/nap-controllers/src/metrics/catalogue.rs; do not edit.
     `NAP_BLESS=1 cargo test -p nap-controllers --lib metrics` refreshes it. -->

`nap run` serves metrics in the text format of Prometheus on `/metrics`, at the port of
`--metrics-port` (8080). Names, types and labels with the prefixes `karpenter_`, `operator_` and
`client_go_` are those of Karpenter, so that its dashboards and alerts go on working;
[compatibility.md](compatibility.md) lists the ones that nap does not have. Those with `nap_` are
nap's own.
";

/// The document.
pub fn document() -> String {
    let mut text = HEAD.to_owned();
    let _ = write!(
        text,
        "\nA metric has at most {MAX_SERIES} series; further ones are left out and counted in\n\
         `nap_metrics_series_dropped_total`. `--disable-cluster-state-observability` leaves out the\n\
         gauges of single nodes, pods and conditions.\n\n\
         CPU is in cores, other resources are in whole units, times are in seconds.\n\n\
         | metric | type | labels | meaning |\n|---|---|---|---|\n"
    );
    for Metric { name, kind, labels, help } in all() {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = labels.join(", ");
        let _ = writeln!(text, "| `{name}` | {} | {labels} | {help} |", kind.as_str());
    }
    text
}

/// A scrape in which every metric has one series, for linters.
pub fn sample() -> String {
    let mut registry = Registry::default();
    let mut text = String::new();
    for metric in all() {
        let labels: Vec<&str> = metric.labels.iter().map(|_| "x").collect();
        match metric.kind {
            MetricKind::Counter | MetricKind::Gauge => registry.set(metric, &labels, 1.0),
            MetricKind::Histogram(_) | MetricKind::Summary => {
                registry.observe(metric, &labels, 1.0);
            }
        }
        registry.write(metric, &mut text);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_that_of_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        if std::env::var_os("NAP_BLESS").is_some() {
            std::fs::write(path, document()).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap_or_default();
        let hint = "docs/metrics.md is stale; \
                    `NAP_BLESS=1 cargo test -p nap-controllers --lib metrics` refreshes it";
        assert!(written == document(), "{hint}");
    }

    #[test]
    fn a_sample_has_every_metric() {
        let sample = sample();
        for metric in all() {
            assert!(sample.contains(&format!("# TYPE {} ", metric.name)), "{}", metric.name);
        }
    }
}
