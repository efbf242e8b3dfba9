//! nap in the simulated world on a paused clock, and the production provider against the emulator.

mod cluster;
mod creating;
mod definitions;
mod disrupting;
mod draining;
mod drifting;
mod emulator;
mod harness;
mod labelling;
mod lagging;
mod launching;
mod life;
mod offerings;
mod overlays;
mod provisioning;
mod proxy;
mod registering;
mod restarting;
mod retired;
mod safety;
mod scale;
mod spellings;
mod taking_over;
mod terminating;
mod trouble;
mod world;
