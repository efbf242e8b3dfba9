//! The agent-pool machines API: get, list, put, delete.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use http::{Method, StatusCode};
use nap_cloud::{CloudError, ErrorClass};
use serde_json::{Value, json};

use super::Machine;
use super::batches::NewMachine;
use crate::AzureConfig;
use crate::arm::{ArmClient, ArmErrorBody, ArmFailure, operation_url};

/// API version of every call. Creating machines needs a preview version.
pub const API_VERSION: &str = "2026-05-02-preview";

/// The machines of one agent pool.
#[derive(Clone)]
pub struct Machines {
    pub(super) arm: ArmClient,
    pool_path: String,
    cluster_path: String,
}

/// An accepted request to create machines.
pub struct Accepted {
    /// URL of the operation that continues; `None` if Azure named none.
    pub operation: Option<String>,
    /// Correlation id of the request; `None` if the answer has none.
    pub correlation_id: Option<String>,
    /// The first machine, as the answer shows it.
    pub machine: Option<Machine>,
    /// Machines of a batch that were refused, by name.
    pub refused: BTreeMap<String, CloudError>,
}

impl Machines {
    /// Creates a client of the cluster's agent pool.
    pub fn new(arm: ArmClient, config: &AzureConfig) -> Self {
        Self { arm, pool_path: config.agent_pool_path(), cluster_path: config.cluster_path() }
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

    /// Lists every machine of the pool; none if the pool does not exist yet, in a cluster that
    /// does.
    pub async fn list(&self) -> Result<Vec<Machine>, CloudError> {
        let path = format!("{}/machines?api-version={API_VERSION}", self.pool_path);
        match self.arm.list_all("list machines", &path).await {
            Err(error) if error.is_not_found() => {
                self.confirm_cluster().await?;
                Ok(Vec::new())
            }
            other => other,
        }
    }

    /// Fails unless the cluster exists. What is not found in a cluster that is not found either may
    /// exist all the same: the settings, or the rights of the identity, may be wrong.
    pub async fn confirm_cluster(&self) -> Result<(), CloudError> {
        let operation = "get the managed cluster";
        let path = format!("{}?api-version={API_VERSION}", self.cluster_path);
        match self.arm.get(operation, &path).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => {
                let message = format!(
                    "{}; check ARM_SUBSCRIPTION_ID, ARM_RESOURCE_GROUP and \
                    CLUSTER_NAME",
                    error.message
                );
                let (class, code) = (ErrorClass::Invalid, "ClusterNotFound");
                let unknown = CloudError::new(class, operation, code, message);
                Err(unknown.with_correlation_id(error.correlation_id))
            }
            Err(error) => Err(error),
        }
    }

    /// Requests the creation of a machine, which continues asynchronously.
    pub async fn put(&self, name: &str, body: &Value) -> Result<Accepted, CloudError> {
        let machine = NewMachine { name: name.to_owned(), body: body.clone() };
        self.put_all(&[machine]).await
    }

    /// Requests the creation of machines of one template, which continues asynchronously. The PUT
    /// of the first carries the zones and tags of the others in a header.
    pub async fn put_all(&self, machines: &[NewMachine]) -> Result<Accepted, CloudError> {
        let Some(first) = machines.first() else {
            let refused = BTreeMap::new();
            return Ok(Accepted { operation: None, correlation_id: None, machine: None, refused });
        };
        let operation = match machines.len() {
            1 => format!("create machine {}", first.name),
            count => format!("create machine {} and {} others", first.name, count - 1),
        };
        let batch = (machines.len() > 1).then(|| batch_header(machines));
        let mut headers = vec![("AllowSpotVMSystemNode", "true")];
        headers.extend(batch.as_deref().map(|batch| ("BatchPutMachine", batch)));
        let path = self.path(&first.name);
        let body = Some(&first.body);
        let sent = self.arm.send_in_detail(&operation, Method::PUT, &path, &headers, body).await;
        let response = match sent {
            Ok(response) => response,
            Err(failure) => {
                let refused = refused_machines(&failure, machines).ok_or(failure.error)?;
                let (operation, correlation_id) = (None, None);
                return Ok(Accepted { operation, correlation_id, machine: None, refused });
            }
        };
        let operation = operation_url(&response);
        let correlation_id = response.correlation_id();
        let machine = serde_json::from_value(response.body).ok();
        Ok(Accepted { operation, correlation_id, machine, refused: BTreeMap::new() })
    }

    /// Requests the deletion of machines, which continues asynchronously. Names that do not exist
    /// are passed over, unless all do not.
    pub async fn delete_all(&self, names: &[&str]) -> Result<(), CloudError> {
        let path = format!("{}/deleteMachines?api-version={API_VERSION}", self.pool_path);
        let body = json!({ "machineNames": names });
        let operation = match names {
            [name] => format!("delete machine {name}"),
            names => format!("delete {} machines", names.len()),
        };
        self.arm.send(&operation, Method::POST, &path, &[], Some(&body)).await?;
        Ok(())
    }
}

/// Value of the `BatchPutMachine` header.
fn batch_header(machines: &[NewMachine]) -> String {
    let each: Vec<String> = machines.iter().map(batch_entry).collect();
    format!(r#"{{"batchMachines":[{}]}}"#, each.join(","))
}

/// A machine in the `BatchPutMachine` header. Header values are ASCII: other characters of tags are
/// escaped, as JSON allows.
pub(super) fn batch_entry(machine: &NewMachine) -> String {
    let entry = json!({
        "machineName": machine.name,
        "zones": machine.body["zones"],
        "tags": machine.body["properties"]["tags"],
    });
    let text = entry.to_string();
    let mut ascii = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii() {
            ascii.push(character);
        } else {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                let _ = write!(ascii, "\\u{unit:04x}");
            }
        }
    }
    ascii
}

/// The machines that a batch refused, by name; `None` if the error is about all of them.
fn refused_machines(
    failure: &ArmFailure,
    machines: &[NewMachine],
) -> Option<BTreeMap<String, CloudError>> {
    let ArmFailure { error, body } = failure;
    let (status, details) = match body.code.as_str() {
        "BatchMachineClientError" => (StatusCode::BAD_REQUEST, body.details.clone()),
        // The details are JSON inside the message.
        "BatchMachineInternalServerError" => {
            let inner: ArmErrorBody = serde_json::from_str(&body.message).ok()?;
            (StatusCode::INTERNAL_SERVER_ERROR, inner.details)
        }
        _ => return None,
    };
    let mut refused = BTreeMap::new();
    for detail in &details {
        let name = detail.target.as_deref()?;
        let machine = machines.iter().find(|machine| machine.name == name)?;
        let refusal = detail.to_error(Some(status), &format!("create machine {name}"), &body.code);
        let refusal = refusal.with_correlation_id(error.correlation_id.clone());
        refused.insert(machine.name.clone(), refusal);
    }
    (!refused.is_empty()).then_some(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(name: &str) -> NewMachine {
        let body = json!({ "zones": ["1"], "properties": { "tags": { "team": "größe" } } });
        NewMachine { name: name.to_owned(), body }
    }

    #[test]
    fn the_batch_header_is_ascii_and_keeps_every_tag() {
        let header = batch_header(&[machine("a"), machine("b")]);
        assert!(header.is_ascii());
        let parsed: Value = serde_json::from_str(&header).unwrap();
        assert_eq!(parsed["batchMachines"][1]["machineName"], "b");
        assert_eq!(parsed["batchMachines"][0]["tags"]["team"], "größe");
        assert_eq!(parsed["batchMachines"][0]["zones"], json!(["1"]));
    }

    #[test]
    fn a_batch_refuses_single_machines_or_all() {
        let details = r#"[{"code":"SkuNotAvailable","message":"x","target":"b"}]"#;
        let inner = format!(r#"{{"details":{details}}}"#);
        let names = |body: Value| {
            let body = ArmErrorBody::parse(json!({ "error": body }).to_string().as_bytes());
            let error = body.to_error(None, "create machines", "X");
            let refused =
                refused_machines(&ArmFailure { error, body }, &[machine("a"), machine("b")]);
            refused.map(|refused| refused.keys().cloned().collect::<Vec<_>>())
        };
        let details: Value = serde_json::from_str(details).unwrap();
        let client = json!({ "code": "BatchMachineClientError", "details": details });
        assert_eq!(names(client), Some(vec!["b".to_owned()]));
        let server = json!({ "code": "BatchMachineInternalServerError", "message": inner });
        assert_eq!(names(server), Some(vec!["b".to_owned()]));
        assert_eq!(names(json!({ "code": "AuthorizationFailed" })), None);
        let unknown = json!([{ "code": "X", "target": "somewhere else" }]);
        assert_eq!(names(json!({ "code": "BatchMachineClientError", "details": unknown })), None);
    }
}
