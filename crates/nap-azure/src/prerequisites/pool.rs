//! Creation of the agent pool that holds the machines.

use http::Method;
use nap_cloud::{CloudError, ErrorClass};
use serde_json::json;

use super::cluster::is_pool_name;
use crate::AzureConfig;
use crate::arm::{ArmClient, Operation};

/// API version of the request that creates the pool.
pub const POOL_API_VERSION: &str = "2025-07-01";

/// Creates the Machines-mode agent pool of the settings, and waits until it exists.
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
    let path = format!("{}?api-version={POOL_API_VERSION}", config.agent_pool_path());
    let body = json!({ "properties": { "mode": "Machines" } });
    let response = arm.send(&operation, Method::PUT, &path, &[], Some(&body)).await?;
    Operation::of(&response).wait(arm, &operation).await
}
