//! Checks of manifests by the code with which the embedded API server takes or refuses objects.

use nap_api::disruption::Settings;
use nap_api::{NodePool, validation};
use nap_apiserver::{FieldProblem, Judge, Verdict};
use serde::Deserialize as _;
use serde_json::Value;

use super::definitions;
use super::read::{Document, HINT};
use crate::user_error::UserError;

/// Groups of which every kind is known, so that another one is a mistake.
const COMPLETE_GROUPS: [&str; 8] = [
    "",
    "apps",
    "autoscaling",
    "batch",
    "policy",
    "scheduling.k8s.io",
    "karpenter.sh",
    "karpenter.azure.com",
];
/// Kinds of complete groups that nobody writes into manifests.
const KINDS_OF_SERVERS: [&str; 4] = ["Binding", "ComponentStatus", "Eviction", "Scale"];

/// A checked object.
pub struct Checked {
    /// Whether its kind is known.
    pub is_known: bool,
    /// The object with the defaults of the API server; null if its kind is unknown.
    pub stored: Value,
    /// Everything for which it would be refused.
    pub problems: Vec<FieldProblem>,
    /// Whether its other fields can be looked at all the same.
    readable: bool,
}

impl Checked {
    /// Whether an API server finds nothing wrong but unknown fields, so that the other fields can
    /// be looked at.
    pub fn is_readable(&self) -> bool {
        self.readable
    }
}

fn is_unknown_field(problem: &FieldProblem) -> bool {
    problem.text.starts_with("unknown field")
}

/// A check of the objects of some manifests.
pub struct Checker {
    judge: Judge,
}

impl Checker {
    /// A check that knows the classes among these objects.
    pub fn new(documents: &[Document]) -> anyhow::Result<Self> {
        let mut all = nap_api::crds::all();
        all.extend(definitions::autoscalers()?);
        let mut judge = Judge::new(&all).map_err(anyhow::Error::msg)?;
        for document in documents {
            judge.learn(&document.value);
        }
        Ok(Self { judge })
    }

    /// Remembers a class of the cluster, to which objects may refer.
    pub fn learn(&mut self, class: &Value) {
        self.judge.learn(class);
    }

    /// Checks one object.
    pub fn check(&mut self, document: &Document) -> Checked {
        let (version, kind) = (document.text("/apiVersion"), document.text("/kind"));
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let refused = |field: &str, text: String| Checked {
            is_known: true,
            stored: Value::Null,
            problems: vec![FieldProblem { field: field.to_owned(), text }],
            readable: false,
        };
        if let Some(remedy) = foreign(group, kind) {
            return refused("kind", remedy.to_owned());
        }
        if group == "extensions"
            && let Some(served) = moved_from_extensions(kind)
        {
            let text = format!("`{version}` is not served; write `{served}`");
            return refused("apiVersion", text);
        }
        match self.judge.judge(&document.value) {
            Verdict::UnknownVersion(served) => {
                // The newest is the last of built-in kinds and the first of nap's.
                let write =
                    if group.contains("karpenter") { served.first() } else { served.last() };
                let write = write.map_or("", String::as_str);
                refused("apiVersion", format!("`{version}` is not served; write `{write}`"))
            }
            Verdict::UnknownKind
                if COMPLETE_GROUPS.contains(&group) && !KINDS_OF_SERVERS.contains(&kind) =>
            {
                refused("kind", format!("there is no `{kind}` in `{version}`; correct the kind"))
            }
            Verdict::UnknownGroup | Verdict::UnknownKind => {
                let problems = Vec::new();
                Checked { is_known: false, stored: Value::Null, problems, readable: true }
            }
            Verdict::Judged { object, mut problems } => {
                for problem in &mut problems {
                    problem.text = plain(std::mem::take(&mut problem.text));
                }
                let mut readable = problems.iter().all(is_unknown_field);
                if readable && (group, kind) == ("karpenter.sh", "NodePool") {
                    problems.extend(nodepool_problems(&object));
                    readable = NodePool::deserialize(&object).is_ok();
                }
                problems.sort_by_cached_key(|problem| document.line(&problem.field));
                Checked { is_known: true, stored: object, problems, readable }
            }
        }
    }
}

/// Refuses manifests of which an API server would refuse any, with all problems of all objects.
/// `classes` are PriorityClasses and RuntimeClasses of the cluster.
pub fn refuse(documents: &[Document], classes: &[Value]) -> anyhow::Result<()> {
    let mut checker = Checker::new(documents)?;
    for class in classes {
        checker.learn(class);
    }
    let mut messages = Vec::new();
    for document in documents {
        for problem in checker.check(document).problems {
            messages.push(document.message(&problem.field, &problem.text));
        }
    }
    if messages.is_empty() { Ok(()) } else { Err(UserError::several(messages, HINT).into()) }
}

/// What a NodePool must keep to that its definition does not say.
fn nodepool_problems(stored: &Value) -> Vec<FieldProblem> {
    let pool: NodePool = match NodePool::deserialize(stored) {
        Ok(pool) => pool,
        Err(error) => {
            return vec![FieldProblem { field: String::new(), text: format!("{error}") }];
        }
    };
    let mut problems = validation::validate_nodepool(&pool);
    problems.extend(validation::unreadable_schedules(&pool));
    problems.extend(Settings::of(&pool).err().unwrap_or_default());
    problems.iter().map(|problem| split(problem)).collect()
}

/// Parts a message of nap's own checks into its field and its text.
pub fn split(message: &str) -> FieldProblem {
    let path = |text: &str| text.starts_with("spec") || text.starts_with("metadata");
    let (field, text) = message
        .split_once(": ")
        .filter(|(field, _)| path(field) && !field.contains(' '))
        .unwrap_or(("", message));
    FieldProblem { field: field.to_owned(), text: text.to_owned() }
}

/// The message of a server with a remedy instead of a regular expression.
fn plain(text: String) -> String {
    let value = text.strip_prefix("Invalid value: ").and_then(|text| text.split_once(": "));
    let value = value.map_or("", |(value, _)| value).trim_matches('"').to_owned();
    let not_a_quantity =
        || format!("`{value}` is not a quantity; write it like `4`, `500m` or `16Gi`");
    let Some((_, pattern)) = text.split_once("in body should match '") else {
        return match text.as_str() {
            "Required value" => "Required value; set it".to_owned(),
            _ if text.contains("quantities must match") => not_a_quantity(),
            _ => text,
        };
    };
    if pattern.contains("(s|m|h)") {
        let never = if pattern.contains("Never") { ", or `Never`" } else { "" };
        return format!("`{value}` is not a duration; write it like `30s` or `1h30m`{never}");
    }
    if pattern.contains("Ki|Mi|Gi") || pattern.contains("numkMGTP") {
        return not_a_quantity();
    }
    text
}

/// Where the kinds of the group `extensions` went, which Kubernetes no longer has.
fn moved_from_extensions(kind: &str) -> Option<&'static str> {
    match kind {
        "DaemonSet" | "Deployment" | "ReplicaSet" => Some("apps/v1"),
        "Ingress" | "NetworkPolicy" => Some("networking.k8s.io/v1"),
        _ => None,
    }
}

/// The remedy for objects of other providers and of old versions of Karpenter.
fn foreign(group: &str, kind: &str) -> Option<&'static str> {
    Some(match (group, kind) {
        ("karpenter.k8s.aws", "EC2NodeClass" | "AWSNodeTemplate") => {
            "describes nodes of AWS; on Azure write an `AKSNodeClass` of \
             `karpenter.azure.com/v1beta1`, and name it in the `nodeClassRef` of the NodePools"
        }
        ("karpenter.k8s.gcp" | "karpenter.k8s.oracle" | "karpenter.k8s.alibabacloud", _) => {
            "describes nodes of another cloud; on Azure write an `AKSNodeClass` of \
             `karpenter.azure.com/v1beta1`"
        }
        ("karpenter.sh", "Provisioner") => {
            "was replaced by `NodePool`; write one of `karpenter.sh/v1`, with labels, taints and \
             requirements below `spec.template`"
        }
        ("karpenter.sh", "Machine") => {
            "was replaced by `NodeClaim`, which the controllers write; remove it"
        }
        _ => return None,
    })
}
