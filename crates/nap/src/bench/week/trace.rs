//! What happens to the cluster in the week: the same for every policy, from one seed.

use nap_problem::generate::MEBIBYTE;

/// Seconds of a minute, an hour and a day.
pub(super) const MINUTE: i64 = 60;
pub(super) const HOUR: i64 = 60 * MINUTE;
pub(super) const DAY: i64 = 24 * HOUR;

/// Time between two decisions of the autoscalers of the workloads.
const AUTOSCALER: i64 = 5 * MINUTE;
/// Time at the end of the trace in which nothing changes.
const QUIET: i64 = 6 * HOUR;
/// Number of Deployments and of hourly jobs.
const DEPLOYMENTS: usize = 40;
const JOBS: usize = 6;
/// Spot evictions per day.
const SPOT_EVICTIONS: i64 = 4;
/// Requested milli-cores of all Deployments at their peak, for each node that is wanted.
const CPU_PER_NODE: i64 = 5_000;
/// Load of a working day in percent of its peak, by hour.
const LOAD: [i64; 24] = [
    35, 30, 28, 27, 28, 32, 42, 58, 75, 88, 95, 100, 98, 97, 100, 98, 94, 88, 80, 72, 64, 55, 47,
    40,
];
/// Load of a workload that is the same all day.
const FLAT_LOAD: i64 = 70;
/// Load of the days of the week in percent, from Monday.
const DAYS: [i64; 7] = [100, 100, 100, 100, 95, 60, 55];

/// Equal pods: a Deployment, or the pods of an hourly job.
pub(super) struct Workload {
    pub(super) name: String,
    pub(super) cpu_milli: i64,
    pub(super) memory_bytes: i64,
    /// Whether the pods run on spot nodes; otherwise they run on demand.
    pub(super) spot: bool,
    /// Whether the pods are spread over zones with a skew of at most one.
    pub(super) zone_spread: bool,
    /// `maxUnavailable` of its PodDisruptionBudget; `None` without one.
    pub(super) max_unavailable: Option<usize>,
    /// Whether the pods are those of a job, which must not be evicted.
    pub(super) is_job: bool,
    peak: i64,
    /// Minutes by which the day of the workload is later than others'; `None` if its load is the
    /// same all day.
    shift: Option<i64>,
    /// Period of its sawtooth; `None` without one.
    sawtooth: Option<i64>,
}

/// Something that happens to the cluster.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    /// A workload has another number of replicas.
    Scale { workload: usize, replicas: usize },
    /// A spot node is evicted; the number decides which one.
    SpotEviction { draw: u64 },
    /// A new image: every node has drifted.
    ImageUpgrade,
    /// One size becomes unavailable, or available again.
    StockOut { is_out: bool },
}

/// The workloads of a cluster and what happens in order of time, in seconds from Monday 0:00.
pub(super) struct Trace {
    pub(super) workloads: Vec<Workload>,
    pub(super) changes: Vec<(i64, Change)>,
    /// From here on nothing changes.
    pub(super) quiet_from: i64,
    pub(super) end: i64,
}

impl Trace {
    /// The trace of a seed, for about this many nodes at its peak.
    pub(super) fn new(days: i64, nodes: i64, seed: u64) -> Self {
        let mut random = SplitMix(seed);
        let workloads = workloads(nodes, &mut random);
        let end = days * DAY;
        let quiet_from = end - QUIET;
        let mut changes = Vec::new();
        for (number, workload) in workloads.iter().enumerate() {
            if workload.is_job {
                jobs(number, workload, quiet_from, &mut random, &mut changes);
            } else {
                scaling(number, workload, quiet_from, &mut changes);
            }
        }
        for day in 0..days {
            for _ in 0..SPOT_EVICTIONS {
                let at = day * DAY + random.between(HOUR, DAY - 1);
                let draw = random.next();
                changes.push((at, Change::SpotEviction { draw }));
            }
        }
        changes.push((days / 2 * DAY + HOUR / 2, Change::ImageUpgrade));
        let short = days / 3 * DAY + 10 * HOUR;
        changes.push((short, Change::StockOut { is_out: true }));
        changes.push((short + 6 * HOUR, Change::StockOut { is_out: false }));
        changes.retain(|(at, _)| *at < quiet_from);
        changes.sort_by_key(|(at, _)| *at);
        Self { workloads, changes, quiet_from, end }
    }

    /// Most replicas that each workload has at any time.
    pub(super) fn peaks(&self) -> Vec<usize> {
        let mut peaks = vec![0; self.workloads.len()];
        for (_, change) in &self.changes {
            if let Change::Scale { workload, replicas } = change {
                peaks[*workload] = peaks[*workload].max(*replicas);
            }
        }
        peaks
    }
}

fn workloads(nodes: i64, random: &mut SplitMix) -> Vec<Workload> {
    let sizes = [100, 250, 500, 500, 1_000, 1_000, 2_000, 4_000];
    let shares: Vec<i64> = (0..DEPLOYMENTS).map(|_| random.between(1, 10)).collect();
    let all: i64 = shares.iter().sum();
    let total = nodes * CPU_PER_NODE;
    let mut list = Vec::new();
    for (number, share) in shares.iter().enumerate() {
        let cpu_milli = *random.pick(&sizes);
        let gibibytes_per_core = *random.pick(&[1, 2, 4, 4, 6]);
        list.push(Workload {
            name: format!("deployment-{number}"),
            cpu_milli,
            memory_bytes: memory(cpu_milli, gibibytes_per_core),
            spot: number % 3 == 2,
            zone_spread: number % 6 == 1,
            max_unavailable: (number % 8 == 4).then_some(1),
            is_job: false,
            peak: (total * share / all / cpu_milli).max(2),
            shift: (number % 4 != 3).then(|| random.between(-90, 90)),
            sawtooth: (number % 5 == 0).then(|| random.between(4, 8) * AUTOSCALER),
        });
    }
    for number in 0..JOBS {
        let cpu_milli = *random.pick(&[500, 1_000, 2_000]);
        list.push(Workload {
            name: format!("job-{number}"),
            cpu_milli,
            memory_bytes: memory(cpu_milli, *random.pick(&[2, 4])),
            spot: number % 2 == 1,
            zone_spread: false,
            max_unavailable: None,
            is_job: true,
            peak: (total / 100 / cpu_milli).max(1),
            shift: None,
            sawtooth: None,
        });
    }
    list
}

fn memory(cpu_milli: i64, gibibytes_per_core: i64) -> i64 {
    cpu_milli * gibibytes_per_core * 1024 / 1000 * MEBIBYTE
}

/// The replicas of a Deployment as its autoscaler sets them.
fn scaling(number: usize, workload: &Workload, end: i64, changes: &mut Vec<(i64, Change)>) {
    let mut before = 0;
    let mut at = 0;
    while at < end {
        let replicas = workload.replicas(at);
        if replicas != before {
            changes.push((at, Change::Scale { workload: number, replicas }));
            before = replicas;
        }
        at += AUTOSCALER;
    }
}

/// The hourly runs of a job, each of which ends before the trace becomes quiet.
fn jobs(
    number: usize,
    workload: &Workload,
    end: i64,
    random: &mut SplitMix,
    changes: &mut Vec<(i64, Change)>,
) {
    let minute = random.between(0, 59) * MINUTE;
    let mut hour = 0;
    while hour < end {
        let begin = hour + minute;
        let done = begin + random.between(5, 15) * MINUTE;
        let replicas = usize::try_from(random.between(1, workload.peak)).unwrap_or(1);
        if done < end {
            changes.push((begin, Change::Scale { workload: number, replicas }));
            changes.push((done, Change::Scale { workload: number, replicas: 0 }));
        }
        hour += HOUR;
    }
}

impl Workload {
    fn replicas(&self, at: i64) -> usize {
        let load = self.shift.map_or(FLAT_LOAD, |shift| load(at - shift * MINUTE));
        let tooth = self.sawtooth.is_some_and(|period| at.rem_euclid(period) >= period / 2);
        let percent = if tooth { load * 140 / 100 } else { load };
        usize::try_from((self.peak * percent / 100).max(1)).unwrap_or(1)
    }
}

/// Load in percent at a time, between the values of the hours.
fn load(at: i64) -> i64 {
    let value = |list: &[i64], index: i64| {
        let length = i64::try_from(list.len()).unwrap_or(1);
        usize::try_from(index.rem_euclid(length)).map_or(0, |index| list[index])
    };
    let (hour, rest) = (at.div_euclid(HOUR), at.rem_euclid(HOUR));
    let of_day = (value(&LOAD, hour) * (HOUR - rest) + value(&LOAD, hour + 1) * rest) / HOUR;
    of_day * value(&DAYS, at.div_euclid(DAY)) / 100
}

/// The generator SplitMix64, which is the same on every machine.
pub(super) struct SplitMix(pub(super) u64);

impl SplitMix {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `least` to `most`.
    pub(super) fn between(&mut self, least: i64, most: i64) -> i64 {
        let drawn = i64::try_from(self.next() >> 1).unwrap_or(0);
        least + drawn % (most - least + 1).max(1)
    }

    fn pick<'l, T>(&mut self, list: &'l [T]) -> &'l T {
        let last = i64::try_from(list.len()).unwrap_or(1) - 1;
        &list[usize::try_from(self.between(0, last)).unwrap_or(0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_trace_that_ends_quietly() {
        let (one, same, other) = (Trace::new(2, 20, 1), Trace::new(2, 20, 1), Trace::new(2, 20, 2));
        let text = |trace: &Trace| format!("{:?}", trace.changes);
        assert_eq!(text(&one), text(&same));
        assert_ne!(text(&one), text(&other));
        assert!(one.changes.iter().all(|(at, _)| *at < one.quiet_from));
        let mut running: Vec<usize> = vec![0; one.workloads.len()];
        for (_, change) in &one.changes {
            if let Change::Scale { workload, replicas } = change {
                running[*workload] = *replicas;
            }
        }
        let jobs = one.workloads.iter().zip(&running).filter(|(workload, _)| workload.is_job);
        assert!(jobs.map(|(_, running)| *running).sum::<usize>() == 0, "{running:?}");
    }

    #[test]
    fn the_load_follows_the_hours_and_the_days() {
        assert_eq!(load(11 * HOUR), 100);
        assert_eq!(load(3 * HOUR), 27);
        assert_eq!(load(8 * HOUR + HOUR / 2), 81, "between 75 and 88");
        assert_eq!(load(5 * DAY + 11 * HOUR), 60, "on Saturday");
    }
}
