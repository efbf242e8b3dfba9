//! The whole world on a paused clock: what a user of a cluster with nap in it would notice.

mod disrupting;
mod harness;
mod provisioning;
mod restarting;
mod terminating;
