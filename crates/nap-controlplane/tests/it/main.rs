//! nap's definitions, as a real API server and the embedded one understand them, and the harness
//! that starts the real one.

mod cases;
mod definitions;
mod incumbent;
mod lifecycle;
mod manifests;
mod scheduling;
mod support;
mod with_kubectl;
