//! Hours of a cluster on a paused clock: a seeded workload, and checkers that watch from outside.

mod checkers;
mod observation;
mod workload;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::Serialize;

use crate::world::{World, WorldError};
use checkers::Checkers;
use observation::Observer;

/// Time between two observations of the checkers.
const CHECK_INTERVAL: Duration = Duration::from_mins(5);
/// Time from scaling everything to zero until every VM must be gone; half of the simulated time if
/// that is shorter.
const WIND_DOWN: SignedDuration = SignedDuration::from_hours(1);

/// The outcome of a simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Simulated hours, of which the last is [`WIND_DOWN`].
    pub hours: u32,
    /// Seed of the workload.
    pub seed: u64,
    /// Number of times a Deployment was scaled, without the last one to zero.
    pub scalings: u64,
    /// Number of VMs that were created.
    pub machines: usize,
    /// Maximum number of VMs in one observation.
    pub peak_machines: usize,
    /// Maximum number of pods in one observation.
    pub peak_pods: usize,
    /// Cost of all VMs, in micro-dollars.
    pub cost_micros: i64,
    /// Whether an estimated price is in the cost.
    pub cost_is_estimate: bool,
    /// Faults that the checkers found, each with the time of the observation.
    pub faults: Vec<String>,
    /// Hash over every request to the API server and to Azure, in hexadecimal.
    pub trace_hash: String,
}

/// Runs the workload of a seed for some hours: for [`WIND_DOWN`] at their end, everything is scaled
/// to zero. Deployments have up to `max_replicas` pods.
pub async fn run(
    world: &World,
    seed: u64,
    hours: u32,
    max_replicas: u32,
) -> Result<Report, WorldError> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let mut report = Report { hours, seed, ..Report::default() };
    let mut checkers = Checkers::default();
    let observer = Observer::of(world);
    let deployments = workload::create(world, &mut rng).await?;
    let clock = world.clock();
    let start = clock.now();
    let total = SignedDuration::from_hours(i64::from(hours));
    let wind_down = WIND_DOWN.min(total / 2);
    let end = start.checked_add(total - wind_down).unwrap_or(Timestamp::MAX);
    let mut next_scaling = start;
    while clock.now() < end {
        if clock.now() >= next_scaling {
            let name = &deployments[rng.random_range(0..deployments.len())];
            workload::scale(world, name, rng.random_range(0..=max_replicas)).await?;
            report.scalings += 1;
            let pause = SignedDuration::from_secs(rng.random_range(60..2400));
            next_scaling = clock.now().checked_add(pause).unwrap_or(Timestamp::MAX);
        }
        observe(&observer, world, &mut checkers, &mut report);
        let pause =
            Duration::try_from(next_scaling.duration_since(clock.now())).unwrap_or_default();
        clock.sleep(pause.min(CHECK_INTERVAL).max(Duration::from_millis(1))).await;
    }
    for name in &deployments {
        workload::scale(world, name, 0).await?;
    }
    let over = start.checked_add(total).unwrap_or(Timestamp::MAX);
    clock.sleep(Duration::try_from(over.duration_since(clock.now())).unwrap_or_default()).await;
    observe(&observer, world, &mut checkers, &mut report);
    let left = world.azure().machines().len();
    if left > 0 {
        report.faults.push(format!("{left} VM(s) are left although no pod runs"));
    }
    report.faults.extend(world.violations());
    report.machines = world.azure().bill().len();
    report.cost_micros = world.azure().total_cost_micros(clock.now());
    report.cost_is_estimate = !world.azure().bill_mark().is_empty();
    report.trace_hash = format!("{:016x}", world.trace_hash());
    Ok(report)
}

/// Takes one observation and lets every checker judge it.
fn observe(observer: &Observer, world: &World, checkers: &mut Checkers, report: &mut Report) {
    let seen = observer.observe(world);
    report.peak_pods = report.peak_pods.max(seen.pods.len());
    report.peak_machines = report.peak_machines.max(seen.vms.len());
    let faults = checkers.check(&seen);
    report.faults.extend(faults.into_iter().map(|fault| format!("{}: {fault}", seen.now)));
}
