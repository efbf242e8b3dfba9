//! Units that must be exact: Kubernetes quantities, resource vectors and prices.
//!
//! Nothing here uses floating point. A quantity that was written by a user is kept to the last
//! digit, a resource vector counts whole base units (milli-cores for `cpu`, ones for everything
//! else), and money is integer micro-dollars per hour.

mod price;
mod quantity;
mod resources;

pub use price::UsdPerHour;
pub use quantity::{Format, ParseQuantityError, Quantity};
pub use resources::{CPU, EPHEMERAL_STORAGE, MEMORY, PODS, Resources, Rounding};
