//! The engine checked by the oracle.

mod judge;
mod optimum;
mod properties;
