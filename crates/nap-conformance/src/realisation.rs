//! How often a plan comes true on a real kube-scheduler: bursts of pods, and the machines that were
//! bought a second time because a pod did not get its planned place.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use serde_json::{Value, json};

use crate::plane::Plane;
use crate::{Session, start_plane};

/// Longest time until every pod of a burst runs.
const PATIENCE: Duration = Duration::from_mins(5);

/// A kind of burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Burst {
    /// Large and small pods that fill their nodes.
    Mixed,
    /// Pods spread over zones, and pods of which each has a node of its own.
    Constrained,
    /// The mixed burst, and small pods that arrive while its nodes come up.
    Arrivals,
}

impl Burst {
    fn name(self) -> &'static str {
        match self {
            Self::Mixed => "40 pods of 3.5 CPU and 100 of 0.4",
            Self::Constrained => "60 pods spread over zones and 20 of a node each",
            Self::Arrivals => "the first, and 40 pods of 0.3 CPU that arrive meanwhile",
        }
    }

    fn pods(self) -> Vec<Value> {
        match self {
            Self::Mixed | Self::Arrivals => {
                let large = (0..40).map(|number| pod("large", number, "3500m", &json!({})));
                let small = (0..100).map(|number| pod("small", number, "400m", &json!({})));
                large.chain(small).collect()
            }
            Self::Constrained => {
                let own = |app: &str| json!({ "matchLabels": { "app": app } });
                let spread = json!({ "topologySpreadConstraints": [{
                    "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
                    "whenUnsatisfiable": "DoNotSchedule", "labelSelector": own("spread"),
                }] });
                let alone = json!({ "affinity": { "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [{
                        "topologyKey": "kubernetes.io/hostname", "labelSelector": own("alone"),
                    }],
                } } });
                let spread = (0..60).map(|number| pod("spread", number, "600m", &spread));
                let alone = (0..20).map(|number| pod("alone", number, "300m", &alone));
                spread.chain(alone).collect()
            }
        }
    }
}

fn pod(app: &str, number: usize, cpu: &str, more: &Value) -> Value {
    let resources = json!({ "requests": { "cpu": cpu, "memory": "256Mi" } });
    let mut spec = json!({
        "terminationGracePeriodSeconds": 0,
        "containers": [{ "name": "app", "image": "example.com/app:1", "resources": resources }],
    });
    if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
        spec.extend(more.clone());
    }
    let metadata = json!({ "name": format!("{app}-{number}"), "labels": { "app": app } });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec })
}

/// What became of one burst.
#[derive(Clone, Debug)]
struct Run {
    burst: Burst,
    machines: usize,
    /// Machines for pods that already had a planned place.
    again: usize,
    /// Pods that run on the node that was planned for them.
    in_place: usize,
    pods: usize,
    /// Time until every pod ran.
    seconds: u64,
}

/// Runs every burst, or only one, `runs` times, and prints a table. Returns whether 19 of 20 came
/// true.
pub(crate) fn measure(
    session: &Session,
    planes: u16,
    runs: usize,
    only: Option<Burst>,
) -> anyhow::Result<bool> {
    let bursts: Vec<Burst> = match only {
        Some(burst) => vec![burst],
        None => Burst::value_variants().to_vec(),
    };
    let todo: Vec<Burst> = std::iter::repeat_n(&bursts, runs).flatten().copied().collect();
    let (next, results) = (&AtomicUsize::new(0), &Mutex::new(Vec::new()));
    let todo = &todo;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..=planes)
            .map(|number| {
                scope.spawn(move || -> anyhow::Result<()> {
                    let mut plane = start_plane(session, number)?;
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(burst) = todo.get(index) else { return Ok(()) };
                        let run = run(session, &plane, *burst)?;
                        println!("[{}/{}] plane {number}: {run:?}", index + 1, todo.len());
                        results.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(run);
                        if plane.wait_until_clean(session).is_err() {
                            plane = start_plane(session, number)?;
                        }
                    }
                })
            })
            .collect();
        let ended = workers.into_iter().map(|worker| match worker.join() {
            Ok(result) => result,
            Err(_) => Err(anyhow::anyhow!("a worker panicked")),
        });
        ended.collect::<Vec<_>>().into_iter().collect::<anyhow::Result<()>>()
    })?;
    let results = results.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(print_table(&bursts, &results))
}

fn print_table(bursts: &[Burst], runs: &[Run]) -> bool {
    println!(
        "| burst | runs | as planned | machines | bought again | pods in their place | until all ran, median |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    let mut all = true;
    for burst in bursts {
        let runs: Vec<&Run> = runs.iter().filter(|run| run.burst == *burst).collect();
        let count = runs.len();
        let good = runs.iter().filter(|run| run.again == 0).count();
        let sum = |of: fn(&Run) -> usize| runs.iter().map(|run| of(run)).sum::<usize>();
        let mut seconds: Vec<u64> = runs.iter().map(|run| run.seconds).collect();
        seconds.sort_unstable();
        println!(
            "| {} | {count} | {good} | {} | {} | {} of {} | {} s |",
            burst.name(),
            sum(|run| run.machines),
            sum(|run| run.again),
            sum(|run| run.in_place),
            sum(|run| run.pods),
            seconds.get(count / 2).unwrap_or(&0),
        );
        all &= good * 20 >= count * 19;
    }
    all
}

fn run(session: &Session, plane: &Plane, burst: Burst) -> anyhow::Result<Run> {
    let manifest = |name: &str| session.manifests.join(name).display().to_string();
    for file in ["aksnodeclass.yaml", "pool-d.yaml"] {
        plane.apply(&std::fs::read_to_string(manifest(file))?)?;
    }
    let pods = burst.pods();
    let mut count = pods.len();
    plane.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": pods }).to_string())?;
    let started = session.clock.now();
    let late = || session.clock.now().duration_since(started).unsigned_abs() > PATIENCE;
    let mut bought = Bought::default();
    if burst == Burst::Arrivals {
        while bought.is_empty() && !late() {
            bought.add(&list(plane, "nodeclaims")?)?;
            sleep(Duration::from_millis(200));
        }
        for number in 0..40 {
            plane.apply(&pod("late", number, "300m", &json!({})).to_string())?;
            count += 1;
            if number % 8 == 7 {
                bought.add(&list(plane, "nodeclaims")?)?;
            }
        }
    }
    let (pods, claims) = loop {
        let all = list(plane, "pods,nodeclaims --namespace default")?;
        let (pods, claims): (Vec<Value>, Vec<Value>) =
            all.into_iter().partition(|object| object["kind"] == "Pod");
        bought.add(&claims)?;
        let runs = |pod: &&Value| pod["status"]["phase"] == "Running";
        if pods.iter().filter(runs).count() == count {
            break (pods, claims);
        }
        ensure!(!late(), "{burst:?}: not all pods run after {} s", PATIENCE.as_secs());
        sleep(Duration::from_millis(500));
    };
    let seconds = session.clock.now().duration_since(started).unsigned_abs().as_secs();
    let again = bought.again;
    let result = Run { again, seconds, ..judge(burst, &pods, &claims)? };
    for arguments in [
        "delete pods --all --namespace default --grace-period 0 --force --wait=false",
        "delete nodepools --all --wait=false",
        "delete aksnodeclasses --all --wait=false",
    ] {
        plane.kubectl(arguments).map_err(anyhow::Error::msg)?;
    }
    Ok(result)
}

fn list(plane: &Plane, what: &str) -> anyhow::Result<Vec<Value>> {
    let text = plane.kubectl(&format!("get {what} --output json")).map_err(anyhow::Error::msg)?;
    let mut list: Value = serde_json::from_str(&text)?;
    match list["items"].take() {
        Value::Array(items) => Ok(items),
        _ => Ok(Vec::new()),
    }
}

/// The pods of a NodeClaim's plan record.
fn planned_pods(claim: &Value) -> anyhow::Result<BTreeSet<String>> {
    let record = claim["metadata"]["annotations"]["nap.karpenter.sh/plan"].as_str();
    let record: Value = serde_json::from_str(record.context("a NodeClaim without a plan")?)?;
    // A record without pods: all of them moved to other NodeClaims before the node was open.
    let names = record["pods"].as_array().into_iter().flatten();
    Ok(names.filter_map(Value::as_str).map(str::to_owned).collect())
}

/// Machines as they were bought. Plan records may change while a node is in flight, so each is read
/// when its NodeClaim is first seen.
#[derive(Debug, Default)]
struct Bought {
    claims: BTreeSet<String>,
    planned: BTreeSet<String>,
    /// Machines for pods that already had a planned place.
    again: usize,
}

impl Bought {
    fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    fn add(&mut self, claims: &[Value]) -> anyhow::Result<()> {
        let name =
            |claim: &Value| claim["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let mut new: Vec<&Value> =
            claims.iter().filter(|claim| !self.claims.contains(&name(claim))).collect();
        new.sort_by_key(|claim| {
            claim["metadata"]["creationTimestamp"].as_str().unwrap_or_default()
        });
        for claim in new {
            let pods = planned_pods(claim)?;
            self.again += usize::from(!pods.is_disjoint(&self.planned));
            self.planned.extend(pods);
            self.claims.insert(name(claim));
        }
        Ok(())
    }
}

/// Compares the plan records of the NodeClaims with where the pods run.
fn judge(burst: Burst, pods: &[Value], claims: &[Value]) -> anyhow::Result<Run> {
    let mut places = BTreeSet::new();
    for claim in claims {
        let node = claim["status"]["nodeName"].as_str().unwrap_or_default();
        let names = planned_pods(claim)?.into_iter();
        places.extend(names.map(|name| (name, node.to_owned())));
    }
    let place = |pod: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (namespace, name) =
            (text(&pod["metadata"]["namespace"]), text(&pod["metadata"]["name"]));
        (format!("{namespace}/{name}"), text(&pod["spec"]["nodeName"]))
    };
    let in_place = pods.iter().filter(|pod| places.contains(&place(pod))).count();
    Ok(Run { burst, machines: claims.len(), again: 0, in_place, pods: pods.len(), seconds: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(created: &str, node: &str, pods: &[&str]) -> Value {
        let record = json!({ "version": 1, "pods": pods }).to_string();
        let annotations = json!({ "nap.karpenter.sh/plan": record });
        json!({
            "metadata": { "name": node, "creationTimestamp": created, "annotations": annotations },
            "status": { "nodeName": node },
        })
    }

    #[test]
    fn a_machine_for_a_pod_that_had_a_place_was_bought_again() {
        let first = claim("2026-01-01T00:00:00Z", "n1", &["default/a", "default/b"]);
        let second = claim("2026-01-01T00:00:09Z", "n2", &["default/a"]);
        let mut bought = Bought::default();
        bought.add(&[second.clone(), first.clone()]).unwrap();
        bought.add(&[second, first]).unwrap();
        assert_eq!((bought.again, bought.claims.len()), (1, 2), "each machine is seen once");
    }

    #[test]
    fn a_pod_that_moved_to_a_machine_that_was_bought_before_was_not_bought_for_again() {
        let mut bought = Bought::default();
        let created = "2026-01-01T00:00:00Z";
        let claims =
            |one: &[&str], other: &[&str]| [claim(created, "n1", one), claim(created, "n2", other)];
        bought.add(&claims(&["default/a"], &["default/b"])).unwrap();
        bought.add(&claims(&[], &["default/a", "default/b"])).unwrap();
        assert_eq!(bought.again, 0);
        bought.add(&[claim("2026-01-01T00:00:09Z", "n3", &["default/a"])]).unwrap();
        assert_eq!(bought.again, 1);
    }

    #[test]
    fn pods_on_the_node_of_their_record_are_in_place() {
        let bound = |name: &str, node: &str| json!({ "metadata": { "namespace": "default", "name": name }, "spec": { "nodeName": node } });
        let claims = [
            claim("2026-01-01T00:00:00Z", "n1", &["default/a", "default/b"]),
            claim("2026-01-01T00:00:09Z", "n2", &["default/a"]),
        ];
        let pods = [bound("a", "n2"), bound("b", "n1"), bound("c", "n1")];
        let run = judge(Burst::Mixed, &pods, &claims).unwrap();
        assert_eq!((run.machines, run.in_place, run.pods), (2, 2, 3));
    }
}
