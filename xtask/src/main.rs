//! Tidy checks and generated files.
fn main() {}
