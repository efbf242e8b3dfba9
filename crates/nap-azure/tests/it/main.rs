//! The provider's arithmetic and bodies against those of the incumbent.

mod bodies;
mod catalogue;
mod types;
