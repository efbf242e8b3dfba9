//! The world around nap, small enough to fit in one process.
//!
//! [`azure`] is an Azure that speaks ARM: the real provider talks to it, so that demos and tests run the production path.
//! Machines that it makes are told to the rest of the world as [`machines::MachineEvent`]s.

pub mod azure;
pub mod machines;
