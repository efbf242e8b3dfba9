//! Requests: path, query and negotiated view, parsed once and without panics.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderMap, Method, header};
use percent_encoding::percent_decode_str;

use crate::apply::Manager;
use crate::error::{ApiError, Result};

/// A request whose body has been read.
#[derive(Debug)]
pub(crate) struct ApiRequest {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: Query,
    pub(crate) content_type: String,
    pub(crate) accept: String,
    pub(crate) user_agent: String,
    pub(crate) body: Bytes,
}

impl ApiRequest {
    pub(crate) fn new(parts: &http::request::Parts, body: Bytes) -> Self {
        Self {
            method: parts.method.clone(),
            path: decode(parts.uri.path(), false),
            query: Query::parse(parts.uri.query().unwrap_or_default()),
            content_type: header_text(&parts.headers, header::CONTENT_TYPE.as_str()),
            accept: header_text(&parts.headers, header::ACCEPT.as_str()),
            user_agent: header_text(&parts.headers, header::USER_AGENT.as_str()),
            body,
        }
    }

    /// Name under which the fields of a write are tracked.
    pub(crate) fn manager(&self, subresource: &'static str) -> Manager {
        let given = self.query.text("fieldManager");
        let agent = self.user_agent.split('/').next().unwrap_or_default();
        let name = [given, agent, "unknown"].into_iter().find(|name| !name.is_empty());
        Manager {
            name: name.unwrap_or_default().to_owned(),
            subresource,
            force: self.query.flag("force"),
        }
    }

    /// Representation of objects that the client negotiated.
    pub(crate) fn view(&self) -> Result<View> {
        if self.accept.is_empty() {
            return Ok(View::Object);
        }
        for choice in self.accept.split(',') {
            let mut parts = choice.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            let parameters: BTreeMap<&str, &str> =
                parts.filter_map(|p| p.split_once('=')).collect();
            if !matches!(media, "application/json" | "*/*" | "application/*") {
                continue;
            }
            match parameters.get("as").copied() {
                None => return Ok(View::Object),
                Some("Table") if parameters.get("v") == Some(&"v1") => {
                    return Ok(View::Table(match self.query.text("includeObject") {
                        "None" => Include::None,
                        "Object" => Include::Object,
                        _ => Include::Metadata,
                    }));
                }
                Some("PartialObjectMetadata" | "PartialObjectMetadataList")
                    if parameters.get("v") == Some(&"v1") =>
                {
                    return Ok(View::Metadata);
                }
                Some(_) => {}
            }
        }
        Err(ApiError::not_acceptable(
            "only the following media types are accepted: application/json",
        ))
    }
}

fn header_text(headers: &HeaderMap, name: &str) -> String {
    let values: Vec<&str> =
        headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    values.join(",")
}

/// The shape of the objects in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    Object,
    Table(Include),
    Metadata,
}

/// Content of Table rows beside their cells (`includeObject`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Include {
    None,
    Metadata,
    Object,
}

/// Group and version of an API path; the version is empty where the path has none.
pub(crate) fn group_version(path: &str) -> Option<(&str, &str)> {
    let mut segments = path.trim_matches('/').split('/');
    match segments.next()? {
        "api" => Some(("", segments.next()?)),
        "apis" => Some((segments.next()?, segments.next().unwrap_or_default())),
        _ => None,
    }
}

/// The resource a path points at.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) namespace: String,
    pub(crate) plural: String,
    pub(crate) name: String,
    pub(crate) subresource: String,
    /// Whether the path is one of the old form `…/watch/…`.
    pub(crate) watch: bool,
}

impl Target {
    /// Parses `/api/v1/…` and `/apis/group/version/…`; `None` for everything else.
    pub(crate) fn parse(path: &str) -> Option<Self> {
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version, rest) = match segments.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let (watch, rest) = match rest {
            ["watch", rest @ ..] if !rest.is_empty() => (true, rest),
            _ => (false, rest),
        };
        let (namespace, rest) = match rest {
            // `namespaces/x/status` and `…/finalize` are subresources of the namespace itself.
            ["namespaces", _, "status" | "finalize"] => ("", rest),
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            _ => ("", rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, "", String::new()),
            [plural, name] => (*plural, *name, String::new()),
            [plural, name, sub @ ..] => (*plural, *name, sub.join("/")),
            [] => return None,
        };
        if plural.is_empty() || (rest.len() > 1 && name.is_empty()) {
            return None;
        }
        Some(Self {
            group: group.to_owned(),
            version: version.to_owned(),
            namespace: namespace.to_owned(),
            plural: plural.to_owned(),
            name: name.to_owned(),
            subresource,
            watch,
        })
    }
}

/// The decoded query string. The first value of a repeated key counts.
#[derive(Debug, Default)]
pub(crate) struct Query(BTreeMap<String, String>);

impl Query {
    pub(crate) fn parse(raw: &str) -> Self {
        let pairs = raw.split('&').filter(|pair| !pair.is_empty()).rev();
        let decoded = pairs.map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key, true), decode(value, true))
        });
        Self(decoded.collect())
    }

    pub(crate) fn text(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    pub(crate) fn flag(&self, key: &str) -> bool {
        matches!(self.text(key), "true" | "1" | "True" | "TRUE" | "t" | "T")
    }

    pub(crate) fn number(&self, key: &str) -> Result<Option<u64>> {
        match self.text(key) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))
            }),
        }
    }

    pub(crate) fn dry_run(&self) -> Result<bool> {
        match self.text("dryRun") {
            "" => Ok(false),
            "All" => Ok(true),
            other => Err(ApiError::bad_request(format!(
                "dryRun: Unsupported value: {other:?}: supported values: \"All\""
            ))),
        }
    }
}

/// Percent-decodes a path segment, or a query's key or value where `+` means a space.
fn decode(text: &str, plus_is_space: bool) -> String {
    let text = if plus_is_space { text.replace('+', " ") } else { text.to_owned() };
    percent_decode_str(&text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_point_at_resources() {
        let target = Target::parse("/api/v1/namespaces/default/pods/web/status").unwrap();
        assert_eq!(
            (&*target.namespace, &*target.plural, &*target.name, &*target.subresource),
            ("default", "pods", "web", "status")
        );
        let target = Target::parse("/api/v1/namespaces/default").unwrap();
        assert_eq!(
            (&*target.namespace, &*target.plural, &*target.name),
            ("", "namespaces", "default")
        );
        let target = Target::parse("/apis/karpenter.sh/v1/nodepools").unwrap();
        assert_eq!(
            (&*target.group, &*target.plural, &*target.name),
            ("karpenter.sh", "nodepools", "")
        );
        let target = Target::parse("/api/v1/namespaces/x/status").unwrap();
        assert_eq!(
            (&*target.plural, &*target.name, &*target.subresource),
            ("namespaces", "x", "status")
        );
        assert!(Target::parse("/healthz").is_none());
        assert!(Target::parse("/apis/apps").is_none());
    }

    #[test]
    fn queries_are_decoded() {
        let query = Query::parse("labelSelector=a%3Db%2Cc+in+(d)&watch=true&limit=5&x=%zz");
        assert_eq!(query.text("labelSelector"), "a=b,c in (d)");
        assert!(query.flag("watch"));
        assert_eq!(query.number("limit").unwrap(), Some(5));
        assert_eq!(query.text("x"), "%zz");
        assert!(Query::parse("limit=x").number("limit").is_err());
    }
}
