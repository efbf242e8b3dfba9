//! Creation of the agent pool that holds the machines.

use std::time::Duration;

use http::Method;
use jiff::SignedDuration;
use nap_cloud::{CloudError, ErrorClass};
use serde_json::{Value, json};

use crate::AzureConfig;
use crate::arm::ArmClient;
use crate::config::is_pool_name;
use crate::machines::API_VERSION;

/// Longest wait for the pool.
const MAX_WAIT: SignedDuration = SignedDuration::from_mins(15);
/// Interval at which the pool is polled.
const INTERVAL: Duration = Duration::from_secs(3);

/// Creates the Machines-mode agent pool of the settings, and waits until it is provisioned.
pub async fn create_pool(arm: &ArmClient, config: &AzureConfig) -> Result<(), CloudError> {
    let name = &config.agent_pool;
    let operation = format!("create agent pool {name}");
    if !is_pool_name(name) {
        let message = format!(
            "AKS_MACHINES_POOL_NAME: `{name}` is not at most 12 lower-case letters and digits, a \
             letter first"
        );
        return Err(CloudError::new(ErrorClass::Invalid, operation, "InvalidName", message));
    }
    let path = format!("{}?api-version={API_VERSION}", config.agent_pool_path());
    let body = json!({ "properties": { "mode": "Machines" } });
    let mut pool = arm.send(&operation, Method::PUT, &path, &[], Some(&body)).await?.body;
    let begun = arm.clock().now();
    loop {
        let state = pool.pointer("/properties/provisioningState").and_then(Value::as_str);
        match state {
            Some("Succeeded") => return Ok(()),
            Some(state @ ("Failed" | "Canceled")) => {
                let message = format!("the agent pool is {state}");
                return Err(CloudError::new(ErrorClass::Transient, operation, state, message));
            }
            // `Creating`, and states that may be added.
            _ => {}
        }
        if arm.clock().now().duration_since(begun) >= MAX_WAIT {
            let message = format!("the agent pool is not ready after {} min", MAX_WAIT.as_mins());
            let code = "OperationTimedOut";
            return Err(CloudError::new(ErrorClass::Transient, operation, code, message));
        }
        arm.clock().sleep(INTERVAL).await;
        pool = arm.get(&operation, &path).await?;
    }
}
