//! The agent-pool machines API: get, list, put, delete.

use http::Method;
use nap_cloud::{CloudError, ErrorClass};
use serde_json::{Value, json};

use super::Machine;
use crate::AzureConfig;
use crate::arm::{ArmClient, Operation};

/// API version of every call. Creating machines needs a preview version.
pub const API_VERSION: &str = "2026-05-02-preview";

/// The machines of one agent pool.
#[derive(Clone)]
pub struct Machines {
    pub(super) arm: ArmClient,
    pool_path: String,
}

impl Machines {
    /// Creates a client of the cluster's agent pool.
    pub fn new(arm: ArmClient, config: &AzureConfig) -> Self {
        Self { arm, pool_path: config.agent_pool_path() }
    }

    pub(super) fn path(&self, name: &str) -> String {
        format!("{}/machines/{name}?api-version={API_VERSION}", self.pool_path)
    }

    /// Gets a machine.
    pub async fn get(&self, name: &str) -> Result<Machine, CloudError> {
        let operation = format!("get machine {name}");
        let body = self.arm.get(&operation, &self.path(name)).await?;
        serde_json::from_value(body).map_err(|error| {
            CloudError::new(ErrorClass::Transient, operation, "InvalidResponse", error)
        })
    }

    /// Lists every machine of the pool; none if the pool does not exist yet.
    pub async fn list(&self) -> Result<Vec<Machine>, CloudError> {
        let path = format!("{}/machines?api-version={API_VERSION}", self.pool_path);
        match self.arm.list("list machines", &path).await {
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            other => other,
        }
    }

    /// Requests the creation of a machine, which continues asynchronously.
    pub async fn put(&self, name: &str, body: &Value) -> Result<Operation, CloudError> {
        let headers = [("AllowSpotVMSystemNode", "true")];
        let operation = format!("create machine {name}");
        let response =
            self.arm.send(&operation, Method::PUT, &self.path(name), &headers, Some(body)).await?;
        Ok(Operation::of(&response))
    }

    /// Requests the deletion of a machine, which continues asynchronously.
    pub async fn delete(&self, name: &str) -> Result<Operation, CloudError> {
        let path = format!("{}/deleteMachines?api-version={API_VERSION}", self.pool_path);
        let body = json!({ "machineNames": [name] });
        let operation = format!("delete machine {name}");
        let response = self.arm.send(&operation, Method::POST, &path, &[], Some(&body)).await?;
        Ok(Operation::of(&response))
    }
}
