//! What the server knows about the built-in kinds beyond their shape: the defaults it fills in and
//! the mistakes it refuses.

pub(crate) mod defaults;
pub(crate) mod metadata;
pub(crate) mod pod_spec;
pub(crate) mod validate;
