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
