//! What a cloud provider is to the controllers: a trait, its errors by class, and the clock that everything shares.

mod clock;
mod error;
mod provider;

pub use clock::Clock;
pub use error::{CloudError, ErrorClass};
pub use provider::{CloudProvider, Instance, NodeClassReport};
