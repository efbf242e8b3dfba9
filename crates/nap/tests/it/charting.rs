//! The chart: linted and rendered by helm, installed on a real API server, and its policy judged
//! there with kubectl.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nap_controlplane::{Parts, Plane};
use nap_controlplane_build::Kubectl;

use crate::process::{output, text};

/// Values that every installation needs.
const NEEDED: [&str; 5] = [
    "settings.subscriptionId=00000000-0000-0000-0000-000000000000",
    "settings.resourceGroup=group",
    "settings.nodeResourceGroup=MC_group_cluster_eastus",
    "settings.clusterName=cluster",
    "settings.location=eastus",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn helm(arguments: &[&str], sets: &[&str]) -> Output {
    let tools = nap_controlplane_build::tools().expect("tests are ignored without it");
    let mut command = Command::new(tools.join("helm"));
    command.args(arguments).current_dir(root());
    // Nothing of the user's configuration counts.
    for variable in ["HELM_CONFIG_HOME", "HELM_CACHE_HOME", "HELM_DATA_HOME"] {
        command.env(variable, std::env::temp_dir().join("nap-helm"));
    }
    for set in sets {
        command.args(["--set", set]);
    }
    command.output().expect("helm starts")
}

fn ok(arguments: &[&str], sets: &[&str]) -> String {
    let output = helm(arguments, sets);
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "helm {arguments:?}: {said}");
    text(&output.stdout)
}

/// Installs the chart in `kube-system`.
pub fn helm_install(kubeconfig: &str, sets: &[&str]) {
    let arguments =
        ["install", "nap", "charts/nap", "-n", "kube-system", "--kubeconfig", kubeconfig];
    ok(&arguments, sets);
}

/// All switches on.
const EVERYTHING: [&str; 7] = [
    "defaultNodePools=Auto",
    "metrics.serviceMonitor.enabled=true",
    "metrics.rules.enabled=true",
    "metrics.dashboard.enabled=true",
    "serviceAccount.clientId=id",
    "settings.schedulerConfig=podTopologySpread: {}",
    "settings.enableProfiling=true",
];

#[test]
#[cfg_attr(no_tools, ignore = "helm is missing; `make controlplane` builds it")]
fn the_chart_is_clean_and_refuses_what_it_does_not_know() {
    ok(&["lint", "--strict", "charts/nap"], &NEEDED);
    ok(&["lint", "--strict", "charts/nap"], &[&NEEDED[..], &EVERYTHING].concat());
    let plain = ok(&["template", "nap", "charts/nap", "-n", "kube-system"], &NEEDED);
    for kind in [
        "kind: NodePool",
        "ServiceMonitor",
        "PrometheusRule",
        "AdmissionPolicy",
        "PROFILING",
        "/tmp",
    ] {
        assert!(!plain.contains(kind), "{kind} is off by default");
    }
    let all = [&NEEDED[..], &EVERYTHING].concat();
    let full = ok(&["template", "nap", "charts/nap", "-n", "kube-system"], &all);
    for part in [
        "kind: NodePool",
        "name: system-surge",
        "kind: ServiceMonitor",
        "alert: NapNoLeader",
        "nap_fleet_cost",
        "name: ENABLE_PROFILING",
        "mountPath: /tmp",
        "validationActions: [Warn]",
        "resources: [replicasets, statefulsets]",
        "azure.workload.identity/client-id: \"id\"",
    ] {
        assert!(full.contains(part), "{part}");
    }
    for (wrong, said) in [
        ("replica=3", "replica"),
        ("defaultNodePools=auto", "defaultNodePools"),
        ("settings.clusterName=", "clusterName"),
    ] {
        let sets = [&NEEDED[..], &[wrong]].concat();
        let refused = helm(&["template", "nap", "charts/nap"], &sets);
        let error = text(&refused.stderr);
        assert!(!refused.status.success() && error.contains(said), "{wrong}: {error}");
    }
}

#[test]
#[cfg_attr(no_tools, ignore = "helm is missing; `make controlplane` builds it")]
fn the_plain_manifests_are_rendered_from_the_chart() {
    let settings = [
        "settings.subscriptionId=SUBSCRIPTION",
        "settings.resourceGroup=GROUP",
        "settings.nodeResourceGroup=NODE_GROUP",
        "settings.clusterName=CLUSTER",
        "settings.location=REGION",
        "serviceAccount.clientId=CLIENT_ID",
        "image.repository=REGISTRY/nap",
    ];
    let rendered = ok(&["template", "nap", "charts/nap", "-n", "kube-system"], &settings);
    let head = "# Rendered from charts/nap; do not edit. Replace the words in capitals.\n\
                # `NAP_BLESS=1 cargo test -p nap --test it charting` refreshes it.\n";
    let rendered = format!("{head}{rendered}");
    let path = root().join("deploy/nap.yaml");
    if std::env::var_os("NAP_BLESS").is_some() {
        std::fs::write(&path, &rendered).expect("the folder exists");
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(written == rendered, "deploy/nap.yaml is stale; see its head");
}

fn run(kubectl: &Kubectl, arguments: &[&str], input: &str) -> (bool, String) {
    let output = kubectl.run(arguments, input).expect("kubectl starts");
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

fn pod(labels: &str, resources: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{ name: web, labels: {{ app: web{labels} }} }}\n\
         spec: {{ containers: [{{ name: app, image: example.com/app, resources: {{ {resources} }} }}] }}\n"
    )
}

#[test]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
#[cfg_attr(
    all(no_tools, not(no_control_plane)),
    ignore = "helm is missing; `make controlplane` builds it"
)]
fn the_chart_installs_and_its_policy_denies_warns_and_exempts() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let plane = runtime.block_on(Plane::start(Parts::All)).expect("a plane");
    let kubeconfig = plane.kubeconfig();
    let path = kubeconfig.to_str().expect("text");
    let kubectl = Kubectl::new(&kubeconfig).expect("there is a kubectl");
    let auto = [&NEEDED[..], &["defaultNodePools=Auto"]].concat();
    helm_install(path, &auto);
    let (_, seen) =
        run(&kubectl, &["-n", "kube-system", "get", "deployment,pdb,sa", "-o=name"], "");
    for name in ["deployment.apps/nap", "poddisruptionbudget.policy/nap", "serviceaccount/nap"] {
        assert!(seen.contains(name), "{name}: {seen}");
    }
    let (_, pools) = run(&kubectl, &["get", "nodepools,aksnodeclasses", "-o=name"], "");
    assert!(pools.contains("nodepool.karpenter.sh/system-surge"), "{pools}");
    // The roles of the chart are those that `nap rbac` prints.
    let (_, of_chart) = run(&kubectl, &["get", "clusterrole", "nap", "-o=jsonpath={.rules}"], "");
    let printed = text(&output(&["rbac"]).stdout);
    run(&kubectl, &["apply", "-f", "-"], &printed);
    let (_, of_nap) = run(&kubectl, &["get", "clusterrole", "nap", "-o=jsonpath={.rules}"], "");
    assert_eq!(of_chart, of_nap);

    let create = ["create", "--dry-run=server", "-f", "-"];
    let asks = "requests: { cpu: 1, memory: 1Gi }";
    // The API server takes a moment to load a policy.
    let eventually = |input: &str, expected: &dyn Fn(bool, &str) -> bool| {
        let mut last = String::new();
        for _ in 0..100 {
            let (created, said) = run(&kubectl, &create, input);
            if expected(created, &said) {
                return;
            }
            last = said;
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        panic!("never: {last}");
    };
    let complaint = "containers without requests for cpu and memory: app";
    eventually(&pod("", ""), &|created, said| {
        created && said.contains("Warning: ") && said.contains(complaint)
    });
    eventually(&pod("", asks), &|created, said| created && !said.contains("Warning: "));

    let upgrade = ["upgrade", "nap", "charts/nap", "-n", "kube-system", "--kubeconfig", path];
    ok(&upgrade, &[&auto[..], &["requestsPolicy.mode=Deny"]].concat());
    eventually(&pod("", ""), &|created, said| !created && said.contains(complaint));
    eventually(&pod("", "requests: { cpu: 1 }"), &|created, _| !created);
    eventually(&pod("", asks), &|created, _| created);
    let exempt = ", nap.karpenter.sh/requests-policy: exempt";
    eventually(&pod(exempt, ""), &|created, _| created);
    let (created, said) = run(
        &kubectl,
        &["-n", "kube-system", "create", "--dry-run=server", "-f", "-"],
        &pod("", ""),
    );
    assert!(created && !said.contains("Warning: "), "kube-system is exempt: {said}");
    run(
        &kubectl,
        &["label", "namespace", "default", "nap.karpenter.sh/requests-policy=exempt"],
        "",
    );
    eventually(&pod("", ""), &|created, said| created && !said.contains("Warning: "));

    ok(&upgrade, &[&NEEDED[..], &["defaultNodePools=None"]].concat());
    let (_, pools) = run(&kubectl, &["get", "nodepools", "-o=name"], "");
    assert!(pools.contains("nodepool.karpenter.sh/default"), "they are left alone: {pools}");

    ok(&["uninstall", "nap", "-n", "kube-system", "--kubeconfig", path], &[]);
    let (_, left) = run(&kubectl, &["get", "nodepools,crds", "-o=name"], "");
    for name in ["nodepool.karpenter.sh/default", "nodeclaims.karpenter.sh"] {
        assert!(left.contains(name), "{name}: {left}");
    }
    let (found, said) = run(&kubectl, &["-n", "kube-system", "get", "deployment", "nap"], "");
    assert!(!found, "{said}");
}
