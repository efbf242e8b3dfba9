//! Small clusters with pods that run and pods that wait, in which every rule of the scheduler's
//! default profile decides now and then.

use serde_json::{Value, json};

/// Namespaces and the value of their label `team`.
pub(super) const NAMESPACES: [(&str, &str); 2] = [("verdict-a", "red"), ("verdict-b", "blue")];

const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";
const GPU: &str = "example.com/gpu";
const DISK: &str = "disk.csi.azure.com";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// A cluster and the pods that wait.
pub(super) struct Generated {
    /// Names of the nodes.
    pub(super) nodes: Vec<String>,
    /// Path of the collection and object, in the order in which they are created.
    pub(super) objects: Vec<(String, Value)>,
    pub(super) pending: Vec<Value>,
}

/// The rule that decides most in a cluster.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Theme {
    Mixed,
    Ports,
    Spread,
    Together,
    Apart,
    Nodes,
    Taints,
    Volumes,
    Resources,
}

const THEMES: [Theme; 12] = [
    Theme::Mixed,
    Theme::Spread,
    Theme::Apart,
    Theme::Ports,
    Theme::Together,
    Theme::Nodes,
    Theme::Mixed,
    Theme::Taints,
    Theme::Volumes,
    Theme::Resources,
    Theme::Spread,
    Theme::Ports,
];

/// A seeded source of choices (splitmix64), and the theme of the cluster.
struct Dice(u64, Theme);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True with a probability of one in `times`.
    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Whether a pod or node has a feature: in a cluster of its theme with a probability of three
    /// quarters, in a mixed one of one in `times`, in others of a sixth of that.
    fn has(&mut self, theme: Theme, times: u64) -> bool {
        match self.1 {
            own if own == theme => !self.one_in(4),
            Theme::Mixed => self.one_in(times),
            _ => self.one_in(times * 6),
        }
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}

/// The cluster of a seed.
pub(super) fn cluster(seed: u64) -> Generated {
    let theme = THEMES[usize::try_from(seed % THEMES.len() as u64).unwrap()];
    let mut dice = Dice(seed.wrapping_mul(0x5851_f42d_4c95_7f2d), theme);
    let mut made = Generated { nodes: Vec::new(), objects: Vec::new(), pending: Vec::new() };
    for index in 0..dice.between(2, 5) {
        let name = format!("s{seed}-n{index}");
        made.objects.push(("/api/v1/nodes".to_owned(), node(&mut dice, &name)));
        let limit = dice.between(1, 3);
        let driver = json!({ "name": DISK, "nodeID": name, "allocatable": { "count": limit } });
        let csi_node = json!({ "metadata": { "name": name }, "spec": { "drivers": [driver] } });
        made.objects.push(("/apis/storage.k8s.io/v1/csinodes".to_owned(), csi_node));
        made.nodes.push(name);
    }
    let names: Vec<String> = made.nodes.clone();
    for index in 0..dice.between(0, 7) {
        let mut pod = pod(&mut dice, &format!("run-{index}"), true, &mut made.objects);
        let node = &names[usize::try_from(dice.below(names.len() as u64)).unwrap()];
        pod["spec"]["nodeName"] = json!(node);
        let path = path(&pod, "pods");
        made.objects.push((path, pod));
    }
    for index in 0..3 {
        let pod = pod(&mut dice, &format!("wait-{index}"), false, &mut made.objects);
        made.pending.push(pod);
    }
    made
}

fn path(object: &Value, plural: &str) -> String {
    format!("/api/v1/namespaces/{}/{plural}", object["metadata"]["namespace"].as_str().unwrap())
}

fn node(dice: &mut Dice, name: &str) -> Value {
    let mut labels = json!({ HOSTNAME: name, "kubernetes.io/os": "linux" });
    if !dice.one_in(8) {
        labels[ZONE] = json!(dice.pick(&["z-1", "z-2", "z-3"]));
    }
    if !dice.one_in(3) {
        labels["disk"] = json!(dice.pick(&["ssd", "hdd"]));
    }
    if dice.one_in(2) {
        labels["size"] = json!(dice.pick(&["1", "4", "16", "large"]));
    }
    let tight = dice.has(Theme::Resources, 2);
    let mut amounts = json!({
        "cpu": if tight { dice.pick(&["900m", "2", "4", "8"]) } else { "32" },
        "memory": if tight { dice.pick(&["1Gi", "4Gi", "16Gi"]) } else { "64Gi" },
        "pods": if tight { dice.pick(&["2", "4", "110"]) } else { "110" },
        "ephemeral-storage": "20Gi",
    });
    if dice.one_in(3) {
        amounts[GPU] = json!(dice.pick(&["1", "2"]));
    }
    let mut taints = Vec::new();
    if dice.has(Theme::Taints, 3) {
        taints.push(json!({
            "key": dice.pick(&["team", "spot"]), "value": dice.pick(&["", "red", "blue"]),
            "effect": dice.pick(&["NoSchedule", "NoExecute", "PreferNoSchedule"]),
        }));
    }
    if dice.has(Theme::Taints, 6) {
        taints.push(json!({ "key": "dedicated", "effect": "NoSchedule" }));
    }
    json!({
        "metadata": { "name": name, "labels": labels },
        "spec": { "taints": taints, "unschedulable": dice.has(Theme::Taints, 8) && dice.one_in(2) },
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    })
}

/// A pod with some rules, and its volumes. The requests of one that runs are small.
fn pod(dice: &mut Dice, name: &str, runs: bool, objects: &mut Vec<(String, Value)>) -> Value {
    let namespace = dice.pick(&NAMESPACES).0;
    let app = dice.pick(&["a", "b", "c"]);
    let mut spec = json!({
        "terminationGracePeriodSeconds": 0,
        "containers": [container(dice, "main", runs)],
        "affinity": { "podAffinity": {}, "podAntiAffinity": {}, "nodeAffinity": {} },
    });
    if dice.one_in(8) || dice.has(Theme::Ports, 8) && dice.one_in(2) {
        let sidecar = dice.one_in(2);
        let mut first = container(dice, "first", runs);
        if sidecar {
            first["restartPolicy"] = json!("Always");
        } else {
            first["ports"] = json!([]);
        }
        spec["initContainers"] = json!([first]);
    }
    if dice.has(Theme::Apart, 3) {
        let terms: Vec<Value> = (0..dice.between(1, 2)).map(|_| pod_term(dice)).collect();
        spec["affinity"]["podAntiAffinity"][REQUIRED] = json!(terms);
    }
    if !runs {
        rules(dice, &mut spec);
    }
    if dice.has(Theme::Volumes, 5) {
        volumes(dice, namespace, name, runs, &mut spec, objects);
    }
    if dice.one_in(6) {
        spec["priorityClassName"] = json!("urgent");
    }
    json!({
        "metadata": {
            "name": name, "namespace": namespace,
            "labels": { "app": app, "tier": dice.pick(&["x", "y"]) },
        },
        "spec": spec,
    })
}

fn container(dice: &mut Dice, name: &str, small: bool) -> Value {
    let mut requests = json!({});
    if !dice.one_in(5) {
        let most: &[&str] = if small { &["100m", "300m"] } else { &["200m", "1", "1500m", "3"] };
        requests["cpu"] = json!(dice.pick(most));
        let most: &[&str] = if small { &["64Mi"] } else { &["128Mi", "1Gi", "3000M"] };
        requests["memory"] = json!(dice.pick(most));
    }
    let mut limits = json!({});
    if dice.has(Theme::Resources, 8) && dice.one_in(2) {
        (requests[GPU], limits[GPU]) = (json!("1"), json!("1"));
    }
    let mut ports = Vec::new();
    if dice.has(Theme::Ports, 4) {
        let port = dice.pick(&[8080, 8080, 8080, 9090]);
        ports.push(json!({
            "containerPort": port, "hostPort": port, "protocol": dice.pick(&["TCP", "TCP", "UDP"]),
            "hostIP": dice.pick(&["", "127.0.0.1", "10.0.0.4", "10.0.0.4"]),
        }));
    }
    json!({
        "name": name, "image": "example.com/app:1", "ports": ports,
        "resources": { "requests": requests, "limits": limits },
    })
}

/// Rules of a pod that waits.
fn rules(dice: &mut Dice, spec: &mut Value) {
    if dice.has(Theme::Nodes, 6) && dice.one_in(2) {
        spec["nodeSelector"] = json!({ "disk": dice.pick(&["ssd", "hdd"]) });
    }
    if dice.has(Theme::Nodes, 4) {
        let terms: Vec<Value> = (0..dice.between(1, 2)).map(|_| node_term(dice)).collect();
        spec["affinity"]["nodeAffinity"][REQUIRED] = json!({ "nodeSelectorTerms": terms });
    }
    if dice.one_in(4) {
        spec["affinity"]["nodeAffinity"][PREFERRED] =
            json!([{ "weight": 10, "preference": node_term(dice) }]);
    }
    if dice.has(Theme::Together, 5) {
        spec["affinity"]["podAffinity"][REQUIRED] = json!([pod_term(dice)]);
    }
    if dice.one_in(5) {
        spec["affinity"]["podAffinity"][PREFERRED] =
            json!([{ "weight": 5, "podAffinityTerm": pod_term(dice) }]);
    }
    if dice.has(Theme::Spread, 3) {
        let count = dice.between(1, 2);
        let mut spreads: Vec<Value> = (0..count).map(|_| spread(dice)).collect();
        spreads.dedup_by_key(|one| one["topologyKey"].clone());
        spec["topologySpreadConstraints"] = json!(spreads);
    }
    let tolerations: Vec<Value> = (0..dice.below(3)).map(|_| toleration(dice)).collect();
    spec["tolerations"] = json!(tolerations);
}

fn node_term(dice: &mut Dice) -> Value {
    let count = dice.between(1, 2);
    let expressions: Vec<Value> = (0..count)
        .map(|_| match dice.below(6) {
            0 => json!({ "key": ZONE, "operator": "In", "values": ["z-1", "z-2"] }),
            1 => {
                json!({ "key": ZONE, "operator": "NotIn", "values": [dice.pick(&["z-1", "z-3"])] })
            }
            2 => json!({ "key": "disk", "operator": "Exists" }),
            3 => json!({ "key": "disk", "operator": "DoesNotExist" }),
            4 => json!({ "key": "size", "operator": "Gt", "values": [dice.pick(&["1", "3"])] }),
            _ => json!({ "key": "size", "operator": "Lt", "values": ["10"] }),
        })
        .collect();
    json!({ "matchExpressions": expressions })
}

fn selector(dice: &mut Dice) -> Value {
    match dice.below(5) {
        0 => json!({}),
        1 => json!({ "matchExpressions": [
            { "key": "app", "operator": "NotIn", "values": [dice.pick(&["a", "b"])] },
        ] }),
        2 => json!({ "matchExpressions": [
            { "key": "app", "operator": "In", "values": ["a", "c"] },
            { "key": "tier", "operator": "Exists" },
        ] }),
        _ => json!({ "matchLabels": { "app": dice.pick(&["a", "b", "c"]) } }),
    }
}

fn pod_term(dice: &mut Dice) -> Value {
    let mut term = json!({
        "topologyKey": dice.pick(&[HOSTNAME, ZONE, "disk"]), "labelSelector": selector(dice),
    });
    match dice.below(6) {
        0 => term["namespaces"] = json!([dice.pick(&NAMESPACES).0]),
        1 => term["namespaceSelector"] = json!({}),
        2 => {
            let team = dice.pick(&["red", "blue", "green"]);
            term["namespaceSelector"] = json!({ "matchLabels": { "team": team } });
        }
        3 => {
            let team = dice.pick(&["red", "blue"]);
            term["namespaceSelector"] = json!({ "matchLabels": { "team": team } });
            term["namespaces"] = json!([dice.pick(&NAMESPACES).0]);
        }
        _ => {}
    }
    if dice.one_in(6) && !term["labelSelector"].to_string().contains("tier") {
        term[dice.pick(&["matchLabelKeys", "mismatchLabelKeys"])] = json!(["tier"]);
    }
    term
}

fn spread(dice: &mut Dice) -> Value {
    let hard = !dice.one_in(4);
    let mut spread = json!({
        "topologyKey": dice.pick(&[HOSTNAME, ZONE]), "maxSkew": dice.between(1, 2),
        "whenUnsatisfiable": if hard { "DoNotSchedule" } else { "ScheduleAnyway" },
        "labelSelector": selector(dice),
    });
    if hard && dice.one_in(3) {
        spread["minDomains"] = json!(dice.between(1, 4));
    }
    if dice.one_in(3) {
        spread["nodeAffinityPolicy"] = json!(dice.pick(&["Honor", "Ignore"]));
    }
    if dice.one_in(3) {
        spread["nodeTaintsPolicy"] = json!(dice.pick(&["Honor", "Ignore"]));
    }
    if dice.one_in(5) && !spread["labelSelector"].to_string().contains("tier") {
        spread["matchLabelKeys"] = json!(["tier"]);
    }
    spread
}

fn toleration(dice: &mut Dice) -> Value {
    let mut toleration = match dice.below(4) {
        0 => json!({ "operator": "Exists" }),
        1 => json!({ "key": dice.pick(&["team", "spot", "dedicated"]), "operator": "Exists" }),
        _ => json!({
            "key": dice.pick(&["team", "spot", "dedicated"]), "operator": "Equal",
            "value": dice.pick(&["", "red", "blue"]),
        }),
    };
    if dice.one_in(3) {
        toleration["effect"] = json!(dice.pick(&["NoSchedule", "NoExecute"]));
    }
    if dice.one_in(8) {
        toleration = json!({ "key": "node.kubernetes.io/unschedulable", "operator": "Exists" });
    }
    toleration
}

/// Claims of a pod: bound ones, with a zone or without; for a pod that waits also ones that are not
/// bound, or missing.
fn volumes(
    dice: &mut Dice,
    namespace: &str,
    name: &str,
    runs: bool,
    spec: &mut Value,
    objects: &mut Vec<(String, Value)>,
) {
    let mut used = Vec::new();
    for index in 0..dice.between(1, 2) {
        let claim = format!("{name}-{index}");
        used.push(json!({
            "name": format!("v{index}"), "persistentVolumeClaim": { "claimName": claim },
        }));
        let fate = if runs { 9 } else { dice.below(10) };
        if fate == 0 {
            continue;
        }
        let size = json!({ "storage": "1Gi" });
        let volume = format!("{namespace}-{claim}");
        let mut object = json!({
            "metadata": { "name": claim, "namespace": namespace },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": { "requests": size },
                "storageClassName": "",
            },
        });
        if fate > 1 {
            let mut made = json!({
                "metadata": { "name": volume },
                "spec": {
                    "capacity": size, "accessModes": ["ReadWriteOnce"],
                    "persistentVolumeReclaimPolicy": "Retain",
                    "csi": { "driver": DISK, "volumeHandle": volume },
                    "claimRef": { "namespace": namespace, "name": claim },
                },
            });
            if dice.one_in(2) {
                let zone = dice.pick(&["z-1", "z-2", "z-3"]);
                let term = json!({ "matchExpressions": [
                    { "key": ZONE, "operator": "In", "values": [zone] },
                ] });
                made["spec"]["nodeAffinity"] =
                    json!({ "required": { "nodeSelectorTerms": [term] } });
            }
            objects.push(("/api/v1/persistentvolumes".to_owned(), made));
            object["metadata"]["annotations"] = json!({ "pv.kubernetes.io/bind-completed": "yes" });
            object["spec"]["volumeName"] = json!(volume);
            object["status"] = json!({ "phase": "Bound" });
        }
        objects.push((path(&object, "persistentvolumeclaims"), object));
    }
    spec["volumes"] = json!(used);
}
