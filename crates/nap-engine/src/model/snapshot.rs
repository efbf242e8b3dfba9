//! The cluster as the engine sees it: pods, nodes, pools, daemons and what can be launched.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use nap_api::{Requirements, Taint, Toleration};
use nap_units::{Resources, UsdPerHour};
use serde::{Deserialize, Serialize};

use crate::model::{Catalogue, HostPort, PodTerm, RunningPods, Selector, Spread, Unsupported};

/// Prefix of the resources that count attached volumes; the rest of the name is the CSI driver.
///
/// In a pod's requests such a resource counts volumes, on a node the volumes that can still be
/// attached. A node that does not name the resource has no limit.
pub const ATTACHABLE_VOLUMES: &str = "attachable-volumes-csi-";

/// Resource by which the limits of a NodePool count nodes.
pub const NODES: &str = "nodes";

/// Label of an offering that is part of a capacity reservation.
pub const RESERVATION_ID: &str = "karpenter.sh/capacity-reservation-id";

/// Everything that a decision depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Pending pods.
    pub pods: Vec<Pod>,
    /// Nodes that exist or are in flight; their free capacity costs nothing.
    pub nodes: Vec<Arc<Node>>,
    /// NodePools that may launch nodes.
    pub pools: Vec<Pool>,
    /// Pods that every matching new node will run.
    pub daemons: Vec<Daemon>,
    /// Instance types, by the name that [`Pool::catalogue`] refers to.
    pub catalogues: BTreeMap<String, Arc<Catalogue>>,
    /// Number of nodes that each capacity reservation still has room for. An offering belongs to a
    /// reservation if its requirements name it by [`RESERVATION_ID`].
    #[serde(default)]
    pub reservations: BTreeMap<String, u32>,
}

/// `namespace/name` of a pod. Clones share the text.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodKey(Arc<str>);

impl PodKey {
    /// Makes the key of a pod in a namespace.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(format!("{namespace}/{name}").into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Namespace and name.
    pub fn parts(&self) -> (&str, &str) {
        self.0.split_once('/').unwrap_or(("", &self.0))
    }

    /// Namespace of the pod.
    pub fn namespace(&self) -> &str {
        self.parts().0
    }
}

impl From<&str> for PodKey {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A pending pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Pod {
    /// Namespace and name.
    pub key: PodKey,
    /// Requests, with one `pods`.
    pub requests: Resources,
    /// Node selector and required node affinity, as alternatives: a node must satisfy one of the
    /// terms. Never empty; a pod without node constraints has one empty term.
    pub terms: Vec<Requirements>,
    /// Tolerations.
    pub tolerations: Vec<Toleration>,
    /// Priority; higher values are placed first.
    pub priority: i32,
    /// Hard constraint that cannot be planned for. A pod that has one is never placed.
    pub unsupported: Option<Unsupported>,
    /// Labels, which the selectors of other pods match.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Spread constraints with `DoNotSchedule`.
    #[serde(default)]
    pub spread: Vec<Spread>,
    /// Required pod affinity: the pod's domain must have a pod that all of these terms match.
    #[serde(default)]
    pub affinity: Vec<PodTerm>,
    /// Required pod anti-affinity: the pod's domain must have no pod that any of these terms
    /// matches, and such pods stay out of its domain.
    #[serde(default)]
    pub anti_affinity: Vec<PodTerm>,
    /// Host ports.
    #[serde(default)]
    pub host_ports: Vec<HostPort>,
    /// Topology of the pod's volumes, as alternatives: a node must satisfy one of them, if there
    /// are any. Unlike [`Pod::terms`] they never restrict the nodes that a spread constraint
    /// covers.
    #[serde(default)]
    pub volume_terms: Vec<Requirements>,
    /// Preferences; [`Options::preferences`](crate::Options::preferences) says if they count.
    #[serde(default)]
    pub preferences: Preferences,
    /// Selector of the pods of the same workload, which the cluster's default spread constraints
    /// count. `None` for a pod without a workload.
    #[serde(default)]
    pub workload: Option<Selector>,
    /// Whether the pod, once it runs, keeps its node from voluntary disruption. Such pods share
    /// new nodes where that costs nothing.
    #[serde(default)]
    pub blocks_disruption: bool,
}

/// Preferred scheduling terms of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Preferences {
    /// Preferred node affinity.
    #[serde(default)]
    pub nodes: Vec<Weighted<Requirements>>,
    /// Preferred pod affinity.
    #[serde(default)]
    pub affinity: Vec<Weighted<PodTerm>>,
    /// Preferred pod anti-affinity. Unlike the required kind it keeps no other pod away.
    #[serde(default)]
    pub anti_affinity: Vec<Weighted<PodTerm>>,
    /// Spread constraints with `ScheduleAnyway`.
    #[serde(default)]
    pub spread: Vec<Spread>,
}

/// A preferred term with its weight.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Weighted<T> {
    /// Weight, from 1 to 100.
    pub weight: i32,
    /// The term.
    pub term: T,
}

/// The pod of a DaemonSet that every matching new node will run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Daemon {
    /// `namespace/name` of the DaemonSet.
    pub name: String,
    /// Requests of each pod, with one `pods`.
    pub requests: Resources,
    /// Node selector and required node affinity, as in [`Pod::terms`].
    pub terms: Vec<Requirements>,
    /// Tolerations.
    pub tolerations: Vec<Toleration>,
    /// Host ports.
    #[serde(default)]
    pub host_ports: Vec<HostPort>,
}

impl Daemon {
    /// The daemon's pod as other pods see it on a node. `None` if it occupies no host port, and so
    /// affects no other pod.
    pub fn resident(&self) -> Option<RunningPods> {
        (!self.host_ports.is_empty()).then(|| RunningPods {
            namespace: self.name.split('/').next().unwrap_or_default().to_owned(),
            labels: BTreeMap::new(),
            anti_affinity: Vec::new(),
            host_ports: self.host_ports.clone(),
            count: 1,
        })
    }
}

/// A node that exists or is in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Node {
    /// Name of the Node, or of the NodeClaim while there is no Node.
    pub name: String,
    /// Labels; on a node in flight, the labels that it will have.
    pub labels: BTreeMap<String, String>,
    /// Taints that remain once the node is initialized.
    pub taints: Vec<Taint>,
    /// Free capacity, less the daemons that have yet to start.
    pub free: Resources,
    /// Whether the node runs pods already. Initialized nodes are filled first.
    pub initialized: bool,
    /// Pods on the node that topology rules may count, with the daemons that have yet to start.
    #[serde(default)]
    pub residents: Vec<RunningPods>,
}

/// A NodePool that may launch nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Name of the NodePool.
    pub name: String,
    /// Weight; higher values are preferred.
    pub weight: i32,
    /// Requirements of the NodePool and the labels of its template.
    pub requirements: Requirements,
    /// Taints of its nodes, without startup taints.
    pub taints: Vec<Taint>,
    /// Amount of each limited resource that the pool may still add ([`NODES`] counts nodes). A
    /// resource that is absent is not limited.
    pub headroom: Resources,
    /// Key of the pool's catalogue in [`Snapshot::catalogues`].
    pub catalogue: String,
    /// Highest price of a node; `None` without a ceiling.
    #[serde(default)]
    pub max_price: Option<UsdPerHour>,
}

/// `on-demand`, `spot` or `reserved`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CapacityType {
    /// Capacity of a reservation, which is paid for in any case.
    Reserved,
    /// Spare capacity that can be evicted.
    Spot,
    /// Pay as you go.
    OnDemand,
}

impl CapacityType {
    /// Value of the `karpenter.sh/capacity-type` label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => nap_api::labels::capacity_type::RESERVED,
            Self::Spot => nap_api::labels::capacity_type::SPOT,
            Self::OnDemand => nap_api::labels::capacity_type::ON_DEMAND,
        }
    }

    /// Capacity type with this label value; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Reserved, Self::Spot, Self::OnDemand].into_iter().find(|one| one.as_str() == text)
    }
}

impl fmt::Display for CapacityType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A VM size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceType {
    /// Name of the VM size.
    pub name: String,
    /// Labels of its nodes, apart from those of the offering.
    pub requirements: Requirements,
    /// Capacity, which counts against the limits of pools.
    pub capacity: Resources,
    /// Capacity for pods and daemons.
    pub allocatable: Resources,
    /// Zones and capacity types in which it is sold.
    pub offerings: Vec<Offering>,
    /// Whether new customers cannot get it. Of equal prices, that of another type is chosen.
    #[serde(default)]
    pub closed: bool,
}

/// An instance type in a zone with a capacity type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offering {
    /// Value of the zone label.
    pub zone: String,
    /// Capacity type.
    pub capacity_type: CapacityType,
    /// Price of a node.
    pub price: UsdPerHour,
    /// Whether the offering can be launched at present.
    pub available: bool,
    /// Labels that depend on the offering: zone, capacity type and what follows from them.
    /// Offerings share equal ones.
    pub requirements: Arc<Requirements>,
}
