//! Tags of a machine that runs: changed in place, without a new VM.

use std::collections::BTreeMap;

use http::{Method, header};
use nap_api::{AKSNodeClass, NodeClaim};
use nap_cloud::{CloudError, ErrorClass};
use serde_json::{Value, json};

use super::request::common_tags;
use super::{Machines, NODECLAIM_TAG};
use crate::config::AzureConfig;

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

/// In-place update hash of a NodeClaim, digit for digit the incumbent's: 32-bit FNV-1a over the
/// compact JSON that Go makes of the tags. The tag with the name of the NodeClaim is not hashed.
pub(crate) fn hash(config: &AzureConfig, claim: &NodeClaim, class: &AKSNodeClass) -> String {
    hash_of(&common_tags(config, claim, class))
}

/// In-place update hash of a machine, from the tags that it has.
pub(crate) fn hash_of_machine(tags: &BTreeMap<String, String>) -> String {
    let mut tags = tags.clone();
    tags.remove(NODECLAIM_TAG);
    hash_of(&tags)
}

fn hash_of(tags: &BTreeMap<String, String>) -> String {
    let hashed = if tags.is_empty() { json!({}) } else { json!({ "tags": tags }) };
    let mut text = hashed.to_string();
    // Go escapes these in JSON; none of them stands outside of a string.
    for character in ['<', '>', '&', '\u{2028}', '\u{2029}'] {
        if text.contains(character) {
            text = text.replace(character, &format!("\\u{:04x}", u32::from(character)));
        }
    }
    let hash = text
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.to_string()
}

#[cfg(test)]
mod tests {
    use super::super::machine_tags;
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

    /// `tag_hashes.json` was written by the incumbent's code: `go run ./tag-hashes < FILE` in
    /// `crates/nap-controlplane-build/incumbent-controller` refreshes it.
    #[test]
    fn hashes_are_the_incumbents() {
        let cases = include_str!("../../tests/data/tag_hashes.json");
        let cases: Vec<Value> = serde_json::from_str(cases).unwrap();
        let mut differences = Vec::new();
        for case in &cases {
            let cluster = case["clusterName"].as_str().unwrap();
            let mut config = AzureConfig::new("s", "g", cluster, "eastus");
            config.additional_tags =
                serde_json::from_value(case["additionalTags"].clone()).unwrap();
            let spec = serde_json::from_value(case["nodeClass"]["spec"].clone()).unwrap();
            let class = AKSNodeClass::new("default", spec);
            let group = "karpenter.azure.com";
            let reference = json!({ "group": group, "kind": "AKSNodeClass", "name": "default" });
            let claim: NodeClaim = serde_json::from_value(json!({
                "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
                "metadata": case["nodeClaim"]["metadata"],
                "spec": { "nodeClassRef": reference, "requirements": [] },
            }))
            .unwrap();
            let ours = hash(&config, &claim, &class);
            if case["hash"] != ours.as_str() {
                differences.push(format!("{}: {} is not {ours}", case["name"], case["hash"]));
            }
            // A machine that has its tags gives the same hash, unless a user has set the tag with
            // the name of the NodeClaim, which no machine keeps.
            let tags = machine_tags(&config, &claim, &class);
            if !class.spec.tags.contains_key(NODECLAIM_TAG) {
                assert_eq!(hash_of_machine(&tags), ours, "{}", case["name"]);
            }
        }
        assert!(differences.is_empty(), "{}", differences.join("\n"));
        assert_eq!(cases.len(), 16);
    }
}
