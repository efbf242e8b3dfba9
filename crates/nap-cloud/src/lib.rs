//! The contract between the controllers and a cloud: the [`CloudProvider`] trait and errors by
//! class.

mod error;
mod provider;

pub use error::{CloudError, ErrorClass};
pub use provider::{
    CloudProvider, Creation, Instance, InstanceDrift, InstanceDriftKind, NodeClassCondition,
    NodeClassFinding, NodeClassReport, QuotaCharge, QuotaCount, RepairPolicy, TerminationNotice,
};
