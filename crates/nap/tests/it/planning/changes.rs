//! `nap plan -f` on top of a cluster, and the exit codes for CI.

use serde_json::Value;

use super::disruption::{POOL, node};
use super::{folder, output, run, said, workload};
use crate::process::text;

const WEB: &str = "---
apiVersion: apps/v1
kind: Deployment
metadata: { name: web, namespace: default, uid: d }
spec:
  replicas: 9
  selector: { matchLabels: { app: web } }
  template:
    metadata: { labels: { app: web } }
    spec: { containers: [{ name: c, image: i, resources: { requests: { cpu: 1 } } }] }
---
apiVersion: apps/v1
kind: ReplicaSet
metadata:
  name: web
  namespace: default
  uid: r
  ownerReferences: [{ apiVersion: apps/v1, kind: Deployment, name: web, uid: d, controller: true }]
spec:
  replicas: 9
  selector: { matchLabels: { app: web } }
  template: { metadata: { labels: { app: web } }, spec: { containers: [{ name: c, image: i }] } }
";

/// Plans a change of the Deployment on top of nine pods on two nodes.
fn change(test: &str, arguments: &[&str], from: &str, to: &str) -> std::process::Output {
    change_on("on-demand", test, arguments, from, to)
}

/// The same with nodes of a capacity type.
fn change_on(
    capacity_type: &str,
    test: &str,
    arguments: &[&str],
    from: &str,
    to: &str,
) -> std::process::Output {
    let class = "---\napiVersion: karpenter.azure.com/v1beta1\nkind: AKSNodeClass\nmetadata: { name: default }\nspec: {}\n";
    let large = node("large", "Standard_D8s_v5", 8, 6, "");
    let small = node("small", "Standard_D4s_v5", 4, 3, "");
    let state = format!("{POOL}{class}{large}{small}{WEB}").replace("on-demand", capacity_type);
    let web = WEB.split("---\n").nth(1).unwrap().replace(", uid: d", "");
    assert!(web.contains(from), "{web}");
    let files = [("state.yaml", state.as_str()), ("web.yaml", &web.replace(from, to))];
    let folder = folder(&format!("change-{test}"), &files);
    let file = |name: &str| folder.join(name).display().to_string();
    let all = ["plan", "-f", &file("web.yaml"), "--state", &file("state.yaml")];
    output(&[&all, arguments].concat())
}

fn shown(test: &str, from: &str, to: &str) -> String {
    let output = change(test, &[], from, to);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn more_replicas_add_pods_and_a_vm() {
    let said = shown("more", "replicas: 9", "replicas: 16");
    assert!(said.starts_with("+ pods default/web (7)\n+ VM Standard_D"), "{said}");
    assert!(said.contains("/h (+$"), "{said}");
    let output = change("more-json", &["-o", "json"], "replicas: 9", "replicas: 16");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let change = &document["change"];
    assert_eq!(change["addedPods"].as_array().unwrap().len(), 7);
    let cost = |field: &str| change[field].as_f64().unwrap();
    let launched = document["costUsdPerHour"].as_f64().unwrap();
    let grown = cost("costAfterUsdPerHour") - cost("costBeforeUsdPerHour");
    assert!((grown - launched).abs() < 1e-6, "{document}");
    assert_eq!(document["fleet"]["nodes"], 2);
}

#[test]
fn estimated_prices_of_a_change_are_marked() {
    let (from, to) = ("replicas: 9", "replicas: 2");
    let said = text(&change_on("spot", "spot", &[], from, to).stdout);
    assert!(said.contains("\n~$") && said.contains("after: -~$"), "{said}");
    let document = |capacity_type: &str| -> Value {
        let output = change_on(capacity_type, "spot-json", &["-o", "json"], from, to);
        serde_json::from_slice(&output.stdout).unwrap()
    };
    for (capacity_type, expected) in [("spot", true), ("on-demand", false)] {
        let document = document(capacity_type);
        assert_eq!(document["change"]["costIsEstimate"], expected, "{capacity_type}");
        assert_eq!(document["fleet"]["costIsEstimate"], expected, "{capacity_type}");
    }
    assert!(!shown("listed", from, to).contains("~$"));
}

#[test]
fn fewer_replicas_remove_pods_and_a_node() {
    let said = shown("fewer", "replicas: 9", "replicas: 2");
    assert!(said.contains("- Deployment `default/web`: 7 pods fewer\n"), "{said}");
    assert!(said.contains("- node "), "{said}");
    assert!(said.contains("after: -$"), "{said}");
}

#[test]
fn a_changed_template_replaces_its_pods_and_an_equal_one_does_nothing() {
    let said = shown("template", "cpu: 1 ", "cpu: 1500m ");
    let line = "~ Deployment `default/web`: its template changes, so 9 pods are replaced\n";
    assert!(said.contains(line), "{said}");
    let same = shown("same", "image: i", "image: other");
    assert!(same.starts_with("No change to pods, nodes or cost.\n"), "{same}");
    let quiet = change("quiet", &["--exit-code"], "image: i", "image: other");
    assert_eq!(quiet.status.code(), Some(0), "{}", text(&quiet.stdout));
    let loud = change("loud", &["--exit-code"], "replicas: 9", "replicas: 16");
    assert_eq!(loud.status.code(), Some(2));
}

#[test]
fn exit_codes_tell_changes_and_cost() {
    let web = workload("Deployment", "web", "replicas: 3");
    let code = |arguments: &[&str], test: &str, yaml: &str| {
        let output = run(&[&["plan"], arguments].concat(), test, yaml);
        (output.status.code(), text(&output.stderr))
    };
    assert_eq!(code(&[], "code-plain", &web).0, Some(0));
    assert_eq!(code(&["--exit-code"], "code-vms", &web).0, Some(2));
    let huge = web.replace("cpu: 1 ", "cpu: 5000 ");
    assert_eq!(code(&["--exit-code"], "code-huge", &huge).0, Some(2));
    let none = web.replace("replicas: 3", "replicas: 0");
    assert_eq!(code(&["--exit-code"], "code-none", &none).0, Some(0));
    for (cost, expected) in [("1/month", Some(3)), ("0.001/h", Some(3)), ("$9,000/month", Some(0))]
    {
        let (found, error) = code(&["--max-cost", cost], "code-cost", &web);
        assert_eq!(found, expected, "{cost}: {error}");
        assert!(expected == Some(0) || error.contains("more than --max-cost"), "{error}");
    }
    let (found, error) = code(&["--max-cost", "500"], "code-unit", &web);
    assert!(found == Some(2) && error.contains("such as `500/month` or `0.70/h`"), "{error}");
    let (_, notes) = said(&["plan"], "code-notes", &web);
    assert!(notes.lines().all(|line| line.starts_with("note: ")), "{notes}");
}
