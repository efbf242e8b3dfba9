//! Asynchronous operations of ARM, polled until they end or a bound is reached.

use std::time::Duration;

use jiff::SignedDuration;
use nap_cloud::{CloudError, ErrorClass};

use super::{ArmClient, ArmErrorBody, ArmResponse};

/// Longest time that an operation is polled.
pub const POLL_BOUND: SignedDuration = SignedDuration::from_mins(15);
/// Interval between two polls.
const INTERVAL: Duration = Duration::from_secs(3);

/// An accepted operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The operation has ended.
    Done,
    /// URL of a status document, from `Azure-AsyncOperation`.
    Status(String),
    /// URL that answers `202` until the operation ends, from `Location`.
    Location(String),
}

impl Operation {
    /// The operation that a response announces.
    pub fn of(response: &ArmResponse) -> Self {
        let header = |name: &str| {
            response.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        if let Some(url) = header("azure-asyncoperation") {
            return Self::Status(url);
        }
        match header("location") {
            Some(url) if response.status.as_u16() == 202 => Self::Location(url),
            _ => Self::Done,
        }
    }

    /// Waits for the end. A failed operation is an error with the class of its cause.
    pub async fn wait(&self, client: &ArmClient, operation: &str) -> Result<(), CloudError> {
        let url = match self {
            Self::Done => return Ok(()),
            Self::Status(url) | Self::Location(url) => url,
        };
        let clock = client.clock();
        let begun = clock.now();
        while clock.now().duration_since(begun) < POLL_BOUND {
            clock.sleep(INTERVAL).await;
            let response = client.send(operation, http::Method::GET, url, &[], None).await?;
            if let Self::Location(_) = self {
                if response.status.as_u16() == 202 {
                    continue;
                }
                return Ok(());
            }
            match response.body.get("status").and_then(serde_json::Value::as_str) {
                Some("Succeeded") => return Ok(()),
                Some(state @ ("Failed" | "Canceled")) => {
                    let body = response.body.get("error").cloned().unwrap_or_default();
                    let error: ArmErrorBody = serde_json::from_value(body).unwrap_or_default();
                    return Err(error.to_error(None, operation, state));
                }
                // `InProgress`, `Accepted`, and states that may be added.
                _ => {}
            }
        }
        let message = format!("the operation did not end within {} minutes", POLL_BOUND.as_mins());
        Err(CloudError::new(ErrorClass::Transient, operation, "OperationTimedOut", message))
    }
}
