//! The engine before its judge.

mod judge;
mod optimum;
mod properties;
