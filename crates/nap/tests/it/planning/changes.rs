//! `nap plan -f` on top of a cluster, and the exit codes for CI.

use serde_json::Value;

use super::disruption::{POOL, node};
use super::{folder, object, output, run, said, workload};
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
    let web = web();
    assert!(web.contains(from), "{web}");
    on_top(capacity_type, test, arguments, "", &web.replace(from, to))
}

/// The Deployment as a user writes it.
fn web() -> String {
    WEB.split("---\n").nth(1).unwrap().replace(", uid: d", "")
}

/// Plans manifests on top of the Deployment, its pods and their nodes, and `more` of the cluster.
fn on_top(
    capacity_type: &str,
    test: &str,
    arguments: &[&str],
    more: &str,
    change: &str,
) -> std::process::Output {
    let class = "---\napiVersion: karpenter.azure.com/v1beta1\nkind: AKSNodeClass\nmetadata: { name: default }\nspec: {}\n";
    let large = node("large", "Standard_D8s_v5", 8, 6, "");
    let small = node("small", "Standard_D4s_v5", 4, 3, "");
    let state = format!("{POOL}{class}{large}{small}{WEB}{more}");
    let state = state.replace("on-demand", capacity_type);
    let files = [("state.yaml", state.as_str()), ("web.yaml", change)];
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

/// An autoscaler of the Deployment.
fn scaler(kind: &str, spec: &str) -> String {
    let target = "scaleTargetRef: { apiVersion: apps/v1, kind: Deployment, name: web }";
    object(kind, "web", &format!("spec: {{ {target}, {spec} }}"))
}

const NOTHING: &str = "No change to pods, nodes or cost.\n";

#[test]
fn an_autoscaler_of_the_cluster_holds_the_number_of_pods() {
    let horizontal = scaler("HorizontalPodAutoscaler", "minReplicas: 2, maxReplicas: 20");
    let horizontal = horizontal + "status: { desiredReplicas: 9 }\n";
    let keda = scaler("ScaledObject", "minReplicaCount: 0, maxReplicaCount: 20, triggers: []");
    let fewer = web().replace("replicas: 9", "replicas: 2");
    for (test, more) in [("hpa", &horizontal), ("keda", &keda)] {
        let output = on_top("on-demand", test, &["--exit-code"], more, &fewer);
        let (said, notes) = (text(&output.stdout), text(&output.stderr));
        assert!(said.starts_with(NOTHING), "{said}{notes}");
        assert_eq!(output.status.code(), Some(0), "{said}");
        let why = "note: Deployment `default/web`: `replicas: 2` makes no difference: ";
        assert!(notes.contains(why) && notes.contains("keeps it at 9 pods\n"), "{notes}");
    }
    // An HPA is switched off by 0 replicas; KEDA is not.
    let none = web().replace("replicas: 9", "replicas: 0");
    let off = text(&on_top("on-demand", "hpa-off", &[], &horizontal, &none).stdout);
    assert!(off.contains("- Deployment `default/web`: 9 pods fewer\n"), "{off}");
    let held = text(&on_top("on-demand", "keda-on", &[], &keda, &none).stdout);
    assert!(held.starts_with(NOTHING), "{held}");
}

#[test]
fn an_autoscaler_that_is_applied_changes_the_number_of_pods() {
    let bounds = |least: u32, most: u32| {
        let spec = format!("minReplicas: {least}, maxReplicas: {most}");
        scaler("HorizontalPodAutoscaler", &spec)
    };
    let said = |test: &str, more: &str, change: &str| {
        let output = on_top("on-demand", test, &[], more, change);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let new = said("hpa-new", "", &bounds(1, 5));
    assert!(new.contains("- Deployment `default/web`: 4 pods fewer\n"), "{new}");
    let there = bounds(2, 20) + "status: { desiredReplicas: 9 }\n";
    let lower = said("hpa-lower", &there, &bounds(2, 6));
    assert!(lower.contains("- Deployment `default/web`: 3 pods fewer\n"), "{lower}");
    let higher = said("hpa-higher", &there, &bounds(12, 20));
    assert!(higher.starts_with("+ pods default/web (3)\n"), "{higher}");
    let same = said("hpa-same", &there, &bounds(3, 15));
    assert!(same.starts_with(NOTHING), "{same}");
}

#[test]
fn a_changed_daemon_set_gets_new_pods_and_a_new_one_is_told() {
    let agent = workload("DaemonSet", "agent", "minReadySeconds: 0").replace("cpu: 1 ", "cpu: 1m ");
    let pod = |node: &str| {
        let owner =
            "{ apiVersion: apps/v1, kind: DaemonSet, name: agent, uid: a, controller: true }";
        let spec = "containers: [{ name: c, image: i, resources: { requests: { cpu: 1m } } }]";
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{ name: agent-{node}, uid: {node}, ownerReferences: [{owner}] }}\n\
             spec: {{ nodeName: {node}, {spec} }}\nstatus: {{ phase: Running }}\n"
        )
    };
    let there = format!("{agent}{}{}", pod("large"), pod("small"));
    let larger = agent.replace("cpu: 1m ", "cpu: 2m ");
    let output = on_top("on-demand", "daemon", &[], &there, &larger);
    let said = text(&output.stdout);
    let line = "~ DaemonSet `agent`: its template changes, so 2 pods are replaced\n";
    assert!(said.starts_with(line), "{said}{}", text(&output.stderr));
    let same = text(&on_top("on-demand", "daemon-same", &[], &there, &agent).stdout);
    assert!(same.starts_with(NOTHING), "{same}");
    let new = text(&on_top("on-demand", "daemon-new", &[], "", &agent).stdout);
    assert!(
        new.starts_with("+ DaemonSet `agent`: a pod on every node that it may run on\n"),
        "{new}"
    );
    // The larger pods count on nodes to come: three more pods no longer fit beside them.
    let huge = agent.replace("cpu: 1m ", "cpu: 2 ")
        + "---\n"
        + &web().replace("replicas: 9", "replicas: 12");
    let before = agent.clone() + "---\n" + &web().replace("replicas: 9", "replicas: 12");
    let cost = |test: &str, change: &str| {
        let output = on_top("on-demand", test, &["-o", "json"], &there, change);
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        document["change"]["costAfterUsdPerHour"].as_f64().unwrap()
    };
    assert!(cost("daemon-huge", &huge) > cost("daemon-small", &before));
}

#[test]
fn a_node_pool_that_means_the_same_is_no_change() {
    let terse = super::pool("limits: { cpu: 1000, memory: 1Ti }", "taints: []", "");
    // As a server stores it: with its defaults, quantities as text.
    let stored = terse
        .replace("cpu: 1000, memory: 1Ti", "cpu: \"1000\", memory: 1024Gi")
        .replace("taints: []", "expireAfter: 720h")
        .replace(
            "  template:",
            "  disruption: { consolidationPolicy: WhenEmptyOrUnderutilized, consolidateAfter: 0s, \
             budgets: [{ nodes: 10% }] }\n  template:",
        )
        .replace("metadata: { name: only }", "metadata: { name: only, uid: p }");
    let class = object("AKSNodeClass", "small", "spec: {}");
    let stored_class =
        object("AKSNodeClass", "small", "spec: { imageFamily: Ubuntu, osDiskSizeGB: 128 }");
    let more = format!("{stored}{stored_class}");
    let plan = |test: &str, change: &str| {
        let output = on_top("on-demand", test, &["--exit-code"], &more, change);
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let (code, said) = plan("pool-same", &format!("{terse}{class}"));
    assert!(said.starts_with(NOTHING) && code == Some(0), "{code:?} {said}");
    let (code, said) = plan("pool-other", &terse.replace("cpu: 1000", "cpu: 900"));
    assert!(said.starts_with("~ NodePool `only` changes: ") && code == Some(2), "{said}");
}

#[test]
fn jobs_and_cron_jobs_of_the_cluster_are_not_started_again() {
    let job = workload("Job", "import", "parallelism: 2");
    let cron = |cpu: &str| {
        let template = super::template(cpu).replace("spec: {", "spec: { restartPolicy: Never,");
        let spec = format!("jobTemplate: {{ spec: {{ template: {template} }} }}");
        object("CronJob", "report", &format!("spec: {{ schedule: \"@daily\", {spec} }}"))
    };
    let there = format!("{job}{}", cron("1"));
    let plan = |test: &str, more: &str, change: &str| {
        let output = on_top("on-demand", test, &["--exit-code"], more, change);
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let (code, said) = plan("runs-same", &there, &there);
    assert!(said.starts_with(NOTHING) && code == Some(0), "{code:?} {said}");
    let (code, said) = plan("runs-larger", &there, &cron("2"));
    let line = "~ CronJob `report`: its template changes, from its next run on\n";
    assert!(said.starts_with(line) && code == Some(2), "{said}");
    let (code, said) = plan("runs-new", "", &there);
    let new =
        said.contains("+ pods default/import (2)") && said.contains("+ pods default/report-1");
    assert!(new && code == Some(2), "{said}");
}
