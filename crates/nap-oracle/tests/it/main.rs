//! The engine before its judge.

mod judge;
mod optimum;
mod problems;
mod properties;
