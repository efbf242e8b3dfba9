//! Quantities read and print as Kubernetes does, to the last digit.

mod quantity;
