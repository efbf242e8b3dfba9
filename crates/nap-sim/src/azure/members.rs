//! The members of bodies, by the published definition of [`MACHINES_VERSION`]: names, types,
//! allowed values, and which ones only the service writes.
//!
//! Unknown, mistyped and read-only members are refused by name. `nodeImageVersion` is read-only in
//! the definition; AKS takes it from node auto-provisioning all the same, and so does the emulator.
//! What a GET returned may be sent back: an update ignores read-only members.

mod definition;

use serde_json::{Map as Members, Value, json};

use super::request::Refusal;
use definition::{AGENT_POOL, DELETION, MACHINE, MAINTENANCE};

/// The version of the machines API whose members are known here.
pub(crate) const MACHINES_VERSION: &str = "2026-05-02-preview";

/// Type of a member.
enum Kind {
    Text,
    Bool,
    /// 32 bits.
    Int,
    Number,
    Texts,
    /// Each of 32 bits.
    Numbers,
    TextMap,
    OneOf(&'static [&'static str]),
    Object(&'static [Member]),
    List(&'static [Member]),
    Map(&'static [Member]),
    /// Written by the service only.
    ReadOnly,
}

use Kind::{Bool, Int, List, Map, Number, Numbers, Object, OneOf, ReadOnly, Text, TextMap, Texts};

struct Member {
    name: &'static str,
    kind: Kind,
}

const fn member(name: &'static str, kind: Kind) -> Member {
    Member { name, kind }
}

const fn read_only(name: &'static str) -> Member {
    Member { name, kind: Kind::ReadOnly }
}

/// Refuses a body with a member that the definition does not have, or not like that.
pub(crate) fn check_machine(body: &Value, exists: bool) -> Result<(), Refusal> {
    check(body, &Object(MACHINE), exists, "")
}

/// Refuses a list of machines to delete with a member that the definition does not have.
pub(crate) fn check_deletion(body: &Value) -> Result<(), Refusal> {
    check(body, &Object(DELETION), false, "")
}

/// Refuses an agent pool with a member that the definition does not have.
pub(crate) fn check_agent_pool(body: &Value) -> Result<(), Refusal> {
    check(body, &Object(AGENT_POOL), false, "")
}

/// Refuses a maintenance configuration with a member that the definition does not have.
pub(crate) fn check_maintenance(body: &Value) -> Result<(), Refusal> {
    check(body, &Object(MAINTENANCE), true, "")
}

/// The definitions by the name of their model in Azure's SDKs, for a judge: each member is its
/// type, or an object of one entry with the type and what it consists of.
pub fn published_members() -> Value {
    json!({
        "Machine": shown(MACHINE),
        "AgentPoolDeleteMachinesParameter": shown(DELETION),
        "AgentPool": shown(AGENT_POOL),
        "MaintenanceConfiguration": shown(MAINTENANCE),
    })
}

fn shown(members: &[Member]) -> Value {
    let kind = |kind: &Kind| match kind {
        Text => json!("text"),
        Bool => json!("bool"),
        Int => json!("int"),
        Number => json!("number"),
        Texts => json!("texts"),
        Numbers => json!("ints"),
        TextMap => json!("textMap"),
        ReadOnly => json!("readOnly"),
        OneOf(values) => json!({ "oneOf": values }),
        Object(members) => json!({ "object": shown(members) }),
        List(members) => json!({ "list": shown(members) }),
        Map(members) => json!({ "map": shown(members) }),
    };
    let members = members.iter().map(|one| (one.name.to_owned(), kind(&one.kind)));
    Value::Object(members.collect::<Members<_, _>>())
}

fn check(value: &Value, kind: &Kind, exists: bool, path: &str) -> Result<(), Refusal> {
    if value.is_null() && !path.is_empty() {
        return Ok(());
    }
    let each = |value: &Value, members: &'static [Member], path: &str| {
        check(value, &Object(members), exists, path)
    };
    let wanted = match (kind, value) {
        (Object(members), Value::Object(values)) => {
            for (name, value) in values {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                let Some(member) = members.iter().find(|member| member.name == name) else {
                    let known: Vec<&str> = members.iter().map(|member| member.name).collect();
                    return refuse(&path, &format!("is not known; known are {}", known.join(", ")));
                };
                if !matches!(member.kind, Kind::ReadOnly) {
                    check(value, &member.kind, exists, &path)?;
                } else if !exists && !value.is_null() {
                    return refuse(&path, "is read-only");
                }
            }
            return Ok(());
        }
        (List(members), Value::Array(values)) => {
            return values
                .iter()
                .enumerate()
                .try_for_each(|(index, value)| each(value, members, &format!("{path}[{index}]")));
        }
        (Map(members), Value::Object(values)) => {
            return values
                .iter()
                .try_for_each(|(key, value)| each(value, members, &format!("{path}['{key}']")));
        }
        (OneOf(allowed), Value::String(text)) if allowed.contains(&text.as_str()) => return Ok(()),
        (OneOf(allowed), _) => return refuse(path, &format!("must be {}", allowed.join(" or "))),
        (Text, Value::String(_)) | (Bool, Value::Bool(_)) | (Number, Value::Number(_)) => {
            return Ok(());
        }
        (Int, Value::Number(number)) if is_int(number) => return Ok(()),
        (Texts, Value::Array(values)) if values.iter().all(Value::is_string) => return Ok(()),
        (Numbers, Value::Array(values)) if values.iter().all(is_int_value) => return Ok(()),
        (TextMap, Value::Object(values)) if values.values().all(Value::is_string) => return Ok(()),
        (Text, _) => "a string",
        (Bool, _) => "a boolean",
        (Int, _) => "an integer of 32 bits",
        (Number, _) => "a number",
        (Texts, _) => "a list of strings",
        (Numbers, _) => "a list of integers of 32 bits",
        (TextMap, _) => "an object of strings",
        (List(_), _) => "a list of objects",
        (Object(_) | Map(_) | Kind::ReadOnly, _) => "an object",
    };
    refuse(path, &format!("must be {wanted}"))
}

fn is_int(number: &serde_json::Number) -> bool {
    number.as_i64().is_some_and(|number| i32::try_from(number).is_ok())
}

fn is_int_value(value: &Value) -> bool {
    value.as_number().is_some_and(is_int)
}

fn refuse(path: &str, problem: &str) -> Result<(), Refusal> {
    let member = if path.is_empty() { "the body".to_owned() } else { format!("'{path}'") };
    let message = format!(
        "The request content was invalid: {member} {problem} in api-version {MACHINES_VERSION}."
    );
    Err(Refusal::new(400, "InvalidRequestContent", message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problem(body: &Value) -> Option<String> {
        check_machine(body, false).err().map(|refusal| refusal.message)
    }

    #[test]
    fn unknown_mistyped_and_read_only_members_are_named() {
        for (properties, part) in [
            (json!({ "hardware": { "vmsize": "x" } }), "'properties.hardware.vmsize' is not known"),
            (json!({ "hardware": { "vmSize": 4 } }), "'properties.hardware.vmSize' must be a str"),
            (json!({ "mode": "Default" }), "'properties.mode' must be System or User"),
            (json!({ "resourceId": "x" }), "'properties.resourceId' is read-only"),
            (json!({ "kubernetes": { "maxPods": 1.5 } }), "'properties.kubernetes.maxPods' must"),
            (json!({ "kubernetes": { "maxPods": 3_000_000_000_i64 } }), "an integer of 32 bits"),
            (json!({ "kubernetes": { "nodeTaints": "x" } }), "must be a list of strings"),
            (json!({ "tags": { "a": 1 } }), "'properties.tags' must be an object of strings"),
            (json!({ "security": [] }), "'properties.security' must be an object"),
            (json!({ "capacityReservation": {} }), "'properties.capacityReservation' is not known"),
            (
                json!({ "localDNSProfile": { "vnetDNSOverrides": { ".": { "protocol": "UDP" } } } }),
                "'properties.localDNSProfile.vnetDNSOverrides['.'].protocol' must be PreferUDP",
            ),
        ] {
            let found = problem(&json!({ "properties": properties })).unwrap();
            assert!(found.contains(part), "{found}");
        }
        assert!(problem(&json!([])).unwrap().contains("the body must be an object"));
        assert!(problem(&json!({ "location": "eastus" })).unwrap().contains("'location'"));
    }

    #[test]
    fn null_is_absent_and_an_update_ignores_read_only_members() {
        let body = json!({
            "name": "m-1", "zones": null,
            "properties": { "eTag": "x", "priority": null, "nodeImageVersion": "i" },
        });
        assert!(check_machine(&body, true).is_ok());
        assert!(problem(&body).unwrap().contains("'name' is read-only"));
    }
}
