//! `nap plan` and `nap explain` on manifests: no cluster, no cloud.

mod ceiling;
mod changes;
mod contradictions;
mod disruption;
mod documents;
mod estimates;
mod explaining;
mod kinds;
mod live;

use std::path::PathBuf;
use std::process::{Output, Stdio};

use serde_json::Value;

use crate::process::{nap, output, text};

/// A folder for one test, with these files.
fn folder(test: &str, files: &[(&str, &str)]) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("plan-{test}"));
    if folder.exists() {
        std::fs::remove_dir_all(&folder).unwrap();
    }
    for (name, content) in files {
        let file = folder.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, content).unwrap();
    }
    folder
}

fn run(arguments: &[&str], test: &str, yaml: &str) -> Output {
    let file = folder(test, &[("m.yaml", yaml)]).join("m.yaml").display().to_string();
    output(&[arguments, &["-f", &file]].concat())
}

/// Runs a command on a manifest; returns stdout and stderr. It must succeed, with lines of at most
/// 100 columns.
fn said(arguments: &[&str], test: &str, yaml: &str) -> (String, String) {
    let output = run(arguments, test, yaml);
    let (said, notes) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{test}: {notes}");
    let too_long = said.lines().find(|line| line.chars().count() > 100);
    assert!(
        too_long.is_none() || said.starts_with('{') || said.starts_with("version:"),
        "{test}: {too_long:?}"
    );
    (said, notes)
}

fn plan(test: &str, yaml: &str) -> Value {
    serde_json::from_str(&said(&["plan", "-o", "json"], test, yaml).0).unwrap()
}

fn pods_of(plan: &Value) -> Vec<&str> {
    let launches = plan["launches"].as_array().unwrap().iter();
    let mut pods: Vec<&str> = launches
        .flat_map(|launch| launch["pods"].as_array().unwrap())
        .filter_map(Value::as_str)
        .collect();
    pods.sort_unstable();
    pods
}

fn template(cpu: &str) -> String {
    format!("{{ metadata: {{ labels: {{ app: a }} }}, spec: {{ {} }} }}", containers(cpu))
}

fn object(kind: &str, name: &str, rest: &str) -> String {
    let version = match kind {
        "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" => "apps/v1",
        "Job" | "CronJob" => "batch/v1",
        "StorageClass" => "storage.k8s.io/v1",
        "PodDisruptionBudget" => "policy/v1",
        "NodePool" | "NodeClaim" => "karpenter.sh/v1",
        "NodeOverlay" => "karpenter.sh/v1alpha1",
        "AKSNodeClass" => "karpenter.azure.com/v1beta1",
        "PriorityClass" => "scheduling.k8s.io/v1",
        "HorizontalPodAutoscaler" => "autoscaling/v2",
        "VerticalPodAutoscaler" => "autoscaling.k8s.io/v1",
        "ScaledObject" | "ScaledJob" => "keda.sh/v1alpha1",
        _ => "v1",
    };
    format!("---\napiVersion: {version}\nkind: {kind}\nmetadata: {{ name: {name} }}\n{rest}\n")
}

fn workload(kind: &str, name: &str, spec: &str) -> String {
    let template = template("1");
    let (more, template) = match kind {
        "Job" => ("", template.replace("spec: {", "spec: { restartPolicy: Never,")),
        _ if spec.contains("selector: {") => ("", template),
        _ => (", selector: { matchLabels: { app: a } }", template),
    };
    object(kind, name, &format!("spec: {{ {spec}{more}, template: {template} }}"))
}

fn pod(name: &str, spec: &str) -> String {
    object("Pod", name, &format!("spec: {{ {spec} }}"))
}

fn containers(cpu: &str) -> String {
    format!("containers: [{{ name: c, image: i, resources: {{ requests: {{ cpu: {cpu} }} }} }}]")
}

/// A NodePool of on-demand D nodes, with additions to its spec and to its template's spec.
fn pool(spec: &str, template: &str, requirements: &str) -> String {
    object(
        "NodePool",
        "only",
        &format!(
            "spec:\n  {spec}\n  template:\n    spec:\n      {template}\n      nodeClassRef: {{ group: karpenter.azure.com, kind: AKSNodeClass, name: default }}\n      \
             requirements:\n        - {{ key: karpenter.sh/capacity-type, operator: In, values: [on-demand] }}\n        \
             - {{ key: karpenter.azure.com/sku-family, operator: In, values: [D] }}\n        {requirements}"
        ),
    )
}

#[test]
fn workloads_expand_to_their_pods() {
    let yaml = [
        workload("Deployment", "web", "replicas: 3"),
        workload("ReplicaSet", "set", "replicas: 2"),
        workload("StatefulSet", "db", "replicas: 2, serviceName: db"),
        workload("Job", "once", "parallelism: 3, completions: 2"),
        object(
            "CronJob",
            "daily",
            &format!(
                "spec: {{ schedule: \"0 0 * * *\", jobTemplate: {{ spec: {{ template: {} }} }} }}",
                template("1").replace("spec: {", "spec: { restartPolicy: Never,")
            ),
        ),
        pod("solo", &containers("1")),
        pod("done", &containers("1")).replace("spec:", "status: { phase: Succeeded }\nspec:"),
        pod("gated", &format!("schedulingGates: [{{ name: wait }}], {}", containers("1"))),
        object("Service", "web", "spec: {}"),
        object("ConfigMap", "settings", "data: {}"),
    ]
    .concat();
    let (document, notes) = said(&["plan", "-o", "json"], "workloads", &yaml);
    let plan: Value = serde_json::from_str(&document).unwrap();
    let expected = [
        "daily-1", "db-0", "db-1", "once-1", "once-2", "set-1", "set-2", "solo", "web-1", "web-2",
        "web-3",
    ];
    assert_eq!(pods_of(&plan), expected.map(|name| format!("default/{name}")));
    for note in [
        "CronJob `default/daily`: planned for one run of 1 pod",
        "ConfigMap (1), Service (1)",
        "1 pod held back by scheduling gates",
        "no NodePool given: the default one of AKS Node Auto-Provisioning is used",
    ] {
        assert!(notes.contains(note), "{notes}");
    }
    assert!(notes.lines().all(|line| line.starts_with("note: ")), "{notes}");
}

#[test]
fn overlays_change_what_vms_cost_and_a_contradiction_is_noted() {
    let web = workload("Deployment", "web", "replicas: 3");
    let chosen = |plan: &Value| plan["launches"][0]["instanceType"].as_str().unwrap().to_owned();
    let plain = plan("no-overlay", &web);
    let overlay = |name: &str, says: &str| {
        let key = "node.kubernetes.io/instance-type";
        let requirements =
            format!("[{{ key: {key}, operator: In, values: [{}] }}]", chosen(&plain));
        object("NodeOverlay", name, &format!("spec: {{ requirements: {requirements}, {says} }}"))
    };
    let dear = plan("dear", &format!("{web}{}", overlay("dear", r#"priceAdjustment: "+900%""#)));
    assert_ne!(chosen(&dear), chosen(&plain));
    let two = format!(
        "{web}{}{}",
        overlay("a", r#"price: "0.5", weight: 2"#),
        overlay("b", r#"price: "0.001", weight: 2"#)
    );
    let (document, notes) = said(&["plan", "-o", "json"], "overlays", &two);
    let cheap: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(chosen(&cheap), chosen(&plain));
    assert_eq!(cheap["launches"][0]["priceUsdPerHour"], 0.001);
    assert!(
        notes.contains("NodeOverlay `a` does not count: it contradicts another one"),
        "{notes}"
    );
}

#[test]
fn disks_that_one_vm_cannot_attach_need_a_larger_one() {
    let claims = |count: usize| {
        let claim = |number| {
            let size = "accessModes: [ReadWriteOnce], resources: { requests: { storage: 1Gi } }";
            format!("{{ metadata: {{ name: data-{number} }}, spec: {{ {size} }} }}")
        };
        (0..count).map(claim).collect::<Vec<_>>().join(", ")
    };
    let database = |count| {
        workload(
            "StatefulSet",
            "db",
            &format!("replicas: 1, volumeClaimTemplates: [{}]", claims(count)),
        )
    };
    let price = |plan: &Value| plan["costUsdPerHour"].as_f64().unwrap();
    let few = plan("one-disk", &database(1));
    let many = plan("many-disks", &database(24));
    assert!(price(&many) > price(&few), "{many} {few}");
}

#[test]
fn the_schedulers_default_constraints_spread_pods_of_one_workload() {
    let web = workload("Deployment", "web", "replicas: 3, selector: { matchLabels: { app: a } }");
    let config = "podTopologySpread: {defaultConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule}]}";
    let arguments = ["plan", "-o", "json", "--scheduler-config", config];
    let (document, _) = said(&arguments, "default-spread", &web);
    let spread: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(spread["launches"].as_array().unwrap().len(), 3, "{spread}");
    assert_eq!(plan("no-default-spread", &web)["launches"].as_array().unwrap().len(), 1);
}

#[test]
fn node_size_options_change_the_number_of_nodes() {
    let web = workload("Deployment", "web", "replicas: 12");
    let launches = |test: &str, option: &[&str]| {
        let (document, _) = said(&[&["plan", "-o", "json"], option].concat(), test, &web);
        serde_json::from_str::<Value>(&document).unwrap()["launches"].as_array().unwrap().len()
    };
    let counts = [
        launches("without-options", &[]),
        launches("three-pods-a-node", &["--max-pods-per-node", "3"]),
        launches("four-vcpus", &["--max-vcpus-per-node", "4"]),
        launches("eight-vcpus", &["--max-vcpus-per-node", "8", "--node-cost", "0"]),
        launches("node-cost", &["--max-vcpus-per-node", "8"]),
    ];
    // 12 pods of one CPU. Beside the system reservation 4 vCPUs hold 3 pods and 8 hold 7; only the
    // default cost of a node makes two large nodes better than four small ones.
    assert_eq!(counts, [1, 4, 4, 4, 2]);
}

#[test]
fn daemons_raise_the_cost_and_max_pods_the_number_of_nodes() {
    let three = workload("Deployment", "web", "replicas: 3");
    let alone = plan("no-daemons", &three);
    let daemon = workload("DaemonSet", "agent", "minReadySeconds: 0").replace("cpu: 1 ", "cpu: 2 ");
    let with_daemons = plan("daemons", &format!("{three}{daemon}"));
    assert_eq!(pods_of(&alone), pods_of(&with_daemons));
    assert!(with_daemons["costUsdPerHour"].as_f64() > alone["costUsdPerHour"].as_f64());
    let class = object("AKSNodeClass", "default", "spec: { maxPods: 16 }");
    let many = format!(
        "{class}{}",
        workload("Deployment", "web", "replicas: 31").replace("cpu: 1 ", "cpu: 1m ")
    );
    assert_eq!(
        plan("max-pods", &many)["launches"].as_array().unwrap().len(),
        4,
        "10 pods fit on a node beside 6 daemons"
    );
}

#[test]
fn existing_nodes_are_filled_first() {
    let node = "status: { allocatable: { cpu: \"4\", memory: 16Gi, pods: \"10\" }, conditions: [{ type: Ready, status: \"True\" }] }";
    let yaml = [
        object("Node", "old", node),
        pod("resident", &format!("nodeName: old, {}", containers("3"))),
        workload("Deployment", "web", "replicas: 2"),
    ]
    .concat();
    let found = plan("existing", &yaml);
    let placements = found["placements"].as_array().unwrap();
    assert_eq!(placements.len(), 1, "a resident leaves room for one: {placements:?}");
    assert_eq!(placements[0]["node"], "old");
    assert_eq!(pods_of(&found).len(), 1);
    let (text, _) = said(&["explain", "pod", "resident"], "existing", &yaml);
    assert!(text.contains("it runs on node `old` already"), "{text}");
    let (text, _) = said(&["explain", "pod", "default/web-1"], "existing", &yaml);
    assert!(text.contains("web-1 goes onto old"), "{text}");
}

#[test]
fn volumes_restrict_the_zones_of_their_pods() {
    let disk = "accessModes: [ReadWriteOnce], resources: { requests: { storage: 1Gi } }";
    let claim = format!("spec: {{ volumeName: disk, {disk} }}");
    let volume = "spec:\n  nodeAffinity: { required: { nodeSelectorTerms: [{ matchExpressions: [{ key: topology.kubernetes.io/zone, operator: In, values: [eastus-2] }] }] } }";
    let class = "provisioner: disk.csi.azure.com\nvolumeBindingMode: WaitForFirstConsumer\nallowedTopologies: [{ matchLabelExpressions: [{ key: topology.kubernetes.io/zone, values: [eastus-3] }] }]";
    let bound = format!(
        "volumes: [{{ name: v, persistentVolumeClaim: {{ claimName: data }} }}], {}",
        containers("1")
    );
    let set = format!(
        "serviceName: db, volumeClaimTemplates: [{{ metadata: {{ name: data }}, spec: {{ \
         storageClassName: here, {disk} }} }}]"
    );
    let set = workload("StatefulSet", "db", &set);
    let yaml = [
        object("PersistentVolumeClaim", "data", &claim),
        object("PersistentVolume", "disk", volume),
        object("StorageClass", "here", class),
        pod("bound", &bound),
        set,
    ]
    .concat();
    let found = plan("volumes", &yaml);
    let zone = |pod: &str| {
        let mut launches = found["launches"].as_array().unwrap().iter();
        launches.find(|launch| launch["pods"][0] == pod).map(|launch| launch["zone"].clone())
    };
    assert_eq!(
        (zone("default/bound"), zone("default/db-0")),
        (Some("eastus-2".into()), Some("eastus-3".into()))
    );
}

#[test]
fn cluster_dump_counts_each_pod_once() {
    let owner = |kind: &str, name: &str| {
        format!(
            "ownerReferences: [{{ apiVersion: apps/v1, kind: {kind}, name: {name}, controller: true, uid: u }}]"
        )
    };
    let owned = |object: String, owner: &str| {
        object.replacen(" }\n", &format!(", {owner}, labels: {{ pod-template-hash: abc }} }}\n"), 1)
    };
    let running = pod("web-abc-x", &format!("nodeName: gone, {}", containers("1")));
    let items = [
        workload("Deployment", "web", "replicas: 3"),
        owned(workload("ReplicaSet", "web-abc", "replicas: 3"), &owner("Deployment", "web")),
        owned(running, &owner("ReplicaSet", "web-abc")),
        owned(pod("web-abc-y", &containers("1")), &owner("ReplicaSet", "web-abc")),
    ];
    assert_eq!(pods_of(&plan("dump", &items.concat())), ["default/web-1", "default/web-abc-y"]);
}

#[test]
fn folders_lists_and_standard_input_are_read() {
    let list = format!(
        "{{ \"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [{}] }}",
        r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "b", "namespace": "x"},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}"#
    );
    let solo = pod("a", &containers("1"));
    let files =
        [("one/list.json", list.as_str()), ("two.yml", solo.as_str()), ("notes.txt", "not: [yaml")];
    let folder = folder("folder", &files);
    let found = output(&["plan", "-o", "json", "-f", &folder.display().to_string()]);
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(pods_of(&found), ["default/a", "x/b"]);

    let mut child = nap(&["plan", "-f", "-"])
        .stdin(std::fs::File::open(folder.join("two.yml")).unwrap())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(child.stdout.as_mut().unwrap(), &mut said).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(said.starts_with("1 VM in eastus for 1 pod: $"), "{said}");
}

#[test]
fn unreadable_manifest_gives_one_line_with_its_place() {
    let good = workload("Deployment", "web", "replicas: 1");
    for (test, yaml, expected) in [
        ("yaml", format!("{good}---\na: ["), "m.yaml:7: is not YAML"),
        ("kind", format!("{good}---\na: 1\n"), "m.yaml:7: kind: is missing"),
        (
            "replicas",
            good.replace("replicas: 1", "replicas: many"),
            "m.yaml:5: Deployment `web`: spec.replicas: Invalid value: \"many\": must be of type integer",
        ),
        (
            "name",
            good.replace("name: web", "labels: {}"),
            "metadata.name: Required value: name or generateName is required",
        ),
        (
            "crowd",
            good.replace("replicas: 1", "replicas: 2000000000"),
            "wants more than 500000 pods",
        ),
        (
            "operator",
            pool("weight: 1", "expireAfter: Never", "- { key: a, operator: Like }"),
            "spec.template.spec.requirements[2].operator: Unsupported value: \"Like\"",
        ),
        (
            "weight",
            pool(
                "weight: 1",
                "expireAfter: Never",
                "- { key: karpenter.sh/nodepool, operator: Exists }",
            ),
            "NodePool `only`: spec.template.spec.requirements",
        ),
    ] {
        let output = run(&["plan"], test, &yaml);
        let error = text(&output.stderr);
        assert!(!output.status.success(), "{test}: {error}");
        assert!(error.starts_with("error: ") && error.contains(expected), "{test}: {error}");
        assert_eq!(error.lines().count(), 2, "one line and a hint: {error}");
    }
    let missing = output(&["plan", "-f", "does/not/exist"]);
    assert!(
        text(&missing.stderr).contains("does/not/exist: cannot be read"),
        "{}",
        text(&missing.stderr)
    );
    let region = run(&["plan", "--region", "eastsu"], "region", &good);
    assert!(text(&region.stderr).contains("`eastsu`"), "{}", text(&region.stderr));
    let nobody = run(&["explain", "pod", "nobody"], "nobody", &good);
    assert!(
        text(&nobody.stderr).contains("there is no pod `default/nobody`"),
        "{}",
        text(&nobody.stderr)
    );
}

/// Manifests that cause every kind of refusal.
fn refusals() -> String {
    let tolerant = "tolerations: [{ operator: Exists }]";
    [
        pool(
            "limits: { cpu: 1000 }",
            "taints: [{ key: team, value: ml, effect: NoSchedule }]",
            "- { key: topology.kubernetes.io/zone, operator: In, values: [eastus-1] }",
        ),
        pod("tainted", &containers("1")),
        pod("huge", &format!("{tolerant}, {}", containers("900"))),
        pod(
            "elsewhere",
            &format!(
                "nodeSelector: {{ topology.kubernetes.io/zone: eastus-3 }}, {tolerant}, {}",
                containers("1")
            ),
        ),
        pod(
            "gpu",
            &format!(
                "{tolerant}, containers: [{{ name: c, image: i, resources: {{ limits: {{ nvidia.com/gpu: 1 }} }} }}]"
            ),
        ),
        pod(
            "lost",
            &format!(
                "{tolerant}, volumes: [{{ name: v, persistentVolumeClaim: {{ claimName: none }} }}], {}",
                containers("1")
            ),
        ),
    ]
    .concat()
}

#[test]
fn explain_shows_the_smallest_change_for_an_unplaced_pod() {
    for (name, expected) in [
        (
            "tainted",
            &[
                "taint `team=ml:NoSchedule` is not tolerated",
                "let the pod tolerate `team=ml:NoSchedule`",
                "Standard_D",
                "$",
            ][..],
        ),
        (
            "huge",
            &[
                "0  large enough besides daemons",
                "none with enough cpu",
                "let the pod ask for at most ",
                " of cpu",
            ],
        ),
        (
            "elsewhere",
            &[
                "is not in",
                "remove `topology.kubernetes.io/zone` from the pod's node selector",
                "in eastus-1 at $",
            ],
        ),
        (
            "gpu",
            &[
                "none with enough nvidia.com/gpu",
                "allow `N` for `karpenter.azure.com/sku-family`",
                "Standard_N",
            ],
        ),
        ("lost", &["claim `none` does not exist", "No single change"]),
    ] {
        let (text, _) = said(
            &["explain", "pod", &format!("default/{name}")],
            &format!("explain-{name}"),
            &refusals(),
        );
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in expected {
            assert!(
                flat.contains(&part.split_whitespace().collect::<Vec<_>>().join(" ")),
                "{name}: no {part:?} in:\n{text}"
            );
        }
    }
}

#[test]
fn explain_shows_the_limit_that_would_place_the_pod() {
    let yaml = format!(
        "{}{}",
        pool(
            "limits: { cpu: 8 }",
            "expireAfter: Never",
            "- { key: topology.kubernetes.io/zone, operator: In, values: [eastus-1] }"
        ),
        workload("Deployment", "web", "replicas: 12")
    );
    let found = plan("limit", &yaml);
    let unschedulable = found["unschedulable"].as_array().unwrap();
    assert!(!unschedulable.is_empty());
    let change = &unschedulable[0]["smallestChange"];
    assert_eq!(
        (&change["kind"], &change["nodePool"], &change["resource"]),
        (&"raiseLimit".into(), &"only".into(), &"cpu".into())
    );
    let raised =
        yaml.replace("cpu: 8 }", &format!("cpu: {} }}", change["amount"].as_str().unwrap()));
    let after = plan("limit-raised", &raised);
    assert!(after["unschedulable"].as_array().unwrap().len() < unschedulable.len(), "{change}");
    let pod = unschedulable[0]["pod"].as_str().unwrap();
    let (text, _) = said(&["explain", "pod", pod], "limit", &yaml);
    assert!(text.contains("raise the limit on cpu of nodepool \"only\" from 8 to "), "{text}");
}

#[test]
fn explain_shows_the_node_of_a_placed_pod_and_its_alternatives() {
    let yaml = workload("Deployment", "web", "replicas: 2").replace("cpu: 1 ", "cpu: 100m ");
    let (text, _) = said(&["explain", "pod", "web"], "placed", &yaml);
    for part in [
        "default/web-1 gets a new VM",
        "cheapest of",
        "next: ",
        "shares the VM with 1 pod",
        "default/web-2",
        "after requirements",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn tables_are_at_most_100_columns_wide() {
    let name = "a-nodepool-with-a-very-long-name-that-nobody-would-want-to-type-twice";
    let yaml = format!(
        "{}{}",
        pool("weight: 1", "expireAfter: Never", "").replace("name: only", &format!("name: {name}")),
        workload("Deployment", "web", "replicas: 400")
    );
    let (table, _) = said(&["plan"], "table", &yaml);
    assert!(
        table.contains("VMS  SIZE")
            && table.contains("a-nodepool-with")
            && table.contains("default/web ("),
        "{table}"
    );
    let (wide, _) = said(&["plan", "-o", "wide"], "wide", &yaml);
    assert!(wide.contains("default/web-400") && wide.contains("cheapest of"), "{wide}");
}

#[test]
fn explain_names_the_pod_rule_that_leaves_no_zone() {
    let affinity = "affinity: { podAntiAffinity: { requiredDuringSchedulingIgnoredDuringExecution: [{ topologyKey: topology.kubernetes.io/zone, labelSelector: { matchLabels: { app: a } } }] } }";
    let yaml = workload("Deployment", "web", "replicas: 4")
        .replace("spec: { containers", &format!("spec: {{ {affinity}, containers"));
    let found = plan("zones", &yaml);
    let unschedulable = found["unschedulable"].as_array().unwrap();
    assert_eq!(unschedulable.len(), 1, "there are three zones");
    assert_eq!(unschedulable[0]["reasons"][0]["reason"], "antiAffinity");
    assert_eq!(unschedulable[0]["smallestChange"]["kind"], "dropAntiAffinity");
}
