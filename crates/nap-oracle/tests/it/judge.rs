//! Runner of properties over generated snapshots. A failing snapshot is reduced and printed as a
//! scenario file.
//!
//! `NAP_CASES=5000` sets the number of seeds, `NAP_SEED=7` the first seed.

use nap_engine::{Options, Snapshot};
use nap_oracle::{scenario, shrink};

/// Default number of seeds.
const CASES: u64 = 1000;

/// The seeds to try.
pub fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("NAP_SEED").unwrap_or(0);
    first..first + number("NAP_CASES").unwrap_or(CASES)
}

/// Panics with a reduced snapshot if `wrong` returns a text for the snapshot of a seed.
pub fn judge(
    name: &str,
    make: impl Fn(u64) -> (Snapshot, Options),
    wrong: impl Fn(&Snapshot, &Options) -> Option<String>,
) {
    for seed in seeds() {
        let (snapshot, options) = make(seed);
        if wrong(&snapshot, &options).is_some() {
            let small = shrink(snapshot, |snapshot| wrong(snapshot, &options).is_some());
            let why = wrong(&small, &options).unwrap_or_default();
            panic!("{name}, seed {seed}: {why}\n{}", scenario(&small, &options));
        }
    }
}
