//! The `CloudProvider` trait that controllers call, and its errors by class.

mod error;
mod provider;

pub use error::{CloudError, ErrorClass};
pub use provider::{CloudProvider, Instance, NodeClassReport};
