//! Asynchronous operations: what a `201`/`202` promises, polled until it is kept or the bound is
//! reached.

use std::time::Duration;

use jiff::SignedDuration;
use nap_cloud::{CloudError, ErrorClass};

use super::{ArmClient, ArmErrorBody, ArmResponse, classify};

/// How long an operation is polled before it counts as lost.
pub const POLL_BOUND: SignedDuration = SignedDuration::from_mins(15);
/// The time between two looks.
const INTERVAL: Duration = Duration::from_secs(3);

/// An operation that was accepted and goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Nothing is left to wait for.
    Done,
    /// `Azure-AsyncOperation`: a status document.
    Status(String),
    /// `Location`: answers `202` until the result is there.
    Location(String),
}

impl Operation {
    /// What an answer promises.
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

    /// Waits for the end. A failed operation is an error of its own class.
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
                    let cause = error.cause();
                    let class = classify(None, &cause.code, &cause.message);
                    let code = if cause.code.is_empty() { state } else { &cause.code };
                    return Err(CloudError::new(class, operation, code, &cause.message));
                }
                // `InProgress`, `Accepted`, and whatever may be added.
                _ => {}
            }
        }
        let message = format!("the operation did not end within {} minutes", POLL_BOUND.as_mins());
        Err(CloudError::new(ErrorClass::Transient, operation, "OperationTimedOut", message))
    }
}
