//! `nap bench` from end to end: generate, solve, judge, compare, and errors of problem files.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::process::{output, text};

/// An empty folder for one test.
fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn run(arguments: &[&str]) -> String {
    let done = output(arguments);
    assert!(done.status.success(), "nap {arguments:?}: {}", text(&done.stderr));
    text(&done.stdout)
}

#[test]
fn a_problem_is_generated_solved_and_judged() {
    let folder = folder("bench-story");
    let file = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (problem, plan) = (file("mix.json"), file("plan.json"));
    run(&["bench", "gen", "mix", "--pods", "50", "--types", "40", "--out", &problem]);
    let printed =
        run(&["bench", "--problem", &problem, "--plan", &plan, "--repeat", "2", "--json"]);
    let report: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(report["pods"], 50);
    assert_eq!(report["unplaced"], 0);
    assert!(report["finalPlanSeconds"]["median"].is_number());
    let judged = run(&["bench", "judge", &problem, &plan, "--json"]);
    let verdict: Value = serde_json::from_str(&judged).unwrap();
    assert_eq!(verdict["valid"], true);
    assert_eq!(verdict["costUsdPerHour"], report["costUsdPerHour"]);

    // A plan without one of its nodes lacks the node's pods.
    let mut broken: Value = serde_json::from_str(&std::fs::read_to_string(&plan).unwrap()).unwrap();
    broken["nodes"].as_array_mut().unwrap().pop();
    std::fs::write(&plan, broken.to_string()).unwrap();
    let done = output(&["bench", "judge", &problem, &plan]);
    assert!(!done.status.success());
    assert!(text(&done.stdout).contains("wrong"), "{}", text(&done.stdout));
}

#[test]
fn a_comparison_writes_its_page() {
    let folder = folder("bench-compare");
    let file = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (problem, page) = (file("one.json"), file("page.md"));
    run(&["bench", "gen", "one-class", "--pods", "10", "--types", "10", "--out", &problem]);
    let table =
        run(&["bench", "compare", &problem, "--rounds", "2", "--repeat", "1", "--write", &page]);
    assert!(table.contains("one-class-10-fake400-t10-s1") && table.contains("2 of 2"), "{table}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains(&table.trim_end().to_owned()), "{page}");
    assert!(page.contains("nap bench gen one-class --pods 10 --seed 1"), "{page}");
}

#[test]
fn a_fleet_is_generated_and_consolidated() {
    let folder = folder("bench-fleet");
    let file = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (fleet, steps) = (file("fleet.json"), file("steps.json"));
    let arguments = ["bench", "gen", "fleet", "--nodes", "20", "--churn", "60", "--out", &fleet];
    run(&arguments);
    let made: Value = serde_json::from_str(&std::fs::read_to_string(&fleet).unwrap()).unwrap();
    assert_eq!(made["nodes"].as_array().unwrap().len(), 20);
    assert!(made["recipe"].as_str().unwrap().contains("--fleet plain --nodes 20 --churn 60"));
    let printed = run(&[
        "bench",
        "disruption",
        "--problem",
        &fleet,
        "--budget",
        "10",
        "100",
        "--steps",
        &steps,
        "--json",
    ]);
    let reports: Vec<Value> =
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(reports.len(), 2, "one for each budget: {printed}");
    for report in &reports {
        assert_eq!(report["valid"], true, "{report}");
        assert_eq!(report["settled"], true, "{report}");
        assert!(report["nothingSeconds"].is_number() && report["changeSeconds"].is_number());
        let dollars = |key: &str| report[key].as_f64().unwrap();
        assert!(dollars("costAfterUsdPerHour") <= dollars("costUsdPerHour"), "{report}");
        assert!(dollars("lowerBoundUsdPerHour") <= dollars("costAfterUsdPerHour"), "{report}");
    }
    let written: Value = serde_json::from_str(&std::fs::read_to_string(&steps).unwrap()).unwrap();
    let decisions = written["decisions"].as_array().unwrap().len();
    assert_eq!(reports[1]["passes"].as_u64(), u64::try_from(decisions).ok());
}

#[test]
fn a_simulated_day_keeps_its_promises_and_is_the_same_again() {
    let day = ["bench", "week", "--days", "1", "--nodes", "8", "--seed", "3", "--json"];
    let printed = run(&day);
    assert_eq!(printed, run(&day), "the same seed gives the same bytes");
    let reports: Vec<Value> =
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |policy: &str| {
        let found = reports.iter().find(|report| report["policy"] == policy);
        found.unwrap_or_else(|| panic!("{policy}: {printed}"))
    };
    assert_eq!(reports.len(), 5, "{printed}");
    for report in &reports {
        assert_eq!(report["violations"], 0, "{report}");
        assert!(report["dollars"].as_f64().unwrap() > 0.0, "{report}");
        assert!(report["evictions"]["drifted"].as_u64().unwrap() > 0, "the upgrade: {report}");
        assert!(report["evictions"]["interrupted"].as_u64().unwrap() > 0, "spot: {report}");
    }
    let when_empty = of("nap WhenEmpty");
    assert_eq!(when_empty["evictions"]["underutilized"], Value::Null, "{when_empty}");
    let underutilized = of("nap WhenEmptyOrUnderutilized");
    assert!(underutilized["evictions"]["underutilized"].as_u64().unwrap() > 0, "{underutilized}");
    let hours = |report: &Value| report["nodeHours"].as_f64().unwrap();
    assert!(hours(underutilized) < hours(when_empty), "{printed}");
    let other = run(&["bench", "week", "--days", "1", "--nodes", "8", "--seed", "4", "--json"]);
    assert_ne!(printed, other, "another seed is another week");
}

#[test]
fn steps_of_another_solver_are_judged() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = folder("bench-peer");
    let file = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (fleet, peer) = (file("fleet.json"), file("peer.sh"));
    run(&["bench", "gen", "fleet", "--fleet", "half", "--nodes", "4", "--out", &fleet]);
    // It removes a node and forgets its pods.
    let script = r#"#!/bin/sh
[ "$1 $3 $5 $7" = "--problem --steps --budget --limit" ] || exit 1
echo '{"decisions":[[{"remove":["node-00000"],"plan":{"nodes":[]}}]]}' >"$4"
echo '{"version":"v0","firstPassSeconds":1,"nothingSeconds":2,"totalSeconds":3,"peakRssMiB":null}'
"#;
    std::fs::write(&peer, script).unwrap();
    std::fs::set_permissions(&peer, std::fs::Permissions::from_mode(0o755)).unwrap();
    let table =
        run(&["bench", "disruption", "--problem", &fleet, "--budget", "100", "--peer", &peer]);
    let line = |solver: &str| {
        let found = table.lines().find(|line| line.contains(&format!("| {solver} ")));
        found.unwrap_or_else(|| panic!("{table}")).to_owned()
    };
    assert!(line("karpenter").contains("| no "), "{table}");
    assert!(line("karpenter").contains("| 4 → 3 "), "{table}");
    assert!(line("nap").contains("| yes "), "{table}");
    assert!(table.contains("karpenter of fleet-half-4-d-s1: decision 0, step 0: class"), "{table}");
}

#[test]
fn a_fleet_with_pending_pods_is_refused() {
    let folder = folder("bench-pending");
    let path = folder.join("mix.json").to_string_lossy().into_owned();
    run(&["bench", "gen", "one-class", "--pods", "3", "--types", "3", "--out", &path]);
    let done = output(&["bench", "disruption", "--problem", &path]);
    let error = text(&done.stderr);
    assert!(!done.status.success());
    assert!(error.contains("pods: same: replicas: a fleet has no pending pods"), "{error}");
}

#[test]
fn invalid_file_gives_one_line_with_its_path() {
    let folder = folder("bench-errors");
    for (name, content, word) in [
        ("field.json", r#"{"version":1,"name":"x","colour":1}"#, "`colour`"),
        ("version.json", r#"{"version":3,"name":"x"}"#, "version 3"),
        (
            "nodes.json",
            r#"{"version":1,"name":"x","nodes":[{"name":"n","nodePool":"p","instanceType":"t","zone":"z","capacityType":"spot"}]}"#,
            "`p`",
        ),
        ("text.json", "hello", "line 1"),
    ] {
        let path = folder.join(name);
        std::fs::write(&path, content).unwrap();
        let done = output(&["bench", "--problem", &path.to_string_lossy()]);
        let error = text(&done.stderr);
        assert!(!done.status.success());
        assert!(
            error.starts_with("error: ") && error.contains(name) && error.contains(word),
            "{error}"
        );
        assert!(error.contains("\nhint: "), "{error}");
    }
}
