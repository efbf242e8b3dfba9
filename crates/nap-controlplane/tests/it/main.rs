//! nap's definitions and plans on a real control plane, compared with the embedded one.

mod cases;
mod conformance;
mod definitions;
mod incumbent;
mod kubelets;
mod lifecycle;
mod manifests;
mod scheduling;
mod support;
mod with_kubectl;
