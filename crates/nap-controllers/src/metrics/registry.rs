//! Series of metrics, and their text format.
//!
//! Metrics are described by a table ([`super::catalogue`]); a registry holds the series of each,
//! within a bound. The text is the exposition format of Prometheus, version 0.0.4, which has
//! summaries; the series of a metric are in the order of their labels, so that equal states give
//! equal texts.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

/// Upper limit on the series of one metric; further ones are dropped and counted.
pub const MAX_SERIES: usize = 10_000;
/// Upper limit on the observations that the quantiles of a summary are taken from.
const MAX_OBSERVATIONS: usize = 500;
/// The quantiles of a summary.
const QUANTILES: [(&str, f64); 5] =
    [("0", 0.0), ("0.5", 0.5), ("0.9", 0.9), ("0.99", 0.99), ("1", 1.0)];

/// Description of a metric.
#[derive(Debug)]
pub struct Metric {
    /// Name, with its prefix.
    pub name: &'static str,
    /// Type, with the upper bounds of the buckets of a histogram.
    pub kind: MetricKind,
    /// Names of the labels.
    pub labels: &'static [&'static str],
    /// One sentence without a period.
    pub help: &'static str,
}

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricKind {
    /// A number that only grows.
    Counter,
    /// A number.
    Gauge,
    /// Observations by bucket; the upper bounds of the buckets, without infinity.
    Histogram(&'static [f64]),
    /// Quantiles of the last observations.
    Summary,
}

impl MetricKind {
    /// Name of the type in the text format.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
            Self::Summary => "summary",
        }
    }
}

/// Value of one series.
#[derive(Clone, Debug, Default)]
struct Value {
    /// Value of a counter or a gauge; sum of the observations otherwise.
    number: f64,
    /// Number of observations.
    count: u64,
    /// Observations by bucket, not cumulated.
    buckets: Vec<u64>,
    /// The last observations of a summary.
    recent: VecDeque<f64>,
}

/// Values of the labels of a series, in the order of [`Metric::labels`].
type LabelValues = Vec<String>;

/// The series of metrics.
#[derive(Debug, Default)]
pub struct Registry {
    families: BTreeMap<&'static str, BTreeMap<LabelValues, Value>>,
    /// Series that were dropped, by metric.
    dropped: BTreeMap<&'static str, u64>,
}

impl Registry {
    /// Adds to a counter or a gauge.
    pub fn add(&mut self, metric: &'static Metric, labels: &[&str], amount: f64) {
        if let Some(value) = self.value(metric, labels) {
            value.number += amount;
        }
    }

    /// Sets a gauge.
    pub fn set(&mut self, metric: &'static Metric, labels: &[&str], number: f64) {
        if let Some(value) = self.value(metric, labels) {
            value.number = number;
        }
    }

    /// Removes the series of a metric.
    pub fn clear(&mut self, metric: &'static Metric) {
        self.families.remove(metric.name);
    }

    /// Adds an observation to a histogram or a summary.
    pub fn observe(&mut self, metric: &'static Metric, labels: &[&str], observation: f64) {
        let Some(value) = self.value(metric, labels) else { return };
        value.number += observation;
        value.count += 1;
        match metric.kind {
            MetricKind::Histogram(bounds) => {
                value.buckets.resize(bounds.len(), 0);
                if let Some(bucket) = bounds.iter().position(|bound| observation <= *bound) {
                    value.buckets[bucket] += 1;
                }
            }
            MetricKind::Summary => {
                value.recent.push_back(observation);
                if value.recent.len() > MAX_OBSERVATIONS {
                    value.recent.pop_front();
                }
            }
            MetricKind::Counter | MetricKind::Gauge => {}
        }
    }

    /// Series that were dropped because their metric has too many, by metric.
    pub fn dropped(&self) -> &BTreeMap<&'static str, u64> {
        &self.dropped
    }

    /// The value of a series; `None` if its metric has too many.
    fn value(&mut self, metric: &'static Metric, labels: &[&str]) -> Option<&mut Value> {
        debug_assert_eq!(labels.len(), metric.labels.len(), "labels of {}", metric.name);
        let family = self.families.entry(metric.name).or_default();
        let key: LabelValues = labels.iter().map(|value| (*value).to_owned()).collect();
        if family.len() >= MAX_SERIES && !family.contains_key(&key) {
            *self.dropped.entry(metric.name).or_default() += 1;
            return None;
        }
        Some(family.entry(key).or_default())
    }

    /// Writes the series of a metric, with its help and type; nothing if it has none.
    pub fn write(&self, metric: &Metric, text: &mut String) {
        let Some(family) = self.families.get(metric.name).filter(|family| !family.is_empty())
        else {
            return;
        };
        let Metric { name, kind, help, labels } = metric;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {}", kind.as_str());
        for (values, value) in family {
            let own = labels.iter().copied().zip(values.iter().map(String::as_str));
            let own: Vec<(&str, &str)> = own.collect();
            match kind {
                MetricKind::Counter | MetricKind::Gauge => {
                    sample(text, name, "", &own, None, value.number);
                }
                MetricKind::Histogram(bounds) => {
                    let mut below = 0;
                    for (position, bound) in bounds.iter().enumerate() {
                        below += value.buckets.get(position).copied().unwrap_or(0);
                        let bound = bound.to_string();
                        let le = Some(("le", bound.as_str()));
                        sample(text, name, "_bucket", &own, le, count(below));
                    }
                    let le = Some(("le", "+Inf"));
                    sample(text, name, "_bucket", &own, le, count(value.count));
                    sample(text, name, "_sum", &own, None, value.number);
                    sample(text, name, "_count", &own, None, count(value.count));
                }
                MetricKind::Summary => {
                    let mut sorted: Vec<f64> = value.recent.iter().copied().collect();
                    sorted.sort_by(f64::total_cmp);
                    for (label, quantile) in QUANTILES {
                        let at = Some(("quantile", label));
                        sample(text, name, "", &own, at, at_quantile(&sorted, quantile));
                    }
                    sample(text, name, "_sum", &own, None, value.number);
                    sample(text, name, "_count", &own, None, count(value.count));
                }
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "samples are floats")]
fn count(number: u64) -> f64 {
    number as f64
}

/// The observation at a quantile: the smallest with at least that share at or below it.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a list of some hundred"
)]
fn at_quantile(sorted: &[f64], quantile: f64) -> f64 {
    let rank = (quantile * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

fn sample(
    text: &mut String,
    name: &str,
    suffix: &str,
    labels: &[(&str, &str)],
    last: Option<(&str, &str)>,
    value: f64,
) {
    let _ = write!(text, "{name}{suffix}");
    let mut separator = '{';
    for (label, value) in labels.iter().copied().chain(last) {
        let _ = write!(text, "{separator}{label}=\"{}\"", escape(value));
        separator = ',';
    }
    if separator == ',' {
        text.push('}');
    }
    let _ = writeln!(text, " {value}");
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    static COUNTER: Metric =
        Metric { name: "a_total", kind: MetricKind::Counter, labels: &["pool"], help: "All a" };
    static HISTOGRAM: Metric = Metric {
        name: "b_seconds",
        kind: MetricKind::Histogram(&[0.5, 1.0]),
        labels: &[],
        help: "All b",
    };
    static SUMMARY: Metric =
        Metric { name: "c_seconds", kind: MetricKind::Summary, labels: &[], help: "All c" };

    fn text(registry: &Registry, metric: &Metric) -> String {
        let mut text = String::new();
        registry.write(metric, &mut text);
        text
    }

    #[test]
    fn a_counter_has_a_line_per_series_with_escaped_labels() {
        let mut registry = Registry::default();
        assert_eq!(text(&registry, &COUNTER), "");
        registry.add(&COUNTER, &["b"], 1.0);
        registry.add(&COUNTER, &["a\"\\\n"], 2.0);
        registry.add(&COUNTER, &["b"], 0.5);
        let expected = "# HELP a_total All a\n# TYPE a_total counter\n\
                        a_total{pool=\"a\\\"\\\\\\n\"} 2\na_total{pool=\"b\"} 1.5\n";
        assert_eq!(text(&registry, &COUNTER), expected);
    }

    #[test]
    fn buckets_are_cumulative_and_end_with_infinity() {
        let mut registry = Registry::default();
        for observation in [0.1, 0.5, 0.7, 3.0] {
            registry.observe(&HISTOGRAM, &[], observation);
        }
        let expected = "# HELP b_seconds All b\n# TYPE b_seconds histogram\n\
                        b_seconds_bucket{le=\"0.5\"} 2\nb_seconds_bucket{le=\"1\"} 3\n\
                        b_seconds_bucket{le=\"+Inf\"} 4\nb_seconds_sum 4.3\nb_seconds_count 4\n";
        assert_eq!(text(&registry, &HISTOGRAM), expected);
    }

    #[test]
    fn quantiles_are_those_of_the_last_observations() {
        let mut registry = Registry::default();
        for observation in (1..=1000).map(f64::from) {
            registry.observe(&SUMMARY, &[], observation);
        }
        let text = text(&registry, &SUMMARY);
        for line in [
            "c_seconds{quantile=\"0\"} 501",
            "c_seconds{quantile=\"0.5\"} 750",
            "c_seconds{quantile=\"1\"} 1000",
            "c_seconds_count 1000",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_metric_has_a_bound_on_its_series_and_counts_the_others() {
        let mut registry = Registry::default();
        for number in 0..MAX_SERIES + 3 {
            registry.add(&COUNTER, &[&number.to_string()], 1.0);
        }
        registry.add(&COUNTER, &["7"], 1.0);
        assert_eq!(registry.families["a_total"].len(), MAX_SERIES);
        assert_eq!(registry.dropped()["a_total"], 3);
        assert!(text(&registry, &COUNTER).contains("a_total{pool=\"7\"} 2\n"), "known ones count");
    }
}
