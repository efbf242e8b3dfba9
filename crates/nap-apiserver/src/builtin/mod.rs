//! Built-in kinds beyond their shape: the defaults that the server fills in and
//! the mistakes it refuses.

mod autoscaler;
mod choices;
mod containers;
pub(crate) mod conversion;
mod cron_job;
pub(crate) mod defaults;
pub(crate) mod metadata;
pub(crate) mod pod_spec;
mod scheduling;
pub(crate) mod shape;
pub(crate) mod types;
pub(crate) mod validate;
