//! Taints and tolerations, by the rules of kube-scheduler, and the taints that nap itself sets.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Effect of a taint on pods that do not tolerate it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum Effect {
    /// New pods stay away.
    NoSchedule,
    /// New pods prefer other nodes.
    PreferNoSchedule,
    /// New pods stay away and running ones are evicted.
    NoExecute,
}

/// A taint of a node or of a NodePool's template.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct Taint {
    /// The taint's key.
    #[schemars(
        length(min = 1),
        regex(
            pattern = r"^([a-zA-Z0-9](?:[-a-zA-Z0-9_.]*[a-zA-Z0-9])?(\/))?([a-zA-Z0-9](?:[-a-zA-Z0-9_.]*[a-zA-Z0-9])?)$"
        )
    )]
    pub key: String,
    /// The taint's value, often empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(regex(pattern = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"))]
    pub value: String,
    /// Effect on pods that do not tolerate the taint.
    pub effect: Effect,
}

/// A toleration of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Toleration {
    /// Empty tolerates every key, if `exists` is set.
    #[serde(default)]
    pub key: String,
    /// Compared with the taint's value unless `exists` is set.
    #[serde(default)]
    pub value: String,
    /// Operator `Exists` instead of `Equal`.
    #[serde(default)]
    pub exists: bool,
    /// `None` tolerates every effect.
    #[serde(default)]
    pub effect: Option<Effect>,
}

/// On a node that is about to be removed.
pub const DISRUPTED: &str = "karpenter.sh/disrupted";
/// On a node from its first moment until it was matched with its NodeClaim.
pub const UNREGISTERED: &str = "karpenter.sh/unregistered";
/// On a node that the fleet could do without: new pods prefer other nodes, so that it becomes empty
/// without an eviction. Its effect is `PreferNoSchedule`.
pub const SURPLUS: &str = "nap.karpenter.sh/surplus";
/// Set by Kubernetes on a node that is not ready.
pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// Set by Kubernetes on a node that does not report.
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// Set by the kubelet until the cloud controller has seen the node.
pub const CLOUD_UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

impl Taint {
    /// A taint without a value.
    pub fn new(key: impl Into<String>, effect: Effect) -> Self {
        Self { key: key.into(), value: String::new(), effect }
    }

    /// Same key and effect: for Kubernetes, the same taint.
    pub fn matches(&self, other: &Self) -> bool {
        self.key == other.key && self.effect == other.effect
    }

    /// Whether the taint goes away by itself while a node starts, so that pods may be planned onto
    /// it regardless.
    pub fn is_ephemeral(&self) -> bool {
        match self.key.as_str() {
            NOT_READY => self.effect != Effect::PreferNoSchedule,
            UNREACHABLE | CLOUD_UNINITIALIZED => self.effect == Effect::NoSchedule,
            UNREGISTERED => self.effect == Effect::NoExecute,
            key => key.starts_with("readiness.k8s.io/"),
        }
    }

    /// Whether the taint keeps intolerant pods away (`PreferNoSchedule` only discourages).
    pub fn repels(&self) -> bool {
        self.effect != Effect::PreferNoSchedule
    }
}

impl fmt::Display for Taint {
    /// `key=value:Effect`, or `key:Effect` without a value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        if !self.value.is_empty() {
            write!(f, "={}", self.value)?;
        }
        write!(f, ":{}", self.effect.as_str())
    }
}

impl Toleration {
    /// Whether this tolerates the taint.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        if self.effect.is_some_and(|effect| effect != taint.effect) {
            return false;
        }
        if self.key.is_empty() {
            return self.exists;
        }
        self.key == taint.key && (self.exists || self.value == taint.value)
    }
}

/// The first taint that repels a pod with these tolerations.
pub fn first_untolerated<'a>(taints: &'a [Taint], tolerations: &[Toleration]) -> Option<&'a Taint> {
    taints.iter().find(|taint| {
        taint.repels() && !tolerations.iter().any(|toleration| toleration.tolerates(taint))
    })
}

fn effect(name: Option<&str>) -> Option<Effect> {
    match name {
        Some("NoSchedule") => Some(Effect::NoSchedule),
        Some("PreferNoSchedule") => Some(Effect::PreferNoSchedule),
        Some("NoExecute") => Some(Effect::NoExecute),
        _ => None,
    }
}

impl Effect {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}

impl From<&k8s_openapi::api::core::v1::Taint> for Taint {
    /// An effect that this version does not know counts as `NoExecute`, the strictest.
    fn from(taint: &k8s_openapi::api::core::v1::Taint) -> Self {
        Self {
            key: taint.key.clone(),
            value: taint.value.clone().unwrap_or_default(),
            effect: effect(Some(&taint.effect)).unwrap_or(Effect::NoExecute),
        }
    }
}

impl From<&Taint> for k8s_openapi::api::core::v1::Taint {
    fn from(taint: &Taint) -> Self {
        Self {
            key: taint.key.clone(),
            value: (!taint.value.is_empty()).then(|| taint.value.clone()),
            effect: taint.effect.as_str().to_owned(),
            time_added: None,
        }
    }
}

impl From<&k8s_openapi::api::core::v1::Toleration> for Toleration {
    fn from(toleration: &k8s_openapi::api::core::v1::Toleration) -> Self {
        Self {
            key: toleration.key.clone().unwrap_or_default(),
            value: toleration.value.clone().unwrap_or_default(),
            exists: toleration.operator.as_deref() == Some("Exists"),
            effect: effect(toleration.effect.as_deref()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerations_match_as_the_scheduler_does() {
        let taint = Taint { key: "gpu".into(), value: "true".into(), effect: Effect::NoSchedule };
        let toleration = |key: &str, value: &str, exists, effect| Toleration {
            key: key.into(),
            value: value.into(),
            exists,
            effect,
        };
        assert!(toleration("gpu", "true", false, None).tolerates(&taint));
        assert!(toleration("gpu", "", true, Some(Effect::NoSchedule)).tolerates(&taint));
        assert!(toleration("", "", true, None).tolerates(&taint));
        assert!(!toleration("gpu", "false", false, None).tolerates(&taint));
        assert!(!toleration("gpu", "true", false, Some(Effect::NoExecute)).tolerates(&taint));
        assert!(!toleration("", "", false, None).tolerates(&taint));
        assert!(first_untolerated(&[Taint::new("soft", Effect::PreferNoSchedule)], &[]).is_none());
    }
}
