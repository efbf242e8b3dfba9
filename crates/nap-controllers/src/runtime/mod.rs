//! The runtime: watches feed the cluster index, the index says which reconciles are due, and one
//! ordered queue runs them.

mod driver;
mod queue;
mod watches;

pub use driver::run;
