//! The Kubernetes protobuf encoding, for reading only. kubectl sends it for `create`, `drain`,
//! `autoscale` and a few more; there is no other way to serve these commands.
//!
//! A message is decoded into the JSON it stands for by the table of the built-in kinds. A field
//! that is not in the table is refused with its number, never dropped.

use serde_json::{Map, Value, json};

use crate::builtin::types::{self, Field, Kind, Shape};
use crate::error::{ApiError, Result};

/// The content type of the encoding.
pub(crate) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

const MAGIC: &[u8] = b"k8s\0";
/// Deeper messages than any kind has are refused.
const MAX_DEPTH: usize = 32;

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
    let message = types::message_name(&api_version, &kind);
    let fields = types::fields(&message).ok_or_else(|| {
        ApiError::unsupported_media_type(format!(
            "{kind} of {api_version} is not accepted as protobuf here, only as application/json or \
             application/yaml"
        ))
    })?;
    let mut object = message_of(raw, &message, fields, 0)?;
    object.insert("apiVersion".to_owned(), json!(api_version));
    object.insert("kind".to_owned(), json!(kind));
    Ok(Value::Object(object))
}

fn message_of(
    bytes: &[u8],
    name: &str,
    fields: &[Field],
    depth: usize,
) -> Result<Map<String, Value>> {
    let broken = || ApiError::bad_request(format!("error decoding protobuf: broken {name}"));
    if depth > MAX_DEPTH {
        return Err(broken());
    }
    let mut object = Map::new();
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.field().map_err(|_| broken())? {
        let Some(field) = fields.iter().find(|field| field.number == number) else {
            return Err(ApiError::unsupported_media_type(format!(
                "field {number} of {name} is not accepted as protobuf here, only as application/json or \
                 application/yaml"
            )));
        };
        let value = |wire| value_of(field.kind, wire, depth).ok_or_else(broken)?;
        match (field.shape, wire) {
            // Overwritten by the server in any case.
            _ if field.name == "managedFields" => {}
            (Shape::List, wire) => {
                let list = object.entry(field.name).or_insert_with(|| json!([]));
                if let Value::Array(list) = list {
                    list.push(value(wire)?);
                }
            }
            (Shape::Map, Wire::Bytes(entry)) => {
                let (mut key, mut item) = (String::new(), None);
                let mut reader = Reader(entry);
                while let Some((number, wire)) = reader.field().map_err(|_| broken())? {
                    match (number, wire) {
                        (1, Wire::Bytes(text)) => key = String::from_utf8_lossy(text).into_owned(),
                        (2, wire) => item = Some(value(wire)?),
                        _ => return Err(broken()),
                    }
                }
                crate::object::fields_mut(object.entry(field.name).or_insert_with(|| json!({})))
                    .insert(key, item.unwrap_or_else(|| json!("")));
            }
            (Shape::Inline, wire) => {
                if let Value::Object(inner) = value(wire)? {
                    object.extend(inner);
                }
            }
            (_, wire) => {
                let value = value(wire)?;
                let is_zero = match &value {
                    Value::String(text) => text.is_empty() && field.kind == Kind::Text,
                    Value::Number(number) => number.as_f64() == Some(0.0),
                    Value::Bool(flag) => !flag,
                    Value::Null => true,
                    _ => false,
                };
                if !is_zero || field.keeps_zero {
                    object.insert(field.name.to_owned(), value);
                }
            }
        }
    }
    Ok(object)
}

/// One value; `None` when the encoding does not fit the type. A time that is not set is null.
fn value_of(kind: Kind, wire: Wire<'_>, depth: usize) -> Option<Result<Value>> {
    let value = match (kind, wire) {
        (Kind::Text, Wire::Bytes(bytes)) => json!(std::str::from_utf8(bytes).ok()?),
        // The encoding is two's complement: the cast brings the sign back.
        (Kind::Number, Wire::Number(number)) => json!(number.cast_signed()),
        (Kind::Flag, Wire::Number(number)) => json!(number != 0),
        (Kind::Float, Wire::Fixed(bits)) => json!(f64::from_bits(bits)),
        (Kind::Bytes, Wire::Bytes(bytes)) => {
            serde_json::to_value(k8s_openapi::ByteString(bytes.to_vec())).ok()?
        }
        (Kind::Time | Kind::MicroTime, Wire::Bytes(bytes)) => {
            let parts = numbers(bytes)?;
            match parts.iter().find(|(number, _)| *number == 1) {
                None => Value::Null,
                Some((_, seconds)) => {
                    let nanos = parts.iter().find(|(number, _)| *number == 2);
                    let nanos = i32::try_from(nanos.map_or(0, |(_, nanos)| *nanos)).ok()?;
                    let time = jiff::Timestamp::new(*seconds, nanos).ok()?;
                    match kind {
                        Kind::Time => json!(crate::object::time(time)),
                        _ => json!(time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()),
                    }
                }
            }
        }
        (Kind::Duration, Wire::Bytes(bytes)) => {
            let parts = numbers(bytes)?;
            let nanos = parts.iter().find(|(number, _)| *number == 1);
            json!(format!("{}ns", nanos.map_or(0, |(_, nanos)| *nanos)))
        }
        (Kind::IntOrString, Wire::Bytes(bytes)) => {
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
            if is_text { json!(text) } else { json!(number) }
        }
        (Kind::Quantity, Wire::Bytes(bytes)) => {
            json!(only_bytes(bytes).and_then(|bytes| { std::str::from_utf8(bytes).ok() })?)
        }
        (Kind::Raw, Wire::Bytes(bytes)) => match only_bytes(bytes)? {
            [] => Value::Null,
            raw => serde_json::from_slice(raw).ok()?,
        },
        (Kind::Message(name), Wire::Bytes(bytes)) => {
            let fields = types::fields(name)?;
            return Some(message_of(bytes, name, fields, depth + 1).map(Value::Object));
        }
        (Kind::Items(name), Wire::Bytes(bytes)) => {
            let fields = types::fields(name)?;
            let items = message_of(bytes, name, fields, depth + 1);
            return Some(items.map(|mut held| held.remove("items").unwrap_or_else(|| json!([]))));
        }
        _ => return None,
    };
    Some(Ok(value))
}

/// The numbers of a message that has only such.
fn numbers(bytes: &[u8]) -> Option<Vec<(u64, i64)>> {
    let mut reader = Reader(bytes);
    let mut found = Vec::new();
    while let Some((field, wire)) = reader.field().ok()? {
        match wire {
            Wire::Number(number) => found.push((field, number.cast_signed())),
            _ => return None,
        }
    }
    Some(found)
}

/// The bytes of field 1, for messages that have only this field.
fn only_bytes(bytes: &[u8]) -> Option<&[u8]> {
    let mut reader = Reader(bytes);
    let mut found = &bytes[..0];
    while let Some((number, wire)) = reader.field().ok()? {
        match (number, wire) {
            (1, Wire::Bytes(value)) => found = value,
            _ => return None,
        }
    }
    Some(found)
}

#[derive(Clone, Copy)]
enum Wire<'a> {
    Number(u64),
    Fixed(u64),
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
            1 => {
                let (bytes, rest) = self.0.split_first_chunk::<8>()?;
                self.0 = rest;
                Wire::Fixed(u64::from_le_bytes(*bytes))
            }
            2 => {
                let length = usize::try_from(self.number()?).ok()?;
                let (bytes, rest) = self.0.split_at_checked(length)?;
                self.0 = rest;
                Wire::Bytes(bytes)
            }
            _ => return None,
        };
        Some((tag >> 3, wire))
    }

    /// A base-128 number of at most ten bytes.
    fn number(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..70).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
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

    /// A field with a length, encoded.
    fn bytes(number: u8, content: &[u8]) -> Vec<u8> {
        let length = u8::try_from(content.len()).unwrap();
        assert!(length < 128 && number < 16, "one byte each");
        [&[number << 3 | 2, length], content].concat()
    }

    fn number(number: u8, value: u8) -> Vec<u8> {
        vec![number << 3, value]
    }

    fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let types = [bytes(1, api_version.as_bytes()), bytes(2, kind.as_bytes())].concat();
        [MAGIC, &bytes(1, &types), &bytes(2, raw)].concat()
    }

    #[test]
    fn messages_become_the_json_they_stand_for() {
        let metadata = bytes(1, &[bytes(1, b"a"), bytes(8, b"")].concat());
        let spec = bytes(2, &[number(1, 0), number(5, 0), bytes(2, b"")].concat());
        let body = envelope("apps/v1", "Deployment", &[metadata, spec].concat());
        let expected = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "a" }, "spec": { "replicas": 0, "selector": {} },
        });
        assert_eq!(decode(&body).unwrap(), expected);
    }

    #[test]
    fn inline_messages_and_maps_of_quantities_are_read() {
        let claim = bytes(10, &bytes(1, b"data"));
        let volume = bytes(1, &[bytes(1, b"v"), bytes(2, &claim)].concat());
        let overhead = [1, 2]; // high field number: 32 << 3 | 2, as two bytes
        let quantity = [bytes(1, b"cpu"), bytes(2, &bytes(1, b"2"))].concat();
        let length = u8::try_from(quantity.len()).unwrap();
        let overhead = [&[0x82, overhead[1]], &[length][..], &quantity].concat();
        let body = envelope("v1", "Pod", &bytes(2, &[volume, overhead].concat()));
        let spec = decode(&body).unwrap()["spec"].take();
        let expected = json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }]);
        assert_eq!((&spec["volumes"], &spec["overhead"]), (&expected, &json!({ "cpu": "2" })));
    }

    #[test]
    fn unknown_fields_and_kinds_are_refused_and_broken_bytes_do_not_panic() {
        let unknown = decode(&envelope("v1", "ConfigMap", &number(9, 1))).unwrap_err();
        assert!(unknown.message.contains("field 9 of core.v1.ConfigMap"), "{}", unknown.message);
        let kind = decode(&envelope("example.com/v1", "Widget", b"")).unwrap_err();
        assert!(kind.message.contains("Widget of example.com/v1"), "{}", kind.message);
        let whole = envelope("v1", "Pod", &bytes(2, &bytes(2, &bytes(1, b"main"))));
        for end in 0..whole.len() {
            let _ = decode(&whole[..end]);
        }
        assert!(decode(b"{}").is_err());
    }
}
