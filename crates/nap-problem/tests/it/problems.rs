//! Parsing and validation of problem and plan files, and the judge.

use nap_engine::{Options, solve};
use nap_oracle::check;
use nap_problem::{PlanFile, Problem, judge};
use serde_json::{Value, json};

/// Two types in two zones, two NodePools, a daemon, an existing node, and classes that use every
/// rule.
fn base() -> Value {
    let spread = |key: &str| {
        json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
               "labelSelector": {"matchLabels": {"app": "spread"}}})
    };
    let offers = |price: f64| {
        json!([{"zone": "z1", "capacityType": "on-demand", "priceUsdPerHour": price, "available": true},
               {"zone": "z2", "capacityType": "on-demand", "priceUsdPerHour": price, "available": true},
               {"zone": "z3", "capacityType": "spot", "priceUsdPerHour": price, "available": false}])
    };
    let gib = 1_i64 << 30;
    json!({
        "version": 1, "name": "base", "recipe": "by hand",
        "instanceTypes": [
            {"name": "small", "arch": "amd64", "capacity": {"cpuMilli": 4000, "memoryBytes": 8 * gib, "pods": 10},
             "overhead": {"cpuMilli": 100}, "offerings": offers(0.1)},
            {"name": "large", "arch": "amd64", "os": ["linux", "windows"],
             "capacity": {"cpuMilli": 16000, "memoryBytes": 32 * gib, "pods": 40, "extended": {"nvidia.com/gpu": 1}},
             "labels": {"size": ["large"], "cores": ["16"]}, "offerings": offers(0.4)}],
        "nodePools": [
            {"name": "default", "limits": {"cpu": "100"}},
            {"name": "tainted", "labels": {"team": "a"}, "taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}],
             "requirements": [{"key": "size", "operator": "In", "values": ["large"]}]}],
        "pods": [
            {"name": "plain", "replicas": 3, "requests": {"cpuMilli": 500, "memoryBytes": gib}},
            {"name": "spread", "replicas": 4, "labels": {"app": "spread"}, "requests": {"cpuMilli": 100, "memoryBytes": 1},
             "topologySpread": [spread("topology.kubernetes.io/zone")]},
            {"name": "together", "replicas": 2, "labels": {"app": "together"}, "requests": {"cpuMilli": 100, "memoryBytes": 1},
             "podAffinity": [{"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {"matchLabels": {"app": "together"}}}]},
            {"name": "apart", "replicas": 2, "labels": {"app": "apart"}, "requests": {"cpuMilli": 100, "memoryBytes": 1},
             "podAntiAffinity": [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "apart"}}}]},
            {"name": "team", "replicas": 1, "requests": {"cpuMilli": 100, "memoryBytes": 1}, "nodeSelector": {"team": "a"},
             "tolerations": [{"key": "team", "operator": "Exists"}]},
            {"name": "zoned", "replicas": 1, "requests": {"cpuMilli": 100, "memoryBytes": 1},
             "nodeAffinity": [{"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z2"]}]}]}],
        "daemons": [{"name": "agent", "namespace": "kube-system", "requests": {"cpuMilli": 200, "memoryBytes": 1},
                     "tolerations": [{"operator": "Exists"}]}],
        "nodes": [{"name": "old", "nodePool": "default", "instanceType": "small", "zone": "z1", "capacityType": "on-demand",
                   "pods": {"apart": 1}}]
    })
}

fn problem() -> Problem {
    Problem::parse(&base().to_string()).unwrap()
}

/// A valid plan for the base problem: one node in each zone beside the existing one in z1, and one
/// for the team.
fn plan() -> Value {
    let node = |pool: &str, kind: &str, zone: &str, price: f64, pods: Value| {
        json!({"nodePool": pool, "instanceType": kind, "zone": zone, "capacityType": "on-demand", "priceUsdPerHour": price,
               "pods": pods})
    };
    json!({
        "nodes": [
            node("default", "small", "z1", 0.1, json!({"apart": 1, "together": 2})),
            node("default", "small", "z2", 0.1, json!({"apart": 1, "spread": 2, "zoned": 1})),
            node("tainted", "large", "z1", 0.4, json!({"team": 1}))],
        "existing": {"old": {"plain": 3, "spread": 2}},
        "unplaced": {}
    })
}

fn violations(problem: &Value, plan: &Value) -> Vec<String> {
    let problem = Problem::parse(&problem.to_string()).unwrap();
    judge(&problem, &PlanFile::parse(&plan.to_string()).unwrap()).unwrap().violations
}

#[test]
fn files_survive_a_round_trip() {
    let problem = problem();
    assert_eq!(Problem::parse(&problem.to_text()).unwrap(), problem);
    let plan = PlanFile::parse(&plan().to_string()).unwrap();
    assert_eq!(PlanFile::parse(&plan.to_text()).unwrap(), plan);
    assert_eq!(problem.pods[0].namespace, "default");
    assert_eq!(problem.instance_types[0].os, ["linux"]);
}

/// JSON pointer, new value, and the words of the error.
type Case = (&'static str, Value, &'static [&'static str]);

#[test]
fn invalid_problem_files_are_refused_with_path_and_value() {
    let cases: &[Case] = &[
        ("/version", json!(2), &["version 2"]),
        ("/colour", json!(1), &["unknown field `colour`"]),
        ("/pods/0/priority", json!(1), &["unknown field `priority`"]),
        ("/pods/1/topologySpread/0/weight", json!(1), &["unknown field `weight`"]),
        ("/pods/2/podAffinity/0/preferred", json!(1), &["unknown field `preferred`"]),
        ("/pods/5/nodeAffinity/0/matchFields", json!([]), &["unknown field `matchFields`"]),
        ("/instanceTypes/0/capacity/gpu", json!(1), &["unknown field `gpu`"]),
        ("/nodes/0/nodePool", json!("none"), &["old", "nodePool", "`none`"]),
        ("/nodes/0/instanceType", json!("none"), &["old", "instanceType", "`none`"]),
        ("/nodes/0/zone", json!("z9"), &["old", "offering", "z9"]),
        ("/nodes/0/pods", json!({"none": 1}), &["old", "pods", "`none`"]),
        ("/pods/1/name", json!("plain"), &["pods", "`plain`", "twice"]),
        ("/nodePools/1/name", json!("default"), &["nodePools", "`default`", "twice"]),
        ("/instanceTypes/1/name", json!("small"), &["instanceTypes", "`small`", "twice"]),
        ("/instanceTypes/0/offerings/0/capacityType", json!("free"), &["small", "`free`"]),
        ("/instanceTypes/0/offerings/0/priceUsdPerHour", json!(-1.0), &["small", "-1"]),
        ("/instanceTypes/0/capacity/cpuMilli", json!(-1), &["small", "capacity", "negative"]),
        ("/pods/1/topologySpread/0/whenUnsatisfiable", json!("Maybe"), &["spread", "`Maybe`"]),
        ("/pods/5/nodeAffinity/0/matchExpressions/0/operator", json!("Near"), &["zoned", "`Near`"]),
        ("/nodePools/1/taints/0/effect", json!("Some"), &["tainted", "`Some`"]),
        ("/nodePools/0/limits/cpu", json!("many"), &["many"]),
        ("/daemons/0/labels", json!({"app": "spread"}), &["agent", "`spread`"]),
    ];
    for (path, value, words) in cases {
        let mut changed = base();
        let (parent, key) = path.rsplit_once('/').unwrap();
        changed.pointer_mut(parent).unwrap()[key] = value.clone();
        let error = Problem::parse(&changed.to_string()).expect_err(path).to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{path}: {error}");
        assert_eq!(error.lines().count(), 1, "{path}: {error}");
    }
    let error = PlanFile::parse(r#"{"nodes": [], "extra": 1}"#).unwrap_err().to_string();
    assert!(error.contains("unknown field `extra`"), "{error}");
}

#[test]
fn valid_plan_has_no_violations_and_the_sum_of_prices() {
    let verdict = judge(&problem(), &PlanFile::parse(&plan().to_string()).unwrap()).unwrap();
    assert_eq!(verdict.violations, [""; 0]);
    assert_eq!((verdict.nodes, verdict.placed, verdict.unplaced), (3, 13, 0));
    assert_eq!(verdict.cost.to_string(), "$0.600");
}

#[test]
fn judge_reports_every_kind_of_violation() {
    // JSON pointer into the plan, new value, and the words of the violation.
    let cases: &[(&str, Value, &str)] = &[
        ("/nodes/0/pods/together", json!(1), "`together` has 2 pods, the plan 1"),
        ("/unplaced/plain", json!(1), "`plain` has 3 pods, the plan 4"),
        ("/unplaced/ghost", json!(1), "`ghost` does not exist"),
        ("/existing/gone", json!({}), "`gone` does not exist"),
        ("/nodes/0/nodePool", json!("none"), "`none` does not exist"),
        ("/nodes/0/instanceType", json!("none"), "`none` does not exist"),
        ("/nodes/0/zone", json!("z9"), "not on offer in `z9`"),
        ("/nodes/0/capacityType", json!("spot"), "not on offer"),
        ("/nodes/0/openZones", json!(["z1", "z3"]), "not on offer in `z3`"),
        ("/nodes/0/priceUsdPerHour", json!(0.05), "it costs $0.100"),
        ("/nodes/2/instanceType", json!("small"), "wants `size`"),
        ("/nodes/2/nodePool", json!("default"), "`team` does not suit"),
        ("/nodes/1/zone", json!("z1"), "`zoned` does not suit"),
        ("/existing/old", json!({"plain": 3, "spread": 2, "apart": 1}), "anti-affinity of `apart`"),
    ];
    for (path, value, word) in cases {
        let mut changed = plan();
        let (parent, key) = path.rsplit_once('/').unwrap();
        changed.pointer_mut(parent).unwrap()[key] = value.clone();
        let said = violations(&base(), &changed);
        assert!(said.iter().any(|said| said.contains(word)), "{path}: {said:?}");
    }
}

#[test]
fn judge_counts_daemons_and_overhead() {
    // 3,900 allocatable milli-cores: 200 for the daemon, 100 for another pod, the rest for two
    // pods.
    let mut changed = base();
    changed["pods"][2]["requests"]["cpuMilli"] = json!(1800);
    assert_eq!(violations(&changed, &plan()), [""; 0], "exactly full");
    changed["pods"][2]["requests"]["cpuMilli"] = json!(1801);
    assert!(violations(&changed, &plan()).iter().any(|said| said.contains("too little cpu")));
    let mut changed = base();
    changed["instanceTypes"][0]["capacity"]["pods"] = json!(4);
    assert!(violations(&changed, &plan()).iter().any(|said| said.contains("too little pods")));
}

#[test]
fn judge_reports_untolerated_taints_and_exceeded_limits() {
    let mut changed = base();
    changed["pods"][4]["tolerations"] = json!([]);
    assert!(
        violations(&changed, &plan())
            .iter()
            .any(|said| said.contains("does not tolerate taint `team`"))
    );
    let mut changed = base();
    changed["nodePools"][0]["limits"] = json!({"cpu": "12"});
    assert_eq!(violations(&changed, &plan()), [""; 0], "what exists counts too");
    changed["nodePools"][0]["limits"] = json!({"cpu": "11999m"});
    assert!(violations(&changed, &plan()).iter().any(|said| said.contains("limit on cpu")));
    changed["nodePools"][0]["limits"] = json!({"nodes": "2"});
    assert!(violations(&changed, &plan()).iter().any(|said| said.contains("limit on nodes")));
}

#[test]
fn judge_reports_violated_spread_and_affinity() {
    let mut uneven = plan();
    uneven["existing"]["old"] = json!({"plain": 3, "spread": 3});
    uneven["nodes"][1]["pods"]["spread"] = json!(1);
    assert!(
        violations(&base(), &uneven).iter().any(|said| said.contains("`spread` cannot be bound"))
    );
    let mut torn = plan();
    torn["nodes"][0]["pods"]["together"] = json!(1);
    torn["nodes"][1]["pods"]["together"] = json!(1);
    assert!(
        violations(&base(), &torn).iter().any(|said| said.contains("`together` cannot be bound"))
    );
    // An undecided zone may be any of the zones that are still open.
    torn["nodes"][0]["openZones"] = json!(["z1", "z2"]);
    assert_eq!(violations(&base(), &torn), [""; 0]);
}

#[test]
fn spread_with_an_empty_selector_counts_no_pods() {
    let mut uneven = plan();
    uneven["existing"]["old"] = json!({"plain": 3, "spread": 3});
    uneven["nodes"][1]["pods"]["spread"] = json!(1);
    let mut changed = base();
    let position =
        changed["pods"].as_array().unwrap().iter().position(|pod| pod["name"] == "spread");
    let class = &mut changed["pods"][position.unwrap()];
    class["topologySpread"][0]["labelSelector"] = json!({});
    assert_eq!(violations(&changed, &uneven), [""; 0]);
}

#[test]
fn counted_pods_are_bound_after_pods_with_rules() {
    // The plain pods are counted by the spread and all in one zone: they must be bound last.
    let mut changed = base();
    changed["pods"][0]["labels"] = json!({"app": "spread"});
    assert_eq!(violations(&changed, &plan()), [""; 0]);
}

#[test]
fn judge_and_checker_agree_on_the_engines_plan() {
    let problem = problem();
    let snapshot = problem.snapshot().unwrap();
    let plan = solve(&snapshot, &Options::default());
    assert_eq!(check(&snapshot, &Options::default(), &plan), []);
    let file = PlanFile::of(&plan);
    let verdict = judge(&problem, &file).unwrap();
    assert_eq!(verdict.violations, [""; 0], "{}", file.to_text());
    assert_eq!(verdict.unplaced, 0);
    assert_eq!(verdict.cost, plan.cost);
}

#[test]
fn pods_can_require_labels_of_instance_types_only() {
    let ask = |expression: Value| {
        let mut changed = base();
        changed["pods"] = json!([{"name": "picky", "replicas": 1, "requests": {"cpuMilli": 100, "memoryBytes": 1},
                                  "nodeAffinity": [{"matchExpressions": [expression]}]}]);
        changed["nodes"] = json!([]);
        let problem = Problem::parse(&changed.to_string()).unwrap();
        let plan = solve(&problem.snapshot().unwrap(), &Options::default());
        let file = PlanFile::of(&plan);
        assert_eq!(judge(&problem, &file).unwrap().violations, [""; 0]);
        file.nodes.first().map(|node| node.instance_type.clone())
    };
    let expression = |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
    assert_eq!(ask(expression("size", "In", &["large"])).as_deref(), Some("large"));
    assert_eq!(ask(expression("size", "Exists", &[])).as_deref(), Some("large"));
    assert_eq!(ask(expression("cores", "Gt", &["8"])).as_deref(), Some("large"));
    assert_eq!(ask(expression("cores", "Gt", &["16"])), None);
    assert_eq!(ask(expression("size", "DoesNotExist", &[])).as_deref(), Some("small"));
    assert_eq!(ask(expression("size", "NotIn", &["large"])).as_deref(), Some("small"));
    assert_eq!(ask(expression("unheard-of", "Exists", &[])), None);
    assert_eq!(
        ask(expression("topology.kubernetes.io/region", "Exists", &[])),
        None,
        "no type has it"
    );
}
