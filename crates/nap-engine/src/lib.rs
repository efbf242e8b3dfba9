//! nap-engine
