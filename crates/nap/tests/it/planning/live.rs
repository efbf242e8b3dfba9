//! `nap plan` and `nap explain` on a live cluster.

use super::folder;
use crate::process::{Cluster, nap, text};

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn plan_of_a_live_cluster_writes_nothing() {
    let cluster = Cluster::start(&["--no-controllers"]);
    cluster.apply(include_str!("../../../../../examples/inflate.yaml"));
    let waiting = ["get", "pods", "-o", "jsonpath={.items[*].status.conditions[*].reason}"];
    cluster.until("10 pods wait", &waiting, |text| text.matches("Unschedulable").count() == 10);
    let before = cluster.ok(&["get", "nodes,nodepools,nodeclaims,pods", "-A", "-o", "name"]);
    let plan = nap(&["plan", "--kubeconfig"]).arg(&cluster.kubeconfig).output().unwrap();
    let (said, notes) = (text(&plan.stdout), text(&plan.stderr));
    assert!(plan.status.success(), "{notes}");
    assert!(said.contains("for 10 pods: $") && said.contains("default/inflate ("), "{said}");
    assert!(said.starts_with("No nodes.\n"), "{said}");
    let more = include_str!("../../../../../examples/inflate.yaml")
        .replace("replicas: 10", "replicas: 14");
    let more = folder("on-cluster", &[("m.yaml", &more)]).join("m.yaml").display().to_string();
    let changed =
        nap(&["plan", "-f", &more, "--kubeconfig"]).arg(&cluster.kubeconfig).output().unwrap();
    let said = text(&changed.stdout);
    assert!(said.contains("+ pods default/inflate (4)\n"), "{said}{}", text(&changed.stderr));
    let name = cluster.ok(&["get", "pods", "-o", "jsonpath={.items[0].metadata.name}"]);
    let explained =
        nap(&["explain", "pod", &name, "--kubeconfig"]).arg(&cluster.kubeconfig).output().unwrap();
    assert!(text(&explained.stdout).contains("gets a new VM"), "{}", text(&explained.stderr));
    assert_eq!(before, cluster.ok(&["get", "nodes,nodepools,nodeclaims,pods", "-A", "-o", "name"]));
    let explain = |name: &str| {
        let mut command = nap(&["explain", "pod", name, "--kubeconfig"]);
        let output = command.arg(&cluster.kubeconfig).output().unwrap();
        text(&output.stdout) + &text(&output.stderr)
    };
    assert!(explain("deployment/inflate").contains("gets a new VM"), "{}", explain("inflate"));
    let other = explain("statefulset/inflate");
    assert!(other.contains("error: there is no StatefulSet `default/inflate`"), "{other}");
    cluster.ok(&["scale", "deployment", "inflate", "--replicas=0"]);
    cluster.until("no pod is left", &["get", "pods", "-o", "name"], str::is_empty);
    let none = explain("inflate");
    assert!(
        none.contains("Deployment `default/inflate` has no pods\n  it has 0 replicas\n"),
        "{none}"
    );
}

const INFLATE: &str = include_str!("../../../../../examples/inflate.yaml");
const AUTOSCALER: &str = "
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: { name: inflate, namespace: default }
spec:
  scaleTargetRef: { apiVersion: apps/v1, kind: Deployment, name: inflate }
  minReplicas: 10
  maxReplicas: 20
";

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn plan_of_a_live_cluster_with_nodes_shows_the_fleet_and_what_a_change_costs() {
    let cluster = Cluster::start(&[]);
    cluster.apply(INFLATE);
    let running = ["get", "pods", "--field-selector=status.phase=Running", "-o", "name"];
    cluster.until("10 pods run", &running, |text| text.lines().count() == 10);
    let plan = |arguments: &[&str]| {
        let mut command = nap(&["plan", "--offline"]);
        command.args(arguments).env("KUBECONFIG", &cluster.kubeconfig);
        command.output().unwrap()
    };
    let fleet = plan(&["--context", "nap-try"]);
    let said = text(&fleet.stdout);
    assert!(fleet.status.success(), "{}", text(&fleet.stderr));
    let (head, rest) = said.split_once('\n').unwrap();
    assert!(head.contains(" for $") && head.ends_with("/month"), "{said}");
    assert!(head.starts_with(|first: char| first.is_ascii_digit() && first != '0'), "{said}");
    assert!(rest.contains("NODES  SIZE") && rest.contains("Standard_D"), "{said}");
    assert!(said.ends_with("Nothing to do: no pod needs a place.\n"), "{said}");

    let more = INFLATE.replace("replicas: 10", "replicas: 60");
    let fewer = INFLATE.replace("replicas: 10", "replicas: 2");
    let files = [("more.yaml", more.as_str()), ("fewer.yaml", &fewer)];
    let folder = folder("on-nodes", &files);
    let file = |name: &str| folder.join(name).display().to_string();
    let on_top = ["-f", &file("more.yaml"), "--context", "nap-try"];
    let changed = plan(&[&on_top[..], &["--exit-code"]].concat());
    let said = text(&changed.stdout);
    assert_eq!(changed.status.code(), Some(2), "{said}{}", text(&changed.stderr));
    assert!(said.starts_with("+ pods default/inflate (50)\n+ VM Standard_D"), "{said}");
    assert!(said.contains("/month) before, $") && said.contains("/month) after: +$"), "{said}");
    let dear = plan(&[&on_top[..], &["--max-cost", "0.001/h"]].concat());
    assert_eq!(dear.status.code(), Some(3), "{}", text(&dear.stderr));
    assert!(text(&dear.stderr).contains("more than --max-cost $0.001/h"), "{}", text(&dear.stderr));
    let lost = plan(&["-f", &file("more.yaml"), "--context", "elsewhere"]);
    let error = text(&lost.stderr);
    assert!(!lost.status.success() && error.contains("elsewhere"), "{error}");

    let on_top = ["-f", &file("fewer.yaml"), "--context", "nap-try"];
    let said = text(&plan(&on_top).stdout);
    assert!(said.contains("- Deployment `default/inflate`: 8 pods fewer\n"), "{said}");
    cluster.apply(AUTOSCALER);
    let held = plan(&on_top);
    let (said, notes) = (text(&held.stdout), text(&held.stderr));
    assert!(!said.contains("fewer"), "{said}{notes}");
    let line = "`replicas: 2` makes no difference: HorizontalPodAutoscaler `default/inflate` keeps";
    assert!(notes.contains(line), "{said}{notes}");
}

const RUNS: &str = include_str!("../../../../../examples/workloads/cronjob.yaml");
const ONCE: &str = "
apiVersion: batch/v1
kind: Job
metadata: { name: once, namespace: default }
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
        - { name: c, image: busybox, command: [sleep, \"1\"], resources: { requests: { cpu: 1 } } }
";
const DAEMON: &str = "
apiVersion: apps/v1
kind: DaemonSet
metadata: { name: agent, namespace: default }
spec:
  selector: { matchLabels: { app: agent } }
  template:
    metadata: { labels: { app: agent } }
    spec: { containers: [{ name: c, image: i }] }
";
const RANGE: &str = "
apiVersion: v1
kind: LimitRange
metadata: { name: defaults, namespace: default }
spec: { limits: [{ type: Container, defaultRequest: { cpu: 3 } }] }
";

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn what_a_live_cluster_has_already_is_no_change() {
    let cluster = Cluster::start(&[]);
    let nightly = RUNS.replace("*/5 * * * *", "@yearly");
    cluster.apply(&nightly);
    cluster.apply(ONCE);
    let done = ["get", "job", "once", "-o", "jsonpath={.status.succeeded}"];
    cluster.until("the job is done", &done, |text| text == "1");
    let pool = include_str!("../../../../../examples/default-nodepool.yaml");
    // The default of the definition may be left out.
    let pool = pool.replace("    budgets:\n      - nodes: 10%\n", "");
    let all = format!("{nightly}---{ONCE}---\n{pool}");
    let file = folder("there", &[("m.yaml", &all)]).join("m.yaml").display().to_string();
    let plan = |arguments: &[&str]| {
        let mut command = nap(&["plan", "--offline"]);
        command.args(arguments).arg("--kubeconfig").arg(&cluster.kubeconfig);
        command.output().unwrap()
    };
    let same = plan(&["-f", &file, "--exit-code"]);
    let said = text(&same.stdout) + &text(&same.stderr);
    assert!(said.starts_with("No change to pods, nodes or cost.\n"), "{said}");
    assert_eq!(same.status.code(), Some(0), "{said}");

    let explain = |arguments: &[&str]| {
        let mut command = nap(&["explain", "pod"]);
        command.args(arguments).arg("--kubeconfig").arg(&cluster.kubeconfig);
        let output = command.output().unwrap();
        text(&output.stdout) + &text(&output.stderr)
    };
    let cron = explain(&["backup", "-n", "nightly"]);
    assert!(cron.contains("CronJob `nightly/backup` has no pods\n"), "{cron}");
    // A manifest on top of the cluster is explained as after `kubectl apply`.
    let web = folder("there-new", &[("m.yaml", INFLATE)]).join("m.yaml").display().to_string();
    let new = explain(&["inflate", "-f", &web]);
    // The cluster may have room by now.
    let placed = ["gets a new VM", "goes onto "].map(|end| format!("default/inflate-1 {end}"));
    assert!(placed.iter().any(|placed| new.contains(placed)), "{new}");
    let both = nap(&["plan", "disruption", "-f", &web, "--kubeconfig"])
        .arg(&cluster.kubeconfig)
        .output()
        .unwrap();
    let error = text(&both.stderr);
    assert!(!both.status.success() && error.contains("only one of them can be"), "{error}");
}

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn limit_ranges_of_a_live_cluster_count_for_its_daemons() {
    let cluster = Cluster::start(&["--no-controllers"]);
    cluster.apply(DAEMON);
    cluster.apply(&INFLATE.replace("replicas: 10", "replicas: 1"));
    let waiting = ["get", "pods", "-o", "jsonpath={.items[*].status.conditions[*].reason}"];
    cluster.until("a pod waits", &waiting, |text| text.contains("Unschedulable"));
    let cost = || {
        let plan = nap(&["plan", "--offline", "-o", "json", "--kubeconfig"])
            .arg(&cluster.kubeconfig)
            .output()
            .unwrap();
        let document: serde_json::Value = serde_json::from_slice(&plan.stdout).unwrap();
        document["costUsdPerHour"].as_f64().unwrap()
    };
    let without = cost();
    cluster.apply(RANGE);
    assert!(cost() > without, "daemons of 3 CPUs need a larger VM");
}
