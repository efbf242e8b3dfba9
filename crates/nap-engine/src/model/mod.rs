//! What the engine reads and what it answers. Plain data that serialises.

pub(crate) mod alternatives;
pub(crate) mod catalogue;
pub(crate) mod pod_rules;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use nap_api::{Requirements, Taint, Toleration};
use nap_units::{Resources, UsdPerHour};
use serde::{Deserialize, Serialize};

use crate::model::alternatives::Alternatives;
use crate::model::catalogue::Catalogue;
use crate::model::pod_rules::{HostPort, PodTerm, RunningPods, Selector, Spread};

/// Everything a decision depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Pods that need a place.
    pub pods: Vec<Pod>,
    /// Machines that exist or are on their way, and may be filled for free.
    pub nodes: Vec<Node>,
    /// Where new machines may come from.
    pub pools: Vec<Pool>,
    /// Pods that every matching new machine will run.
    pub daemons: Vec<Daemon>,
    /// The instance types on offer, by the name that [`Pool::catalogue`] refers to.
    pub catalogues: BTreeMap<String, Arc<Catalogue>>,
    /// How many more machines each capacity reservation has room for. An offering belongs to one if
    /// its requirements name it by [`RESERVATION_ID`].
    #[serde(default)]
    pub reservations: BTreeMap<String, u32>,
}

/// How the name of a resource begins that counts attached volumes, the rest being the CSI driver's
/// name: among a pod's requests its volumes, on a machine how many more can be attached. A machine
/// that does not name it has no limit.
pub const ATTACHABLE_VOLUMES: &str = "attachable-volumes-csi-";

/// The label of an offering that is part of a capacity reservation.
pub const RESERVATION_ID: &str = "karpenter.sh/capacity-reservation-id";

/// `namespace/name` of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodKey(pub String);

impl PodKey {
    /// The key of a pod in a namespace.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(format!("{namespace}/{name}"))
    }

    /// Namespace and name.
    pub fn parts(&self) -> (&str, &str) {
        self.0.split_once('/').unwrap_or(("", &self.0))
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A pod that needs a place.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Pod {
    /// Which pod it is.
    pub key: PodKey,
    /// What it asks for, with its pod slot.
    pub requests: Resources,
    /// Its node selector and required node affinity: it needs a node that suits one of these. Never
    /// empty; a pod without wishes has one empty term.
    pub terms: Vec<Requirements>,
    /// Which taints it tolerates.
    pub tolerations: Vec<Toleration>,
    /// Higher goes first.
    pub priority: i32,
    /// A hard constraint that the engine does not know yet (the path of the field). Such a pod is
    /// never placed.
    pub unsupported: Option<String>,
    /// Its labels, by which others may mean it.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// How it must be spread.
    #[serde(default)]
    pub spread: Vec<Spread>,
    /// Where it must be: in a domain with a pod that all of these mean.
    #[serde(default)]
    pub affinity: Vec<PodTerm>,
    /// Where it must not be: in a domain with a pod that any of these means. Those pods are kept
    /// away from it too.
    #[serde(default)]
    pub anti_affinity: Vec<PodTerm>,
    /// Which ports of its node it occupies.
    #[serde(default)]
    pub host_ports: Vec<HostPort>,
    /// Where its volumes are or can be: it needs a node that suits one of these, if there are any.
    /// Unlike its own terms they never decide which nodes a spread constraint looks at.
    #[serde(default)]
    pub volume_terms: Vec<Requirements>,
    /// What it would like. Whether that counts is a matter of [`Options::preferences`].
    #[serde(default)]
    pub preferences: Preferences,
    /// Which pods belong to the same workload: who is counted by the cluster's default spread
    /// constraints. Only pods without constraints of their own have them.
    #[serde(default)]
    pub workload: Option<Selector>,
}

/// What a pod would like, but can do without.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Preferences {
    /// Preferred node affinity.
    #[serde(default)]
    pub nodes: Vec<Weighted<Requirements>>,
    /// Preferred pod affinity.
    #[serde(default)]
    pub affinity: Vec<Weighted<PodTerm>>,
    /// Preferred pod anti-affinity. Unlike the required kind it keeps nobody else away.
    #[serde(default)]
    pub anti_affinity: Vec<Weighted<PodTerm>>,
    /// Spread constraints with `ScheduleAnyway`.
    #[serde(default)]
    pub spread: Vec<Spread>,
}

/// Something that is preferred by so much.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Weighted<T> {
    /// From 1 to 100.
    pub weight: i32,
    /// What is preferred.
    pub term: T,
}

/// A daemon pod that every machine it suits will run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Daemon {
    /// Which DaemonSet it belongs to.
    pub name: String,
    /// What each of its pods asks for, with its pod slot.
    pub requests: Resources,
    /// As in [`Pod::terms`].
    pub terms: Vec<Requirements>,
    /// Which taints it tolerates.
    pub tolerations: Vec<Toleration>,
    /// Which ports of its node it occupies.
    #[serde(default)]
    pub host_ports: Vec<HostPort>,
}

impl Daemon {
    /// Its pod on a machine, as far as others may depend on it: by the ports that it occupies.
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

/// A machine that exists or is on its way.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Node {
    /// Its name: the Node's, or the NodeClaim's while it has none.
    pub name: String,
    /// Its labels; on a machine that has not joined yet, the ones it will have.
    pub labels: BTreeMap<String, String>,
    /// The taints that will still be there once it is up.
    pub taints: Vec<Taint>,
    /// What is free for more pods, daemons that are still to come already taken off.
    pub free: Resources,
    /// It runs pods already, or will only later. Running ones are filled first.
    pub initialized: bool,
    /// The pods on it that others may depend on, daemons that are still to come included.
    #[serde(default)]
    pub residents: Vec<RunningPods>,
}

/// A NodePool that may make machines now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// The NodePool's name.
    pub name: String,
    /// Preference: higher first.
    pub weight: i32,
    /// Which machines it allows; its template labels are in here too.
    pub requirements: Requirements,
    /// The taints of its nodes, without startup taints.
    pub taints: Vec<Taint>,
    /// What it may still add, by resource (`nodes` counts machines). A resource that is absent is
    /// not limited.
    pub headroom: Resources,
    /// Which of [`Snapshot::catalogues`] it buys from.
    pub catalogue: String,
}

/// `on-demand`, `spot` or `reserved`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CapacityType {
    /// Paid for in advance.
    Reserved,
    /// Spare capacity that can be taken back.
    Spot,
    /// Pay as you go.
    OnDemand,
}

impl CapacityType {
    /// The value of the `karpenter.sh/capacity-type` label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => nap_api::labels::capacity_type::RESERVED,
            Self::Spot => nap_api::labels::capacity_type::SPOT,
            Self::OnDemand => nap_api::labels::capacity_type::ON_DEMAND,
        }
    }

    /// The capacity type with this label value.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Reserved, Self::Spot, Self::OnDemand].into_iter().find(|kind| kind.as_str() == text)
    }
}

impl fmt::Display for CapacityType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A kind of machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceType {
    /// The VM size.
    pub name: String,
    /// The labels that its nodes will have, apart from those of the offering.
    pub requirements: Requirements,
    /// What it has in all.
    pub capacity: Resources,
    /// What it has for pods.
    pub allocatable: Resources,
    /// Where and how it can be had.
    pub offerings: Vec<Offering>,
}

/// One way to have an instance type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offering {
    /// The zone label's value.
    pub zone: String,
    /// How it is paid for.
    pub capacity_type: CapacityType,
    /// What it costs.
    pub price: UsdPerHour,
    /// Whether it can be had at present.
    pub available: bool,
    /// The labels that depend on the offering: zone, capacity type and what follows from them.
    /// Offerings share equal ones.
    pub requirements: Arc<Requirements>,
}

/// What may be changed about how the engine decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// The most pods on one new node; `None` means as many as fit.
    #[serde(default)]
    pub max_pods_per_node: Option<u32>,
    /// The most vCPUs of one new node; `None` means whatever is on offer.
    #[serde(default)]
    pub max_cpu_per_node: Option<i64>,
    /// What a node costs besides its price (a disk, an address, attention), as far as decisions are
    /// concerned. Prices and the plan's cost are without it.
    #[serde(default)]
    pub node_cost: UsdPerHour,
    /// How much of each resource of a new node is left free, so that kube-scheduler finds room for
    /// every pod of the plan in whatever order it binds them, without being told where each goes.
    /// No pod is refused for it.
    #[serde(default)]
    pub slack_percent: u8,
    /// Whether preferences of pods count.
    #[serde(default)]
    pub preferences: PreferencePolicy,
    /// What to do where a pool's `minValues` cannot be had.
    #[serde(default)]
    pub min_values: MinValuesPolicy,
    /// The spread constraints of pods that have none of their own, by the scheduler's
    /// configuration. Their selectors are ignored: [`Pod::workload`] says who is counted.
    #[serde(default)]
    pub default_spread: Vec<DefaultSpread>,
}

/// Whether preferences of pods count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PreferencePolicy {
    /// They hold like requirements as long as that leaves a place, and are given up one after
    /// another where it does not.
    #[default]
    Respect,
    /// They do not count.
    Ignore,
}

/// What to do where a pool's `minValues` cannot be had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MinValuesPolicy {
    /// The pool makes no such machine.
    #[default]
    Strict,
    /// As many as there are will do.
    BestEffort,
}

/// A spread constraint for every pod that has none of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefaultSpread {
    /// The constraint.
    pub spread: Spread,
    /// `DoNotSchedule` instead of `ScheduleAnyway`.
    pub must_hold: bool,
}

/// What should happen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Machines to make.
    pub launches: Vec<Launch>,
    /// Pods that go onto machines that exist or are on their way.
    pub placements: Vec<Placement>,
    /// Pods that have no place, and why.
    pub unplaced: Vec<Unplaced>,
    /// What all launches cost together.
    pub cost: UsdPerHour,
    /// What placing the same pods costs at least, whatever the plan. `None` when nothing was
    /// decided, and in a plan by first fit alone.
    #[serde(default)]
    pub lower_bound: Option<UsdPerHour>,
    /// Which part of the solver found it.
    pub tier: Tier,
}

/// Which part of the solver found a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// First-fit-decreasing, then the cheapest offering for each node.
    #[default]
    FirstFit,
    /// The same with the size of nodes capped, at the cap that came out cheapest.
    CappedFirstFit,
    /// Each node filled with pods that complement each other, on the type that is cheapest for what
    /// it then holds.
    Patterns,
    /// The same with rules between pods taken into account from the start.
    ConstrainedPatterns,
    /// Loads of nodes from a linear program over all of them, rounded.
    ColumnGeneration,
    /// The best of the others, with the nodes that wasted most put together anew.
    RuinAndRecreate,
}

/// A machine to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The NodePool that it belongs to.
    pub pool: String,
    /// The chosen VM size.
    pub instance_type: String,
    /// The chosen zone.
    pub zone: String,
    /// How it is paid for.
    pub capacity_type: CapacityType,
    /// What it costs.
    pub price: UsdPerHour,
    /// The pods it is for, in key order.
    pub pods: Vec<PodKey>,
    /// What those pods and the daemons ask for together.
    pub requests: Resources,
    /// What the pool and the pods insist on together: what the machine must satisfy. Launches share
    /// equal ones.
    pub requirements: Arc<Requirements>,
    /// Other offerings that hold the same pods, cheapest first, for when the chosen one cannot be
    /// had: all of them, up to 600, and up to 60 where a plan has thousands of launches. Each fits
    /// the pool's limits by itself; whoever falls back on several launches at once must count for
    /// themselves.
    pub alternatives: Alternatives,
}

/// Another offering for the same pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alternative {
    /// The VM size.
    pub instance_type: Arc<str>,
    /// The zone.
    pub zone: Arc<str>,
    /// How it is paid for.
    pub capacity_type: CapacityType,
    /// What it costs.
    pub price: UsdPerHour,
}

/// A pod that goes onto a machine that exists or is on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The pod.
    pub pod: PodKey,
    /// The machine's name, as in [`Node::name`].
    pub node: String,
}

/// A pod without a place, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unplaced {
    /// The pod.
    pub pod: PodKey,
    /// Why no place was found.
    pub refusal: Refusal,
}

/// Why a pod has no place. Data; text is made at the edge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Refusal {
    /// The pod has a hard constraint that the engine does not know yet.
    Unsupported {
        /// The path of the field.
        field: String,
    },
    /// There is no NodePool that could make machines.
    NoPools,
    /// Every pool was asked, and each had a reason.
    Pools(Vec<PoolReason>),
}

/// Why one pool could not make a machine for a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolReason {
    /// The NodePool's name.
    pub pool: String,
    /// The reason.
    pub why: PoolRejection,
}

/// What made a pool unsuitable for a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PoolRejection {
    /// The pod does not tolerate a taint of the pool.
    Taint(Taint),
    /// The pool's and the pod's requirements exclude each other (said in words).
    Requirements(String),
    /// Offerings were left after each step; none after the last.
    Offerings {
        /// Offerings in the pool's catalogue.
        total: usize,
        /// Those that satisfy the pool and the pod.
        compatible: usize,
        /// Those that also hold the pod and the daemons.
        large_enough: usize,
        /// Those that can also be had at present.
        available: usize,
        /// A resource of which even the largest compatible type has too little, if that was the
        /// reason.
        shortage: Option<String>,
    },
    /// A limit of the pool leaves no room (the resource's name).
    Limit(String),
    /// What is left for the pod has fewer values of a label than the pool's `minValues` asks for.
    MinValues {
        /// The label's key.
        key: String,
        /// How many there must be.
        wanted: usize,
        /// How many there are.
        found: usize,
    },
    /// A rule between pods leaves no place.
    Rule(Rule),
}

/// A rule between pods that left no place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Rule {
    /// A spread constraint over the values of this label.
    Spread(String),
    /// No domain of this label has a pod that the affinity asks for.
    Affinity(String),
    /// Every domain of this label has a pod that excludes this one, or that this one excludes.
    AntiAffinity(String),
}
