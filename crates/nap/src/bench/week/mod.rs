//! `nap bench week`: the week of a cluster under several policies, at the level of the engine.
//!
//! The trace (load, jobs, spot evictions, an image upgrade, a stock-out) is the same for all; what
//! follows from it depends on the policy, since pods go where the scheduler puts them. Dollars and
//! evictions are added up, and checks watch every instant.
//!
//! - `trace`: what happens, from a seed.
//! - `market`: the VM sizes, and pods and nodes in the engine's form.
//! - `world`: nodes, pods and the scheduler.
//! - `simulate`: the course of events.
//! - `policy`: what a policy decides; `governed`: nap's; `incumbent`: a model of the incumbent's.
//! - `checks`: what must hold at every instant.

mod checks;
mod governed;
mod incumbent;
mod market;
mod policy;
mod simulate;
mod trace;
mod world;

use std::collections::BTreeMap;

use nap_clock::Clock;
use serde::Serialize;

use self::governed::{Consolidates, Governed};
use self::incumbent::Incumbent;
use self::market::Market;
use self::policy::Policy;
use self::simulate::{Outcome, Simulation};
use self::trace::Trace;
use self::world::Reason;
use super::args::{WeekArgs, WeekPolicy};
use super::measure::{dollars, gap_percent};
use super::{document, generate};
use crate::user_error::UserError;

/// Results of one policy, as `--json` prints them.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    policy: &'static str,
    days: i64,
    seed: u64,
    dollars: f64,
    node_hours: f64,
    max_nodes: usize,
    launched: usize,
    /// Evicted pods by reason.
    evictions: BTreeMap<Reason, usize>,
    /// Evicted pods, but for evictions of spot nodes.
    voluntary_evictions: usize,
    /// Seconds from an eviction until the pod is ready again, over all pods.
    pod_unavailable_seconds: i64,
    /// Seconds for which pods waited for a node, over all pods.
    pod_pending_seconds: i64,
    passes: usize,
    /// Decisions after the last change of the trace, and seconds until the last of them.
    quiet_decisions: usize,
    last_quiet_decision_seconds: Option<i64>,
    /// Cost of the nodes at the end, and of a plan for the same pods without them.
    cost_at_rest_usd_per_hour: f64,
    fresh_plan_usd_per_hour: f64,
    violations: usize,
    first_violations: Vec<String>,
}

/// `nap bench week`.
pub(super) fn measure(args: &WeekArgs) -> anyhow::Result<()> {
    let trace = Trace::new(args.days, args.nodes, args.seed);
    let types = generate::d_family_with_spot(&args.region)?;
    let mut market = Market::new(&trace, types, args.nodes)?;
    let mut reports = Vec::new();
    for policy in &args.policy {
        let report = run(args, *policy, &trace, &mut market);
        if args.json {
            println!("{}", serde_json::to_string(&report)?);
        }
        reports.push(report);
    }
    if !args.json {
        println!("{}", table(&reports));
    }
    let wrong: Vec<&Report> = reports.iter().filter(|report| report.violations > 0).collect();
    for report in &wrong {
        for violation in &report.first_violations {
            eprintln!("{}: {violation}", report.policy);
        }
    }
    let hint = "the violations are listed above; the same options show them again";
    match wrong.first() {
        None => Ok(()),
        Some(report) => {
            let text = format!("{}: {} checks failed", report.policy, report.violations);
            Err(UserError::new(text, hint).into())
        }
    }
}

fn run(args: &WeekArgs, policy: WeekPolicy, trace: &Trace, market: &mut Market) -> Report {
    let (name, mut rules) = rules(policy);
    let wall = Clock::wall();
    let began = wall.now();
    let Outcome { tally, mut checks, passes, cost_at_rest, fresh_plan } =
        Simulation::new(trace, market, rules.as_mut()).run(|day, world| {
            let seconds = wall.now().duration_since(began).as_secs_f64();
            let (nodes, pods) = (world.nodes.len(), world.pods.len());
            eprintln!("{name}: day {day} after {seconds:.1} s, {nodes} nodes, {pods} pods");
        });
    if policy.is_governed() {
        checks.settled(trace.end);
    }
    let hours = |seconds: i64| ratio(seconds, 3600);
    let voluntary = tally.evictions.iter().filter(|(reason, _)| **reason != Reason::Interrupted);
    Report {
        policy: name,
        days: args.days,
        seed: args.seed,
        dollars: ratio(tally.micros, 1_000_000),
        node_hours: hours(tally.node_seconds),
        max_nodes: tally.max_nodes,
        launched: tally.launched,
        voluntary_evictions: voluntary.map(|(_, count)| count).sum(),
        evictions: tally.evictions.clone(),
        pod_unavailable_seconds: tally.unavailable_seconds,
        pod_pending_seconds: tally.pending_seconds,
        passes,
        quiet_decisions: checks.quiet_decisions,
        last_quiet_decision_seconds: checks.last_quiet_decision,
        cost_at_rest_usd_per_hour: dollars(cost_at_rest),
        fresh_plan_usd_per_hour: dollars(fresh_plan),
        violations: checks.count,
        first_violations: checks.violations,
    }
}

fn rules(policy: WeekPolicy) -> (&'static str, Box<dyn Policy>) {
    let governed = |consolidates| Box::new(Governed::new(consolidates));
    match policy {
        WeekPolicy::NapWhenEmpty => ("nap WhenEmpty", governed(Consolidates::WhenEmpty)),
        WeekPolicy::NapUnderutilized => {
            ("nap WhenEmptyOrUnderutilized", governed(Consolidates::WhenEmptyOrUnderutilized))
        }
        WeekPolicy::NapBalanced => ("nap Balanced", governed(Consolidates::Balanced)),
        WeekPolicy::ModelUnderutilized => {
            ("model of the incumbent, WhenEmptyOrUnderutilized", Box::new(Incumbent::new(false)))
        }
        WeekPolicy::ModelBalanced => {
            ("model of the incumbent, Balanced", Box::new(Incumbent::new(true)))
        }
    }
}

/// A number with three decimals, rounded down, so that it is the same on every machine.
#[expect(clippy::cast_precision_loss, reason = "sums of a week are far below 2^52")]
fn ratio(amount: i64, unit: i64) -> f64 {
    (i128::from(amount) * 1000 / i128::from(unit)) as f64 / 1000.0
}

fn table(reports: &[Report]) -> String {
    let heading = [
        "policy",
        "$",
        "node hours",
        "most nodes",
        "launched",
        "evicted: drifted",
        "evicted: underutilized",
        "evicted: spot",
        "pod-seconds unavailable",
        "pod-seconds pending",
        "decisions at rest",
        "% over a fresh plan",
        "checks",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for report in reports {
        let of = |reason: Reason| report.evictions.get(&reason).copied().unwrap_or(0).to_string();
        let (cost, bound) = (report.cost_at_rest_usd_per_hour, report.fresh_plan_usd_per_hour);
        let gap = gap_percent(cost, bound);
        let at_rest = match report.last_quiet_decision_seconds {
            Some(last) => format!("{}, last after {} min", report.quiet_decisions, last / 60),
            None => "none".to_owned(),
        };
        rows.push(vec![
            report.policy.to_owned(),
            format!("{:.2}", report.dollars),
            format!("{:.0}", report.node_hours),
            report.max_nodes.to_string(),
            report.launched.to_string(),
            of(Reason::Drifted),
            of(Reason::Underutilized),
            of(Reason::Interrupted),
            report.pod_unavailable_seconds.to_string(),
            report.pod_pending_seconds.to_string(),
            at_rest,
            format!("{gap:.1}"),
            if report.violations == 0 { "hold".to_owned() } else { report.violations.to_string() },
        ]);
    }
    document::markdown(&rows)
}
