//! Autoscalers of workloads: how many pods a workload has once they have acted, and which of them
//! change requests.

use k8s_openapi::api::batch::v1::JobSpec;
use serde_json::Value;

use super::cluster::count;
use super::workloads::{Owner, Workload, Workloads};
use crate::cli::Replicas;
use crate::manifests::read::Document;

/// Annotation with the number of pods at which a ScaledObject is paused.
const PAUSED: &str = "autoscaling.keda.sh/paused-replicas";
/// Maximum number of pods that KEDA assumes.
const KEDA_MAX: i64 = 100;

/// An autoscaler of the number of pods.
pub struct Autoscaler {
    /// Kind, namespace and name of the autoscaler.
    title: String,
    target: (String, String, String),
    least: i64,
    most: i64,
    /// What its status says; `None` without a status.
    current: Option<i64>,
    /// Whether it acts on a workload without pods.
    from_zero: bool,
}

impl Autoscaler {
    /// The autoscaler that an object is; `None` if it is something else.
    pub fn read(document: &Document) -> Option<Self> {
        let group = document.text("/apiVersion").split_once('/').map_or("", |(group, _)| group);
        match (group, document.text("/kind")) {
            ("autoscaling", "HorizontalPodAutoscaler") => Some(Self::horizontal(document)),
            ("keda.sh", "ScaledObject") => Some(Self::scaled_object(document)),
            _ => None,
        }
    }

    /// Kind, namespace and name, for people.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Whether it scales a workload.
    pub fn scales(&self, workload: &Document) -> bool {
        self.target == identity(workload)
    }

    /// Whether it acts on a workload with this number of pods.
    pub fn acts_on(&self, pods: i64) -> bool {
        pods > 0 || self.from_zero
    }

    /// A HorizontalPodAutoscaler.
    fn horizontal(document: &Document) -> Self {
        let number = |pointer: &str| document.value.pointer(pointer).and_then(Value::as_i64);
        let status = number("/status/desiredReplicas").or(number("/status/currentReplicas"));
        Self {
            title: title(document),
            target: target(document, "/spec/scaleTargetRef", "Deployment"),
            least: number("/spec/minReplicas").unwrap_or(1),
            most: number("/spec/maxReplicas").unwrap_or(1),
            current: status.filter(|number| *number > 0),
            from_zero: false,
        }
    }

    /// A ScaledObject of KEDA.
    fn scaled_object(document: &Document) -> Self {
        let number = |name: &str| document.value.pointer(&format!("/spec/{name}"))?.as_i64();
        let annotations = document.value.pointer("/metadata/annotations");
        let paused = annotations.and_then(|all| all.get(PAUSED)?.as_str()?.parse().ok());
        let least = number("idleReplicaCount").or(number("minReplicaCount")).unwrap_or(0);
        let most = number("maxReplicaCount").unwrap_or(KEDA_MAX);
        Self {
            title: title(document),
            target: target(document, "/spec/scaleTargetRef", "Deployment"),
            least: paused.unwrap_or(least),
            most: paused.unwrap_or(most),
            current: None,
            from_zero: true,
        }
    }

    /// The number of pods that it gives a workload with the written number of replicas, and which
    /// number that is; `None` if it does nothing.
    pub fn pods(&self, written: i64, replicas: Replicas) -> Option<(i64, &'static str)> {
        self.acts_on(written).then(|| match replicas {
            Replicas::Min => (self.least, "its minimum"),
            Replicas::Max => (self.most, "its maximum"),
            Replicas::Current => {
                let now = self.current.unwrap_or(written);
                (now.clamp(self.least, self.most.max(self.least)), "its current number")
            }
        })
    }

    /// Sets the number of pods of its workload. Returns a note.
    pub fn apply(&self, workloads: &mut Workloads, replicas: Replicas) -> String {
        let (kind, namespace, name) = &self.target;
        let target = format!("{kind} `{namespace}/{name}`");
        let Some(workload) = workload_of(workloads, &self.target) else {
            return format!("{} scales {target}, which is not given", self.title);
        };
        let written = i64::try_from(workload.wanted()).unwrap_or(i64::MAX);
        let Some((pods, which)) = self.pods(written, replicas) else {
            return format!("{} does nothing: {target} has 0 replicas", self.title);
        };
        let pods = usize::try_from(pods).unwrap_or(0);
        workload.set_wanted(pods);
        format!(
            "{}: {target} is planned with {which} of {}, of {} to {} (--hpa min|max|current)",
            self.title,
            count(pods, "pod"),
            self.least,
            self.most
        )
    }
}

/// The Jobs of a ScaledJob of KEDA as one workload, with a note; `None` if it has no template.
pub fn scaled_job(document: &Document, replicas: Replicas) -> Option<(Workload, String)> {
    let number = |name: &str| document.value.pointer(&format!("/spec/{name}"))?.as_i64();
    let template = document.value.pointer("/spec/jobTargetRef")?;
    let spec: JobSpec = serde::Deserialize::deserialize(template).ok()?;
    let (least, most) =
        (number("minReplicaCount").unwrap_or(0), number("maxReplicaCount").unwrap_or(KEDA_MAX));
    let jobs = match replicas {
        Replicas::Min | Replicas::Current => least,
        Replicas::Max => most,
    };
    let jobs = usize::try_from(jobs).unwrap_or(0);
    let (_, namespace, name) = identity(document);
    let owner: Owner = ("Job", namespace, name);
    let workload = Workload::jobs(owner, spec, jobs);
    let note = format!(
        "{}: planned with {}, of {least} to {most} (--hpa min|max|current)",
        title(document),
        count(jobs, "job"),
    );
    Some((workload, note))
}

/// A note about a VerticalPodAutoscaler that changes requests; `None` if it only recommends.
pub fn vertical(document: &Document) -> Option<String> {
    let mode = document.text("/spec/updatePolicy/updateMode");
    if mode == "Off" {
        return None;
    }
    let mode = if mode.is_empty() { "Auto" } else { mode };
    let (kind, namespace, name) = target(document, "/spec/targetRef", "Deployment");
    Some(format!(
        "{} changes the requests of {kind} `{namespace}/{name}` (mode {mode}); the plan has those \
         of the manifest",
        title(document)
    ))
}

fn identity(document: &Document) -> (String, String, String) {
    let namespace = match document.text("/metadata/namespace") {
        "" => "default",
        given => given,
    };
    let (kind, name) = (document.text("/kind"), document.text("/metadata/name"));
    (kind.to_owned(), namespace.to_owned(), name.to_owned())
}

fn title(document: &Document) -> String {
    let (kind, namespace, name) = identity(document);
    format!("{kind} `{namespace}/{name}`")
}

fn target(document: &Document, pointer: &str, default: &str) -> (String, String, String) {
    let text = |field: &str| document.text(&format!("{pointer}/{field}")).to_owned();
    let kind = if text("kind").is_empty() { default.to_owned() } else { text("kind") };
    (kind, identity(document).1, text("name"))
}

fn workload_of<'w>(
    workloads: &'w mut Workloads,
    (kind, namespace, name): &(String, String, String),
) -> Option<&'w mut Workload> {
    let mut all = workloads.iter_mut();
    let found =
        all.find(|((of, space, title), _)| of == kind && space == namespace && title == name);
    found.map(|(_, workload)| workload)
}
