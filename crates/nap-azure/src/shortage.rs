//! Offerings that are not tried for a while, for people and documents.

use std::fmt;

use jiff::Timestamp;
use nap_engine::CapacityType;
use serde::{Deserialize, Serialize};

use crate::arm::Failure;
use crate::embedded::EmbeddedCatalogue;
use crate::skus::Sku;

/// Cause of a failure that makes offerings unavailable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// Azure has no capacity.
    Capacity,
    /// The subscription's quota is used up.
    Quota,
    /// The subscription may not use the size there.
    NotAvailable,
    /// The size cannot be a node of this cluster.
    NotSupported,
    /// An Azure policy forbids the size.
    Policy,
    /// A spot VM was taken back.
    Eviction,
    /// A version of nap that stored no cause.
    #[default]
    #[serde(other)]
    Unknown,
}

impl Cause {
    /// The cause behind a failed launch.
    pub(crate) fn of(failure: Failure) -> Self {
        match failure {
            Failure::SpotQuota | Failure::FamilyQuota { .. } | Failure::RegionalQuota => {
                Self::Quota
            }
            Failure::SkuNotAvailable | Failure::SizeRefused | Failure::ZoneRefused => {
                Self::NotAvailable
            }
            Failure::SkuNotSupported => Self::NotSupported,
            Failure::Policy => Self::Policy,
            Failure::ZonalCapacity
            | Failure::RegionalCapacity
            | Failure::OverconstrainedZonal
            | Failure::Overconstrained => Self::Capacity,
            _ => Self::Unknown,
        }
    }
}

impl Cause {
    /// The value in documents and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Capacity => "capacity",
            Self::Quota => "quota",
            Self::NotAvailable => "notAvailable",
            Self::NotSupported => "notSupported",
            Self::Policy => "policy",
            Self::Eviction => "eviction",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Capacity => "Azure has no capacity",
            Self::Quota => "quota is used up",
            Self::NotAvailable => "not available to the subscription",
            Self::NotSupported => "not supported as a node",
            Self::Policy => "forbidden by a policy",
            Self::Eviction => "a spot VM was evicted",
            Self::Unknown => "a launch failed",
        })
    }
}

/// Offerings of a size, of the larger sizes of a family, or of all sizes, that are not tried until
/// a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shortage {
    /// The size; `None` for a family or for all sizes.
    pub instance_type: Option<String>,
    /// The VM family in lower case; `None` for one size or for all.
    pub family: Option<String>,
    /// Of a family, sizes with at least this many vCPUs.
    pub min_vcpus: Option<i64>,
    /// Value of the zone label; `None` for everywhere.
    pub zone: Option<String>,
    /// Capacity type.
    pub capacity_type: CapacityType,
    /// Cause of the last failure.
    #[serde(rename = "reason")]
    pub cause: Cause,
    /// Time from which they are tried again.
    pub until: Timestamp,
}

impl Shortage {
    /// Whether an offering of a size is among them.
    pub fn covers(&self, sku: &Sku, zone: &str, capacity_type: CapacityType) -> bool {
        let family = |family: &String| sku.family.eq_ignore_ascii_case(family);
        self.capacity_type == capacity_type
            && self.zone.as_deref().is_none_or(|one| one == zone)
            && self.instance_type.as_ref().is_none_or(|one| *one == sku.name)
            && self.family.as_ref().is_none_or(family)
            && self.min_vcpus.is_none_or(|vcpus| sku.vcpus >= vcpus)
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.instance_type, &self.family, self.min_vcpus) {
            (Some(size), ..) => f.write_str(size)?,
            (None, Some(family), Some(vcpus)) => {
                write!(f, "sizes of {family} with {vcpus} or more vCPUs")?;
            }
            _ => f.write_str("every size")?,
        }
        write!(f, " {}", self.capacity_type)?;
        match self.zone.as_deref() {
            Some(crate::unavailable_offerings::REGIONAL) => f.write_str(" without a zone"),
            Some(zone) => write!(f, " in {zone}"),
            None => Ok(()),
        }
    }
}

/// A size of the built-in catalogue as it is in a region; `None` if the catalogue lacks either.
pub fn built_in_sku(region: &str, size: &str) -> Option<Sku> {
    let catalogue = EmbeddedCatalogue::embedded();
    let region = catalogue.region(region).ok()?;
    let row = catalogue.skus_in(&region.name).find(|row| row.name == size)?;
    Sku::read(&catalogue.resource_sku(row, region), &region.name).ok()
}
