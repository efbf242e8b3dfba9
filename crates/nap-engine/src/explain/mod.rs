//! explain.

pub(crate) mod display;
pub(crate) mod funnel;
pub(crate) mod refusal;
pub(crate) mod remedy;
