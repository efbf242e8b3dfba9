//! nap-api
