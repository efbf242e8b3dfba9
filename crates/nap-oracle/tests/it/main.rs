//! The engine before its judge.

mod properties;
