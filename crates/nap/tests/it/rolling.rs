//! The newest node image rolls over a real control plane: inside of its window only, past a node
//! that a budget blocks, and although a user deletes a Node in the middle.

use std::time::Duration;

use nap_azure::machines::NODECLAIM_TAG;

use crate::process::Cluster;

/// Pods that share their node with no other of their kind; the single pod of `guarded` may not be
/// evicted.
const WORKLOADS: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: { name: alone }
spec:
  replicas: 3
  selector: { matchLabels: { app: alone } }
  template:
    metadata: { labels: { app: alone } }
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: app
          image: example.com/app:1
          ports: [{ containerPort: 80, hostPort: 80 }]
          resources: { requests: { cpu: "1" } }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: guarded }
spec:
  selector: { matchLabels: { app: guarded } }
  template:
    metadata: { labels: { app: guarded } }
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: app
          image: example.com/app:1
          ports: [{ containerPort: 80, hostPort: 80 }]
          resources: { requests: { cpu: "1" } }
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: { name: guarded }
spec:
  maxUnavailable: 0
  selector: { matchLabels: { app: guarded } }
"#;

/// Images are rolled out at night of a day that is far away.
const CLOSED: &str =
    r#"[{"action": "allow", "reasons": ["Drifted"], "schedule": "0 3 29 2 *", "duration": "1h"}]"#;
const OPEN: &str =
    r#"[{"action": "allow", "reasons": ["Drifted"], "schedule": "* * * * *", "duration": "1h"}]"#;

const RUNNING: [&str; 5] = ["get", "pods", "--field-selector=status.phase=Running", "-o", "name"];

fn window(cluster: &Cluster, windows: &str) {
    let annotation = format!("nap.karpenter.sh/disruption-windows={windows}");
    cluster.ok(&["annotate", "nodepool", "default", "--overwrite", &annotation]);
}

/// Names of the NodeClaims with a condition, sorted.
fn claims_that_are(cluster: &Cluster, condition: &str) -> Vec<String> {
    let path = format!(
        "-o=jsonpath={{range .items[*]}}{{.metadata.name}} \
         {{.status.conditions[?(@.type==\"{condition}\")].status}}{{\"\\n\"}}{{end}}"
    );
    let text = cluster.ok(&["get", "nodeclaims", &path]);
    let names = text.lines().filter_map(|line| line.strip_suffix(" True"));
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    names
}

/// The NodeClaims of the VMs, sorted.
fn claims_of_vms(cluster: &Cluster) -> Vec<String> {
    let vms = cluster.vms();
    let tags = vms.iter().map(|vm| vm.properties.tags.get(NODECLAIM_TAG));
    let mut claims: Vec<String> = tags.map(|tag| tag.expect("nap's own").clone()).collect();
    claims.sort();
    claims
}

/// The node of the pod of an app.
fn node_of(cluster: &Cluster, app: &str) -> String {
    let app = format!("app={app}");
    cluster.ok(&["get", "pods", "-l", &app, "-o=jsonpath={.items[0].spec.nodeName}"])
}

#[test]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
fn new_image_rolls_in_its_window_past_a_budget_and_a_deleted_node() {
    let arguments = ["--control-plane", "real", "--no-controllers", "--vm-delays", "0.2"];
    let cluster = Cluster::start_in_real_time(&arguments);
    let disruption =
        r#"{"spec":{"disruption":{"consolidateAfter":"Never","budgets":[{"nodes":"100%"}]}}}"#;
    cluster.ok(&["patch", "nodepool", "default", "--type=merge", "-p", disruption]);
    window(&cluster, CLOSED);
    let image = "nap.karpenter.sh/pin-image-version=202601.5.0";
    cluster.ok(&["annotate", "aksnodeclass", "default", image]);
    let nap = cluster.nap_run();
    cluster.apply(WORKLOADS);
    cluster.until("four pods run", &RUNNING, |text| text.lines().count() == 4);
    let initialized = || claims_that_are(&cluster, "Initialized");
    let old = cluster.eventually("four nodes", initialized, |claims| claims.len() == 4);

    let newest = "nap.karpenter.sh/pin-image-version-";
    cluster.ok(&["annotate", "aksnodeclass", "default", newest]);
    let drifted = || claims_that_are(&cluster, "Drifted");
    cluster.eventually("all nodes drift", drifted, |claims| *claims == old);
    std::thread::sleep(Duration::from_secs(15));
    assert_eq!(claims_of_vms(&cluster), old, "nodes are replaced outside of the window");

    let guarded = node_of(&cluster, "guarded");
    window(&cluster, OPEN);
    let more = |vms: &Vec<String>| vms.len() > 4;
    cluster.eventually("replacements are launched", || claims_of_vms(&cluster), more);
    // One of the nodes that are replaced is deleted by hand.
    let victim = node_of(&cluster, "alone");
    assert_ne!(victim, guarded);
    cluster.ok(&["delete", "node", &victim, "--wait=false"]);

    let left = || -> Vec<String> {
        initialized().into_iter().filter(|claim| old.contains(claim)).collect()
    };
    let last = cluster.eventually("all but one are replaced", left, |claims| claims.len() == 1);
    cluster.until("four pods run", &RUNNING, |text| text.lines().count() == 4);
    assert_eq!(node_of(&cluster, "guarded"), guarded, "a protected pod lost its node");
    let node =
        format!("-o=jsonpath={{.items[?(@.metadata.name==\"{}\")].status.nodeName}}", last[0]);
    assert_eq!(cluster.ok(&["get", "nodeclaims", &node]), guarded);
    // Nothing is bought twice and nothing is left behind.
    cluster.eventually(
        "four VMs",
        || claims_of_vms(&cluster),
        |vms| vms.len() == 4 && *vms == initialized(),
    );

    cluster.ok(&["delete", "pdb", "guarded"]);
    cluster.eventually("the last one is replaced", left, Vec::is_empty);
    cluster.until("four pods run", &RUNNING, |text| text.lines().count() == 4);
    cluster.eventually(
        "four VMs",
        || claims_of_vms(&cluster),
        |vms| vms.len() == 4 && *vms == initialized(),
    );
    nap.stop();
    let farewell = cluster.stop();
    assert!(farewell.contains(", 4 left"), "{farewell}");
}
