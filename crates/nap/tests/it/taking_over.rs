//! Takeover on a real control plane: the incumbent's own Azure controller makes the nodes, nap
//! takes them over, and the incumbent takes them back. `nap run` beside AKS's own provisioning.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::incumbent::{self, SecureAzure};
use crate::process::{Cluster, nap, text};

const INFLATE: &str = include_str!("../../../../examples/inflate.yaml");
const POOL: &str = include_str!("../../../../examples/default-nodepool.yaml");

/// Annotations that must survive a takeover.
const HASHES: [&str; 5] = [
    "karpenter.sh/nodepool-hash",
    "karpenter.sh/nodepool-hash-version",
    "karpenter.azure.com/aksnodeclass-hash",
    "karpenter.azure.com/aksnodeclass-hash-version",
    "karpenter.azure.com/in-place-update-hash",
];

fn objects(cluster: &Cluster, kind: &str) -> Vec<Value> {
    let list: Value = serde_json::from_str(&cluster.ok(&["get", kind, "-o=json"])).expect("JSON");
    list["items"].as_array().cloned().expect("a list")
}

/// Uid, provider id and hashes of each NodeClaim by its name. None is leaving or has drifted.
fn claims(cluster: &Cluster) -> BTreeMap<String, Vec<String>> {
    let claims = objects(cluster, "nodeclaims").into_iter().map(|claim| {
        let metadata = &claim["metadata"];
        let name = metadata["name"].as_str().expect("a name").to_owned();
        assert!(metadata["deletionTimestamp"].is_null(), "{name} is leaving: {claim}");
        let conditions = claim["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let drifted = conditions.iter().find(|one| one["type"] == "Drifted");
        assert!(drifted.is_none_or(|one| one["status"] != "True"), "{name}: {drifted:?}");
        let hashes = HASHES.iter().map(|key| metadata["annotations"][*key].to_string());
        let ids = [metadata["uid"].to_string(), claim["status"]["providerID"].to_string()];
        (name, ids.into_iter().chain(hashes).collect())
    });
    claims.collect()
}

/// Uid of each Node of a NodePool by its name.
fn nodes(cluster: &Cluster) -> BTreeMap<String, String> {
    let nodes = objects(cluster, "nodes").into_iter();
    let managed =
        nodes.filter(|node| node["metadata"]["labels"]["karpenter.sh/nodepool"].is_string());
    managed
        .map(|node| {
            let metadata = &node["metadata"];
            (metadata["name"].as_str().expect("a name").to_owned(), metadata["uid"].to_string())
        })
        .collect()
}

/// The holder of the Lease.
fn leader(cluster: &Cluster) -> String {
    let lease =
        ["-n=kube-system", "get", "lease", "karpenter-leader-election", "--ignore-not-found"];
    cluster.ok(&[&lease[..], &["-o=jsonpath={.spec.holderIdentity}"]].concat())
}

fn until_running(cluster: &Cluster, count: &str) {
    let available = ["get", "deployment", "inflate", "-o=jsonpath={.status.availableReplicas}"];
    cluster.until(&format!("{count} pods run"), &available, |seen| seen == count);
}

/// NodeClaims and Nodes of one moment.
struct Fleet {
    claims: BTreeMap<String, Vec<String>>,
    nodes: BTreeMap<String, String>,
}

impl Fleet {
    fn of(cluster: &Cluster) -> Self {
        Self { claims: claims(cluster), nodes: nodes(cluster) }
    }
}

/// Sees that everything stays as it is for some seconds, in which controllers look at every object.
fn stays(cluster: &Cluster, fleet: &Fleet, seconds: u64) {
    for _ in 0..seconds / 5 {
        std::thread::sleep(Duration::from_secs(5));
        let now = Fleet::of(cluster);
        assert_eq!(now.claims, fleet.claims, "a NodeClaim was replaced, lost or changed");
        assert_eq!(now.nodes, fleet.nodes, "a Node was replaced or lost");
    }
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // A folder of an earlier run.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("serviceaccount")).expect("a folder");
    folder
}

/// The service account of a pod, which the incumbent expects.
fn service_account(cluster: &Cluster, folder: &Path) {
    let create = ["-n=kube-system", "create", "serviceaccount", "karpenter"];
    cluster.ok(&create);
    let admin = "--clusterrole=cluster-admin";
    let account = "--serviceaccount=kube-system:karpenter";
    cluster.ok(&["create", "clusterrolebinding", "karpenter", admin, account]);
    let token = cluster.ok(&["-n=kube-system", "create", "token", "karpenter", "--duration=2h"]);
    std::fs::write(folder.join("serviceaccount/token"), token).expect("ours");
    let query = "-o=jsonpath={.data.ca\\.crt}";
    let root = ["-n=kube-system", "get", "configmap", "kube-root-ca.crt", query];
    let root = cluster.until("the roots are published", &root, |seen| !seen.is_empty());
    std::fs::write(folder.join("serviceaccount/ca.crt"), root).expect("ours");
}

/// Environment of a nap that shares the cluster with the incumbent.
fn environment(cluster: &Cluster, azure: &SecureAzure) -> Vec<(String, String)> {
    let own = azure.environment().map(|(name, value)| (name.to_owned(), value.to_owned()));
    incumbent::shared_environment(cluster).into_iter().chain(own).collect()
}

#[test]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
#[cfg_attr(
    all(no_incumbent_controller, not(no_control_plane)),
    ignore = "the incumbent's controller is missing; `make controlplane` builds it"
)]
fn nodes_of_the_incumbent_are_taken_over_and_given_back() {
    let arguments = ["--control-plane=real", "--no-controllers", "--vm-delays=0.1"];
    let cluster = Cluster::start_in_real_time(&arguments);
    let folder = folder("taking-over");
    service_account(&cluster, &folder);
    let endpoint = cluster.environment()["NAP_ARM_ENDPOINT"].clone();
    let azure = SecureAzure::start(&endpoint, &folder);
    // Consolidation would be nap's decision and not a part of a takeover.
    cluster.apply(&POOL.replace("WhenEmptyOrUnderutilized", "WhenEmpty"));
    let first = incumbent::start(&cluster, &azure, &folder);
    cluster.apply(INFLATE);
    until_running(&cluster, "10");
    let made = Fleet::of(&cluster);
    assert!(!made.claims.is_empty() && made.claims.len() == made.nodes.len());
    let of_incumbent = leader(&cluster);

    // To nap, the incumbent is AKS's own controller: it starts only if it is told to, and does not
    // act while the other holds the Lease.
    let env = environment(&cluster, &azure);
    let refused = nap(&["run"]).envs(env.clone()).output().expect("nap starts");
    let said = text(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("AKS runs node auto-provisioning"),
        "{said}"
    );
    let env: Vec<(&str, &str)> =
        env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    // A dry run beside the other changes nothing, and has a Lease of its own.
    let dry = cluster.nap_run_with(&[&env[..], &[("NAP_DRY_RUN", "true")]].concat());
    let of_dry = ["-n=kube-system", "get", "lease", "karpenter-leader-election-dry-run"];
    cluster.eventually("it leads", || cluster.kubectl(&of_dry), |output| output.status.success());
    stays(&cluster, &made, 15);
    dry.stop();
    let nap = cluster.nap_run_with(&[&env[..], &[("NAP_TAKE_OVER", "true")]].concat());
    let led = || leader(&cluster);
    stays(&cluster, &made, 15);
    assert_eq!(led(), of_incumbent);
    // It ends with an error when it is told to stop, since it loses its Lease.
    first.kill();

    let is_other = |holder: &String, last: &str| !holder.is_empty() && holder != last;
    let of_nap = cluster.eventually("nap leads", led, |holder| is_other(holder, &of_incumbent));
    stays(&cluster, &made, 60);
    cluster.ok(&["scale", "deployment", "inflate", "--replicas=30"]);
    until_running(&cluster, "30");
    let both = Fleet::of(&cluster);
    assert!(both.claims.len() > made.claims.len(), "nap has launched nodes too");
    let is_kept = |(name, claim): (&String, &Vec<String>)| both.claims.get(name) == Some(claim);
    assert!(made.claims.iter().all(is_kept), "{:?} {:?}", made.claims, both.claims);
    nap.stop();

    let second = incumbent::start(&cluster, &azure, &folder);
    cluster.eventually("the incumbent leads", led, |holder| is_other(holder, &of_nap));
    stays(&cluster, &both, 60);
    cluster.ok(&["scale", "deployment", "inflate", "--replicas=0"]);
    cluster.until("no NodeClaim is left", &["get", "nodeclaims", "-o=name"], str::is_empty);
    assert!(cluster.vms().is_empty(), "it deleted nap's machines too");
    second.kill();
}
