//! Answers: objects in the version and shape the client asked for, as HTTP responses.

use std::borrow::Cow;
use std::sync::Arc;

use http::{HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use serde_json::{Value, json};

use crate::builtin::conversion;
use crate::error::ApiError;
use crate::request::View;
use crate::resources::Resource;
use crate::{ResponseBody, full, table};

/// The stored object in the version of `resource`. Conversion only rewrites `apiVersion`; the
/// defaults of the other version's schema are added, as the real server does on reading.
pub(crate) fn present<'a>(resource: &Resource, object: &'a Value) -> Cow<'a, Value> {
    match &resource.schema {
        Some(schema) if resource.version != resource.storage_version => {
            let mut object = object.clone();
            object["apiVersion"] = json!(resource.api_version());
            schema.default(&mut object);
            Cow::Owned(object)
        }
        None if conversion::is_needed(resource) => {
            Cow::Owned(conversion::from_storage(resource, object.clone()))
        }
        _ => Cow::Borrowed(object),
    }
}

/// One object in the wanted view.
pub(crate) fn one<'a>(
    resource: &Resource,
    object: &'a Value,
    view: View,
    now: jiff::Timestamp,
) -> Cow<'a, Value> {
    match view {
        View::Object => present(resource, object),
        View::Metadata => Cow::Owned(partial(object)),
        View::Table(include) => {
            let metadata = json!({ "resourceVersion": object["metadata"]["resourceVersion"] });
            Cow::Owned(table::render(resource, &[object], &metadata, now, true, include))
        }
    }
}

/// The object of one watch event. Only the first Table of a watch carries its columns.
pub(crate) fn event<'a>(
    resource: &Resource,
    object: &'a Value,
    view: View,
    now: jiff::Timestamp,
    headed: &mut bool,
) -> Cow<'a, Value> {
    let View::Table(include) = view else {
        return one(resource, object, view, now);
    };
    let metadata = json!({ "resourceVersion": object["metadata"]["resourceVersion"] });
    let first = !std::mem::replace(headed, true);
    Cow::Owned(table::render(resource, &[object], &metadata, now, first, include))
}

/// An object as `PartialObjectMetadata`.
pub(crate) fn partial(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": object["metadata"],
    })
}

/// A list of objects in the wanted view.
pub(crate) fn list(
    resource: &Resource,
    items: &[Arc<Value>],
    metadata: Value,
    view: View,
    now: jiff::Timestamp,
) -> Response<ResponseBody> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct List<'a> {
        kind: &'a str,
        api_version: String,
        metadata: Value,
        items: Vec<Cow<'a, Value>>,
    }
    match view {
        View::Object => json(
            200,
            &List {
                kind: &resource.list_kind,
                api_version: resource.api_version(),
                metadata,
                items: items.iter().map(|item| present(resource, item)).collect(),
            },
        ),
        View::Metadata => json(
            200,
            &List {
                kind: "PartialObjectMetadataList",
                api_version: "meta.k8s.io/v1".to_owned(),
                metadata,
                items: items.iter().map(|item| Cow::Owned(partial(item))).collect(),
            },
        ),
        View::Table(include) => {
            let objects: Vec<&Value> = items.iter().map(AsRef::as_ref).collect();
            json(200, &table::render(resource, &objects, &metadata, now, true, include))
        }
    }
}

pub(crate) fn json(code: u16, value: &impl Serialize) -> Response<ResponseBody> {
    json_as(code, "application/json", value)
}

pub(crate) fn json_as(
    code: u16,
    content_type: &'static str,
    value: &impl Serialize,
) -> Response<ResponseBody> {
    match serde_json::to_vec(value) {
        Ok(body) => respond(code, content_type, body),
        Err(error) => failure(&ApiError::internal(format!("unable to encode the answer: {error}"))),
    }
}

pub(crate) fn text(body: &'static str) -> Response<ResponseBody> {
    respond(200, "text/plain", body.into())
}

pub(crate) fn failure(error: &ApiError) -> Response<ResponseBody> {
    if error.is_text() {
        return respond(error.code, "text/plain; charset=utf-8", error.message.clone().into());
    }
    let body = error.to_status().to_string().into_bytes();
    let mut response = respond(error.code, "application/json", body);
    let retry =
        error.details.as_ref().and_then(|d| d.get("retryAfterSeconds")).and_then(Value::as_u64);
    if let Some(seconds) = retry
        && let Ok(value) = HeaderValue::from_str(&seconds.to_string())
    {
        response.headers_mut().insert(header::RETRY_AFTER, value);
    }
    response
}

fn respond(code: u16, content_type: &'static str, body: Vec<u8>) -> Response<ResponseBody> {
    let mut response = Response::new(full(body));
    *response.status_mut() =
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Adds `Warning: 299` headers, which kubectl prints.
pub(crate) fn with_warnings(
    mut response: Response<ResponseBody>,
    warnings: &[String],
) -> Response<ResponseBody> {
    for warning in warnings {
        let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"").replace(['\n', '\r'], " ");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    response
}
