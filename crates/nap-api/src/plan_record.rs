//! The plan behind a NodeClaim, as one versioned JSON annotation.
//!
//! The controllers write the record when they create the NodeClaim, and parse it when the NodeClaim
//! enters the cluster index. It carries everything about the plan that must survive a restart: the
//! pods, the offerings in the order to try them, the release slot and the NodeClaims that are
//! replaced. Only the pods may change, until the Node is open. A NodeClaim made by a user or by
//! another controller has no record.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nap_units::UsdPerHour;
use serde::{Deserialize, Serialize};

use crate::labels;

/// Version of the format that this build writes and reads.
pub const VERSION: u32 = 1;

/// Most offerings that a record lists. Together with at most a few hundred pods the record stays
/// far below the 256 KiB that Kubernetes allows for all annotations of an object.
pub const MAX_OFFERINGS: usize = 20;

/// The plan behind a NodeClaim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanRecord {
    /// Pods that the node is for, as `namespace/name`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub pods: BTreeSet<String>,
    /// Offerings in the order in which the provider tries them; the first is the planned one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offerings: Vec<OfferingRef>,
    /// Position in the release order of the plan; `None` where the order does not matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<ReleaseSlot>,
    /// NodeClaims that are deleted once this one and its siblings are initialized.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub replaces: BTreeSet<String>,
    /// Number of NodeClaims that replace them together, this one included; 0 without `replaces`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub siblings: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// An instance type in a zone at a capacity type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OfferingRef {
    /// Value of the instance-type label.
    pub instance_type: String,
    /// Value of the zone label.
    pub zone: String,
    /// Value of the capacity-type label.
    pub capacity_type: String,
    /// Price that the plan was made with, NodeOverlays included.
    pub price: UsdPerHour,
}

/// Position of a node in the order in which the nodes of one plan are opened to pods. Slots of
/// different plans are not ordered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseSlot {
    /// Identifies the plan.
    pub plan: String,
    /// Nodes with a lower number are opened first.
    pub number: u32,
}

/// A record that this build cannot use.
#[derive(Debug, thiserror::Error)]
pub enum PlanRecordError {
    /// The annotation is not the JSON of a record.
    #[error("annotation `{key}` is not a plan record: {0}", key = labels::PLAN)]
    Malformed(#[from] serde_json::Error),
    /// The record has another version.
    #[error("annotation `{key}` has version {0}, expected {VERSION}", key = labels::PLAN)]
    Version(u32),
}

/// The record as it is written: the version first, so that a reader can refuse the rest.
#[derive(Serialize)]
struct Versioned<'a> {
    version: u32,
    #[serde(flatten)]
    record: &'a PlanRecord,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl PlanRecord {
    /// The value of the annotation.
    pub fn to_annotation(&self) -> String {
        let versioned = Versioned { version: VERSION, record: self };
        serde_json::to_string(&versioned).expect("a record is plain data")
    }

    /// Parses the value of the annotation. Fields that this build does not know are ignored.
    pub fn parse(annotation: &str) -> Result<Self, PlanRecordError> {
        let Version { version } = serde_json::from_str(annotation)?;
        if version != VERSION {
            return Err(PlanRecordError::Version(version));
        }
        Ok(serde_json::from_str(annotation)?)
    }

    /// Parses the record on an object; `None` if it carries none.
    pub fn of(metadata: &ObjectMeta) -> Option<Result<Self, PlanRecordError>> {
        let annotation = metadata.annotations.as_ref()?.get(labels::PLAN)?;
        Some(Self::parse(annotation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> PlanRecord {
        PlanRecord {
            pods: ["shop/web-1".to_owned(), "shop/web-0".to_owned()].into(),
            offerings: vec![OfferingRef {
                instance_type: "Standard_D4s_v5".to_owned(),
                zone: "eastus-1".to_owned(),
                capacity_type: "spot".to_owned(),
                price: UsdPerHour::from_micros(38_400),
            }],
            release: Some(ReleaseSlot { plan: "1767225600000".to_owned(), number: 2 }),
            replaces: ["old".to_owned()].into(),
            siblings: 2,
        }
    }

    #[test]
    fn a_record_survives_a_round_trip() {
        let text = record().to_annotation();
        assert_eq!(PlanRecord::parse(&text).unwrap(), record());
        assert_eq!(PlanRecord::parse(&text).unwrap().to_annotation(), text);
    }

    #[test]
    fn an_empty_record_writes_only_its_version() {
        assert_eq!(PlanRecord::default().to_annotation(), r#"{"version":1}"#);
        assert_eq!(PlanRecord::parse(r#"{"version":1}"#).unwrap(), PlanRecord::default());
    }

    #[test]
    fn unknown_fields_are_ignored() {
        let text = r#"{"version":1,"pods":["a/b"],"colour":"red"}"#;
        assert_eq!(PlanRecord::parse(text).unwrap().pods, BTreeSet::from(["a/b".to_owned()]));
    }

    #[test]
    fn another_version_is_refused_by_its_number() {
        let error = PlanRecord::parse(r#"{"version":7,"pods":{}}"#).unwrap_err();
        assert!(matches!(error, PlanRecordError::Version(7)), "{error}");
    }

    #[test]
    fn malformed_records_are_errors() {
        for text in ["", "[]", "{}", "not json", r#"{"version":1,"pods":7}"#, r#"["shop/web"]"#] {
            let error = PlanRecord::parse(text).unwrap_err();
            assert!(matches!(error, PlanRecordError::Malformed(_)), "{text}: {error}");
        }
    }

    #[test]
    fn an_object_without_the_annotation_has_no_record() {
        assert!(PlanRecord::of(&ObjectMeta::default()).is_none());
    }
}
