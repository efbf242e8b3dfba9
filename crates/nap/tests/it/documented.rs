//! Commands of the README and of the documents for users: each is run here or by the test that is
//! named, or needs Azure, and then its document says so.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::process::{Cluster, nap, text};

const INFLATE: &str = include_str!("../../../../examples/inflate.yaml");
const DOCUMENTS: [&str; 8] = [
    "README.md",
    "docs/install.md",
    "docs/migrate.md",
    "docs/metrics.md",
    "docs/operations.md",
    "docs/plan.md",
    "docs/lint.md",
    "docs/disruption.md",
];
/// Programs whose commands count.
const PROGRAMS: [&str; 9] =
    ["nap", "kubectl", "helm", "make", "crane", "docker", "az", "cargo", "sh"];

/// How a command is shown to work.
enum Shown {
    /// It is run here, with these words instead; `nap` and `kubectl` get the kubeconfig.
    Here(&'static str),
    /// A test of this name runs it.
    By(&'static str),
    /// It needs Azure.
    Azure,
    /// It is the user's own tool, or runs until it is stopped; the reason.
    NotRun(&'static str),
}
use Shown::{Azure, By, Here, NotRun};

const COMMANDS: &[(&str, Shown)] = &[
    ("az aks create", Azure),
    ("az aks nodepool scale", Azure),
    ("az aks show", Azure),
    ("az aks update --node-provisioning-mode Manual", Azure),
    ("az identity create", Azure),
    ("az identity federated-credential create", Azure),
    ("az identity show", Azure),
    ("cargo run -- try --speed 10", NotRun("the commands here run on `nap try`")),
    ("crane push", By("an_image_is_valid_and_can_be_pushed")),
    ("docker load", NotRun("needs a daemon")),
    ("helm install nap charts/nap", By("the_installed_chart_scales_a_deployment_within_its_roles")),
    ("helm uninstall", By("the_chart_installs_and_its_policy_denies_warns_and_exempts")),
    ("helm upgrade", By("the_chart_installs_and_its_policy_denies_warns_and_exempts")),
    (
        "kubectl -n kube-system get lease karpenter-leader-election -o yaml",
        By("nodes_of_the_incumbent_are_taken_over_and_given_back"),
    ),
    (
        "kubectl -n kube-system get pods -l app.kubernetes.io/name=nap",
        Here("kubectl -n kube-system get pods -l app.kubernetes.io/name=nap"),
    ),
    ("kubectl -n kube-system logs deployment/nap", NotRun("nap is no pod in tests")),
    ("kubectl -n kube-system port-forward deployment/nap", NotRun("nap is no pod in tests")),
    (
        "kubectl -n kube-system scale deployment karpenter --replicas=0",
        By("nodes_of_the_incumbent_are_taken_over_and_given_back"),
    ),
    ("kubectl annotate nodepool default nap.karpenter.sh/dry-run=true", Here("")),
    ("kubectl apply", NotRun("the verb")),
    ("kubectl apply -f examples/default-nodepool.yaml", Here("")),
    ("kubectl apply -f examples/inflate.yaml", Here("")),
    ("kubectl apply -f examples/shop.yaml -f examples/gpu-nodepool.yaml", Here("")),
    ("kubectl delete", NotRun("the verb")),
    ("kubectl delete node NAME", By("kubectl_commands_of_the_guides_work")),
    (
        "kubectl get events -A --field-selector reason=DisruptionDryRun",
        Here("kubectl get events -A --field-selector reason=DisruptionDryRun"),
    ),
    ("kubectl get events -A --field-selector source=karpenter", Here("")),
    ("kubectl get nodeclaims", Here("")),
    ("kubectl get nodeclaims -o wide", Here("")),
    ("kubectl get nodeclaims --watch", Here("kubectl get nodeclaims")),
    ("kubectl get nodes -l karpenter.sh/nodepool", Here("")),
    ("kubectl get nodes,nodeclaims,nodepools", Here("")),
    ("kubectl get … -o yaml", Here("kubectl get nodes -o yaml")),
    (
        "kubectl scale deployment inflate --replicas=2",
        // The others look at its pods.
        Here("kubectl scale deployment inflate --replicas=10"),
    ),
    ("make demo", By("the_readme_tells_the_story_of_the_demo")),
    ("make dist", NotRun("a release build")),
    (
        "make image",
        NotRun("a release build; `an_image_is_valid_and_can_be_pushed` has its last step"),
    ),
    ("make test", NotRun("it is running")),
    ("nap azure catalogue refresh", By("a_refresh_says_what_changed_and_plans_can_use_it")),
    ("nap azure check", By("a_cluster_that_meets_every_prerequisite_passes")),
    ("nap azure skus --region westeurope", Here("")),
    ("nap azure smoke", By("a_machine_is_created_joins_and_is_deleted")),
    ("nap crds install", Here("")),
    ("nap decisions", Here("")),
    ("nap disable", By("disable_launches_nothing_more_and_names_what_is_left")),
    ("nap disable --status", Here("nap disable --status")),
    ("nap disable --wait", By("a_budget_holds_a_node_until_it_is_lifted")),
    ("nap explain", NotRun("the commands below")),
    ("nap explain node", Here("nap explain node {node}")),
    ("nap explain node NAME", Here("nap explain node {node}")),
    ("nap explain pod -o json", Here("nap explain pod {pod} -o json")),
    ("nap explain pod NAMESPACE/NAME", Here("nap explain pod {pod}")),
    (
        "nap explain pod [NAMESPACE/]NAME [-n NAMESPACE] [-f FILE…]",
        By("a_pod_is_found_by_namespace_kind_and_workload"),
    ),
    ("nap explain pod shop/recommender -f examples/shop.yaml", Here("")),
    ("nap explain pod shop/web", Here("nap explain pod shop/web")),
    ("nap lint", Here("nap lint -f examples/workloads")),
    ("nap lint -f", Here("nap lint -f examples/inflate.yaml")),
    ("nap lint -f FILE -o sarif", Here("nap lint -f examples/shop.yaml -o sarif")),
    ("nap lint -f FILE…", Here("nap lint -f examples/shop.yaml")),
    ("nap plan", Here("")),
    ("nap plan --save FILE", By("replay_reproduces_the_saved_plan")),
    ("nap plan -f FILE --context NAME", By("exit_codes_tell_changes_and_cost")),
    ("nap plan -f FILE…", By("kinds_of_public_manifests_make_these_pods")),
    ("nap plan -f FILE… --context NAME", By("more_replicas_add_pods_and_a_vm")),
    ("nap plan -f examples/shop.yaml", By("the_readme_shows_what_is_printed")),
    ("nap plan -f web.yaml --state cluster.yaml", By("more_replicas_add_pods_and_a_vm")),
    ("nap plan disruption", Here("")),
    ("nap rbac", Here("")),
    ("nap replay", By("replay_reproduces_the_saved_plan")),
    ("nap run", By("a_scale_up_and_down_shows_in_metrics_health_and_json_logs")),
    ("nap run --avoid-surplus-nodes=false", NotRun("a setting; `nap run` is")),
    ("nap run --dry-run", By("nodes_of_the_incumbent_are_taken_over_and_given_back")),
    ("nap sim --seed 3 --hours 24", Here("nap sim --seed 3 --hours 1")),
    (
        "nap sim -f FILE --schedule FILE",
        By("own_workloads_are_simulated_with_their_schedule_and_cost"),
    ),
    ("nap try", By("commands_of_the_first_five_minutes_work")),
    (
        "nap try --faults examples/faults.plan",
        By("a_cluster_starts_with_the_faults_of_the_example"),
    ),
    ("nap try --no-controllers", By("a_scale_up_and_down_shows_in_metrics_health_and_json_logs")),
    ("nap what-if", By("a_changed_nodepool_shows_what_would_drift")),
    ("nap what-if --exit-code", By("a_changed_nodepool_shows_what_would_drift")),
    ("nap what-if -f nodepool.yaml", By("a_changed_nodepool_shows_what_would_drift")),
    ("nap windows", By("times_are_those_of_the_pool_and_of_utc")),
    ("sh examples/first-hour.sh", By("public_kinds_of_manifests_are_planned")),
];

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Commands in the code of a document: spans of code, and lines of consoles.
fn commands(document: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut is_block = false;
    let mut prose = String::new();
    for line in document.lines() {
        if line.starts_with("```") {
            is_block = !is_block;
        } else if !is_block {
            prose.push_str(line);
            prose.push(' ');
        } else if let Some(command) = line.strip_prefix("$ ") {
            // `NAME=$(command)`
            let command = command.split_once("$(").map_or(command, |(_, inner)| inner);
            let command = command.split_once(" #").map_or(command, |(command, _)| command);
            let command = command.split_once(" > ").map_or(command, |(command, _)| command);
            found.insert(command.trim_end_matches([')', '\\', ' ']).to_owned());
        }
    }
    let spans = prose.split('`').skip(1).step_by(2);
    found.extend(spans.map(|span| span.split_whitespace().collect::<Vec<_>>().join(" ")));
    found.retain(|command| {
        let mut words = command.split(' ');
        words.next().is_some_and(|program| PROGRAMS.contains(&program)) && words.next().is_some()
    });
    found
}

/// The row of a command: the longest that it begins with.
fn row(command: &str) -> Option<&'static (&'static str, Shown)> {
    let rows = COMMANDS.iter().filter(|(known, _)| {
        command.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    });
    rows.max_by_key(|(known, _)| known.len())
}

#[test]
fn every_documented_command_is_run_by_a_test_or_needs_azure() {
    let mut used = BTreeSet::new();
    let tests: String = ["", "planning"]
        .iter()
        .flat_map(|folder| {
            std::fs::read_dir(root().join("crates/nap/tests/it").join(folder))
                .expect("the folder of this file")
                .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path()).ok())
        })
        .collect();
    for name in DOCUMENTS {
        let document = std::fs::read_to_string(root().join(name)).expect("a document");
        for command in commands(&document) {
            let Some((known, shown)) = row(&command) else {
                panic!("{name}: `{command}` is not in the table of commands")
            };
            used.insert(*known);
            match shown {
                By(test) => {
                    assert!(tests.contains(&format!("fn {test}(")), "{command}: no test `{test}`");
                }
                Azure => {
                    let said = document.replace('\n', " ");
                    assert!(said.contains("ommands of `az` need Azure"), "{name}");
                }
                NotRun(why) => assert!(!why.is_empty()),
                Here(_) => {}
            }
        }
    }
    let stale: Vec<&str> =
        COMMANDS.iter().map(|(known, _)| *known).filter(|known| !used.contains(known)).collect();
    assert!(stale.is_empty(), "no document has {stale:?}");
}

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl")]
fn documented_commands_succeed() {
    let cluster = Cluster::start_in_real_time(&["--speed", "8", "--vm-delays", "0.2"]);
    cluster.apply(INFLATE);
    let running = ["get", "pods", "-o=jsonpath={.items[*].status.phase}"];
    cluster.until("ten pods run", &running, |seen| seen.matches("Running").count() == 10);
    let first = |kind: &str| {
        let name = cluster.ok(&["get", kind, "-o=jsonpath={.items[0].metadata.name}"]);
        assert!(!name.is_empty(), "{kind}");
        name
    };
    let nodes =
        ["get", "nodes", "-l=karpenter.sh/nodepool", "-o=jsonpath={.items[0].metadata.name}"];
    let names = BTreeMap::from([
        ("{pod}", format!("default/{}", first("pods"))),
        ("{node}", cluster.ok(&nodes)),
    ]);
    for (documented, shown) in COMMANDS {
        let Here(instead) = shown else { continue };
        let mut command = if instead.is_empty() { *documented } else { *instead }.to_owned();
        for (placeholder, name) in &names {
            command = command.replace(placeholder, name);
        }
        let words: Vec<&str> = command.split(' ').collect();
        let output = if words[0] == "kubectl" {
            let mut kubectl = cluster.kubectl_command().command(&words[1..]);
            kubectl.current_dir(root()).output().expect("kubectl starts")
        } else {
            let mut nap = nap(&words[1..]);
            nap.env("KUBECONFIG", &cluster.kubeconfig).current_dir(root());
            nap.output().expect("nap starts")
        };
        let said = text(&output.stdout) + &text(&output.stderr);
        // `nap disable --status` says by its code that nodes are left.
        let is_left = command == "nap disable --status" && output.status.code() == Some(2);
        assert!(output.status.success() || is_left, "{command}: {said}");
    }
}

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl")]
fn a_cluster_starts_with_the_faults_of_the_example() {
    let faults = root().join("examples/faults.plan");
    let cluster = Cluster::start(&["--faults", faults.to_str().expect("a path")]);
    assert!(cluster.ok(&["get", "nodepools"]).contains("default"));
}
