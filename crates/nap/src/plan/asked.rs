//! What `nap explain pod` is asked about: a pod, or a workload and its pods by their owners.

use std::collections::BTreeSet;

use nap_api::requirement::Undefined;
use nap_api::taints::first_untolerated;
use nap_controllers::cluster;
use nap_engine::{Daemon, Pool};
use serde_json::Value;

use super::cluster::count;
use crate::manifests::read::Document;

/// A kind, and its names before a slash as kubectl takes them.
const KINDS: [(&str, &[&str]); 7] = [
    ("Pod", &["pod", "pods", "po"]),
    ("Deployment", &["deployment", "deployments", "deploy"]),
    ("StatefulSet", &["statefulset", "statefulsets", "sts"]),
    ("ReplicaSet", &["replicaset", "replicasets", "rs"]),
    ("DaemonSet", &["daemonset", "daemonsets", "ds"]),
    ("Job", &["job", "jobs"]),
    ("CronJob", &["cronjob", "cronjobs", "cj"]),
];

/// What was asked for.
pub struct Asked {
    /// Kind before the name; `None` without one.
    pub kind: Option<&'static str>,
    /// Namespace.
    pub namespace: String,
    /// Name of the pod or workload.
    pub name: String,
}

impl Asked {
    /// Reads `name`, `namespace/name`, `kind/name` or, as `kubectl -o name` prints it,
    /// `kind.group/name`.
    pub fn parse(text: &str, namespace: Option<&str>) -> Self {
        let of = namespace.unwrap_or("default").to_owned();
        // No namespace has a dot, so what follows one is the group of a kind.
        let kind_of = |prefix: &str| {
            let prefix = prefix.split_once('.').map_or(prefix, |(kind, _)| kind);
            let known = KINDS.iter().find(|(_, names)| names.contains(&prefix));
            known.map(|(kind, _)| *kind)
        };
        match text.split_once('/') {
            Some((prefix, name)) if !name.contains('/') && kind_of(prefix).is_some() => {
                Self { kind: kind_of(prefix), namespace: of, name: name.to_owned() }
            }
            Some((namespace, name)) => {
                Self { kind: None, namespace: namespace.to_owned(), name: name.to_owned() }
            }
            None => Self { kind: None, namespace: of, name: text.to_owned() },
        }
    }

    /// `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Whether it may be of a kind.
    pub fn may_be(&self, kind: &str) -> bool {
        self.kind.is_none_or(|asked| asked == kind)
    }

    /// The workload among those that are known.
    pub fn among<'w>(&self, workloads: &'w [KnownWorkload]) -> Option<&'w KnownWorkload> {
        // A ReplicaSet of the same name belongs to a Deployment in most cases.
        let mut found: Vec<&KnownWorkload> = workloads
            .iter()
            .filter(|one| one.namespace == self.namespace && one.name == self.name)
            .filter(|one| self.may_be(&one.kind))
            .collect();
        found.sort_by_key(|one| one.owner.is_some());
        found.first().copied()
    }
}

/// A workload that creates pods.
pub struct KnownWorkload {
    /// Kind.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Kind and name of its owner.
    pub owner: Option<(String, String)>,
    /// Number of pods that it wants.
    pub wanted: usize,
    /// Why its pods are not created; `None` if nothing is said about it.
    pub refusal: Option<String>,
}

impl KnownWorkload {
    /// A workload of a cluster.
    pub fn read(document: &Document) -> Self {
        let value = &document.value;
        let number = |pointer: &str| value.pointer(pointer).and_then(Value::as_u64);
        let of_run = || number("/spec/jobTemplate/spec/parallelism");
        let suspended = value.pointer("/spec/suspend").and_then(Value::as_bool) == Some(true);
        let wanted = number("/spec/replicas").or(number("/spec/parallelism")).or_else(of_run);
        let wanted = if suspended { 0 } else { wanted.unwrap_or(1) };
        let list = |pointer: &str| value.pointer(pointer).and_then(Value::as_array).into_iter();
        let failure = list("/status/conditions")
            .flatten()
            .find(|one| one["type"] == "ReplicaFailure" && one["status"] == "True");
        let owner = list("/metadata/ownerReferences").flatten().find_map(|owner| {
            Some((owner["kind"].as_str()?.to_owned(), owner["name"].as_str()?.to_owned()))
        });
        Self {
            kind: document.text("/kind").to_owned(),
            namespace: document.text("/metadata/namespace").to_owned(),
            name: document.text("/metadata/name").to_owned(),
            owner,
            wanted: usize::try_from(wanted).unwrap_or(usize::MAX),
            refusal: failure.and_then(|one| one["message"].as_str()).map(str::to_owned),
        }
    }

    /// Kind, namespace and name, for people.
    pub fn title(&self) -> String {
        format!("{} `{}/{}`", self.kind, self.namespace, self.name)
    }

    /// Whether a pod belongs to it, directly or by the workloads that it makes.
    pub fn owns(&self, pod: &cluster::Pod, workloads: &[Self]) -> bool {
        if pod.namespace() != self.namespace {
            return false;
        }
        let mut makers = BTreeSet::from([(self.kind.as_str(), self.name.as_str())]);
        if self.kind == "Deployment" {
            // The pods that are planned for it are those of a ReplicaSet of its name.
            makers.insert(("ReplicaSet", self.name.as_str()));
        }
        for one in workloads.iter().filter(|one| one.namespace == self.namespace) {
            let owner = one.owner.as_ref().map(|(kind, name)| (kind.as_str(), name.as_str()));
            if owner.is_some_and(|owner| makers.contains(&owner)) {
                makers.insert((one.kind.as_str(), one.name.as_str()));
            }
        }
        pod.owners().iter().any(|owner| makers.contains(&(owner.kind.as_str(), &owner.name)))
    }

    /// Why it has no pod.
    pub fn without_pods(&self) -> String {
        match (&self.refusal, self.wanted) {
            (_, 0) if ["Job", "CronJob"].contains(&self.kind.as_str()) => {
                "it wants no pods: it has ended or is suspended".to_owned()
            }
            (_, 0) => "it has 0 replicas".to_owned(),
            (Some(why), wanted) => {
                format!("it wants {}, and they are refused: {why}", count(wanted, "pod"))
            }
            (None, _) if self.kind == "CronJob" => {
                "no run of it is going on; the next one starts by its schedule".to_owned()
            }
            (None, wanted) => format!(
                "it wants {}, and its controller has created none; `kubectl describe` shows its \
                 events",
                count(wanted, "pod")
            ),
        }
    }
}

/// Whether a daemon runs on the nodes of a pool, for people.
pub fn daemon_on(daemon: &Daemon, pool: &Pool) -> String {
    if let Some(taint) = first_untolerated(&pool.taints, &daemon.tolerations) {
        return format!("none of its nodes: the taint `{taint}` is not tolerated");
    }
    let suits = daemon.terms.is_empty()
        || daemon
            .terms
            .iter()
            .any(|term| pool.requirements.compatible(term, Undefined::AllowWellKnown).is_ok());
    let text = if suits {
        "every node that its node selector and affinity allow"
    } else {
        "none of its nodes: its node selector or affinity excludes them"
    };
    text.to_owned()
}
