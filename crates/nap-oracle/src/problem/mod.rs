//! Problems and plans as files, so that two solvers can be put side by side on the same bytes and
//! judged by the same code.
//!
//! - [`Problem`] is a file that says what is on offer and which pods wait; it becomes a snapshot
//!   for the engine.
//! - [`PlanFile`] is a file that says which machines hold which pods, whoever decided so.
//! - [`judge`] says what is wrong with a plan file for a problem, and what it costs.
//!
//! `docs/problem-format.md` describes the fields.

mod binding;
mod format;
mod judge;
mod kubernetes;
mod places;
mod plan;
mod read;
mod snapshot;
mod terms;

pub use format::{Amounts, ExistingNode, InstanceType, NodePool, Offering, PodClass, Problem};
pub use judge::{Verdict, judge};
pub use kubernetes::{
    LabelExpression, LabelSelector, NodeSelectorTerm, PodAffinityTerm, Taint, Toleration,
    TopologySpreadConstraint,
};
pub use plan::{PlanFile, PlannedNode};
pub use read::ProblemError;
