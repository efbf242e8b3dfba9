//! Requests and answers in ARM's shapes.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Response, header};
use http_body_util::Full;
use serde::Serialize;
use serde_json::{Value, json};

/// An answer.
pub(crate) type Answer = Response<Full<Bytes>>;

/// A request, taken apart.
pub(crate) struct ArmRequest {
    pub method: Method,
    pub path: String,
    pub query: BTreeMap<String, String>,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Scheme and host that the caller used, for links.
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
        let pairs = head.uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let query = pairs
            .map(|pair| {
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                (decode(key), decode(value))
            })
            .collect();
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

    /// A link to the same path with another query.
    pub(crate) fn link(&self, query: &BTreeMap<String, String>) -> String {
        let pairs: Vec<String> =
            query.iter().map(|(key, value)| format!("{}={}", encode(key), encode(value))).collect();
        format!("{}{}?{}", self.base, self.path, pairs.join("&"))
    }
}

/// One page of a list: the items from the request's offset on, and a link to the rest.
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
    // Written in one go: a list of a thousand sizes is too much for a tree of values.
    match serde_json::to_string(items.get(offset..end).unwrap_or_default()) {
        Ok(items) => {
            answer(200, format!(r#"{{"{items_name}":{items},"{link_name}":{link}}}"#).into(), &[])
        }
        Err(error) => refuse(500, "InternalServerError", &error.to_string()),
    }
}

/// An answer with a JSON body.
pub(crate) fn reply(status: u16, body: &Value) -> Answer {
    reply_with(status, body, &[])
}

/// An answer with a JSON body and headers.
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

/// Why a request is refused.
pub(crate) struct Refusal {
    pub status: u16,
    pub code: &'static str,
    pub message: String,
}

impl Refusal {
    pub(crate) fn new(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    pub(crate) fn answer(&self) -> Answer {
        refuse(self.status, self.code, &self.message)
    }
}

/// A refusal in ARM's shape.
pub(crate) fn refuse(status: u16, code: &str, message: &str) -> Answer {
    reply(status, &json!({ "error": { "code": code, "message": message } }))
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = tail.get(..2).and_then(|pair| std::str::from_utf8(pair).ok());
        match (first, hex.and_then(|pair| u8::from_str_radix(pair, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = tail.get(2..).unwrap_or_default();
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = tail;
            }
            (byte, _) => {
                bytes.push(*byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~$".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push('%');
            for nibble in [byte >> 4, byte & 15] {
                encoded.push(char::from(b"0123456789ABCDEF"[usize::from(nibble)]));
            }
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_survive_a_link() {
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
