//! The chart as it is installed: `nap run` with the arguments, the environment and the service
//! account of its Deployment, judged by the audit log of a real API server.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nap_controllers::permissions;
use nap_controlplane::{Parts, Plane};
use nap_controlplane_build::Kubectl;
use serde_json::{Value, json};

use crate::charting::helm_install;
use crate::process::{Cluster, Process, get, nap, ports, text};

const INFLATE: &str = include_str!("../../../../examples/inflate.yaml");
/// The service account of the chart.
const ACCOUNT: &str = "system:serviceaccount:kube-system:nap";

/// Declared permissions that a scale-up and a scale-down do not use, each for its case.
const FOR_OTHER_CASES: [&str; 10] = [
    // At the end of a terminationGracePeriod.
    "/pods delete",
    // Repeats of an event.
    "/events patch",
    // After a conflict, or if the index lacks an object.
    "/nodes get",
    "/nodes list",
    "karpenter.sh/nodepools get",
    "karpenter.sh/nodeoverlays get",
    "karpenter.sh/nodeclaims get",
    // Statuses of overlays, of which there are none.
    "karpenter.sh/nodeoverlays/status patch",
    // Something learnt about the capacity of Azure.
    "/configmaps patch",
    "/pods list",
];

/// The plane's kubectl.
struct User(Kubectl);

impl User {
    fn ok(&self, arguments: &[&str], input: &str) -> String {
        let output = self.0.run(arguments, input).expect("kubectl starts");
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success(), "kubectl {arguments:?}: {said}");
        said
    }

    fn until(&self, what: &str, arguments: &[&str], holds: impl Fn(&str) -> bool) {
        let mut seen = String::new();
        for _ in 0..600 {
            seen = self.ok(arguments, "");
            if holds(&seen) {
                return;
            }
            std::thread::sleep(Duration::from_millis(300));
        }
        panic!("never: {what}: {seen}");
    }
}

/// A kubeconfig of the service account.
fn account_kubeconfig(plane: &Plane, user: &User, file: &Path) {
    let token = user.ok(&["-n", "kube-system", "create", "token", "nap", "--duration=1h"], "");
    let admin = std::fs::read_to_string(plane.kubeconfig()).expect("the plane writes it");
    let mut config: Value = serde_json::from_str(&admin).expect("it is JSON");
    config["users"][0]["user"] = json!({ "token": token.trim() });
    std::fs::write(file, config.to_string()).expect("the folder is ours");
}

/// Requests of the service account in the audit log: `group/resource verb` and whether it was
/// allowed.
fn requests(log: &str) -> Vec<(String, bool)> {
    let of_line = |line: &str| -> Option<(String, bool)> {
        let event: Value = serde_json::from_str(line).ok()?;
        if event["user"]["username"] != ACCOUNT {
            return None;
        }
        let object = &event["objectRef"];
        let part = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
        let subresource = Some(part("subresource")).filter(|one| !one.is_empty());
        let resource = [Some(part("resource")), subresource].into_iter().flatten();
        let resource: Vec<String> = resource.collect();
        let verb = event["verb"].as_str()?;
        // Everybody may ask for the server's version.
        if event["requestURI"] == "/version" {
            return None;
        }
        let allowed = event["annotations"]["authorization.k8s.io/decision"] == "allow"
            && event["responseStatus"]["code"] != 403;
        Some((format!("{}/{} {verb}", part("apiGroup"), resource.join("/")), allowed))
    };
    log.lines().filter_map(of_line).collect()
}

/// Values of the chart for an environment of `nap run`.
fn values(env: &str, [metrics_port, health_port]: [u16; 2]) -> Vec<String> {
    let mut values =
        vec![format!("metrics.port={metrics_port}"), format!("health.port={health_port}")];
    for (name, value) in env.lines().filter_map(|line| line.split_once('=')) {
        let setting = match name {
            "ARM_SUBSCRIPTION_ID" => "subscriptionId",
            "ARM_RESOURCE_GROUP" => "resourceGroup",
            "AZURE_NODE_RESOURCE_GROUP" => "nodeResourceGroup",
            "CLUSTER_NAME" => "clusterName",
            "LOCATION" => "location",
            "KUBECONFIG" | "METRICS_PORT" | "HEALTH_PROBE_PORT" => continue,
            // The addresses of the emulator, and what the webhook of workload identity sets.
            _ => {
                values.push(format!("env.{name}={value}"));
                continue;
            }
        };
        values.push(format!("settings.{setting}={value}"));
    }
    values
}

/// The command of the Deployment's container, as a kubelet would start it.
fn container(user: &User) -> std::process::Command {
    let deployment = user.ok(&["-n=kube-system", "get", "deployment", "nap", "-o=json"], "");
    let deployment: Value = serde_json::from_str(&deployment).expect("it is JSON");
    let spec = &deployment["spec"]["template"]["spec"];
    assert_eq!(spec["serviceAccountName"], "nap");
    let container = &spec["containers"][0];
    let texts = |list: &Value| -> Vec<String> {
        let list = list.as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    assert!(container.get("command").is_none(), "the image's entry point is the binary");
    let arguments = texts(&container["args"]);
    let mut command = nap(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    command.env_remove("NAP_LOG");
    for variable in container["env"].as_array().into_iter().flatten() {
        let name = variable["name"].as_str().expect("a name");
        // `metadata.name` of the pod.
        command.env(name, variable["value"].as_str().unwrap_or("nap-0"));
    }
    // A pod serves on all of its own addresses.
    command.env("NAP_BIND_ADDRESS", "127.0.0.1");
    command
}

#[test]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
#[cfg_attr(
    all(no_tools, not(no_control_plane)),
    ignore = "helm is missing; `make controlplane` builds it"
)]
fn the_installed_chart_scales_a_deployment_within_its_roles() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let plane = runtime.block_on(Plane::start_audited(Parts::All)).expect("a plane");
    let kubeconfig = plane.kubeconfig();
    let user = User(Kubectl::new(&kubeconfig).expect("there is a kubectl"));
    let path = kubeconfig.to_str().expect("text");
    let arguments =
        ["--kubeconfig", path, "--no-controllers", "--default-nodepool", "--vm-delays=0.1"];
    let (beside, env) = Cluster::start_beside_without_controllers(&arguments);
    let env = std::fs::read_to_string(env.expect("it prints the environment")).expect("a file");
    let ports = ports();
    let values = values(&env, ports);
    helm_install(path, &values.iter().map(String::as_str).collect::<Vec<_>>());
    let account = kubeconfig.with_file_name("nap.kubeconfig");
    account_kubeconfig(&plane, &user, &account);
    let mut command = container(&user);
    command.env("KUBECONFIG", &account).stdout(Stdio::null());
    let running = Process::start(&mut command);

    user.ok(&["apply", "-f", "-"], INFLATE);
    let available = ["get", "deployment", "inflate", "-o=jsonpath={.status.availableReplicas}"];
    user.until("ten pods run", &available, |seen| seen == "10");
    // A drain with pods.
    let names = user.ok(&["get", "nodeclaims", "-o=name"], "");
    let nodes = ["delete", "nodes", "-l", "karpenter.sh/nodepool", "--wait=false"];
    user.ok(&nodes, "");
    user.until("other nodes are there", &["get", "nodeclaims", "-o=name"], |seen| {
        !seen.is_empty() && !names.lines().any(|name| seen.contains(name))
    });
    user.until("ten pods run", &available, |seen| seen == "10");
    user.ok(&["scale", "deployment", "inflate", "--replicas=0"], "");
    user.until("no NodeClaim is left", &["get", "nodeclaims", "-o=name"], str::is_empty);
    // What the probes and the ServiceMonitor of the chart ask for.
    for (port, path) in [(ports[1], "/healthz"), (ports[1], "/readyz"), (ports[0], "/metrics")] {
        assert_eq!(get(port, path).map(|(code, _)| code), Some(200), "{path}");
    }
    running.stop();
    drop(beside);

    let log = std::fs::read_to_string(plane.audit_log()).expect("the API server writes it");
    let requests = requests(&log);
    let denied: BTreeSet<&String> =
        requests.iter().filter(|(_, allowed)| !allowed).map(|(what, _)| what).collect();
    assert!(denied.is_empty(), "denied: {denied:?}");
    let used: BTreeSet<String> = requests.into_iter().map(|(what, _)| what).collect();
    let declared: BTreeSet<String> = permissions::declared()
        .into_iter()
        .flat_map(|(_, all)| all)
        .filter(|one| one.when == permissions::When::Always)
        .flat_map(|one| {
            one.verbs.iter().map(|verb| format!("{}/{} {verb}", one.group, one.resource))
        })
        .collect();
    let undeclared: Vec<&String> = used.difference(&declared).collect();
    assert!(undeclared.is_empty(), "granted by others: {undeclared:?}");
    let unused: Vec<&String> =
        declared.difference(&used).filter(|one| !FOR_OTHER_CASES.contains(&one.as_str())).collect();
    assert!(unused.is_empty(), "granted and not used: {unused:?}");
}
