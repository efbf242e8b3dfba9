//! `nap azure`: what Azure sells, the catalogue of it, and whether a cluster is ready for nap.

mod check;
pub mod live;
mod masks;
mod pool_needs;
mod refresh;
mod skus;
mod smoke;

pub use check::{check, maintenance};
pub use live::endpoint;
pub use refresh::refresh;
pub use skus::skus;
pub use smoke::smoke;
