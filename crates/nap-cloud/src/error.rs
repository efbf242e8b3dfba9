//! Cloud errors by class: the class, not the text, decides what happens next.

use std::fmt;

/// Class of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErrorClass {
    /// The offering is out of stock or not sold: another offering may work.
    Capacity,
    /// A quota of the subscription is used up: another family may work.
    Quota,
    /// Too many requests: the same request may work later.
    Throttled,
    /// The resource does not exist.
    NotFound,
    /// The credentials were refused.
    Auth,
    /// The request itself is wrong: repeating it unchanged is useless.
    Invalid,
    /// The node class is not ready to launch instances.
    NodeClassNotReady,
    /// Any failure that may pass by itself.
    Transient,
}

/// A failed call to the cloud.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{operation}: {message}")]
pub struct CloudError {
    /// Class of the failure.
    pub class: ErrorClass,
    /// Operation and resource.
    pub operation: String,
    /// The cloud's own code, such as `SkuNotAvailable`. It becomes the reason of a condition.
    pub code: String,
    /// The cloud's own text.
    pub message: String,
}

impl CloudError {
    /// Creates an error.
    pub fn new(
        class: ErrorClass,
        operation: impl Into<String>,
        code: impl Into<String>,
        message: impl fmt::Display,
    ) -> Self {
        Self { class, operation: operation.into(), code: code.into(), message: message.to_string() }
    }

    /// Whether the resource does not exist.
    pub fn is_not_found(&self) -> bool {
        self.class == ErrorClass::NotFound
    }
}
