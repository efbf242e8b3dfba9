//! The whole world on a paused clock: what a user of a cluster with nap in it would notice, and the
//! real Azure provider against the emulated Azure.

mod cluster;
mod definitions;
mod disrupting;
mod emulator;
mod harness;
mod life;
mod offerings;
mod overlays;
mod provisioning;
mod restarting;
mod scale;
mod spellings;
mod taking_over;
mod terminating;
mod trouble;
mod world;
