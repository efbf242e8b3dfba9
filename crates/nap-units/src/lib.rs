//! nap-units
