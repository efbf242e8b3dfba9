//! `nap run` survives its own death, that of the API server, and a minute without an answer.

use std::time::Duration;

use nap_azure::machines::NODECLAIM_TAG;

use crate::process::Cluster;

const INFLATE: &str = include_str!("../../../../examples/inflate.yaml");
const RUNNING: [&str; 5] = ["get", "pods", "--field-selector=status.phase=Running", "-o", "name"];
const CLAIMS: [&str; 4] = ["get", "nodeclaims", "-o", "name"];
const NODES: [&str; 4] = ["get", "nodes", "-o", "name"];

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn kill_during_scale_up_launches_no_extra_vm() {
    let cluster = Cluster::start(&["--no-controllers"]);
    let first = cluster.nap_run();
    cluster.apply(INFLATE);
    cluster.until("claims appear", &CLAIMS, |text| !text.trim().is_empty());
    first.kill();
    assert_eq!(cluster.ok(&RUNNING).trim(), "", "the kill came too late to be in the middle");
    let second = cluster.nap_run();
    until_running(&cluster, 10);
    let claims = cluster.ok(&CLAIMS).lines().count();
    assert_eq!(cluster.ok(&NODES).lines().count(), claims);
    second.kill();
    let farewell = cluster.stop();
    assert!(
        farewell.contains(&format!("{claims} VM(s) created")),
        "{claims} claims, but: {farewell}"
    );
}

/// Three pods, of which as many may be unavailable as are given.
fn guarded(max_unavailable: u32) -> String {
    format!(
        r#"
apiVersion: apps/v1
kind: Deployment
metadata: {{ name: guarded }}
spec:
  replicas: 3
  selector: {{ matchLabels: {{ app: guarded }} }}
  template:
    metadata: {{ labels: {{ app: guarded }} }}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - {{ name: app, image: example.com/app:1, resources: {{ requests: {{ cpu: "1" }} }} }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{ name: guarded }}
spec:
  maxUnavailable: {max_unavailable}
  selector: {{ matchLabels: {{ app: guarded }} }}
"#
    )
}

/// A pod that shares its node with no other of its kind.
const ALONE: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: { name: alone }
spec:
  selector: { matchLabels: { app: alone } }
  template:
    metadata: { labels: { app: alone } }
    spec:
      containers:
        - name: app
          image: example.com/app:1
          ports: [{ containerPort: 80, hostPort: 80 }]
          resources: { requests: { cpu: "1" } }
"#;

/// The holder of the leader election Lease changes from `before`.
fn until_another_leads(cluster: &Cluster, before: &str) -> String {
    let lease = ["-n", "kube-system", "get", "lease", "karpenter-leader-election"];
    let holder =
        [&lease[..], &["--ignore-not-found", "-o=jsonpath={.spec.holderIdentity}"]].concat();
    cluster.until("another replica leads", &holder, |text| !text.is_empty() && text != before)
}

fn until_running(cluster: &Cluster, pods: usize) -> String {
    cluster.until(&format!("{pods} pods run"), &RUNNING, |text| text.lines().count() == pods)
}

/// Deletes the only Node, and waits until its drain is refused.
fn begin_blocked_drain(cluster: &Cluster) -> String {
    let node = cluster.ok(&NODES).trim().to_owned();
    cluster.ok(&["delete", &node, "--wait=false"]);
    let events = ["get", "events", "-A", "-o", "jsonpath={.items[*].reason}"];
    cluster.until("the drain is refused", &events, |text| text.contains("FailedDraining"));
    node
}

#[test]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
fn replicas_on_a_real_control_plane_survive_kills_during_a_drain_that_a_budget_blocks() {
    let arguments = ["--control-plane", "real", "--no-controllers", "--vm-delays", "0.1"];
    let cluster = Cluster::start_in_real_time(&arguments);
    // The pods are one batch, however slowly they are created.
    let nap_run = || cluster.nap_run_with(&[("BATCH_IDLE_DURATION", "4s")]);
    let mut leader = nap_run();
    let mut holder = until_another_leads(&cluster, "");
    let mut other = nap_run();
    cluster.apply(&guarded(0));
    let pods = until_running(&cluster, 3);
    let claims = cluster.ok(&CLAIMS);
    assert_eq!(claims.lines().count(), 1, "two replicas bought more than one: {claims}");

    let node = begin_blocked_drain(&cluster);
    for _ in 0..2 {
        // The replica that leads dies; the other takes over the drain, and a third one stands by.
        leader.kill();
        holder = until_another_leads(&cluster, &holder);
        leader = std::mem::replace(&mut other, nap_run());
        std::thread::sleep(Duration::from_secs(8));
        assert_eq!(cluster.ok(&RUNNING), pods, "a protected pod lost its node");
        assert!(cluster.ok(&NODES).contains(&node));
    }

    cluster.ok(&["delete", "pdb", "guarded"]);
    cluster.until("the node is gone", &NODES, |text| !text.contains(&node));
    until_running(&cluster, 3);
    leader.kill();
    other.kill();
    cluster.stop();
}

/// A real control plane with VMs that take some seconds, and a NodePool that keeps its nodes.
fn real_control_plane() -> Cluster {
    let arguments = ["--control-plane", "real", "--no-controllers", "--vm-delays", "0.2"];
    let cluster = Cluster::start_in_real_time(&arguments);
    patch_nodepool(&cluster, r#"{"spec":{"disruption":{"consolidateAfter":"Never"}}}"#);
    cluster
}

fn patch_nodepool(cluster: &Cluster, patch: &str) {
    cluster.ok(&["patch", "nodepool", "default", "--type=merge", "-p", patch]);
}

/// Names of the NodeClaims, sorted.
fn claims(cluster: &Cluster) -> Vec<String> {
    let names = cluster.ok(&CLAIMS);
    names.lines().filter_map(|line| line.split_once('/')).map(|(_, name)| name.to_owned()).collect()
}

/// Names of the NodeClaims that the VMs were created for, sorted.
fn claims_of_vms(cluster: &Cluster) -> Vec<String> {
    let vms = cluster.vms();
    let claim = |tag: Option<&String>| tag.expect("nap tags its VMs").clone();
    let mut claims: Vec<String> =
        vms.iter().map(|vm| claim(vm.properties.tags.get(NODECLAIM_TAG))).collect();
    claims.sort();
    claims
}

/// Waits until Azure has begun to create a VM beside those of the NodeClaims in `before`. Returns
/// the name of its NodeClaim.
fn until_launching(cluster: &Cluster, before: &[String]) -> String {
    let more = |vms: &Vec<String>| vms.len() > before.len();
    let vms = cluster.eventually("one more VM", || claims_of_vms(cluster), more);
    vms.into_iter().find(|claim| !before.contains(claim)).expect("a NodeClaim has one VM")
}

/// The VM of the NodeClaim is being created: its node has not joined. Azure accepts a VM within a
/// second, so that the NodeClaim may know it or not.
fn assert_launching(cluster: &Cluster, claim: &str) {
    let node = ["get", "nodeclaim", claim, "-o=jsonpath={.status.nodeName}"];
    assert_eq!(cluster.ok(&node), "", "the kill came too late to be in the middle");
}

/// Uids of the pods of an app.
fn uids(cluster: &Cluster, app: &str) -> String {
    let app = format!("app={app}");
    cluster.ok(&["get", "pods", "-l", &app, "-o=jsonpath={.items[*].metadata.uid}"])
}

/// Least number of pods that were ready at once, from the output of [`WATCH_PODS`].
fn least_ready(watched: &str) -> usize {
    let (mut ready, mut least) = (std::collections::BTreeSet::new(), usize::MAX);
    for (seen, line) in watched.lines().enumerate() {
        let (name, state) = line.split_once(' ').expect("a name and a state");
        match state {
            "True " => ready.insert(name),
            _ => ready.remove(name),
        };
        // The first lines are the list, one pod each.
        least = if seen < 3 { least } else { least.min(ready.len()) };
    }
    least
}

/// Prints each change of the guarded pods: name, readiness, time of deletion.
const WATCH_PODS: [&str; 6] = [
    "get",
    "pods",
    "-l",
    "app=guarded",
    "--watch",
    "-o=jsonpath={.metadata.name} {.status.conditions[?(@.type==\"Ready\")].status} {.metadata.deletionTimestamp}{\"\\n\"}",
];

#[test]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
fn kills_during_a_launch_and_a_replacement_buy_no_vm_twice_and_break_no_budget() {
    let cluster = real_control_plane();
    let nap = cluster.nap_run();
    cluster.apply(&guarded(1));
    let old = until_launching(&cluster, &[]);
    nap.kill();
    assert_launching(&cluster, &old);
    let nap = cluster.nap_run();
    until_running(&cluster, 3);
    assert_eq!((claims(&cluster), claims_of_vms(&cluster)), (vec![old.clone()], vec![old.clone()]));

    // The NodePool's nodes drift. Their replacements are initialized when the taint is removed.
    let watch = cluster.kubectl_watch(&WATCH_PODS);
    let pods = uids(&cluster, "guarded");
    patch_nodepool(
        &cluster,
        r#"{"spec":{"template":{"spec":{"startupTaints":[{"key":"example.com/agent","effect":"NoSchedule"}]}}}}"#,
    );
    let new = until_launching(&cluster, std::slice::from_ref(&old));
    nap.kill();
    assert_launching(&cluster, &new);
    let nap = cluster.nap_run();
    let joined = [
        "get",
        "nodeclaim",
        &new,
        "-o=jsonpath={.status.conditions[?(@.type==\"Registered\")].status} {.status.nodeName}",
    ];
    let joined = cluster.until("the replacement joins", &joined, |text| text.starts_with("True "));
    nap.kill();
    assert_eq!(uids(&cluster, "guarded"), pods, "the replacement is not initialized");
    let nap = cluster.nap_run();
    let node = joined.trim_start_matches("True ");
    cluster.ok(&["taint", "node", node, "example.com/agent-"]);
    let moving = |now: &String| *now != pods;
    cluster.eventually("the drain begins", || uids(&cluster, "guarded"), moving);
    nap.kill();
    assert_eq!(claims(&cluster).len(), 2, "the kill came too late to be in the middle");
    let nap = cluster.nap_run();
    let only = |vms: &Vec<String>| *vms == [new.clone()];
    cluster.eventually("the old VM is gone", || claims_of_vms(&cluster), only);
    until_running(&cluster, 3);
    cluster.eventually("the old NodeClaim is gone", || claims(&cluster), only);
    assert_eq!(cluster.ok(&NODES).trim(), format!("node/{node}"));
    let watched = watch.kill_with_output();
    assert_eq!(least_ready(&watched), 2, "{watched}");
    nap.kill();
    let farewell = cluster.stop();
    assert!(farewell.contains("2 VM(s) created, 1 left"), "{farewell}");
}

/// Every Node has renewed its Lease since now.
fn until_leases_are_renewed(cluster: &Cluster) {
    let renewed = || -> Vec<String> {
        let times = "-o=jsonpath={range .items[*]}{.metadata.name} {.spec.renewTime}{\"\\n\"}{end}";
        let text = cluster.ok(&["-n", "kube-node-lease", "get", "leases", times]);
        text.lines().map(str::to_owned).collect()
    };
    let before = renewed();
    cluster.eventually("every kubelet renews its Lease", renewed, |now| {
        now.iter().all(|lease| !before.contains(lease))
    });
}

#[test]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
fn api_server_that_restarts_or_hangs_during_a_blocked_drain_and_a_launch_costs_nothing() {
    let cluster = real_control_plane();
    let nap = cluster.nap_run();
    cluster.apply(&guarded(0));
    until_running(&cluster, 3);
    let pods = uids(&cluster, "guarded");
    let node = begin_blocked_drain(&cluster);

    let before = claims(&cluster);
    cluster.apply(ALONE);
    until_launching(&cluster, &before);
    cluster.signal("kube-apiserver", "-KILL");
    cluster.until_it_answers();
    until_running(&cluster, 4);
    assert_eq!(uids(&cluster, "guarded"), pods, "a protected pod was evicted");
    assert!(cluster.ok(&NODES).contains(&node));
    assert_eq!(claims_of_vms(&cluster), claims(&cluster));

    let before = claims(&cluster);
    cluster.ok(&["scale", "deployment", "alone", "--replicas=2"]);
    until_launching(&cluster, &before);
    let told = cluster.log().len();
    // With the whole control plane, so that no node counts as lost before its kubelet can renew its
    // Lease: the API server lets pods of lost nodes be evicted for a moment, whatever their budget.
    cluster.signal("kube-controller-manager", "-STOP");
    cluster.signal("kube-apiserver", "-STOP");
    std::thread::sleep(Duration::from_mins(1));
    cluster.signal("kube-apiserver", "-CONT");
    cluster.until_it_answers();
    until_leases_are_renewed(&cluster);
    cluster.signal("kube-controller-manager", "-CONT");
    let regained = |log: &String| {
        let since = log[told..].split_once("lost leadership");
        since.is_some_and(|(_, since)| since.contains("became leader"))
    };
    cluster.eventually("nap leads again", || cluster.log(), regained);
    until_running(&cluster, 5);
    assert_eq!(uids(&cluster, "guarded"), pods, "a protected pod was evicted");
    assert!(cluster.ok(&NODES).contains(&node));
    assert_eq!(claims_of_vms(&cluster), claims(&cluster));

    cluster.ok(&["delete", "pdb", "guarded"]);
    cluster.until("the node is gone", &NODES, |text| !text.contains(&node));
    until_running(&cluster, 5);
    assert_eq!(claims_of_vms(&cluster), claims(&cluster));
    nap.stop();
    // The drained node, its successor, and two for the pods that stay alone.
    let farewell = cluster.stop();
    assert!(farewell.contains("4 VM(s) created, 3 left"), "{farewell}");
}
