//! Cloud errors, classified: the class, not the text, decides what happens next.

use std::fmt;

/// What kind of failure it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErrorClass {
    /// The cloud has no such machine to give at present: try another offering.
    Capacity,
    /// The subscription may not have more: try another family, or ask for quota.
    Quota,
    /// Too many requests: wait.
    Throttled,
    /// The thing is not there (any more).
    NotFound,
    /// The credentials were refused.
    Auth,
    /// The request itself is wrong: retrying it unchanged is useless.
    Invalid,
    /// The node class is not ready to make machines.
    NodeClassNotReady,
    /// Anything that may pass by itself.
    Transient,
}

/// A failed call to the cloud.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{operation}: {message}")]
pub struct CloudError {
    /// What kind of failure it was.
    pub class: ErrorClass,
    /// What was being done, and to what.
    pub operation: String,
    /// The cloud's own code, such as `SkuNotAvailable`; it becomes the reason of a condition.
    pub code: String,
    /// What went wrong.
    pub message: String,
}

impl CloudError {
    /// An error of a class.
    pub fn new(
        class: ErrorClass,
        operation: impl Into<String>,
        code: impl Into<String>,
        message: impl fmt::Display,
    ) -> Self {
        Self { class, operation: operation.into(), code: code.into(), message: message.to_string() }
    }

    /// Whether the thing is not there.
    pub fn is_not_found(&self) -> bool {
        self.class == ErrorClass::NotFound
    }
}
