//! A real Kubernetes control plane for tests, on loopback: etcd, kube-apiserver,
//! kube-controller-manager, kube-scheduler and kubectl.
//!
//! A [`Plane`] stops when it is dropped or when its process ends in any way, and leaves nothing
//! behind.

mod certificates;
mod plane;

pub use plane::{Error, Parts, Plane};
