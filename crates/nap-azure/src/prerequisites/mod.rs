//! The prerequisites and limitations of node auto-provisioning, each as a row with its fix.
//!
//! [`read`] collects [`Facts`] over ARM; [`check`] is a pure function from facts to rows. A fact
//! that could not be read makes the rows that need it unknown, never passed. A row is an entry of
//! the `CHECKS` of the module for its topic: `cluster`, `network`, `traffic`, `roles` and
//! `subscription`.

mod cidr;
mod cluster;
mod facts;
mod network;
mod pool;
mod read;
mod roles;
mod security_rules;
mod subscription;
#[cfg(test)]
mod tests;
mod traffic;
mod versions;

use std::fmt::{self, Write as _};

use serde::Serialize;

pub use facts::{Facts, PoolNeeds};
pub use pool::create_pool;
pub use read::{Reader, managed_cluster};

use facts::Unknown;

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Status {
    /// The prerequisite is met.
    Pass,
    /// nap works, with a disadvantage or a risk.
    Warn,
    /// nap does not work, or AKS does not support it.
    Fail,
    /// The facts could not be read.
    Unknown,
    /// The cluster does not use what the prerequisite is about.
    NotApplicable,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pass => "pass",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
            Self::Unknown => "unknown",
            Self::NotApplicable => "n/a",
        })
    }
}

/// A checked prerequisite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Stable identifier.
    pub id: &'static str,
    /// The prerequisite in a few words.
    pub title: &'static str,
    /// Result.
    pub status: Status,
    /// What was found, or why it could not be.
    pub found: String,
    /// What to do; `None` if there is nothing to do.
    pub fix: Option<String>,
    /// Title and section of the document that states the prerequisite.
    pub document: String,
}

/// Checks every prerequisite, in the order of the documents: cluster, network, traffic, roles,
/// subscription.
pub fn check(facts: &Facts) -> Vec<Row> {
    checks().map(|check| check.row(facts)).collect()
}

fn checks() -> impl Iterator<Item = &'static Check> {
    [cluster::CHECKS, network::CHECKS, traffic::CHECKS, roles::CHECKS, subscription::CHECKS]
        .into_iter()
        .flatten()
}

/// A prerequisite and the function that checks it.
struct Check {
    id: &'static str,
    title: &'static str,
    document: Document,
    run: fn(&Facts) -> Result<Finding, Unknown>,
}

impl Check {
    fn row(&self, facts: &Facts) -> Row {
        let Finding { status, found, fix } = (self.run)(facts).unwrap_or_else(|Unknown(why)| {
            let fix = "run this command as an identity that may read it, such as one with the role \
                       Reader on the subscription";
            Finding { status: Status::Unknown, found: why, fix: Some(fix.to_owned()) }
        });
        let document = self.document.to_string();
        Row { id: self.id, title: self.title, status, found, fix, document }
    }
}

/// Result of a check with its explanation.
struct Finding {
    status: Status,
    found: String,
    fix: Option<String>,
}

impl Finding {
    fn pass(found: impl Into<String>) -> Self {
        Self { status: Status::Pass, found: found.into(), fix: None }
    }

    fn not_applicable(found: impl Into<String>) -> Self {
        Self { status: Status::NotApplicable, found: found.into(), fix: None }
    }

    fn warn(found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { status: Status::Warn, found: found.into(), fix: Some(fix.into()) }
    }

    fn fail(found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { status: Status::Fail, found: found.into(), fix: Some(fix.into()) }
    }
}

/// Title of a document and its section.
struct Document(&'static str, &'static str);

impl fmt::Display for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0, self.1)
    }
}

const OVERVIEW: &str = "Overview of node auto-provisioning (NAP) in Azure Kubernetes Service (AKS)";
const NODE_AUTOPROVISIONING: &str = "Node autoprovisioning";
const NETWORKING: &str = "Overview of networking configurations for node auto-provisioning (NAP) \
                          in Azure Kubernetes Service (AKS)";
const EGRESS: &str = "Outbound network and FQDN rules for Azure Kubernetes Service (AKS) clusters";
const RUNNING: &str = "docs/running.md of nap";

impl Facts {
    /// A command of the Azure CLI about this cluster.
    fn az_aks(&self, command: &str, arguments: &str) -> String {
        let (group, name) = (&self.config.resource_group, &self.config.cluster_name);
        format!("az aks {command} --resource-group {group} --name {name} {arguments}")
    }

    /// A command of the Azure CLI about a node pool of this cluster.
    fn az_nodepool(&self, command: &str, pool: &str, arguments: &str) -> String {
        let (group, cluster) = (&self.config.resource_group, &self.config.cluster_name);
        let command = format!(
            "az aks nodepool {command} --resource-group {group} --cluster-name {cluster} --name {pool}"
        );
        if arguments.is_empty() { command } else { format!("{command} {arguments}") }
    }
}

/// A list for people: names with commas between, at most [`MAX_NAMES`].
fn join<T: AsRef<str>>(names: &[T]) -> String {
    let mut text =
        names.iter().take(MAX_NAMES).map(AsRef::as_ref).collect::<Vec<&str>>().join(", ");
    if names.len() > MAX_NAMES {
        let _ = write!(text, ", … {} more", names.len() - MAX_NAMES);
    }
    text
}

/// Most names in one finding.
const MAX_NAMES: usize = 6;
