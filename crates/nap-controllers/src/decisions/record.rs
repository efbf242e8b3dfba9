//! The record of one decision, and the document of all of them.

use jiff::Timestamp;
use nap_engine::{Launch, Plan, PriceEstimates};
use nap_units::UsdPerHour;
use serde::{Deserialize, Serialize};

/// Version of the document.
pub const VERSION: u32 = 1;
/// Upper limit on the nodes of each list of a record; further ones are counted.
pub const MAX_NODES: usize = 100;
/// Upper limit on the sentences of a record, and on the characters of each.
const MAX_REASONS: usize = 5;
const MAX_REASON_LENGTH: usize = 500;

/// All records, from old to new.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// Version of this document.
    pub version: u32,
    /// The records.
    pub records: Vec<DecisionRecord>,
}

impl Document {
    /// Reads a document. The error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let document: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if document.version != VERSION {
            return Err(format!("version {} is not {VERSION}", document.version));
        }
        Ok(document)
    }
}

/// A decision that was carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DecisionRecord {
    /// Microseconds since 1970, made unique.
    pub id: i64,
    /// When it was decided.
    pub time: Timestamp,
    /// What was decided about.
    pub kind: Kind,
    /// Reason of a disruption; `Pending` for pods without a node.
    pub reason: String,
    /// Nodes that it removes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<RecordedNode>,
    /// Nodes that it launches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub launched: Vec<RecordedNode>,
    /// Launches beyond the upper limit of the list.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub further_launches: usize,
    /// Number of pods that move, or that get a place.
    pub pods: usize,
    /// Saving that a disruption promised; `None` if a price is not known, and for new nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_saving_micro_usd_per_hour: Option<i64>,
    /// Saving by the nodes that were really launched; `None` until it is realised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub realised_saving_micro_usd_per_hour: Option<i64>,
    /// Digest of the engine's input; empty until it was computed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub input: String,
    /// The ConfigMap that keeps the input, until another decision takes its place; `TooLarge` if it
    /// is too large to be kept, empty if it is not kept.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub replay: String,
    /// Reasons in words.
    pub why: Vec<String>,
    /// What came of it.
    pub outcome: Outcome,
    /// When the outcome was seen; `None` while it is pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<Timestamp>,
}

/// What a decision is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// New nodes for pending pods.
    Provisioning,
    /// Nodes that are removed or replaced.
    Disruption,
}

impl Kind {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Provisioning => "Provisioning",
            Self::Disruption => "Disruption",
        }
    }
}

/// What came of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It is being carried out.
    Pending,
    /// The removed NodeClaims are gone, or the launched ones are initialized.
    Realised,
    /// A replacement failed, and the node stays.
    RolledBack,
    /// Pods that it moved needed a new node a short while later.
    Undone,
    /// A launched NodeClaim was not created, or was gone before it was initialized.
    Failed,
}

impl Outcome {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Realised => "Realised",
            Self::RolledBack => "RolledBack",
            Self::Undone => "Undone",
            Self::Failed => "Failed",
        }
    }
}

/// A node that a decision removes or launches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedNode {
    /// Name of the Node; empty if it has not joined.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Name of the NodeClaim; empty if it was not created.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_claim: String,
    /// Name of the NodePool.
    pub node_pool: String,
    /// VM size.
    pub instance_type: String,
    /// Value of the zone label.
    pub zone: String,
    /// Capacity type.
    pub capacity_type: String,
    /// Price; `None` if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_usd_per_hour: Option<i64>,
    /// Whether the price is an estimate.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub price_is_estimate: bool,
}

impl RecordedNode {
    /// A node that is to be launched.
    pub fn of_launch(launch: &Launch, estimates: PriceEstimates) -> Self {
        Self {
            node_pool: launch.pool.clone(),
            instance_type: launch.instance_type.clone(),
            zone: launch.zone.clone(),
            capacity_type: launch.capacity_type.to_string(),
            micro_usd_per_hour: Some(launch.price.micros()),
            price_is_estimate: estimates.covers(launch.capacity_type),
            ..Self::default()
        }
    }
}

impl DecisionRecord {
    /// A decision that launches nodes of a plan, and removes none yet.
    pub fn new(
        kind: Kind,
        reason: &str,
        plan: &Plan,
        launches: &[&Launch],
        estimates: PriceEstimates,
        time: Timestamp,
    ) -> Self {
        let explain = |launch: &&Launch| plan.explain_launch(launch, estimates);
        let why = launches.iter().take(MAX_REASONS).map(explain);
        Self {
            id: 0,
            time,
            kind,
            reason: reason.to_owned(),
            removed: Vec::new(),
            launched: launches
                .iter()
                .take(MAX_NODES)
                .map(|one| RecordedNode::of_launch(one, estimates))
                .collect(),
            further_launches: launches.len().saturating_sub(MAX_NODES),
            pods: launches.iter().map(|launch| launch.pods.len()).sum(),
            predicted_saving_micro_usd_per_hour: None,
            realised_saving_micro_usd_per_hour: None,
            input: String::new(),
            replay: String::new(),
            why: why.map(|text| cut(&text)).collect(),
            outcome: Outcome::Pending,
            settled: None,
        }
    }

    /// The same for nodes that are removed, with the text of the command and what it saves.
    #[must_use]
    pub fn removing(
        mut self,
        removed: Vec<RecordedNode>,
        pods: usize,
        saving: Option<UsdPerHour>,
        message: &str,
    ) -> Self {
        self.removed = removed;
        self.pods = pods;
        self.predicted_saving_micro_usd_per_hour = saving.map(UsdPerHour::micros);
        self.why.insert(0, cut(message));
        self.why.truncate(MAX_REASONS);
        self
    }

    /// Whether it removes or launches a node, by the name of the Node or the NodeClaim.
    pub fn concerns(&self, name: &str) -> bool {
        let mut nodes = self.removed.iter().chain(&self.launched);
        nodes.any(|one| one.node == name || one.node_claim == name)
    }
}

fn cut(text: &str) -> String {
    if text.chars().count() <= MAX_REASON_LENGTH {
        return text.to_owned();
    }
    text.chars().take(MAX_REASON_LENGTH - 1).chain(['…']).collect()
}

// The signature that serde asks for.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(count: &usize) -> bool {
    *count == 0
}
