//! nap-apiserver
