//! Dry run: disruption that is decided and reported, and not done.
//!
//! The nodes of annotated NodePools are no part of the pass whose commands are carried out, so that
//! what is only reported never stands in the way of what is done.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use nap_api::nodepool::DisruptionReason;
use nap_api::{NodePool, labels};
use nap_engine::PriceEstimates;

use super::candidates::Candidate;
use super::commands::describe;
use super::debounce::Debounce;
use super::pass::Command;
use crate::cluster::NodeKey;
use crate::context::Context;
use crate::events::Severity;

/// Time after which a finding that still holds is reported again: the API server keeps events for
/// an hour.
const REPEAT_AFTER: SignedDuration = SignedDuration::from_mins(55);

/// Whether voluntary disruption of a NodePool's nodes is only reported. A value that is neither
/// `true` nor `false` counts as `true`: a misspelt wish for caution disrupts nothing.
pub fn is_dry_run(pool: &NodePool) -> bool {
    pool.annotations().get(labels::DRY_RUN).is_some_and(|value| value != "false")
}

/// The problem of the annotation's value; `None` if it has none.
pub fn problem(pool: &NodePool) -> Option<String> {
    let value = pool.annotations().get(labels::DRY_RUN)?;
    let known = ["true", "false"].contains(&value.as_str());
    (!known).then(|| {
        let key = labels::DRY_RUN;
        format!("{key} is {value:?}: its nodes are not disrupted; set it to \"true\" or \"false\"")
    })
}

/// What was found and reported.
#[derive(Debug, Default)]
pub struct Reports {
    settling: Debounce,
    /// Text of the last report on a node, and its time.
    told: BTreeMap<NodeKey, (String, Timestamp)>,
}

impl Reports {
    /// Takes the commands of a pass. Returns the nodes to report, each with its text, and the time
    /// until the next finding is due. A finding is reported once it has held for some time, and
    /// then when its text changes or its event is about to expire.
    fn observe<'c>(
        &mut self,
        commands: &'c [(DisruptionReason, Command)],
        estimates: PriceEstimates,
        now: Timestamp,
    ) -> (Vec<(&'c Candidate, String)>, Option<Duration>) {
        let candidates = commands.iter().flat_map(|(_, command)| &command.candidates);
        let settled = self.settling.observe(candidates.map(Candidate::key), now);
        let mut due = Vec::new();
        let mut found = BTreeSet::new();
        for (reason, command) in commands {
            let text = describe(command, *reason, estimates);
            for candidate in &command.candidates {
                let key = candidate.key();
                found.insert(key.clone());
                let is_news = self.told.get(&key).is_none_or(|(told, at)| {
                    *told != text || now.duration_since(*at) >= REPEAT_AFTER
                });
                if is_news && settled.due.contains(&key) {
                    self.told.insert(key, (text.clone(), now));
                    due.push((candidate, text.clone()));
                }
            }
        }
        self.told.retain(|key, _| found.contains(key));
        (due, settled.wait)
    }
}

/// Reports commands that are not carried out. Returns the time until the next report is due.
pub fn report(context: &Context, commands: &[(DisruptionReason, Command)]) -> Option<Duration> {
    let now = context.clock.now();
    let estimates = context.cloud.price_estimates();
    let (due, wait) = context.memory().dry_run.observe(commands, estimates, now);
    for (candidate, text) in due {
        let node = candidate.name();
        tracing::info!(node, message = text, "dry run: node would be disrupted");
        let message = format!("Dry run: {text}");
        let (severity, event) = (Severity::Normal, "DisruptionDryRun");
        context.events.publish(candidate.node.as_ref(), severity, event, &message);
        context.events.publish(candidate.claim.as_ref(), severity, event, &message);
    }
    wait
}

/// Says on NodePools that the value of their annotation is not known.
pub fn report_problems(context: &Context) {
    let pools: Vec<_> = {
        let index = context.index();
        let found = index.pools().filter_map(|(_, pool)| Some((pool.clone(), problem(pool)?)));
        found.collect()
    };
    for (pool, problem) in pools {
        context.events.publish(pool.as_ref(), Severity::Warning, "DryRunInvalid", &problem);
    }
}

#[cfg(test)]
mod tests {
    use nap_engine::Plan;
    use serde_json::json;

    use super::*;
    use crate::testing::{at, candidates_of, cluster_of, launch, pool};

    #[test]
    fn only_false_turns_the_annotation_off_and_other_values_are_named() {
        let annotated = |value: &str| {
            pool("p", json!({ "metadata": { "annotations": { labels::DRY_RUN: value } } }))
        };
        assert!(!is_dry_run(&pool("p", json!({}))) && !is_dry_run(&annotated("false")));
        assert!(is_dry_run(&annotated("true")) && is_dry_run(&annotated("yes")));
        assert_eq!(problem(&annotated("true")), None);
        let told = problem(&annotated("yes")).unwrap();
        assert!(told.contains("dry-run is \"yes\"") && told.contains("set it to"), "{told}");
    }

    fn texts(found: &(Vec<(&Candidate, String)>, Option<Duration>)) -> Vec<String> {
        found.0.iter().map(|(candidate, text)| format!("{} {text}", candidate.name())).collect()
    }

    #[test]
    fn a_finding_is_reported_once_until_it_changes_or_its_event_expires() {
        let candidates = candidates_of(&cluster_of(2));
        let command = |plan: Plan| {
            let candidates = vec![candidates[0].clone()];
            [(DisruptionReason::Underutilized, Command { candidates, plan })]
        };
        let delete = command(Plan::default());
        let plan = Plan { launches: vec![launch("D4", 100)], ..Plan::default() };
        let replace = command(plan);
        let mut reports = Reports::default();
        assert_eq!(
            texts(&reports.observe(&delete, PriceEstimates::None, at(0))),
            [""; 0],
            "it has not held yet"
        );
        let first = texts(&reports.observe(&delete, PriceEstimates::None, at(15)));
        assert!(first.len() == 1 && first[0].starts_with("node-0 Underutilized: delete"));
        for seconds in [25, 600, 3314] {
            assert_eq!(
                texts(&reports.observe(&delete, PriceEstimates::None, at(seconds))),
                [""; 0],
                "{seconds}"
            );
        }
        assert_eq!(texts(&reports.observe(&delete, PriceEstimates::None, at(3315))), first);
        assert!(
            texts(&reports.observe(&replace, PriceEstimates::None, at(3316)))[0].contains("by D4")
        );
        reports.observe(&[], PriceEstimates::None, at(3320));
        reports.observe(&replace, PriceEstimates::None, at(3330));
        assert_eq!(
            reports.observe(&replace, PriceEstimates::None, at(3345)).0.len(),
            1,
            "it was gone in between"
        );
    }
}
