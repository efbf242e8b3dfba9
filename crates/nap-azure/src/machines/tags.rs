//! Tags of a machine that runs: changed in place, without a new VM.

use std::collections::BTreeMap;

use http::{Method, header};
use nap_cloud::{CloudError, ErrorClass};
use serde_json::{Value, json};

use super::{Machines, NODECLAIM_TAG};

/// Members of a machine that the API refuses in a request, by their paths.
const READ_ONLY: [(&str, &[&str]); 4] = [
    ("", &["provisioningState", "resourceId", "status", "eTag"]),
    ("/kubernetes", &["nodeName", "currentOrchestratorVersion"]),
    ("/network", &["ipAddresses"]),
    ("/localDNSProfile", &["state"]),
];

impl Machines {
    /// Sets the tags of a machine to exactly these, if there is such a machine. The whole machine
    /// is sent, as the API wants it, and only if nothing has changed it meanwhile.
    pub async fn set_tags(
        &self,
        name: &str,
        tags: &BTreeMap<String, String>,
    ) -> Result<(), CloudError> {
        let operation = format!("change the tags of machine {name}");
        let got = self.arm.send(&operation, Method::GET, &self.path(name), &[], None).await;
        let got = match got {
            Ok(got) => got,
            // Its NodeClaim will follow.
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
        };
        let owner = |tags: Option<&Value>| tags?.get(NODECLAIM_TAG)?.as_str().map(str::to_owned);
        let current = got.body.pointer("/properties/tags");
        if owner(current).is_some_and(|owner| Some(&owner) != tags.get(NODECLAIM_TAG)) {
            let message = "the machine belongs to another NodeClaim";
            let code = "MachineNameTaken";
            return Err(CloudError::new(ErrorClass::Invalid, operation, code, message));
        }
        if current == Some(&json!(tags)) {
            return Ok(());
        }
        let etag = got.headers.get(header::ETAG).and_then(|value| value.to_str().ok());
        let etag = etag.or(got.body.pointer("/properties/eTag").and_then(Value::as_str));
        let Some(etag) = etag else {
            let (code, message) = ("InvalidResponse", "the machine has no ETag");
            return Err(CloudError::new(ErrorClass::Transient, operation, code, message));
        };
        let headers = [("AllowSpotVMSystemNode", "true"), ("If-Match", etag)];
        let body = with_tags(&got.body, tags);
        self.arm.send(&operation, Method::PUT, &self.path(name), &headers, Some(&body)).await?;
        Ok(())
    }
}

/// Body of the request that changes the tags of a machine.
fn with_tags(machine: &Value, tags: &BTreeMap<String, String>) -> Value {
    let mut properties = machine.get("properties").cloned().unwrap_or_default();
    for (path, names) in READ_ONLY {
        let members = properties.pointer_mut(path).and_then(Value::as_object_mut);
        if let Some(members) = members {
            members.retain(|name, _| !names.contains(&name.as_str()));
        }
    }
    properties["tags"] = json!(tags);
    json!({ "zones": machine.get("zones").unwrap_or(&json!([])), "properties": properties })
}

/// Hash of tags, as the incumbent stores it on NodeClaims: 32-bit FNV-1a over compact JSON.
pub(crate) fn hash(tags: &BTreeMap<String, String>) -> String {
    let text = if tags.is_empty() { json!({}) } else { json!({ "tags": tags }) }.to_string();
    let hash = text
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_tags_sends_everything_else_as_it_was() {
        let machine = json!({
            "id": "/x", "name": "m", "type": "t", "zones": ["2"],
            "properties": {
                "eTag": "e", "provisioningState": "Succeeded", "resourceId": "/vm",
                "status": { "vmState": "Running" }, "nodeImageVersion": "image",
                "network": { "ipAddresses": [], "vnetSubnetID": "/subnet" },
                "kubernetes": { "nodeName": "n", "orchestratorVersion": "1.34.1" },
                "tags": { "old": "1" },
            },
        });
        let tags = BTreeMap::from([("new".to_owned(), "2".to_owned())]);
        let expected = json!({
            "zones": ["2"],
            "properties": {
                "nodeImageVersion": "image", "network": { "vnetSubnetID": "/subnet" },
                "kubernetes": { "orchestratorVersion": "1.34.1" }, "tags": { "new": "2" },
            },
        });
        assert_eq!(with_tags(&machine, &tags), expected);
    }

    #[test]
    fn the_hash_is_fnv_1a_of_sorted_json() {
        // Reference value of FNV-1a for the bytes of `{}`.
        assert_eq!(hash(&BTreeMap::new()), "1415952421");
        let tags = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        assert_eq!(hash(&tags(&[("a", "1"), ("b", "2")])), hash(&tags(&[("b", "2"), ("a", "1")])));
        assert_ne!(hash(&tags(&[("a", "1")])), hash(&tags(&[("a", "2")])));
    }
}
