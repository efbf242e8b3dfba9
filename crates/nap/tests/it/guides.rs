//! The guides in `examples/guides` and the shop, followed with the real kubectl on `nap try`.

use std::path::PathBuf;
use std::process::Command;

use crate::process::{Cluster, text};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs a guide to its end; every step of it asserts what the guide says.
fn follow(guide: &str, arguments: &[&str]) {
    let cluster = Cluster::start(arguments);
    let kubectl = nap_controlplane_build::kubectl().unwrap();
    let folder = kubectl.parent().unwrap().display();
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("sh")
        .arg(root().join("examples/guides").join(guide))
        .env("KUBECONFIG", &cluster.kubeconfig)
        .env("PATH", format!("{folder}:{path}"))
        .env("HOME", env!("CARGO_TARGET_TMPDIR"))
        .output()
        .expect("there is a shell");
    let said = text(&output.stdout);
    assert!(output.status.success(), "{guide}:\n{said}\n{}", text(&output.stderr));
    assert!(said.contains("== done"), "{said}");
    cluster.stop();
}

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn first_steps_can_be_followed() {
    follow("first-steps.sh", &["--retired-sizes"]);
}

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn disabling_can_be_followed_to_the_end() {
    follow("disable.sh", &["--system-nodes", "3"]);
}

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn the_shop_becomes_ready_on_a_fresh_cluster() {
    let cluster = Cluster::start(&[]);
    let apply = |file: &str| {
        let path = root().join("examples").join(file);
        cluster.ok(&["apply", "-f", path.to_str().unwrap()]);
    };
    apply("shop.yaml");
    let shop = |words: &[&str]| -> Vec<String> {
        [words, &["-n", "shop"]].concat().iter().map(|word| (*word).to_owned()).collect()
    };
    let until = |what: &str, words: &[&str], expected: &dyn Fn(&str) -> bool| {
        let words = shop(words);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        cluster.until(what, &words, |text| expected(text))
    };
    until("the web tier runs", &["get", "deployment", "web"], &|text| text.contains("6/6"));
    until("the database runs", &["get", "statefulset", "db"], &|text| text.contains("2/2"));
    let claims = cluster.ok(&["get", "pvc", "-n", "shop"]);
    assert!(claims.contains("data-db-0") && claims.matches("Bound").count() == 2, "{claims}");
    assert!(claims.contains("64Gi") && claims.contains("managed-csi"), "{claims}");
    let classes = cluster.ok(&["get", "storageclass"]);
    assert!(classes.contains("default (default)"), "{classes}");
    // The nightly report, tonight.
    cluster.ok(&["create", "job", "tonight", "--from=cronjob/report", "-n", "shop"]);
    until("the report is done", &["get", "job", "tonight"], &|text| text.contains("Complete"));
    // The model server waits for a NodePool that has GPUs.
    let waiting = cluster.ok(&["get", "deployment", "recommender", "-n", "shop"]);
    assert!(waiting.contains("0/1"), "{waiting}");
    apply("gpu-nodepool.yaml");
    until("the model server runs", &["get", "deployment", "recommender"], &|text| {
        text.contains("1/1")
    });
    let daemons = [
        "get",
        "daemonset",
        "agent",
        "-o",
        "jsonpath={.status.numberReady}/{.status.desiredNumberScheduled}",
    ];
    until("the agents run", &daemons, &|text| {
        text.split_once('/').is_some_and(|(ready, wanted)| ready == wanted && ready != "0")
    });
    let used = cluster.ok(&["top", "pods", "-n", "shop"]);
    assert!(used.contains("1500m") && used.contains("2048Mi"), "{used}");
    cluster.ok(&["delete", "namespace", "shop", "--timeout=60s"]);
    cluster.stop();
}

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn commands_of_the_first_five_minutes_work() {
    let cluster = Cluster::start(&["--system-nodes", "1"]);
    cluster.until("the node is ready", &["get", "nodes"], |text| text.contains(" Ready "));
    cluster.ok(&["create", "job", "once", "--image=busybox", "--", "sleep", "5"]);
    cluster.until("it completes", &["get", "job", "once"], |text| text.contains("1/1"));
    cluster.ok(&[
        "create",
        "cronjob",
        "often",
        "--image=busybox",
        "--schedule=* * * * *",
        "--",
        "date",
    ]);
    cluster.until("it has run", &["get", "jobs"], |text| text.contains("often-"));
    let refused =
        cluster.kubectl(&["create", "cronjob", "bad", "--image=b", "--schedule=61 * * * *"]);
    assert!(text(&refused.stderr).contains("spec.schedule"), "{}", text(&refused.stderr));
    cluster.ok(&["create", "deployment", "web", "--image=pause", "--replicas=1"]);
    cluster.ok(&["set", "resources", "deployment", "web", "--requests=cpu=100m"]);
    cluster.ok(&["autoscale", "deployment", "web", "--min=1", "--max=3", "--cpu=50%"]);
    cluster.until("it scales", &["get", "hpa", "web"], |text| text.contains("cpu: 100%/50%"));
    cluster.until("to its maximum", &["get", "deployment", "web"], |text| text.contains("3/3"));
    assert_eq!(cluster.ok(&["auth", "can-i", "delete", "nodes"]).trim(), "yes");
    assert!(cluster.ok(&["auth", "whoami"]).contains("kubernetes-admin"));
    let used = cluster.ok(&["top", "nodes"]);
    assert!(used.contains("300m"), "{used}");
    let explained = cluster.ok(&["explain", "deployment.spec.strategy"]);
    assert!(explained.contains("rollingUpdate"), "{explained}");
    cluster.ok(&["expose", "deployment", "web", "--port=80"]);
    cluster.until("it has endpoints", &["get", "endpointslices"], |text| text.contains("10.244."));
    assert!(cluster.ok(&["get", "services"]).contains("kubernetes"));
    cluster.ok(&["create", "quota", "small", "--hard=pods=4"]);
    let over = cluster.kubectl(&["run", "more", "--image=pause"]);
    cluster.kubectl(&["run", "again", "--image=pause"]);
    let over =
        text(&over.stderr) + &text(&cluster.kubectl(&["run", "last", "--image=pause"]).stderr);
    assert!(over.contains("exceeded quota: small"), "{over}");
    // A node by hand gets a kubelet.
    cluster.apply("apiVersion: v1\nkind: Node\nmetadata:\n  name: by-hand\n");
    cluster.until("it joins", &["get", "node", "by-hand"], |text| text.contains(" Ready "));
    cluster.stop();
}
