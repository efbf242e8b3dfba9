//! The provider's arithmetic and bodies against those of the incumbent, and its stand-ins for what
//! Azure does not state.

mod bodies;
mod catalogue;
mod prices;
mod types;
