//! Prints the plans of generated snapshots as JSON lines, for a comparison of two versions of the
//! engine: `cargo run -p nap-oracle --example plans -- 1000 > FILE`, once with each, then `cmp`.
//!
//! Refusals are printed as text and the tier is left out, so that only decisions count.

use nap_engine::{Options, solve, solve_first_fit};
use nap_oracle::{generate, generate_options};
use serde_json::{Value, json};

fn main() {
    let count = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1000);
    for seed in 1..=count {
        let snapshot = generate(seed);
        for options in [Options::default(), generate_options(seed)] {
            for plan in [solve(&snapshot, &options), solve_first_fit(&snapshot, &options)] {
                let unplaced: Vec<Value> = plan
                    .unplaced
                    .iter()
                    .map(|one| json!([one.pod, one.refusal.to_string()]))
                    .collect();
                let plan = json!({
                    "seed": seed,
                    "launches": plan.launches,
                    "placements": plan.placements,
                    "unplaced": unplaced,
                    "cost": plan.cost,
                    "lowerBound": plan.lower_bound,
                });
                println!("{plan}");
            }
        }
    }
}
