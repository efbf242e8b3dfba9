//! Searching for a cheap packing.
//!
//! [`portfolio`] runs the strategies in turn and keeps the best packing. [`lower_bound`] tells it
//! when to stop; [`resource_bound`] is a part of it. [`column_generation`] and its [`pricing`]
//! solve a linear program over node loads, for large nodes with a [`load_grid`];
//! [`column_solution`] translates between classes and columns. [`ruin_and_recreate`] improves the
//! best packing, and [`scheduler_replay`] breaks ties.

pub(crate) mod column_generation;
pub(crate) mod column_solution;
mod load_grid;
pub(crate) mod lower_bound;
pub(crate) mod portfolio;
pub(crate) mod pricing;
mod resource_bound;
pub(crate) mod ruin_and_recreate;
pub(crate) mod scheduler_replay;
