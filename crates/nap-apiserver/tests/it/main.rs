//! The server as its clients see it: through `kube::Client` in-process, and through kubectl.

mod admission;
mod crds;
mod kubectl;
mod objects;
mod support;
mod watches;
