//! Packing problems and plans as files: two solvers run on the same bytes, and one judge prices and
//! checks both plans.
//!
//! ```text
//!  generate ──► Problem (file) ──► Snapshot ──► any solver ──► PlanFile ──► judge ──► Verdict
//! ```
//!
//! - [`Problem`]: instance types, NodePools, pending pods by class, existing nodes;
//!   [`Problem::snapshot`] is the engine's input.
//! - [`PlanFile`]: the nodes to launch and the pods on each, from any solver.
//! - [`RunningFleet`]: existing nodes as the input of consolidation; [`StepsFile`]: its decisions,
//!   from any solver; [`judge_steps`]: replays and judges them.
//! - [`judge`]: the violations and the cost of a plan file. It shares no algorithm with the engine.
//! - [`generate`]: problems from a recipe and a seed, among them the incumbent's benchmark.
//!
//! `docs/problem-format.md` describes the fields.

mod fleet;
mod format;
pub mod generate;
mod judge;
mod kubernetes;
mod plan;
mod read;
mod snapshot;
mod steps;
mod terms;

pub use fleet::RunningFleet;
pub use format::{Amounts, ExistingNode, InstanceType, NodePool, Offering, PodClass, Problem};
pub use judge::{StepsVerdict, Verdict, judge, judge_steps};
pub use kubernetes::{
    LabelExpression, LabelSelector, NodeSelectorTerm, PodAffinityTerm, Taint, Toleration,
    TopologySpreadConstraint,
};
pub use plan::{PlanFile, PlannedNode};
pub use read::ProblemError;
pub use steps::{StepFile, StepsFile};
