//! A real Kubernetes control plane under test: etcd, kube-apiserver, kube-controller-manager,
//! kube-scheduler and kubectl, as their own projects make them, on loopback.
//!
//! [`Plane`] is a running one. It stops when it is dropped, and when the process that started it
//! ends in whatever way: nothing stays behind.

mod certificates;
mod plane;

pub use plane::{Error, Parts, Plane};
