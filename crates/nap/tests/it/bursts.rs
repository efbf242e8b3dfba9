//! A burst of machines against tight quotas: what ledger and memory are worth, over several seeds.

use std::collections::BTreeMap;

use crate::process::{output, text};

/// Rows of the table that `nap bench launches` prints, by client: cells without the unit.
fn burst(seed: &str) -> BTreeMap<String, Vec<String>> {
    let ran = output(&["bench", "launches", "--machines", "200", "--seed", seed]);
    let table = text(&ran.stdout);
    assert!(ran.status.success(), "{table}{}", text(&ran.stderr));
    let rows = table.lines().skip(2).map(|line| {
        let cells = line.trim_matches('|').split('|');
        let mut cells = cells.map(|cell| cell.trim().trim_end_matches(" %").to_owned());
        (cells.next().expect("a client"), cells.collect())
    });
    rows.collect()
}

#[test]
fn ledger_and_memory_make_first_attempts_succeed() {
    for seed in ["1", "2", "3"] {
        let rows = burst(seed);
        let number = |client: &str, column: usize| -> f64 {
            rows[client][column].parse().unwrap_or_else(|_| panic!("{rows:?}"))
        };
        let (with, without) = (number("nap", 0), number("without ledger and memory", 0));
        assert!(with > 95.0, "seed {seed}: {with} % of first attempts succeed");
        assert!(without < 60.0, "seed {seed}: {without} % succeed without ledger and memory");
        // The mix of failures that the quotas are laid out for is the published one.
        let mix = &rows["without ledger and memory"][4];
        let family: f64 = mix.split(", ").next().and_then(|share| share.parse().ok()).expect("it");
        assert!((90.0..98.0).contains(&family), "seed {seed}: {mix}");
        let requests = ["nap", "one by one"].map(|client| number(client, 7));
        assert!(requests[0] < 0.5 && requests[1] > 5.0, "seed {seed}: {requests:?} a machine");
        let throttled = ["nap", "one by one"].map(|client| number(client, 8));
        assert!(throttled[0] < 1.0 && throttled[1] > 100.0, "seed {seed}: {throttled:?} times 429");
    }
}
