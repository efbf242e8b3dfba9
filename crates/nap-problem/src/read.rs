//! Parsing and validation of problem files.

use std::collections::BTreeSet;

use nap_engine::CapacityType;
use nap_units::UsdPerHour;
use serde::Deserialize;

use crate::format::{Amounts, InstanceType, Offering, PodClass, Problem};

/// The supported version of the format.
pub(crate) const VERSION: u32 = 1;

/// Maximum number of pods of a problem; bounds memory.
const MAX_PODS: usize = 2_000_000;

/// Error of a problem file or a plan file.
#[derive(Debug, thiserror::Error)]
pub enum ProblemError {
    /// Invalid JSON, or an unknown or missing field.
    #[error("{0}")]
    Json(serde_json::Error),
    /// Unsupported version.
    #[error("version {0} is not known, only {VERSION} is")]
    Version(u64),
    /// A name that must be unique occurs twice.
    #[error("{list}: `{name}` occurs twice")]
    Duplicate {
        /// The list.
        list: &'static str,
        /// The name.
        name: String,
    },
    /// A reference to a name that does not exist.
    #[error("{path}: `{name}` does not exist")]
    Dangling {
        /// Path of the reference.
        path: String,
        /// The name.
        name: String,
    },
    /// An invalid value.
    #[error("{path}: {why}")]
    Invalid {
        /// Path of the value.
        path: String,
        /// The reason.
        why: String,
    },
}

impl ProblemError {
    pub(crate) fn invalid(path: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Invalid { path: path.into(), why: why.into() }
    }
}

#[derive(Deserialize)]
struct Head {
    version: u64,
}

impl Problem {
    /// Parses and validates a problem file.
    pub fn parse(text: &str) -> Result<Self, ProblemError> {
        // The version first: another version may have other fields.
        let head: Head = serde_json::from_str(text).map_err(ProblemError::Json)?;
        if head.version != u64::from(VERSION) {
            return Err(ProblemError::Version(head.version));
        }
        let problem: Self = serde_json::from_str(text).map_err(ProblemError::Json)?;
        problem.check()?;
        Ok(problem)
    }

    /// The text of the file, with a final line break.
    pub fn to_text(&self) -> String {
        let mut text = serde_json::to_string(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Number of pending pods.
    pub fn pending(&self) -> usize {
        self.pods.iter().map(|class| class.replicas).sum()
    }

    /// Checks names, amounts and prices, and that every rule can be parsed.
    pub fn check(&self) -> Result<(), ProblemError> {
        unique("instanceTypes", self.instance_types.iter().map(|kind| &kind.name))?;
        unique("nodePools", self.node_pools.iter().map(|pool| &pool.name))?;
        unique("pods", self.pods.iter().map(|class| &class.name))?;
        unique("daemons", self.daemons.iter().map(|class| &class.name))?;
        unique("nodes", self.nodes.iter().map(|node| &node.name))?;
        for kind in &self.instance_types {
            kind.check()?;
        }
        for class in self.pods.iter().chain(&self.daemons) {
            class.check()?;
        }
        let pods = self.pods.iter().try_fold(0_usize, |sum, class| sum.checked_add(class.replicas));
        if pods.is_none_or(|pods| pods > MAX_PODS) {
            return Err(ProblemError::invalid("pods", format!("more than {MAX_PODS} pods")));
        }
        self.check_nodes()?;
        self.check_rules()
    }

    fn check_nodes(&self) -> Result<(), ProblemError> {
        for node in &self.nodes {
            let dangling = |field: &str, name: &str| ProblemError::Dangling {
                path: format!("nodes: {}: {field}", node.name),
                name: name.to_owned(),
            };
            if !self.node_pools.iter().any(|pool| pool.name == node.node_pool) {
                return Err(dangling("nodePool", &node.node_pool));
            }
            let kind = self.instance_types.iter().find(|kind| kind.name == node.instance_type);
            let Some(kind) = kind else {
                return Err(dangling("instanceType", &node.instance_type));
            };
            let offered = |offer: &&Offering| {
                offer.zone == node.zone && offer.capacity_type == node.capacity_type
            };
            if !kind.offerings.iter().any(|offer| offered(&offer)) {
                let name = format!("{} {} {}", node.instance_type, node.zone, node.capacity_type);
                return Err(dangling("offering", &name));
            }
            for name in node.pods.keys() {
                if !self.pods.iter().any(|class| class.name == *name) {
                    return Err(dangling("pods", name));
                }
            }
        }
        Ok(())
    }
}

fn unique<'n>(
    list: &'static str,
    names: impl Iterator<Item = &'n String>,
) -> Result<(), ProblemError> {
    let mut seen = BTreeSet::new();
    for name in names {
        if name.is_empty() {
            return Err(ProblemError::invalid(list, "a name is empty"));
        }
        if !seen.insert(name) {
            return Err(ProblemError::Duplicate { list, name: name.clone() });
        }
    }
    Ok(())
}

impl InstanceType {
    fn check(&self) -> Result<(), ProblemError> {
        let path = format!("instanceTypes: {}", self.name);
        self.capacity.check(&format!("{path}: capacity"))?;
        self.overhead.check(&format!("{path}: overhead"))?;
        let mut seen = BTreeSet::new();
        for offer in &self.offerings {
            offer.kind().ok_or_else(|| {
                let why = format!("`{}` is not on-demand, spot or reserved", offer.capacity_type);
                ProblemError::invalid(format!("{path}: capacityType"), why)
            })?;
            offer.price().ok_or_else(|| {
                let why = format!("{} is not a price", offer.price_usd_per_hour);
                ProblemError::invalid(format!("{path}: priceUsdPerHour"), why)
            })?;
            if !seen.insert((&offer.zone, &offer.capacity_type)) {
                let name = format!("{} {} {}", self.name, offer.zone, offer.capacity_type);
                return Err(ProblemError::Duplicate { list: "offerings", name });
            }
        }
        for key in
            [nap_api::labels::ZONE, nap_api::labels::CAPACITY_TYPE, nap_api::labels::HOSTNAME]
        {
            if self.labels.contains_key(key) {
                let why = format!("`{key}` is decided by the offering or the node");
                return Err(ProblemError::invalid(format!("{path}: labels"), why));
            }
        }
        Ok(())
    }
}

impl Offering {
    /// Parsed capacity type; `None` if it is unknown.
    pub(crate) fn kind(&self) -> Option<CapacityType> {
        CapacityType::parse(&self.capacity_type)
    }

    /// Price in micro-dollars; `None` if it is negative or not finite.
    pub(crate) fn price(&self) -> Option<UsdPerHour> {
        UsdPerHour::parse(&format!("{:.7}", self.price_usd_per_hour))
    }
}

impl PodClass {
    fn check(&self) -> Result<(), ProblemError> {
        let path = format!("pods: {}: requests", self.name);
        self.requests.check(&path)?;
        if self.requests.pods > 1 {
            return Err(ProblemError::invalid(path, "a pod takes one pod slot"));
        }
        Ok(())
    }
}

impl Amounts {
    fn check(&self, path: &str) -> Result<(), ProblemError> {
        let named = [self.cpu_milli, self.memory_bytes, self.pods];
        if named.into_iter().chain(self.extended.values().copied()).any(|amount| amount < 0) {
            return Err(ProblemError::invalid(path, "an amount is negative"));
        }
        Ok(())
    }
}
