//! Requests and responses in ARM's format.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Response, header};
use http_body_util::Full;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde_json::{Value, json};

/// Characters that links percent-encode; `$` stays, as in ARM's own links.
const ENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'$');

/// A response of the emulator.
pub(crate) type Answer = Response<Full<Bytes>>;

/// A parsed request.
pub(crate) struct ArmRequest {
    pub method: Method,
    pub path: String,
    pub query: BTreeMap<String, String>,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Scheme and host of the request, for links.
    pub base: String,
}

impl ArmRequest {
    pub(crate) fn new(head: Parts, body: Bytes) -> Self {
        let host = head
            .headers
            .get(header::HOST)
            .and_then(|host| host.to_str().ok())
            .unwrap_or("localhost");
        let base = match (head.uri.scheme_str(), head.uri.authority()) {
            (Some(scheme), Some(authority)) => format!("{scheme}://{authority}"),
            _ => format!("http://{host}"),
        };
        let query = head.uri.query().unwrap_or_default();
        let query = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        Self {
            method: head.method,
            path: head.uri.path().trim_end_matches('/').to_owned(),
            query,
            headers: head.headers,
            body,
            base,
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The URL of the same path with another query.
    pub(crate) fn link(&self, query: &BTreeMap<String, String>) -> String {
        let encode = |text| utf8_percent_encode(text, ENCODED);
        let pairs: Vec<String> =
            query.iter().map(|(key, value)| format!("{}={}", encode(key), encode(value))).collect();
        format!("{}{}?{}", self.base, self.path, pairs.join("&"))
    }
}

/// One page of a list: the items from `$skiptoken` on, and a link to the next page. `names` are the
/// fields of the items and of the link.
pub(crate) fn page<T: Serialize>(
    request: &ArmRequest,
    items: &[T],
    size: usize,
    names: (&str, &str),
) -> Answer {
    let (items_name, link_name) = names;
    let offset: usize =
        request.query.get("$skiptoken").and_then(|token| token.parse().ok()).unwrap_or(0);
    let end = offset.saturating_add(size.max(1)).min(items.len());
    let mut link = Value::Null;
    if end < items.len() {
        let mut query = request.query.clone();
        query.insert("$skiptoken".to_owned(), end.to_string());
        link = request.link(&query).into();
    }
    // Serialized without a tree of values: a page has a thousand sizes.
    match serde_json::to_string(items.get(offset..end).unwrap_or_default()) {
        Ok(items) => {
            answer(200, format!(r#"{{"{items_name}":{items},"{link_name}":{link}}}"#).into(), &[])
        }
        Err(error) => refuse(500, "InternalServerError", &error.to_string()),
    }
}

/// A response with a JSON body.
pub(crate) fn reply(status: u16, body: &Value) -> Answer {
    reply_with(status, body, &[])
}

/// A response with a JSON body and headers.
pub(crate) fn reply_with(status: u16, body: &Value, headers: &[(&'static str, String)]) -> Answer {
    answer(status, if body.is_null() { Bytes::new() } else { body.to_string().into() }, headers)
}

fn answer(status: u16, body: Bytes, headers: &[(&'static str, String)]) -> Answer {
    let mut response =
        Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    for (name, value) in headers {
        response = response.header(*name, value);
    }
    response.body(Full::new(body)).unwrap_or_default()
}

/// An ARM error before it becomes a response.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub status: u16,
    pub code: Cow<'static, str>,
    pub message: String,
}

impl Refusal {
    pub(crate) fn new(
        status: u16,
        code: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) -> Self {
        Self { status, code: code.into(), message: message.into() }
    }

    pub(crate) fn answer(&self) -> Answer {
        refuse(self.status, &self.code, &self.message)
    }
}

/// A response with an ARM error.
pub(crate) fn refuse(status: u16, code: &str, message: &str) -> Answer {
    reply(status, &json!({ "error": { "code": code, "message": message } }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded_and_encoded_again_in_links() {
        let uri =
            "https://arm.example/a/b?api-version=1&$filter=location%20eq%20%27eastus%27&odd=%zz%2";
        let (head, ()) = http::Request::builder().uri(uri).body(()).unwrap().into_parts();
        let request = ArmRequest::new(head, Bytes::new());
        assert_eq!(request.query.get("$filter").unwrap(), "location eq 'eastus'");
        assert_eq!(request.query.get("odd").unwrap(), "%zz%2");
        assert_eq!(
            request.link(&request.query),
            "https://arm.example/a/b?$filter=location%20eq%20%27eastus%27&api-version=1&odd=%25zz%252"
        );
    }
}
