//! The kinds of public manifests: which pods each makes, and what of it a plan counts.

use serde_json::Value;

use super::{containers, object, output, plan, pod, pods_of, run, said, template, workload};
use crate::process::text;

/// Pods of a plan by workload: `web 3`.
fn counts(plan: &Value) -> Vec<String> {
    let mut counts: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
    for pod in pods_of(plan) {
        let name = pod.strip_prefix("default/").unwrap_or(pod);
        let workload = name.rsplit_once('-').map_or(name, |(workload, _)| workload);
        *counts.entry(workload).or_default() += 1;
    }
    counts.iter().map(|(workload, count)| format!("{workload} {count}")).collect()
}

fn counted(test: &str, arguments: &[&str], yaml: &str) -> (Vec<String>, String) {
    let all = [&["plan", "-o", "json"], arguments].concat();
    let (document, notes) = said(&all, test, yaml);
    (counts(&serde_json::from_str(&document).unwrap()), notes)
}

fn scaler(kind: &str, spec: &str) -> String {
    object(kind, "web", &format!("spec: {{ {spec} }}"))
}

#[test]
fn horizontal_autoscalers_set_the_number_of_pods() {
    let target = "scaleTargetRef: { apiVersion: apps/v1, kind: Deployment, name: web }";
    let web = workload("Deployment", "web", "paused: false");
    let hpa =
        scaler("HorizontalPodAutoscaler", &format!("{target}, minReplicas: 4, maxReplicas: 9"));
    let yaml = format!("{web}{hpa}");
    let (pods, notes) = counted("hpa", &[], &yaml);
    assert_eq!(pods, ["web 4"]);
    let note = "HorizontalPodAutoscaler `default/web`: Deployment `default/web` is planned with \
                its minimum of 4 pods, of 4 to 9 (--hpa min|max|current)";
    assert!(notes.contains(note), "{notes}");
    assert!(!notes.contains("make no difference"), "{notes}");
    assert_eq!(counted("hpa-max", &["--hpa", "max"], &yaml).0, ["web 9"]);
    let running =
        yaml.replace("maxReplicas: 9 }", "maxReplicas: 9 }\nstatus: { desiredReplicas: 6 }");
    assert_eq!(counted("hpa-now", &["--hpa", "current"], &running).0, ["web 6"]);
    let six = yaml.replace("paused: false", "replicas: 20");
    assert_eq!(counted("hpa-bound", &["--hpa", "current"], &six).0, ["web 9"]);
    let off = yaml.replace("paused: false", "replicas: 0");
    let (none, notes) = counted("hpa-off", &[], &off);
    assert!(none.is_empty() && notes.contains("does nothing"), "{none:?} {notes}");
    let (_, notes) =
        counted("hpa-lost", &[], &yaml.replace("name: web }, min", "name: lost }, min"));
    assert!(notes.contains("scales Deployment `default/lost`, which is not given"), "{notes}");
}

#[test]
fn keda_counts_with_its_minimum() {
    let web = workload("Deployment", "web", "replicas: 7");
    let target = "scaleTargetRef: { name: web }, triggers: [{ type: cron, metadata: {} }]";
    let scaled =
        scaler("ScaledObject", &format!("{target}, minReplicaCount: 3, maxReplicaCount: 8"));
    let yaml = format!("{web}{scaled}");
    assert_eq!(counted("keda", &[], &yaml).0, ["web 3"]);
    assert_eq!(counted("keda-max", &["--hpa", "max"], &yaml).0, ["web 8"]);
    let to_zero = format!("{web}{}", scaler("ScaledObject", target));
    assert!(counted("keda-zero", &[], &to_zero).0.is_empty());
    let job = format!(
        "jobTargetRef: {{ template: {} }}, triggers: [], minReplicaCount: 1, maxReplicaCount: 5",
        template("1").replace("spec: {", "spec: { restartPolicy: Never,")
    );
    let jobs = scaler("ScaledJob", &job);
    assert_eq!(counted("keda-job", &[], &jobs).0, ["web 1"]);
    assert_eq!(counted("keda-jobs", &["--hpa", "max"], &jobs).0, ["web 5"]);
}

#[test]
fn vertical_autoscalers_that_change_requests_are_named() {
    let web = workload("Deployment", "web", "replicas: 1");
    let vpa = |mode: &str| {
        let target = "targetRef: { apiVersion: apps/v1, kind: Deployment, name: web }";
        let policy = format!("{target}, updatePolicy: {{ updateMode: {mode} }}");
        format!("{web}{}", scaler("VerticalPodAutoscaler", &policy))
    };
    let (_, notes) = counted("vpa", &[], &vpa("Recreate"));
    assert!(notes.contains("changes the requests of Deployment `default/web` (mode Recreate)"));
    let (_, notes) = counted("vpa-off", &[], &vpa("\"Off\""));
    assert!(!notes.contains("VerticalPodAutoscaler"), "{notes}");
}

#[test]
fn limit_ranges_set_defaults_and_refuse() {
    let range = object(
        "LimitRange",
        "limits",
        "spec: { limits: [{ type: Container, defaultRequest: { cpu: 4 }, default: { cpu: 4 }, max: { cpu: 6 } }] }",
    );
    let bare = pod("bare", "containers: [{ name: c, image: i }]");
    let small = plan("bare", &bare);
    let large = plan("bare-limited", &format!("{bare}{range}"));
    let cost = |plan: &Value| plan["costUsdPerHour"].as_f64().unwrap();
    assert!(cost(&large) > cost(&small), "a default of 4 CPUs needs a larger VM");
    let huge =
        pod("huge", "containers: [{ name: c, image: i, resources: { limits: { cpu: 7 } } }]");
    let (pods, notes) = counted("limited", &[], &format!("{huge}{range}"));
    assert!(pods.is_empty(), "{pods:?}");
    let note = "1 pod of Pod `default/huge` would be refused, so left out: LimitRange `limits`: \
                maximum cpu per Container is 6, and the limit 7";
    assert!(notes.contains(note), "{notes}");
}

#[test]
fn resource_quotas_admit_only_so_many_pods() {
    let web = workload("Deployment", "web", "replicas: 10");
    let quota =
        |hard: &str| object("ResourceQuota", "team", &format!("spec: {{ hard: {{ {hard} }} }}"));
    for (test, hard, expected) in [
        ("pods", "pods: 3", "web 3"),
        ("requests", "requests.cpu: 4500m", "web 4"),
        ("both", "cpu: 100, count/pods: 2", "web 2"),
    ] {
        let (pods, notes) =
            counted(&format!("quota-{test}"), &[], &format!("{web}{}", quota(hard)));
        assert_eq!(pods, [expected], "{test}");
        let refused =
            "of Deployment `default/web` would be refused, so left out: ResourceQuota `team`";
        assert!(notes.contains(refused), "{notes}");
    }
    let (pods, notes) =
        counted("quota-memory", &[], &format!("{web}{}", quota("requests.memory: 1Ti")));
    assert!(pods.is_empty() && notes.contains("must specify requests.memory"), "{notes}");
    let (pods, notes) = counted("quota-other", &[], &format!("{web}{}", quota("services: 1")));
    assert_eq!(pods, ["web 10"]);
    assert!(notes.contains("counts for pods only, not services"), "{notes}");
}

#[test]
fn the_daemons_of_aks_count_in_plans_from_manifests() {
    // Two pods of 1.85 CPUs leave less than the daemons ask for on a VM of four.
    let tight = workload("Deployment", "web", "replicas: 2").replace("cpu: 1 ", "cpu: 1850m ");
    let cost = |arguments: &[&str]| {
        let all = [&["plan", "-o", "json"], arguments].concat();
        let (document, notes) = said(&all, &format!("system-{}", arguments.len()), &tight);
        let document: Value = serde_json::from_str(&document).unwrap();
        (document["costUsdPerHour"].as_f64().unwrap(), notes)
    };
    let (with, notes) = cost(&[]);
    let (without, quiet) = cost(&["--system-daemons", "none"]);
    assert!(with > without, "{with} {without}");
    assert!(notes.contains("6 daemons of AKS counted on every node: 0.4 vCPU, 0.5 GiB"), "{notes}");
    assert!(!quiet.contains("daemons"), "{quiet}");
    let folder = super::folder(
        "own-daemons",
        &[("d.yaml", &workload("DaemonSet", "agent", "minReadySeconds: 0"))],
    );
    let file = folder.join("d.yaml").display().to_string();
    let own = run(&["plan", "--system-daemons", &file], "system-own", &tight);
    assert!(text(&own.stderr).contains("1 daemon counted on every node: 1.0 vCPU"));
}

#[test]
fn a_daemon_of_the_manifests_replaces_only_the_one_of_its_name() {
    let of_system = |name: &str| {
        let daemon =
            workload("DaemonSet", name, "minReadySeconds: 0").replace("cpu: 1 ", "cpu: 0 ");
        daemon.replace(
            &format!("name: {name} }}"),
            &format!("name: {name}, namespace: kube-system }}"),
        )
    };
    let web = workload("Deployment", "web", "replicas: 2");
    let notes = |test: &str, arguments: &[&str], daemons: &str| {
        said(&[&["plan"], arguments].concat(), test, &format!("{web}{daemons}")).1
    };
    let own = notes("daemon-own", &[], &of_system("node-exporter"));
    assert!(
        own.contains("6 daemons of AKS counted on every node: 0.4 vCPU, 0.5 GiB; with"),
        "{own}"
    );
    let one = notes("daemon-one", &[], &of_system("kube-proxy"));
    let line = "5 daemons of AKS counted on every node: 0.3 vCPU, 0.5 GiB; kube-proxy is that of the \
                manifests; with the monitoring add-on";
    assert!(one.contains(line), "{one}");
    let both = of_system("kube-proxy") + &of_system("ama-logs");
    let both = notes("daemon-both", &["--system-daemons", "aks-monitoring"], &both);
    assert!(both.contains("5 daemons of AKS counted"), "{both}");
    assert!(both.contains("; kube-proxy, ama-logs are those of the manifests\n"), "{both}");
    // A dump of a cluster has its own daemons.
    let node = super::disruption::node("large", "Standard_D8s_v5", 8, 1, "");
    let dump = notes("daemon-dump", &[], &node);
    assert!(!dump.contains("daemons of AKS"), "{dump}");
}

#[test]
fn how_far_a_plan_is_from_the_best_is_told_only_if_the_bound_counts_every_rule() {
    let web = workload("Deployment", "web", "replicas: 3");
    let spread = web.replace(
        "spec: { containers",
        "spec: { topologySpreadConstraints: [{ maxSkew: 1, topologyKey: topology.kubernetes.io/zone, \
         whenUnsatisfiable: DoNotSchedule, labelSelector: { matchLabels: { app: a } } }], containers",
    );
    assert_ne!(web, spread);
    let (free, _) = said(&["plan"], "bound-free", &web);
    assert!(
        free.contains("/h: this one is at most ") && free.contains(" % above the best.\n"),
        "{free}"
    );
    let (bound, _) = said(&["plan"], "bound-zones", &spread);
    assert!(bound.starts_with("3 VMs in eastus for 3 pods"), "{bound}");
    assert!(!bound.contains('%') && !bound.contains("above the best"), "{bound}");
    let line = "No plan for these pods costs less than $";
    let left_out = "/h; this bound leaves out their rules over zones.\n";
    assert!(bound.contains(line) && bound.contains(left_out), "{bound}");
    let document = super::plan("bound-json", &spread);
    assert!(document["gapPercent"].is_null() && document["lowerBoundUsdPerHour"].is_number());
    assert_eq!(document["boundLeavesOut"], serde_json::json!(["zoneRules"]));
    let free = super::plan("bound-none", &web);
    assert!(free["gapPercent"].as_f64().is_some_and(|gap| gap > 0.0), "{}", free["gapPercent"]);
    assert_eq!(free["boundLeavesOut"], serde_json::json!([]));
}

#[test]
fn everything_that_a_bound_leaves_out_is_named() {
    let web = workload("Deployment", "web", "replicas: 3");
    let with =
        |field: &str| web.replace("spec: { containers", &format!("spec: {{ {field}, containers"));
    let node = "topologyKey: kubernetes.io/hostname";
    let term =
        |of: &str| format!("{{ {node}, labelSelector: {{ matchLabels: {{ app: {of} }} }} }}");
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let rule = |kind: &str, of: &str| {
        with(&format!("affinity: {{ {kind}: {{ {required}: [{}] }} }}", term(of)))
    };
    let preferred = "affinity: { nodeAffinity: { preferredDuringSchedulingIgnoredDuringExecution: \
                     [{ weight: 1, preference: { matchExpressions: [{ key: kubernetes.io/arch, \
                     operator: In, values: [amd64] }] } }] } }";
    let limited = super::pool("limits: { cpu: 2 }", "expireAfter: Never", "");
    let heavy =
        super::pool("weight: 9", "expireAfter: Never", "").replace("name: only", "name: heavy");
    let weights = format!("{web}{heavy}{}", super::pool("weight: 1", "expireAfter: Never", ""));
    for (test, yaml, expected) in [
        ("affinity", rule("podAffinity", "a"), &["nodeRules"][..]),
        ("others", rule("podAntiAffinity", "b"), &["nodeRules"]),
        // Pods that keep away from their own kind are counted.
        ("itself", rule("podAntiAffinity", "a"), &[]),
        ("preferred", with(preferred), &["preferences"]),
        ("weights", weights, &["weights"]),
        ("limits", format!("{web}{limited}"), &["limits"]),
        ("wide", format!("{web}{}", limited.replace("cpu: 2 ", "cpu: 1000 ")), &[]),
    ] {
        let document = super::plan(&format!("bound-of-{test}"), &yaml);
        assert_eq!(document["boundLeavesOut"], serde_json::json!(expected), "{test}: {document}");
    }
    let ignored = format!("{}{}", with(preferred), limited.replace("cpu: 2 ", "cpu: 1000 "));
    let plan =
        said(&["plan", "-o", "json", "--preference-policy", "Ignore"], "bound-ignored", &ignored);
    let document: Value = serde_json::from_str(&plan.0).unwrap();
    assert_eq!(document["boundLeavesOut"], serde_json::json!([]));
}

#[test]
fn misspelt_fields_of_autoscalers_are_refused() {
    let web = workload("Deployment", "web", "replicas: 1");
    let target = "scaleTargetRef: { name: web }, triggers: []";
    for (kind, spec, expected) in [
        (
            "ScaledObject",
            format!("{target}, minReplicaCont: 40"),
            "did you mean `minReplicaCount`?",
        ),
        ("ScaledObject", format!("{target}, minReplicaCount: many"), "spec.minReplicaCount: "),
        (
            "ScaledJob",
            "jobTargetRef: {}, triggers: [], maxReplicaCounts: 2".to_owned(),
            "did you mean `maxReplicaCount`?",
        ),
        (
            "VerticalPodAutoscaler",
            "targetRef: { kind: Deployment, name: web }, updatePolicy: { updateMode: auto }"
                .to_owned(),
            "spec.updatePolicy.updateMode: Unsupported value: \"auto\"",
        ),
    ] {
        let yaml = format!("{web}{}", scaler(kind, &spec));
        for command in ["plan", "lint"] {
            let refused = run(&[command], &format!("misspelt-{command}"), &yaml);
            let said = text(&refused.stdout) + &text(&refused.stderr);
            assert_eq!(refused.status.code(), Some(1), "{kind}: {said}");
            assert!(said.contains(expected), "{kind}: {said}");
        }
    }
    let authentication = object("TriggerAuthentication", "key", "spec: { any: 1 }")
        .replace("apiVersion: v1", "apiVersion: keda.sh/v1alpha1");
    let (_, notes) = counted("trigger", &[], &format!("{web}{authentication}"));
    assert!(notes.contains("TriggerAuthentication of keda.sh (1)"), "{notes}");
}

#[test]
fn a_runtime_class_adds_its_overhead_selector_and_tolerations() {
    let class = object(
        "RuntimeClass",
        "sandbox",
        "handler: runsc\noverhead: { podFixed: { cpu: 5 } }\nscheduling: { nodeSelector: { \
         kubernetes.io/arch: arm64 }, tolerations: [{ key: sandbox, operator: Exists }] }",
    )
    .replace("apiVersion: v1", "apiVersion: node.k8s.io/v1");
    let pool = super::pool(
        "weight: 1",
        "taints: [{ key: sandbox, effect: NoSchedule }]",
        "- { key: kubernetes.io/arch, operator: In, values: [arm64, amd64] }",
    );
    let web = workload("Deployment", "web", "replicas: 1");
    let sandboxed =
        web.replace("spec: { containers", "spec: { runtimeClassName: sandbox, containers");
    let document = plan("runtime", &format!("{sandboxed}{class}{pool}"));
    let launch = &document["launches"][0]["instanceType"];
    // A size with a `p` has Arm processors; 6 CPUs do not fit on 4.
    let size = launch.as_str().unwrap_or_default();
    assert!(size.starts_with("Standard_D8p"), "{document}");
    let other = sandboxed.replace(
        "runtimeClassName: sandbox,",
        "runtimeClassName: sandbox, nodeSelector: { kubernetes.io/arch: amd64 },",
    );
    let (pods, notes) = counted("runtime-conflict", &[], &format!("{other}{class}{pool}"));
    let why = "would be refused, so left out: RuntimeClass `sandbox` wants nodes with \
               `kubernetes.io/arch: arm64`, and the pod those with `amd64`";
    assert!(pods.is_empty() && notes.contains(why), "{notes}");
}

#[test]
fn limit_ranges_bound_the_ratio_of_limits_to_requests() {
    let range = object(
        "LimitRange",
        "ratio",
        "spec: { limits: [{ type: Container, maxLimitRequestRatio: { cpu: 2 } }] }",
    );
    let of = |limit: &str| {
        let resources = format!("requests: {{ cpu: 1 }}, limits: {{ cpu: {limit} }}");
        pod("p", &format!("containers: [{{ name: c, image: i, resources: {{ {resources} }} }}]"))
    };
    assert_eq!(counted("ratio", &[], &format!("{}{range}", of("2"))).0.len(), 1);
    let (pods, notes) = counted("ratio-over", &[], &format!("{}{range}", of("2500m")));
    let why = "the limit on cpu per Container may be at most 2 times the request, and it is 2500m";
    assert!(pods.is_empty() && notes.contains(why), "{notes}");
}

#[test]
fn kinds_of_public_manifests_make_these_pods() {
    let budget = object(
        "PodDisruptionBudget",
        "web",
        "spec: { minAvailable: 1, selector: { matchLabels: { app: a } } }",
    );
    let disk = "accessModes: [ReadWriteOnce], resources: { requests: { storage: 1Gi } }";
    let set = format!(
        "replicas: 2, serviceName: db, volumeClaimTemplates: [{{ metadata: {{ name: data }}, spec: {{ {disk} }} }}]"
    );
    let cron = format!(
        "spec: {{ schedule: \"*/5 * * * *\", jobTemplate: {{ spec: {{ parallelism: 2, template: {} }} }} }}",
        template("1").replace("spec: {", "spec: { restartPolicy: OnFailure,")
    );
    let yaml = [
        workload("Deployment", "web", "replicas: 3"),
        budget,
        workload("StatefulSet", "db", &set),
        object("CronJob", "report", &cron),
        workload("Job", "import", "parallelism: 2, completions: 5"),
        workload("DaemonSet", "agent", "minReadySeconds: 0"),
        object(
            "ReplicationController",
            "old",
            &format!("spec: {{ replicas: 2, template: {} }}", template("1")),
        ),
        object("MutatingWebhookConfiguration", "inject", "webhooks: []")
            .replace("apiVersion: v1", "apiVersion: admissionregistration.k8s.io/v1"),
        object("Kafka", "bus", "spec: {}")
            .replace("apiVersion: v1", "apiVersion: kafka.strimzi.io/v1"),
        object("ConfigMap", "settings", "data: {}"),
        object("ValidatingAdmissionPolicy", "strict", "spec: {}")
            .replace("apiVersion: v1", "apiVersion: admissionregistration.k8s.io/v1"),
        object("Service", "hello", "spec: { template: {} }")
            .replace("apiVersion: v1", "apiVersion: serving.knative.dev/v1"),
    ]
    .concat();
    let (pods, notes) = counted("public", &[], &yaml);
    assert_eq!(pods, ["db 2", "import 2", "old 2", "report 2", "web 3"]);
    for note in [
        "left out, as they make no difference to a plan: ConfigMap (1)",
        "may change pods when they are created, which the plan does not know: \
         MutatingWebhookConfiguration (1)",
        "may refuse pods when they are created, which the plan does not know: \
         ValidatingAdmissionPolicy (1)",
        "not understood, so they and any pods of theirs do not count: Kafka of kafka.strimzi.io \
         (1), Service of serving.knative.dev (1)",
    ] {
        assert!(notes.contains(note), "{notes}");
    }
}

#[test]
fn mistakes_in_built_in_kinds_are_refused_with_line_field_and_remedy() {
    let yaml = workload("Deployment", "web", "replicas: -3")
        .replace("spec: { containers", "spec: { nodeSelectr: { a: b }, containers")
        .replace("cpu: 1 ", "cpu: 1 core ")
        + &pod("p", &format!("priorityClassName: gold, {}", containers("1")));
    for command in [&["plan"][..], &["lint"], &["explain", "pod", "web"]] {
        let refused = run(command, &format!("mistakes-{}", command[0]), &yaml);
        let said = text(&refused.stdout) + &text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        for expected in [
            "m.yaml:5: Deployment ",
            "spec.replicas: Invalid value: -3: must be greater than or equal to 0",
            "spec.template.spec.nodeSelectr: unknown field; did you mean `nodeSelector`?",
            "containers[0].resources.requests[cpu]: `1 core` is not a quantity; write it like `4`",
            "m.yaml:10: Pod ",
            "spec.priorityClassName: Invalid value: \"gold\": no PriorityClass of this name is known",
        ] {
            assert!(said.contains(expected), "{command:?}: {expected}: {said}");
        }
    }
}

#[test]
fn input_without_objects_is_an_error() {
    for (test, content) in [("empty", ""), ("comments", "# nothing\n---\n")] {
        let folder = super::folder(&format!("none-{test}"), &[("m.yaml", content)]);
        for command in ["plan", "lint"] {
            let file = folder.join("m.yaml").display().to_string();
            let refused = output(&[command, "-f", &file]);
            let error = text(&refused.stderr);
            assert_eq!(refused.status.code(), Some(1), "{error}");
            assert!(error.starts_with(&format!("error: no objects in {file}\nhint: ")), "{error}");
        }
    }
}

#[test]
fn a_pod_is_found_by_namespace_kind_and_workload() {
    let yaml = workload("Deployment", "web", "replicas: 2")
        .replace("name: web }", "name: web, namespace: shop }");
    for arguments in [
        &["shop/web"][..],
        &["web", "-n", "shop"],
        &["deployment/web", "-n", "shop"],
        // As `kubectl get -o name` prints it.
        &["deployment.apps/web", "-n", "shop"],
        &["pod/web-2", "--namespace", "shop"],
    ] {
        let (said, _) = said(&[&["explain", "pod"], arguments].concat(), "found", &yaml);
        assert!(said.starts_with("shop/web-") && said.contains("gets a new VM"), "{said}");
    }
    let (document, _) = said(&["explain", "pod", "shop/web", "-o", "json"], "found-json", &yaml);
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!((&document["outcome"], &document["pod"]), (&"newNode".into(), &"shop/web-1".into()));
    assert!(document["launch"]["instanceType"].as_str().unwrap().starts_with("Standard_"));
    let lost = run(&["explain", "pod", "web"], "found-lost", &yaml);
    let error = text(&lost.stderr);
    assert!(error.contains("there is no pod `default/web`"), "{error}");
    assert!(error.contains("there are shop/web-1, shop/web-2\n"), "{error}");
}

/// Node cost and ceilings hold for an explanation as for a plan.
#[test]
fn explain_takes_the_settings_of_the_engine() {
    let web = workload("Deployment", "web", "replicas: 2");
    let explained = |test: &str, more: &[&str]| {
        let all = [&["explain", "pod", "web", "-o", "json"], more].concat();
        let (document, _) = said(&all, test, &web);
        serde_json::from_str::<Value>(&document).unwrap()
    };
    let together = explained("cost", &["--node-cost", "0.5"]);
    assert_eq!(together["launch"]["pods"].as_array().unwrap().len(), 2, "{together}");
    let fitting = |document: &Value| document["funnel"][0]["largeEnough"].as_u64().unwrap();
    let small = explained("small", &["--max-vcpus-per-node", "4"]);
    assert!(fitting(&small) > 0 && fitting(&small) < fitting(&together), "{small}");
}

#[test]
fn a_workload_without_pods_is_explained() {
    let daemon = workload("DaemonSet", "agent", "minReadySeconds: 0");
    let picky = daemon.replace("name: agent", "name: picky");
    let picky = picky.replace(
        "spec: { containers",
        "spec: { nodeSelector: { kubernetes.io/os: windows }, containers",
    );
    let quota = object("ResourceQuota", "q", "spec: { hard: { pods: 0 } }");
    let of_shop = |yaml: &str, name: &str| {
        yaml.replace(&format!("name: {name} }}"), &format!("name: {name}, namespace: shop }}"))
    };
    let yaml = [
        workload("Deployment", "none", "replicas: 0"),
        workload("StatefulSet", "web", "replicas: 2, serviceName: web"),
        workload("Deployment", "web", "replicas: 1"),
        of_shop(&workload("Deployment", "full", "replicas: 3"), "full"),
        of_shop(&quota, "q"),
        daemon,
        picky,
    ]
    .concat();
    let explained = |name: &str| said(&["explain", "pod", name], "no-pods", &yaml).0;
    assert_eq!(explained("none"), "Deployment `default/none` has no pods\n  it has 0 replicas\n");
    let full = explained("shop/full");
    let refused = "Deployment `shop/full` has no pods\n  it wants 3 pods, and they are refused: ";
    assert!(full.starts_with(refused) && full.contains("pods is limited to 0"), "{full}");
    let some = yaml.replace("hard: { pods: 0 }", "hard: { pods: 2 }");
    let (two, notes) = said(&["explain", "pod", "shop/full"], "some-pods", &some);
    let refused = "Deployment `shop/full` wants 3 pods, and some are refused: ";
    assert!(two.contains("gets a new VM") && notes.contains(refused), "{two}{notes}");
    assert!(explained("statefulset/web").starts_with("default/web-0 "));
    let agent = explained("daemonset/agent");
    assert!(agent.starts_with("DaemonSet `default/agent` places its pods by itself"), "{agent}");
    assert!(agent.contains("nodepool \"default\": every node that its node selector"), "{agent}");
    let picky = explained("picky");
    assert!(
        picky.contains("nodepool \"default\": none of its nodes: its node selector"),
        "{picky}"
    );
    let json = |name: &str| -> Value {
        let all = ["explain", "pod", name, "-o", "json"];
        serde_json::from_str(&said(&all, "no-pods-json", &yaml).0).unwrap()
    };
    let none = json("deploy/none");
    assert_eq!(
        (&none["outcome"], &none["message"]),
        (&"noPods".into(), &"it has 0 replicas".into())
    );
    assert_eq!(json("agent")["outcome"], "eachNode");
    let lost = run(&["explain", "pod", "job/web"], "no-pods-lost", &yaml);
    let error = text(&lost.stderr);
    assert!(error.contains("error: there is no Job `default/web`\nhint: "), "{error}");
}
