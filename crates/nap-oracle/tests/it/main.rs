//! The engine before its judge.

mod problems;
mod properties;
