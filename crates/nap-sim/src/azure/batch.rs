//! The `BatchPutMachine` header: one PUT that creates many machines from a shared template.
//!
//! A problem of the template refuses the whole request, as that of a single machine. A problem of
//! one machine is a detail of a batch error whose `target` is the machine; the other machines are
//! created.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Value, json};

use super::request::{Answer, Refusal, reply};

/// Maximum number of machines in a batch.
pub(crate) const MAX_BATCH: usize = 50;

/// Maximum length of the header, as that of the servers in front of ARM.
const MAX_HEADER: usize = 16 << 10;

/// The header.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Header {
    batch_machines: Vec<BatchMachine>,
}

/// What a machine of a batch has for itself.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct BatchMachine {
    pub machine_name: String,
    /// `null` is the same as none.
    #[serde(default)]
    pub zones: Option<Vec<String>>,
    /// `null` is the same as none.
    #[serde(default)]
    pub tags: Option<BTreeMap<String, String>>,
}

/// The machines of a batch, in the order of the header. The machine of the URL must be the first.
pub(crate) fn read_header(text: &str, url_name: &str) -> Result<Vec<BatchMachine>, Refusal> {
    let invalid = |message: String| {
        Refusal::new(400, "InvalidParameter", format!("The header BatchPutMachine: {message}"))
    };
    if text.len() > MAX_HEADER {
        return Err(Refusal::new(
            400,
            "BadRequest",
            "Request Header Or Cookie Too Large".to_owned(),
        ));
    }
    let header: Header =
        serde_json::from_str(text).map_err(|error| invalid(format!("{error}.")))?;
    let machines = header.batch_machines;
    if machines.len() > MAX_BATCH {
        let count = machines.len();
        return Err(invalid(format!("{count} machines; at most {MAX_BATCH} are allowed.")));
    }
    if machines.first().is_none_or(|first| first.machine_name != url_name) {
        return Err(invalid(format!("the first machine must be '{url_name}', as in the URL.")));
    }
    let mut names = BTreeSet::new();
    if let Some(twice) = machines.iter().find(|machine| !names.insert(&machine.machine_name)) {
        return Err(invalid(format!("the machine '{}' is named twice.", twice.machine_name)));
    }
    Ok(machines)
}

/// The error of a batch in which machines failed; the bodies of both forms have no envelope.
pub(crate) fn batch_error(failed: &[(String, Refusal)]) -> Answer {
    let details: Vec<Value> = failed
        .iter()
        .map(|(name, refusal)| {
            json!({ "code": refusal.code, "message": refusal.message, "target": name })
        })
        .collect();
    if failed.iter().any(|(_, refusal)| refusal.status < 500) {
        let names: Vec<&str> = failed.iter().map(|(name, _)| name.as_str()).collect();
        let message = format!("The following machines failed: {}.", names.join(", "));
        let code = "BatchMachineClientError";
        return reply(400, &json!({ "code": code, "message": message, "details": details }));
    }
    // The details travel as text here.
    let message = json!({ "details": details }).to_string();
    reply(500, &json!({ "code": "BatchMachineInternalServerError", "message": message }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_headers_are_refused_with_what_is_wrong() {
        let many: Vec<Value> =
            (0..51).map(|index| json!({ "machineName": format!("m-{index}") })).collect();
        let many = json!({ "batchMachines": many }).to_string();
        for (text, part) in [
            ("[", "BatchPutMachine"),
            (r#"{"batchMachines":[{"machineName":"m-0","size":"x"}]}"#, "`size`"),
            (r#"{"batchMachines":[]}"#, "must be 'm-0'"),
            (r#"{"batchMachines":[{"machineName":"m-1"}]}"#, "must be 'm-0'"),
            (r#"{"batchMachines":[{"machineName":"m-0"},{"machineName":"m-0"}]}"#, "twice"),
            (many.as_str(), "at most 50"),
        ] {
            let refusal = read_header(text, "m-0").err().unwrap();
            assert!(refusal.message.contains(part), "{text}: {}", refusal.message);
            assert_eq!(refusal.status, 400);
        }
        let text = r#"{"batchMachines":[{"machineName":"m-0","zones":null,"tags":{"a":"b"}}]}"#;
        assert_eq!(read_header(text, "m-0").unwrap().len(), 1);
    }
}
