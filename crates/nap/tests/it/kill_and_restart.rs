//! `nap run` is killed during a scale-up and finishes it after a restart.

use crate::process::Cluster;

const INFLATE: &str = include_str!("../../../../examples/inflate.yaml");

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn kill_during_scale_up_launches_no_extra_vm() {
    let cluster = Cluster::start(&["--no-controllers"]);
    let first = cluster.nap_run();
    cluster.apply(INFLATE);
    let names = ["get", "nodeclaims", "-o", "name"];
    cluster.until("claims appear", &names, |text| !text.trim().is_empty());
    first.kill();
    let running = ["get", "pods", "--field-selector=status.phase=Running", "-o", "name"];
    assert_eq!(cluster.ok(&running).trim(), "", "the kill came too late to be in the middle");
    let second = cluster.nap_run();
    cluster.until("10 pods run", &running, |text| text.lines().count() == 10);
    let claims = cluster.ok(&names).lines().count();
    assert_eq!(cluster.ok(&["get", "nodes", "-o", "name"]).lines().count(), claims);
    second.kill();
    let farewell = cluster.stop();
    assert!(
        farewell.contains(&format!("{claims} VM(s) created")),
        "{claims} claims, but: {farewell}"
    );
}

const GUARDED: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: { name: guarded }
spec:
  replicas: 3
  selector: { matchLabels: { app: guarded } }
  template:
    metadata: { labels: { app: guarded } }
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - { name: app, image: example.com/app:1, resources: { requests: { cpu: "1" } } }
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: { name: guarded }
spec:
  maxUnavailable: 0
  selector: { matchLabels: { app: guarded } }
"#;

/// The holder of the leader election Lease changes from `before`.
fn until_another_leads(cluster: &Cluster, before: &str) -> String {
    let lease = ["-n", "kube-system", "get", "lease", "karpenter-leader-election"];
    let holder =
        [&lease[..], &["--ignore-not-found", "-o=jsonpath={.spec.holderIdentity}"]].concat();
    cluster.until("another replica leads", &holder, |text| !text.is_empty() && text != before)
}

#[test]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
fn replicas_on_a_real_control_plane_survive_kills_during_a_drain_that_a_budget_blocks() {
    let arguments = ["--control-plane", "real", "--no-controllers", "--vm-delays", "0.1"];
    let cluster = Cluster::start_in_real_time(&arguments);
    let mut leader = cluster.nap_run();
    let mut holder = until_another_leads(&cluster, "");
    let mut other = cluster.nap_run();
    cluster.apply(GUARDED);
    let running = ["get", "pods", "--field-selector=status.phase=Running", "-o", "name"];
    let pods = cluster.until("3 pods run", &running, |text| text.lines().count() == 3);
    let claims = cluster.ok(&["get", "nodeclaims", "-o", "name"]);
    assert_eq!(claims.lines().count(), 1, "two replicas bought more than one: {claims}");

    let node = cluster.ok(&["get", "nodes", "-o", "name"]).trim().to_owned();
    cluster.ok(&["delete", &node, "--wait=false"]);
    let events = ["get", "events", "-A", "-o", "jsonpath={.items[*].reason}"];
    cluster.until("the drain is refused", &events, |text| text.contains("FailedDraining"));
    for _ in 0..2 {
        // The replica that leads dies; the other takes over the drain, and a third one stands by.
        leader.kill();
        holder = until_another_leads(&cluster, &holder);
        leader = std::mem::replace(&mut other, cluster.nap_run());
        std::thread::sleep(std::time::Duration::from_secs(8));
        assert_eq!(cluster.ok(&running), pods, "a protected pod lost its node");
        assert!(cluster.ok(&["get", "nodes", "-o", "name"]).contains(&node));
    }

    cluster.ok(&["delete", "pdb", "guarded"]);
    let nodes = ["get", "nodes", "-o", "name"];
    cluster.until("the node is gone", &nodes, |text| !text.contains(&node));
    cluster.until("3 pods run", &running, |text| text.lines().count() == 3);
    leader.kill();
    other.kill();
    cluster.stop();
}
