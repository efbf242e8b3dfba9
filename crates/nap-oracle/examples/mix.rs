//! Times the engine on the incumbent's own benchmark mix: `cargo run --release -p nap-oracle --example mix -- 1000 10000`.
//!
//! A fifth of the pods each is plain, spread over zones, spread over hosts, drawn to its own kind's zone, and exclusive by host. Words
//! among the arguments choose: `big` for 1,500 types in three zones and two capacity types instead of 400 types, `plain` for plain pods
//! only, `first` for the first plan only, `check` to let the checker judge the plan, `once` for a single run.

use std::time::Instant;

use nap_engine::{Options, Plan, solve, solve_first_fit};
use nap_oracle::incumbent_mix;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| words.iter().any(|one| one == word);
    let options = Options::default();
    println!(
        "{:>8} {:>9} {:>9} {:>6} {:>6} {:>10} {:>10} {:>7} tier",
        "pods", "first ms", "final ms", "nodes", "first", "$/h", "first $/h", "gap %"
    );
    for pods in words.iter().filter_map(|word| word.parse::<usize>().ok()) {
        let mut snapshot = incumbent_mix(pods, has("big"));
        if has("plain") {
            for pod in &mut snapshot.pods {
                (pod.spread, pod.affinity, pod.anti_affinity) = (Vec::new(), Vec::new(), Vec::new());
            }
        }
        let repeat = if has("once") { 1 } else { (20_000 / pods.max(1)).clamp(3, 15) };
        let (first, guard) = median(repeat, || solve_first_fit(&snapshot, &options));
        let (last, plan) =
            if has("first") { (first, guard.clone()) } else { median(repeat, || solve(&snapshot, &options)) };
        println!(
            "{pods:>8} {first:>9.2} {last:>9.2} {:>6} {:>6} {:>10} {:>10} {:>7.2} {:?}",
            plan.launches.len(),
            guard.launches.len(),
            plan.cost.to_string(),
            guard.cost.to_string(),
            plan.gap_percent().unwrap_or(0.0),
            plan.tier
        );
        assert!(plan.unplaced.is_empty(), "{} pods have no place", plan.unplaced.len());
        if has("check") {
            for plan in [&plan, &guard] {
                let wrong = nap_oracle::check(&snapshot, &options, plan);
                println!("{} violations {:?}", wrong.len(), wrong.first());
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "this measures time; the engine does not")]
fn median(repeat: usize, mut run: impl FnMut() -> Plan) -> (f64, Plan) {
    let mut times = Vec::new();
    let mut last = Plan::default();
    for _ in 0..repeat {
        let started = Instant::now();
        last = run();
        times.push(started.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], last)
}
