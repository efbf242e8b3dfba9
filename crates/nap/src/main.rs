//! The nap binary.
fn main() {}
