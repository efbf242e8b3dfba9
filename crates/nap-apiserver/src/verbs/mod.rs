//! The verbs: what create, get, list, watch, update, patch, delete and the subresources do.
//!
//! Each `…_verb` reads a request and renders an answer; the functions below it (`create`,
//! `replace`, `delete`) are what subresources and garbage collection use too.

mod create;
mod delete;
mod metrics;
mod pods;
mod read;
pub(crate) mod reviews;
mod scale;
mod update;

use bytes::Bytes;
use http::Response;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

pub(crate) use delete::{DeleteOptions, FOREGROUND};
pub(crate) use update::Outcome;

use crate::ResponseBody;
use crate::apply::Manager;
use crate::error::{ApiError, FieldError, Result};
use crate::object;
use crate::protobuf;
use crate::render;
use crate::request::{ApiRequest, Query};
use crate::resources::Resource;
use crate::server::State;

/// Treatment of unknown fields (`fieldValidation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum FieldValidation {
    #[default]
    Ignore,
    Warn,
    Strict,
}

/// Options of a write, and the warnings that it collects.
#[derive(Debug, Default)]
pub(crate) struct WriteOptions {
    pub(crate) dry_run: bool,
    pub(crate) validation: FieldValidation,
    pub(crate) warnings: Vec<String>,
    /// Who writes; `None` for the server itself, whose writes are not tracked.
    pub(crate) manager: Option<Manager>,
}

impl WriteOptions {
    pub(crate) fn parse(query: &Query) -> Result<Self> {
        let validation = match query.text("fieldValidation") {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                return Err(ApiError::bad_request(format!(
                    "fieldValidation: Unsupported value: {other:?}: supported values: \"Ignore\", \
                     \"Strict\", \"Warn\""
                )));
            }
        };
        Ok(Self { dry_run: query.dry_run()?, validation, ..Self::default() })
    }
}

/// The body as an object, from JSON or YAML.
pub(crate) fn decode(request: &ApiRequest) -> Result<Value> {
    let media = request.content_type.split(';').next().unwrap_or_default().trim();
    let value = match media {
        "" | "application/json" | "*/*" => decode_json(&request.body)?,
        "application/yaml" | "application/x-yaml" | "text/yaml" => decode_yaml(&request.body)?,
        protobuf::MEDIA_TYPE => protobuf::decode(&request.body)?,
        other => {
            return Err(ApiError::unsupported_media_type(format!(
                "the body of the request was in an unknown format ({other}) - accepted media types \
                 include: application/json, application/yaml"
            )));
        }
    };
    if value.is_object() {
        Ok(value)
    } else {
        Err(ApiError::bad_request("the body of the request is not an object"))
    }
}

pub(crate) fn decode_json(body: &Bytes) -> Result<Value> {
    serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_request(format!("error decoding JSON: {error}")))
}

pub(crate) fn decode_yaml(body: &Bytes) -> Result<Value> {
    if let Ok(value) = serde_json::from_slice(body) {
        return Ok(value);
    }
    serde_saphyr::from_slice(body)
        .map_err(|error| ApiError::bad_request(format!("error decoding YAML: {error}")))
}

/// Checks that the body is of the kind the path names, and fills both when they are missing.
fn check_kind(resource: &Resource, object: &mut Value) -> Result<()> {
    let api_version = resource.api_version();
    let map = object::fields_mut(object);
    for (field, expected, name) in
        [("apiVersion", &api_version, "API version"), ("kind", &resource.kind, "kind")]
    {
        match map.get(field).and_then(Value::as_str) {
            None | Some("") => {
                map.insert(field.to_owned(), json!(expected));
            }
            Some(found) if found == expected => {}
            Some(found) => {
                return Err(ApiError::bad_request(format!(
                    "the {name} in the data ({found}) does not match the expected {name} ({expected})"
                )));
            }
        }
    }
    Ok(())
}

/// Decodes by type or schema: wrong types are refused, unknown fields dropped and reported, and
/// schema defaults filled in.
fn normalise(resource: &Resource, object: Value, options: &mut WriteOptions) -> Result<Value> {
    let decoding = |error: String| {
        ApiError::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: {error}",
            resource.kind, resource.version, resource.kind
        ))
    };
    let (object, unknown) = decode_typed(resource, object).map_err(decoding)?;
    let unknown: Vec<String> =
        unknown.into_iter().map(|path| format!("unknown field \"{path}\"")).collect();
    match options.validation {
        FieldValidation::Strict if !unknown.is_empty() => {
            return Err(ApiError::bad_request(format!(
                "{} in version {:?} cannot be handled as a {}: strict decoding error: {}",
                resource.kind,
                resource.version,
                resource.kind,
                unknown.join(", ")
            )));
        }
        FieldValidation::Warn => options.warnings.extend(unknown),
        FieldValidation::Strict | FieldValidation::Ignore => {}
    }
    Ok(object)
}

/// Decodes by type or schema. Returns the object with schema defaults and without unknown fields,
/// and the paths of these.
pub(crate) fn decode_typed(
    resource: &Resource,
    mut object: Value,
) -> Result<(Value, Vec<String>), String> {
    let mut unknown = Vec::new();
    if let Some(round_trip) = resource.round_trip {
        let decoded = round_trip(object.clone())?;
        missing_fields(&object, &decoded, "", &mut unknown);
        return Ok((decoded, unknown));
    }
    let metadata = object.get("metadata").cloned().unwrap_or_else(|| json!({}));
    let typed: ObjectMeta = serde_json::from_value(metadata).map_err(|error| error.to_string())?;
    object["metadata"] = serde_json::to_value(typed).map_err(|error| error.to_string())?;
    if let Some(schema) = &resource.schema {
        unknown = schema.normalise(&mut object);
    }
    Ok((object, unknown))
}

/// The paths that `given` has and `decoded` lost.
fn missing_fields(given: &Value, decoded: &Value, path: &str, missing: &mut Vec<String>) {
    match (given, decoded) {
        (Value::Object(given), Value::Object(decoded)) => {
            for (key, value) in given.iter().filter(|(_, value)| !value.is_null()) {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                match decoded.get(key) {
                    Some(kept) => missing_fields(value, kept, &path, missing),
                    None => missing.push(path),
                }
            }
        }
        (Value::Array(given), Value::Array(decoded)) => {
            for (index, (given, decoded)) in given.iter().zip(decoded).enumerate() {
                missing_fields(given, decoded, &format!("{path}[{index}]"), missing);
            }
        }
        _ => {}
    }
}

/// Refuses when there are errors.
fn refuse(resource: &Resource, name: &str, errors: &[FieldError]) -> Result<()> {
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid(resource, name, errors)) }
}

impl State {
    /// Renders a written object in the view the client asked for, with its warnings.
    fn written(
        &self,
        request: &ApiRequest,
        resource: &Resource,
        code: u16,
        object: &Value,
        options: &WriteOptions,
    ) -> Result<Response<ResponseBody>> {
        let body = render::one(resource, object, request.view()?, self.now());
        Ok(render::with_warnings(render::json(code, &body), &options.warnings))
    }
}
