//! Kubelets against the embedded API server, on a paused clock.

mod nodes;
mod pods;
mod world;
