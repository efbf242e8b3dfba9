//! `nap windows`: when nodes may be disrupted, from manifests and from a cluster.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::azure_server::AzureServer;
use crate::process::{Cluster, nap, output, text};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/windows.yaml");

/// Runs `nap windows`; returns whether it succeeded, and both outputs.
fn windows(arguments: &[&str]) -> (bool, String, String) {
    let all: Vec<&str> = std::iter::once("windows").chain(arguments.iter().copied()).collect();
    let mut command = nap(&all);
    command.env_remove("AZURE_SUBSCRIPTION_ID").env_remove("ARM_SUBSCRIPTION_ID");
    let output = command.output().expect("nap starts");
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

/// A manifest of a NodePool with these lines of annotations and of its spec.
fn manifest(test: &str, annotations: &str, spec: &str) -> String {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("windows-{test}.yaml"));
    let yaml = format!(
        "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata:\n  name: p\n  annotations:\n\
         {annotations}spec:\n{spec}  template:\n    spec:\n      nodeClassRef: {{ group: \
         karpenter.azure.com, kind: AKSNodeClass, name: default }}\n      requirements: []\n"
    );
    std::fs::write(&file, yaml).unwrap();
    file.display().to_string()
}

#[test]
fn times_are_those_of_the_pool_and_of_utc() {
    // Clocks in Berlin go forward on 2027-03-28, in the window.
    let (passed, said, problems) =
        windows(&["-f", EXAMPLE, "--from", "2027-03-26T12:00:00Z", "--next", "3d"]);
    assert!(passed, "{problems}");
    let expected = "\
NodePool shop: Fri 26 Mar 2027 13:00 – Mon 29 Mar 2027 14:00 Europe/Berlin (Fri 26 Mar 12:00 – Mon 29 Mar 12:00 UTC)
  Drifted: blocked, except
    Sun 28 Mar 01:00 – 06:00 Europe/Berlin (Sun 28 Mar 00:00 – 04:00 UTC)
  Empty: any time
  Underutilized: any time, except
    Fri 26 Mar 17:00 – 22:00 Europe/Berlin (Fri 26 Mar 16:00 – 21:00 UTC)
  Expired: as Drifted
  Waves of drift: 1 node, 10 %, the rest, 15m apart
";
    assert_eq!(said, expected);
}

#[test]
fn budgets_and_policies_count_too() {
    let spec = "  disruption:\n    consolidationPolicy: WhenEmpty\n    budgets:\n    - nodes: \"0\"\n      \
                schedule: 0 6 * * *\n      duration: 12h\n      reasons: [Drifted]\n";
    let file = manifest("budgets", "    a: b\n", spec);
    let (passed, said, _) =
        windows(&["-f", &file, "--from", "2027-01-01T00:00:00Z", "--next", "24h", "-o", "json"]);
    assert!(passed);
    let document: Value = serde_json::from_str(&said).unwrap();
    let pool = &document["nodePools"][0];
    let open = |index: usize| {
        let reason = &pool["reasons"][index];
        let spans = reason["open"].as_array().unwrap().iter();
        let spans: Vec<String> = spans
            .map(|span| {
                format!("{}/{}", span["from"].as_str().unwrap(), span["until"].as_str().unwrap())
            })
            .collect();
        (reason["reason"].as_str().unwrap().to_owned(), spans.join(" "))
    };
    let drifted =
        "2027-01-01T00:00:00Z/2027-01-01T06:00:00Z 2027-01-01T18:00:00Z/2027-01-02T00:00:00Z";
    assert_eq!(open(0), ("Drifted".to_owned(), drifted.to_owned()));
    assert_eq!(open(1).1, "2027-01-01T00:00:00Z/2027-01-02T00:00:00Z");
    assert_eq!(open(2), ("Underutilized".to_owned(), String::new()));
    assert_eq!(pool["reasons"][2]["never"], "consolidationPolicy is WhenEmpty");
    assert_eq!((&pool["expiry"], &pool["timeZone"]), (&"Forceful".into(), &"UTC".into()));
}

#[test]
fn settings_that_cannot_be_read_are_named_and_fail() {
    let annotations = "    nap.karpenter.sh/disruption-windows: aks\n";
    let (passed, said, problems) = windows(&["-f", &manifest("bad", annotations, "")]);
    assert!(!passed);
    let expected =
        "  error: metadata.annotations[nap.karpenter.sh/disruption-windows]: is not a list";
    assert!(said.contains(expected) && said.contains("  Drifted: blocked\n"), "{said}");
    assert!(problems.contains("1 NodePool(s) with settings that cannot be read"), "{problems}");
    let linted = output(&["lint", "-f", &manifest("lint", annotations, "")]);
    let linted = text(&linted.stdout);
    assert!(linted.contains("error: ") && linted.contains(&expected[9..]), "{linted}");
}

#[test]
fn lint_warns_of_expiry_that_takes_no_heed_of_windows() {
    let windows = "    nap.karpenter.sh/disruption-windows: \"[{action: deny, schedule: '0 9 * * *', \
                   duration: 8h}]\"\n";
    let warning =
        "spec.template.spec.expireAfter: expired nodes are deleted outside of the disruption";
    let linted = |annotations: &str| {
        text(&output(&["lint", "-f", &manifest("expiry", annotations, "")]).stdout)
    };
    let said = linted(windows);
    assert!(said.contains(warning), "{said}");
    let said = linted(&format!("{windows}    nap.karpenter.sh/expiry: graceful\n"));
    assert!(!said.contains(warning), "{said}");
}

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn nodepools_of_a_cluster_are_read() {
    let cluster = Cluster::start(&["--no-controllers"]);
    let kubeconfig = cluster.kubeconfig.to_str().unwrap();
    let (passed, said, problems) = windows(&["--kubeconfig", kubeconfig]);
    assert!(passed, "{problems}");
    assert!(said.starts_with("NodePool default: "), "{said}");
    assert!(said.contains("  Drifted: any time\n"), "{said}");
}

const SCHEDULES: [&str; 2] = ["aksManagedNodeOSUpgradeSchedule", "aksManagedAutoUpgradeSchedule"];

/// Annotations of a NodePool that follows schedules of AKS.
fn follows(schedules: &[&str]) -> String {
    let window = |schedule: &&str| format!("      - {{action: allow, schedule: {schedule}}}\n");
    let windows: String = schedules.iter().map(window).collect();
    format!("    nap.karpenter.sh/disruption-windows: |\n{windows}")
}

#[test]
fn a_maintenance_window_that_cannot_be_asked_for_counts_as_closed() {
    for schedule in SCHEDULES {
        let file = manifest(schedule, &follows(&[schedule]), "");
        let (passed, said, notes) = windows(&["-f", &file]);
        assert!(passed, "{notes}");
        assert!(said.contains("  Drifted: blocked\n"), "{said}");
        let expected = format!("note: {schedule} is not known, so it counts as closed: ");
        assert!(notes.starts_with(&expected), "{notes}");
    }
}

#[test]
fn the_maintenance_windows_of_the_managed_cluster_are_read() {
    let azure = AzureServer::start("windows", |_| {});
    let file = manifest("aks-live", &follows(&SCHEDULES), "");
    let show = |more: &[&str]| {
        let from = ["--from", "2027-01-01T00:00:00Z", "--next", "8d"];
        let output =
            azure.nap(&[&["windows", "-f", &file][..], &from, more].concat()).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    let document = || serde_json::from_str::<Value>(&show(&["-o", "json"]).0).unwrap();
    let states = |document: &Value| {
        let windows = document["maintenanceWindows"].as_array().unwrap().clone();
        windows.iter().map(|it| format!("{} {}", it["schedule"], it["state"])).collect::<Vec<_>>()
    };
    let absent = SCHEDULES.map(|name| format!("\"{name}\" \"absent\""));
    assert_eq!(states(&document()), absent);
    let noted = show(&[]).1;
    for schedule in SCHEDULES {
        let expected = format!("note: the managed cluster has no {schedule}, so it never opens\n");
        assert!(noted.contains(&expected), "{noted}");
    }
    let window = |day: &str| {
        json!({ "maintenanceWindow": {
            "schedule": { "weekly": { "intervalWeeks": 1, "dayOfWeek": day } },
            "durationHours": 4, "utcOffset": "-08:00", "startDate": "2026-01-01",
            "startTime": "22:00",
        } })
    };
    for (name, day) in SCHEDULES.into_iter().zip(["Sunday", "Tuesday"]) {
        assert!(azure.emulator.set_maintenance_configuration(name, window(day)));
    }
    let document = document();
    assert_eq!(states(&document), SCHEDULES.map(|name| format!("\"{name}\" \"known\"")));
    let opens = ["2027-01-04T06:00:00Z", "2027-01-06T06:00:00Z"];
    let ends = ["2027-01-04T10:00:00Z", "2027-01-06T10:00:00Z"];
    let open = &document["nodePools"][0]["reasons"][1]["open"];
    assert_eq!(open.as_array().unwrap().len(), 2, "{open}");
    for (index, (from, until)) in opens.into_iter().zip(ends).enumerate() {
        assert_eq!((&open[index]["from"], &open[index]["until"]), (&from.into(), &until.into()));
        let one = &document["maintenanceWindows"][index]["open"];
        assert_eq!(one, &json!([{ "from": from, "until": until }]));
    }
    let said = show(&[]).0;
    let expected = "
aksManagedNodeOSUpgradeSchedule of the managed cluster:
  Mon 4 Jan 06:00 – 10:00 UTC

aksManagedAutoUpgradeSchedule of the managed cluster:
  Wed 6 Jan 06:00 – 10:00 UTC
";
    assert!(said.ends_with(expected), "{said}");
}

#[test]
fn mistakes_in_options_have_a_remedy() {
    for (arguments, expected) in [
        (vec!["-f", EXAMPLE, "--next", "36d"], "is not a time up to `35d` such as `7d`"),
        (vec!["-f", EXAMPLE, "--next", "soon"], "is not a time up to `35d` such as `7d`"),
        (vec!["-f", EXAMPLE, "--from", "soon"], "invalid value 'soon' for '--from <TIME>'"),
        (vec!["-f", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.lock.yaml")], "cannot be read"),
        (
            vec!["-f", concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/inflate.yaml")],
            "no NodePool in these files",
        ),
    ] {
        let (passed, _, problems) = windows(&arguments);
        assert!(!passed && problems.contains(expected), "{arguments:?}: {problems}");
    }
}
