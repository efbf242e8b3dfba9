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
    /// The instance was accepted and could not be created after all. Its name is taken by what is
    /// left of it, so its NodeClaim cannot be launched again.
    CreationFailed,
    /// Any failure that may pass by itself.
    Transient,
}

/// A failed call to the cloud.
#[derive(Clone, Debug, thiserror::Error)]
pub struct CloudError {
    /// Class of the failure.
    pub class: ErrorClass,
    /// Operation and resource.
    pub operation: String,
    /// The cloud's own code, such as `SkuNotAvailable`. It becomes the reason of a condition.
    pub code: String,
    /// The cloud's own text.
    pub message: String,
    /// Id by which the cloud's support finds the request; `None` if no request failed.
    pub correlation_id: Option<String>,
}

impl fmt::Display for CloudError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.operation, self.message)?;
        match &self.correlation_id {
            Some(id) => write!(f, " (correlation id {id})"),
            None => Ok(()),
        }
    }
}

impl CloudError {
    /// Creates an error.
    pub fn new(
        class: ErrorClass,
        operation: impl Into<String>,
        code: impl Into<String>,
        message: impl fmt::Display,
    ) -> Self {
        let (operation, code) = (operation.into(), code.into());
        Self { class, operation, code, message: message.to_string(), correlation_id: None }
    }

    /// Adds the id of the request that failed.
    #[must_use]
    pub fn with_correlation_id(self, correlation_id: Option<String>) -> Self {
        Self { correlation_id, ..self }
    }

    /// The error without the id of its request: the same text for the same failure, as the message
    /// of a condition has to be. A condition that changes with each request would cause the next.
    pub fn condition_message(&self) -> String {
        format!("{}: {}", self.operation, self.message)
    }

    /// Whether the resource does not exist.
    pub fn is_not_found(&self) -> bool {
        self.class == ErrorClass::NotFound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_has_the_same_text_for_every_request() {
        let error = CloudError::new(ErrorClass::Auth, "get subnet a", "Forbidden", "denied");
        let error = error.with_correlation_id(Some("4711".to_owned()));
        assert_eq!(error.to_string(), "get subnet a: denied (correlation id 4711)");
        assert_eq!(error.condition_message(), "get subnet a: denied");
    }
}
