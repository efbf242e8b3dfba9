//! Explaining the plan: why a pod has no place, and why a launch is what it is.
//!
//! [`refusal`] and [`funnel`] read the same [`OfferingFunnel`](crate::offerings::funnel) of the
//! offering index, and [`single_pod`] builds that index for one pod. [`display`] and [`keep`] are
//! the only places with English text.

pub(crate) mod display;
pub(crate) mod funnel;
pub(crate) mod keep;
pub(crate) mod refusal;
pub(crate) mod single_pod;
