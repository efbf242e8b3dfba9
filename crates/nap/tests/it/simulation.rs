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

#[test]
fn as_many_hours_are_simulated_as_were_asked_for() {
    for hours in [1, 3] {
        let report = output(&["sim", "--hours", &hours.to_string(), "--json"]);
        let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
        assert_eq!(report["hours"], hours);
        assert_eq!(report["costIsEstimate"], false, "its nodes are on-demand");
    }
}

#[test]
fn own_workloads_are_simulated_with_their_schedule_and_cost() {
    let inflate = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/inflate.yaml");
    let file = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("schedule.yaml");
    let run = |schedule: &str, more: &[&str]| {
        std::fs::write(&file, schedule).unwrap();
        let file = file.display().to_string();
        let all = ["sim", "-f", inflate, "--hours", "1", "--schedule", &file];
        output(&[&all, more].concat())
    };
    let schedule = "- { at: 10m, scale: inflate, replicas: 20 }\n- { at: 30m, scale: default/inflate, replicas: 0 }\n";
    let report = run(schedule, &["--json"]);
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    let timeline = report["timeline"].as_array().unwrap();
    let most = timeline.iter().filter_map(|one| one["running"].as_u64()).max();
    assert_eq!(most, Some(20), "{report}");
    let last = timeline.last().unwrap();
    assert_eq!((&last["running"], &last["microUsdPerHour"]), (&0.into(), &0.into()));
    let again = run(schedule, &[]);
    let said = text(&again.stdout);
    assert!(said.contains("(Deployment inflate is scaled to 20)") && said.contains(" in all\n"));
    let cents = report["costMicros"].as_i64().unwrap() / 10_000;
    assert!(cents > 0, "{report}");
    assert!(!said.contains('~') && report["costIsEstimate"] == false, "{said}");
    for (schedule, expected) in [
        ("- { at: soon, scale: inflate, replicas: 1 }\n", "item 1: at: `soon` is not a duration"),
        ("- { at: 1m, scale: web, replicas: 1 }\n", "there is no Deployment `default/web`"),
        ("- { at: 1m, scales: web, replicas: 1 }\n", "scales"),
    ] {
        let refused = run(schedule, &[]);
        let error = text(&refused.stderr);
        assert!(!refused.status.success() && error.contains(expected), "{error}");
    }
}

#[test]
fn costs_with_spot_vms_are_marked_as_estimates() {
    let inflate = include_str!("../../../../examples/inflate.yaml");
    let pool = "---\napiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: { name: spot }\nspec:\n  \
                template:\n    spec:\n      nodeClassRef: { group: karpenter.azure.com, kind: \
                AKSNodeClass, name: default }\n      requirements:\n      - { key: \
                karpenter.sh/capacity-type, operator: In, values: [spot] }\n---\napiVersion: \
                karpenter.azure.com/v1beta1\nkind: AKSNodeClass\nmetadata: { name: default }\n\
                spec: {}\n";
    let file = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("spot-inflate.yaml");
    std::fs::write(&file, format!("{inflate}{pool}")).unwrap();
    let run = |more: &[&str]| {
        let file = file.display().to_string();
        output(&[&["sim", "-f", &file, "--hours", "1"], more].concat())
    };
    let said = run(&[]);
    let said = text(&said.stdout) + &text(&said.stderr);
    assert!(said.contains("] ~$") && said.contains(", ~$"), "{said}");
    assert!(said.contains("~ marks estimated prices"), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&run(&["--json"]).stdout).unwrap();
    assert_eq!(report["costIsEstimate"], true);
    let timeline = report["timeline"].as_array().unwrap();
    assert!(timeline.iter().any(|one| one["priceIsEstimate"] == true), "{report}");
}

/// As in a plan: the class need not be written, and pods that wait are not passed over in silence.
#[test]
fn node_classes_that_are_not_given_have_their_defaults_and_waiting_pods_are_named() {
    let spot = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/workloads/spot.yaml");
    let said = output(&["sim", "-f", spot, "--hours", "1"]);
    let notes = text(&said.stderr);
    assert!(
        notes.contains("AKSNodeClass `default` is not given: its defaults are used"),
        "{notes}"
    );
    assert!(!notes.contains("without a node at the end"), "{notes}");
    let timeline = text(&said.stdout);
    assert!(timeline.contains(" 0 wait; ") && !timeline.contains(" 0 VMs "), "{timeline}");

    let file = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("giant.yaml");
    let giant = "apiVersion: v1\nkind: Pod\nmetadata: { name: giant }\nspec: { containers: [{ name: a, \
                 image: a, resources: { requests: { cpu: 5k } } }] }\n";
    std::fs::write(&file, giant).unwrap();
    let run = |more: &[&str]| {
        let file = file.display().to_string();
        output(&[&["sim", "-f", &file, "--hours", "1"], more].concat())
    };
    let notes = text(&run(&[]).stderr);
    for part in ["1 pod without a node at the end", "default/giant: ", "enough cpu"] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
    let report: serde_json::Value = serde_json::from_slice(&run(&["--json"]).stdout).unwrap();
    assert_eq!(report["waiting"][0]["name"], "giant", "{report}");
}
