//! nap-cloud
