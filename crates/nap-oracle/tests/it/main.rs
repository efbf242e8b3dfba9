//! The engine checked by the oracle.

mod consolidating;
mod judge;
mod optimum;
mod properties;
