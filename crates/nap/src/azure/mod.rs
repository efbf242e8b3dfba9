//! `nap azure`: what Azure sells, and the catalogue of it.

mod live;
mod refresh;
mod skus;

pub use live::endpoint;
pub use refresh::refresh;
pub use skus::skus;
