//! Determinism of `nap sim` across processes.

use crate::process::{output, text};

#[test]
fn one_seed_in_two_processes_gives_one_trace() {
    let run = |seed: &str| {
        let output = output(&["sim", "--seed", seed, "--hours", "4", "--json"]);
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    };
    let first = run("3");
    assert!(first.contains("\"traceHash\""), "{first}");
    assert_eq!(first, run("3"));
    assert_ne!(first, run("4"));
}
