//! Get, list and watch.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderValue, Response, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::error::{ApiError, FieldError, Result};
use crate::render;
use crate::request::{ApiRequest, Query, View};
use crate::resources::Resource;
use crate::selectors::Filter;
use crate::server::State;
use crate::store::Key;
use crate::watch::{DEFAULT_TIMEOUT, Watch, bookmark, write_event};
use crate::{ResponseBody, full};

impl State {
    pub(crate) fn get_verb(
        &self,
        request: &ApiRequest,
        resource: &Resource,
        key: &Key,
    ) -> Result<Response<ResponseBody>> {
        let object = self
            .store
            .get(&resource.group_resource(), key)
            .ok_or_else(|| ApiError::not_found(resource, &key.1))?;
        let body = render::one(resource, &object, request.view()?, self.now());
        Ok(render::json(200, &body))
    }

    pub(crate) fn list_verb(
        &self,
        request: &ApiRequest,
        resource: &Resource,
        namespace: &str,
    ) -> Result<Response<ResponseBody>> {
        let query = &request.query;
        check_list_options(query)?;
        let filter = filter(resource, namespace, query)?;
        let collection = self
            .store
            .collections
            .get(&resource.group_resource())
            .ok_or_else(ApiError::unknown_path)?;
        let limit = query.number("limit")?.filter(|limit| *limit > 0);
        let token = Continue::parse(query.text("continue"))?;
        let wanted = revision(query)?;
        if let Some(wanted) = wanted.filter(|wanted| *wanted > self.store.revision()) {
            return Err(too_large(wanted, self.store.revision()));
        }
        let exact = match (&token, query.text("resourceVersionMatch")) {
            (Some(token), _) => Some(token.revision),
            (None, "Exact") => wanted,
            _ => None,
        };
        let past;
        let (objects, shown) = match exact {
            Some(revision) if revision != self.store.revision() => {
                past = collection.at_revision(revision).ok_or_else(|| {
                    ApiError::expired(
                        "The provided continue parameter or resourceVersion is too old to display a \
                         consistent list result. You must start a new list without it.",
                    )
                })?;
                (&past, revision)
            }
            _ => (&collection.objects, self.store.revision()),
        };
        let after = token.map(|token| token.after);
        let mut matching = objects.iter().filter(|(key, object)| {
            after.as_ref().is_none_or(|after| *key > after) && filter.matches(object)
        });
        let mut items = Vec::new();
        let mut last: Option<&Key> = None;
        let most = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        for (key, object) in matching.by_ref() {
            items.push(Arc::clone(object));
            last = Some(key);
            if items.len() >= most {
                break;
            }
        }
        let remaining = matching.count();
        let mut metadata = json!({ "resourceVersion": shown.to_string() });
        if let (Some(last), true) = (last, remaining > 0) {
            metadata["continue"] =
                json!(Continue { revision: shown, after: last.clone() }.render());
            if query.text("labelSelector").is_empty() && query.text("fieldSelector").is_empty() {
                metadata["remainingItemCount"] = json!(remaining);
            }
        }
        Ok(render::list(resource, &items, metadata, request.view()?, self.now()))
    }

    pub(crate) fn watch_verb(
        &mut self,
        shared: &Arc<Mutex<Self>>,
        request: &ApiRequest,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
    ) -> Result<Response<ResponseBody>> {
        let query = &request.query;
        let view = request.view()?;
        check_watch_options(query)?;
        let mut filter = filter(resource, namespace, query)?;
        name.clone_into(&mut filter.name);
        let id = self.store.watch_id();
        let now = self.now();
        let current = self.store.revision();
        let collection = self
            .store
            .collections
            .get(&resource.group_resource())
            .ok_or_else(ApiError::unknown_path)?;
        let bookmarks = query.flag("allowWatchBookmarks");
        let start = revision(query).map_err(|mut error| {
            (error.code, error.reason) = (500, "");
            error
        })?;
        let streaming = query.flag("sendInitialEvents");
        if let Some(start) = start.filter(|start| streaming && *start > current) {
            return Ok(refused(&too_large(start, current)));
        }
        let (mut initial, mut headed) = (Vec::new(), false);
        let position = match start {
            Some(revision) if !streaming => {
                let Some(position) = collection.position_after(revision) else {
                    let message = format!("too old resource version: {revision} ({current})");
                    return Ok(refused(&ApiError::expired(message)));
                };
                position
            }
            _ => {
                for object in collection.objects.values().filter(|object| filter.matches(object)) {
                    let object = render::event(resource, object, view, now, &mut headed);
                    write_event(&mut initial, "ADDED", &object);
                }
                if streaming && bookmarks {
                    let mut mark = bookmark(resource, current, view);
                    let metadata = match view {
                        View::Table(_) => &mut mark["rows"][0]["object"]["metadata"],
                        View::Object | View::Metadata => &mut mark["metadata"],
                    };
                    metadata["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
                    write_event(&mut initial, "BOOKMARK", &mark);
                }
                collection.end()
            }
        };
        let timeout = query
            .number("timeoutSeconds")?
            .filter(|seconds| *seconds > 0)
            .map_or(DEFAULT_TIMEOUT, Duration::from_secs);
        let deadline = Box::pin(tokio::time::sleep(timeout));
        let watch = Watch {
            state: Arc::clone(shared),
            resource: Arc::clone(resource),
            collection: resource.group_resource(),
            id,
            position,
            after: start.filter(|_| !streaming).unwrap_or(0),
            filter,
            view,
            initial,
            headed,
            bookmark: bookmarks.then(|| Watch::next_bookmark(&deadline)).flatten(),
            deadline,
            ended: false,
            waits: None,
            served_at: None,
        };
        let mut response = Response::new(watch.boxed_unsync());
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(response)
    }
}

/// A watch that ends with an error at once.
fn refused(error: &ApiError) -> Response<ResponseBody> {
    let mut event = Vec::new();
    write_event(&mut event, "ERROR", &error.to_status());
    let mut response = Response::new(full(event));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn filter(resource: &Resource, namespace: &str, query: &Query) -> Result<Filter> {
    Filter::new(resource, namespace, query.text("labelSelector"), query.text("fieldSelector"))
}

/// The asked-for revision; unset and `0` both mean "whatever you have".
fn revision(query: &Query) -> Result<Option<u64>> {
    match query.text("resourceVersion") {
        "" | "0" => Ok(None),
        text => text.parse().map(Some).map_err(|_| {
            ApiError::bad_request(format!(
                "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: \
                 invalid syntax"
            ))
        }),
    }
}

const MATCH: &str = "resourceVersionMatch";
const CONTINUED: &str = "resourceVersionMatch is forbidden when continue is provided";

/// Refuses parameters that make no sense for a list.
fn check_list_options(query: &Query) -> Result<()> {
    let mut errors = Vec::new();
    let (wanted, version) = (query.text(MATCH), query.text("resourceVersion"));
    if !wanted.is_empty() {
        if version.is_empty() {
            let detail = "resourceVersionMatch is forbidden unless resourceVersion is provided";
            errors.push(FieldError::forbidden(MATCH, detail));
        }
        if !query.text("continue").is_empty() {
            errors.push(FieldError::forbidden(MATCH, CONTINUED));
        }
        if !matches!(wanted, "Exact" | "NotOlderThan") {
            let supported = vec![json!("Exact"), json!("NotOlderThan"), json!("")];
            errors.push(FieldError::not_supported(MATCH, wanted, supported));
        }
        if wanted == "Exact" && version == "0" {
            let detail = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            errors.push(FieldError::forbidden(MATCH, detail));
        }
    }
    if !query.text("sendInitialEvents").is_empty() {
        let detail = "sendInitialEvents is forbidden for list";
        errors.push(FieldError::forbidden("sendInitialEvents", detail));
    }
    ApiError::check_options("ListOptions", &errors)
}

/// Refuses parameters that make no sense for a watch.
fn check_watch_options(query: &Query) -> Result<()> {
    let mut errors = Vec::new();
    let wanted = query.text(MATCH);
    let streaming = !query.text("sendInitialEvents").is_empty();
    if streaming && wanted != "NotOlderThan" {
        let detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        errors.push(FieldError::forbidden(MATCH, detail));
    }
    if !wanted.is_empty() && !streaming {
        let detail =
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
        errors.push(FieldError::forbidden(MATCH, detail));
    }
    if !wanted.is_empty() && wanted != "NotOlderThan" {
        errors.push(FieldError::not_supported(MATCH, wanted, vec![json!("NotOlderThan")]));
    }
    if !query.text("continue").is_empty() {
        errors.push(FieldError::forbidden(MATCH, CONTINUED));
    }
    ApiError::check_options("ListOptions", &errors)
}

fn too_large(wanted: u64, current: u64) -> ApiError {
    let mut error = ApiError::internal(format!(
        "Timeout: Too large resource version: {wanted}, current: {current}"
    ));
    (error.code, error.reason) = (504, "Timeout");
    error.details = Some(Box::new(json!({
        "causes": [{ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" }],
        "retryAfterSeconds": 1,
    })));
    error
}

/// Continue token: the revision of the whole list and the last key returned.
struct Continue {
    revision: u64,
    after: Key,
}

impl Continue {
    /// Hex, so that the token needs no escaping in a query.
    fn render(&self) -> String {
        use std::fmt::Write as _;
        let plain = json!([self.revision, self.after.0, self.after.1]).to_string();
        plain.bytes().fold(String::new(), |mut out, byte| {
            // Writing into a string cannot fail.
            let _ = write!(out, "{byte:02x}");
            out
        })
    }

    fn parse(token: &str) -> Result<Option<Self>> {
        if token.is_empty() {
            return Ok(None);
        }
        let invalid = || ApiError::bad_request("continue key is not valid");
        let bytes: Option<Vec<u8>> = token
            .as_bytes()
            .chunks(2)
            .map(|pair| {
                std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok())
            })
            .collect();
        let plain: Value =
            serde_json::from_slice(&bytes.ok_or_else(invalid)?).map_err(|_| invalid())?;
        let text = |index: usize| plain.get(index).and_then(Value::as_str).map(str::to_owned);
        match (plain.get(0).and_then(Value::as_u64), text(1), text(2)) {
            (Some(revision), Some(namespace), Some(name)) => {
                Ok(Some(Self { revision, after: (namespace, name) }))
            }
            _ => Err(invalid()),
        }
    }
}
