//! The requirement algebra against golden tables and the laws of algebra.

mod laws;
mod tables;
