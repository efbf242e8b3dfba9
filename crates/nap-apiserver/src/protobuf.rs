//! The Kubernetes protobuf encoding, for reading only. kubectl sends it for `create namespace`,
//! `create deployment`, `drain` and a few more; there is no other way to serve these commands.
//!
//! A message is decoded by the table below into the JSON it stands for. A field that is not in the
//! table is refused with its number, never dropped.

use serde_json::{Map, Value, json};

use crate::error::{ApiError, Result};

/// The content type of the encoding.
pub(crate) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

const MAGIC: &[u8] = b"k8s\0";
/// Deeper messages than any kind has are refused.
const MAX_DEPTH: usize = 16;

#[derive(Clone, Copy)]
enum Field {
    /// A string; the empty one is left out.
    Text,
    /// An optional number: zero means zero.
    Number,
    /// A plain number: zero is left out.
    Count,
    /// An optional flag.
    Flag,
    /// A plain flag: false is left out.
    Switch,
    Time,
    IntOrString,
    Quantity,
    Bytes,
    Message(MessageType),
    /// A string map.
    Map(&'static Field),
    List(&'static Field),
    /// Overwritten by the server in any case.
    Ignored,
}

type Table = &'static [(u64, &'static str, Field)];
#[derive(Clone, Copy)]
struct MessageType(&'static str, fn() -> Table);

use Field::{
    Bytes, Count, Flag, Ignored, IntOrString, List, Map as Dictionary, Message, Number, Quantity,
    Switch, Text, Time,
};

macro_rules! messages {
    ($($name:ident = $text:literal { $($number:literal $json:literal $field:expr;)* })*) => {
        $(const $name: MessageType = MessageType($text, || {
            const TABLE: Table = &[$(($number, $json, $field)),*];
            TABLE
        });)*
    };
}

messages! {
    OBJECT_META = "ObjectMeta" {
        1 "name" Text; 2 "generateName" Text; 3 "namespace" Text; 4 "selfLink" Text; 5 "uid" Text;
        6 "resourceVersion" Text; 7 "generation" Count; 8 "creationTimestamp" Time; 9 "deletionTimestamp" Time;
        10 "deletionGracePeriodSeconds" Number; 11 "labels" Dictionary(&Text); 12 "annotations" Dictionary(&Text);
        13 "ownerReferences" List(&Message(OWNER)); 14 "finalizers" List(&Text); 17 "managedFields" Ignored;
    }
    OWNER = "OwnerReference" {
        1 "kind" Text; 3 "name" Text; 4 "uid" Text; 5 "apiVersion" Text; 6 "controller" Flag; 7 "blockOwnerDeletion" Flag;
    }
    NAMESPACE = "Namespace" { 1 "metadata" Message(OBJECT_META); 2 "spec" Ignored; 3 "status" Ignored; }
    CONFIG_MAP = "ConfigMap" {
        1 "metadata" Message(OBJECT_META); 2 "data" Dictionary(&Text); 3 "binaryData" Dictionary(&Bytes); 4 "immutable" Flag;
    }
    SECRET = "Secret" {
        1 "metadata" Message(OBJECT_META); 2 "data" Dictionary(&Bytes); 3 "type" Text; 4 "stringData" Dictionary(&Text);
        5 "immutable" Flag;
    }
    SERVICE_ACCOUNT = "ServiceAccount" {
        1 "metadata" Message(OBJECT_META); 3 "imagePullSecrets" List(&Message(LOCAL_REFERENCE)); 4 "automountServiceAccountToken" Flag;
    }
    LOCAL_REFERENCE = "LocalObjectReference" { 1 "name" Text; }
    EVICTION = "Eviction" { 1 "metadata" Message(OBJECT_META); 2 "deleteOptions" Message(DELETE_OPTIONS); }
    DELETE_OPTIONS = "DeleteOptions" {
        1 "gracePeriodSeconds" Number; 2 "preconditions" Message(PRECONDITIONS); 3 "orphanDependents" Flag;
        4 "propagationPolicy" Text; 5 "dryRun" List(&Text);
    }
    PRECONDITIONS = "Preconditions" { 1 "uid" Text; 2 "resourceVersion" Text; }
    BUDGET = "PodDisruptionBudget" { 1 "metadata" Message(OBJECT_META); 2 "spec" Message(BUDGET_SPEC); 3 "status" Ignored; }
    BUDGET_SPEC = "PodDisruptionBudgetSpec" {
        1 "minAvailable" IntOrString; 2 "selector" Message(SELECTOR); 3 "maxUnavailable" IntOrString;
        4 "unhealthyPodEvictionPolicy" Text;
    }
    SELECTOR = "LabelSelector" {
        1 "matchLabels" Dictionary(&Text); 2 "matchExpressions" List(&Message(SELECTOR_REQUIREMENT));
    }
    SELECTOR_REQUIREMENT = "LabelSelectorRequirement" { 1 "key" Text; 2 "operator" Text; 3 "values" List(&Text); }
    PRIORITY_CLASS = "PriorityClass" {
        1 "metadata" Message(OBJECT_META); 2 "value" Number; 3 "globalDefault" Switch; 4 "description" Text;
        5 "preemptionPolicy" Text;
    }
    DEPLOYMENT = "Deployment" { 1 "metadata" Message(OBJECT_META); 2 "spec" Message(DEPLOYMENT_SPEC); 3 "status" Ignored; }
    DEPLOYMENT_SPEC = "DeploymentSpec" {
        1 "replicas" Number; 2 "selector" Message(SELECTOR); 3 "template" Message(TEMPLATE); 4 "strategy" Message(STRATEGY);
        5 "minReadySeconds" Count; 6 "revisionHistoryLimit" Number; 7 "paused" Switch; 9 "progressDeadlineSeconds" Number;
    }
    STRATEGY = "DeploymentStrategy" { 1 "type" Text; 2 "rollingUpdate" Message(ROLLING); }
    ROLLING = "RollingUpdateDeployment" { 1 "maxUnavailable" IntOrString; 2 "maxSurge" IntOrString; }
    TEMPLATE = "PodTemplateSpec" { 1 "metadata" Message(OBJECT_META); 2 "spec" Message(POD_SPEC); }
    POD = "Pod" { 1 "metadata" Message(OBJECT_META); 2 "spec" Message(POD_SPEC); 3 "status" Ignored; }
    POD_SPEC = "PodSpec" {
        2 "containers" List(&Message(CONTAINER)); 3 "restartPolicy" Text; 4 "terminationGracePeriodSeconds" Number;
        5 "activeDeadlineSeconds" Number; 6 "dnsPolicy" Text; 7 "nodeSelector" Dictionary(&Text); 8 "serviceAccountName" Text;
        9 "serviceAccount" Text; 10 "nodeName" Text; 11 "hostNetwork" Switch; 12 "hostPID" Switch; 13 "hostIPC" Switch;
        14 "securityContext" Message(POD_SECURITY_CONTEXT); 15 "imagePullSecrets" List(&Message(LOCAL_REFERENCE)); 16 "hostname" Text; 17 "subdomain" Text;
        19 "schedulerName" Text; 20 "initContainers" List(&Message(CONTAINER)); 22 "tolerations" List(&Message(TOLERATION));
        24 "priorityClassName" Text; 25 "priority" Number;
    }
    // kubectl sends this one empty; anything in it is refused.
    POD_SECURITY_CONTEXT = "PodSecurityContext" {}
    TOLERATION = "Toleration" {
        1 "key" Text; 2 "operator" Text; 3 "value" Text; 4 "effect" Text; 5 "tolerationSeconds" Number;
    }
    CONTAINER = "Container" {
        1 "name" Text; 2 "image" Text; 3 "command" List(&Text); 4 "args" List(&Text); 5 "workingDir" Text;
        6 "ports" List(&Message(PORT)); 7 "env" List(&Message(VARIABLE)); 8 "resources" Message(REQUIREMENTS);
        13 "terminationMessagePath" Text; 14 "imagePullPolicy" Text; 16 "stdin" Switch; 17 "stdinOnce" Switch; 18 "tty" Switch;
        20 "terminationMessagePolicy" Text;
    }
    PORT = "ContainerPort" { 1 "name" Text; 2 "hostPort" Count; 3 "containerPort" Count; 4 "protocol" Text; 5 "hostIP" Text; }
    VARIABLE = "EnvVar" { 1 "name" Text; 2 "value" Text; }
    REQUIREMENTS = "ResourceRequirements" { 1 "limits" Dictionary(&Quantity); 2 "requests" Dictionary(&Quantity); }
}

/// The JSON a request body stands for.
pub(crate) fn decode(body: &[u8]) -> Result<Value> {
    let bad = |why: &str| ApiError::bad_request(format!("error decoding protobuf: {why}"));
    let rest = body
        .strip_prefix(MAGIC)
        .ok_or_else(|| bad("the body does not start as Kubernetes protobuf"))?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &rest[..0]);
    let mut reader = Reader(rest);
    while let Some((number, wire)) = reader.field().map_err(|_| bad("truncated envelope"))? {
        match (number, wire) {
            (1, Wire::Bytes(bytes)) => {
                let mut types = Reader(bytes);
                while let Some((number, wire)) = types.field().map_err(|_| bad("truncated type"))? {
                    match (number, wire) {
                        (1, Wire::Bytes(text)) => {
                            api_version = String::from_utf8_lossy(text).into_owned();
                        }
                        (2, Wire::Bytes(text)) => kind = String::from_utf8_lossy(text).into_owned(),
                        _ => return Err(bad("unexpected field in the type")),
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            (3 | 4, _) => {}
            _ => return Err(bad("unexpected field in the envelope")),
        }
    }
    let message = match kind.as_str() {
        "Namespace" => NAMESPACE,
        "ConfigMap" => CONFIG_MAP,
        "Secret" => SECRET,
        "ServiceAccount" => SERVICE_ACCOUNT,
        "Eviction" => EVICTION,
        "DeleteOptions" => DELETE_OPTIONS,
        "PodDisruptionBudget" => BUDGET,
        "PriorityClass" => PRIORITY_CLASS,
        "Deployment" => DEPLOYMENT,
        "Pod" => POD,
        other => {
            return Err(ApiError::unsupported_media_type(format!(
                "{other} is not accepted as protobuf here, only as application/json or application/yaml"
            )));
        }
    };
    let mut object = message_of(raw, message, 0)?;
    object.insert("apiVersion".to_owned(), json!(api_version));
    object.insert("kind".to_owned(), json!(kind));
    Ok(Value::Object(object))
}

fn message_of(
    bytes: &[u8],
    MessageType(name, table): MessageType,
    depth: usize,
) -> Result<Map<String, Value>> {
    let truncated = || ApiError::bad_request(format!("error decoding protobuf: broken {name}"));
    if depth > MAX_DEPTH {
        return Err(truncated());
    }
    let mut object = Map::new();
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.field().map_err(|_| truncated())? {
        let Some((_, json_name, field)) = table().iter().find(|(known, ..)| *known == number)
        else {
            return Err(ApiError::unsupported_media_type(format!(
                "field {number} of {name} is not accepted as protobuf here, only as application/json or \
                 application/yaml"
            )));
        };
        match (*field, wire) {
            (Ignored, _) => {}
            (List(item), wire) => {
                let value =
                    value_of(*item, wire, depth).ok_or_else(truncated)??.unwrap_or_default();
                let list = object.entry(*json_name).or_insert_with(|| json!([]));
                if let Value::Array(list) = list {
                    list.push(value);
                }
            }
            (Dictionary(item), Wire::Bytes(entry)) => {
                let (mut key, mut value) = (String::new(), json!(""));
                let mut reader = Reader(entry);
                while let Some((number, wire)) = reader.field().map_err(|_| truncated())? {
                    match (number, wire) {
                        (1, Wire::Bytes(text)) => key = String::from_utf8_lossy(text).into_owned(),
                        (2, wire) => {
                            value = value_of(*item, wire, depth)
                                .ok_or_else(truncated)??
                                .unwrap_or_else(|| json!(""));
                        }
                        _ => return Err(truncated()),
                    }
                }
                crate::object::fields_mut(object.entry(*json_name).or_insert_with(|| json!({})))
                    .insert(key, value);
            }
            (field, wire) => {
                if let Some(value) = value_of(field, wire, depth).ok_or_else(truncated)?? {
                    object.insert((*json_name).to_owned(), value);
                }
            }
        }
    }
    Ok(object)
}

/// One value: `None` when the encoding does not fit the field, `Some(Ok(None))` when it is a zero
/// to be left out.
fn value_of(field: Field, wire: Wire<'_>, depth: usize) -> Option<Result<Option<Value>>> {
    let value = match (field, wire) {
        (Text, Wire::Bytes(bytes)) => {
            let text = std::str::from_utf8(bytes).ok()?;
            (!text.is_empty()).then(|| json!(text))
        }
        // The encoding is two's complement: the cast brings the sign back.
        (Number, Wire::Number(number)) => Some(json!(number.cast_signed())),
        (Count, Wire::Number(number)) => (number != 0).then(|| json!(number.cast_signed())),
        (Flag, Wire::Number(number)) => Some(json!(number != 0)),
        (Switch, Wire::Number(number)) => (number != 0).then_some(Value::Bool(true)),
        (Bytes, Wire::Bytes(bytes)) => {
            serde_json::to_value(k8s_openapi::ByteString(bytes.to_vec())).ok()
        }
        (Time, Wire::Bytes(bytes)) => {
            let mut seconds = None;
            let mut reader = Reader(bytes);
            while let Some((number, wire)) = reader.field().ok()? {
                if let (1, Wire::Number(number)) = (number, wire) {
                    seconds = Some(number.cast_signed());
                }
            }
            match seconds {
                Some(seconds) => {
                    Some(json!(crate::object::time(jiff::Timestamp::from_second(seconds).ok()?)))
                }
                None => None,
            }
        }
        (IntOrString, Wire::Bytes(bytes)) => {
            let (mut is_text, mut number, mut text) = (false, 0, "");
            let mut reader = Reader(bytes);
            while let Some((field, wire)) = reader.field().ok()? {
                match (field, wire) {
                    (1, Wire::Number(kind)) => is_text = kind == 1,
                    (2, Wire::Number(value)) => number = value.cast_signed(),
                    (3, Wire::Bytes(value)) => text = std::str::from_utf8(value).ok()?,
                    _ => return None,
                }
            }
            Some(if is_text { json!(text) } else { json!(number) })
        }
        (Quantity, Wire::Bytes(bytes)) => {
            let mut text = "";
            let mut reader = Reader(bytes);
            while let Some((number, wire)) = reader.field().ok()? {
                match (number, wire) {
                    (1, Wire::Bytes(value)) => text = std::str::from_utf8(value).ok()?,
                    _ => return None,
                }
            }
            Some(json!(text))
        }
        (Message(kind), Wire::Bytes(bytes)) => match message_of(bytes, kind, depth + 1) {
            Ok(object) => Some(Value::Object(object)),
            Err(error) => return Some(Err(error)),
        },
        _ => return None,
    };
    Some(Ok(value))
}

#[derive(Clone, Copy)]
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The bytes are not what protobuf looks like.
struct Broken;

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// The next field, or nothing at the end.
    fn field(&mut self) -> Result<Option<(u64, Wire<'a>)>, Broken> {
        if self.0.is_empty() {
            return Ok(None);
        }
        self.some_field().map(Some).ok_or(Broken)
    }

    fn some_field(&mut self) -> Option<(u64, Wire<'a>)> {
        let tag = self.number()?;
        let wire = match tag & 7 {
            0 => Wire::Number(self.number()?),
            2 => {
                let length = usize::try_from(self.number()?).ok()?;
                let (bytes, rest) = self.0.split_at_checked(length)?;
                self.0 = rest;
                Wire::Bytes(bytes)
            }
            // No message above has fixed-width fields or groups.
            _ => return None,
        };
        Some((tag >> 3, wire))
    }

    fn number(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(number: u8, content: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2, u8::try_from(content.len()).unwrap()];
        out.extend_from_slice(content);
        out
    }

    fn envelope(kind: &str, raw: &[u8]) -> Vec<u8> {
        let types = [bytes(1, b"v1"), bytes(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), bytes(1, &types), bytes(2, raw)].concat()
    }

    #[test]
    fn known_messages_become_json_and_unknown_fields_are_refused() {
        let meta = [bytes(1, b"team"), bytes(2, b""), bytes(8, b"")].concat();
        let data = bytes(2, &[bytes(1, b"k"), bytes(2, b"v")].concat());
        let body = envelope("ConfigMap", &[bytes(1, &meta), data].concat());
        assert_eq!(
            decode(&body).unwrap(),
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "team" }, "data": { "k": "v" } })
        );
        assert_eq!(decode(&envelope("ConfigMap", &bytes(9, b"x"))).unwrap_err().code, 415);
        assert_eq!(decode(&envelope("CronJob", b"")).unwrap_err().code, 415);
        assert_eq!(decode(b"{}").unwrap_err().code, 400);
        for length in 0..body.len() {
            // Cut anywhere, it must never panic.
            let _ = decode(body.get(..length).unwrap());
        }
    }
}
