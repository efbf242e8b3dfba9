//! The resource that a request to the API server is about, for metrics and for the check of
//! permissions.

use http::{Method, Request};
use jiff::SignedDuration;
use kube::client::Body;

use crate::metrics::Metrics;
use crate::metrics::catalogue::{CLIENT_DURATION, CLIENT_REQUESTS};

/// What a request is about.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Requested {
    group: String,
    version: String,
    resource: String,
    subresource: String,
    is_named: bool,
    is_watch: bool,
}

impl Requested {
    /// Reads the path and the query of a request.
    pub fn of(request: &Request<Body>) -> Self {
        Self::parse(request.uri().path(), request.uri().query().unwrap_or_default())
    }

    fn parse(path: &str, query: &str) -> Self {
        let mut parts = path.split('/').filter(|part| !part.is_empty()).peekable();
        let group = match parts.next() {
            Some("api") => "",
            Some("apis") => parts.next().unwrap_or_default(),
            _ => return Self::default(),
        };
        let version = parts.next().unwrap_or_default();
        let rest: Vec<&str> = parts.collect();
        // `namespaces/a/pods/b` is about pods, `namespaces/a` about namespaces.
        let rest = match rest.as_slice() {
            ["namespaces", _, own @ ..] if !own.is_empty() => own,
            all => all,
        };
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            resource: rest.first().copied().unwrap_or_default().to_owned(),
            subresource: rest.get(2).copied().unwrap_or_default().to_owned(),
            is_named: rest.len() > 1,
            is_watch: query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1")),
        }
    }

    /// The verb of RBAC.
    fn verb(&self, method: &Method) -> &'static str {
        match *method {
            Method::GET if self.is_watch => "watch",
            Method::GET if self.is_named => "get",
            Method::GET => "list",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "",
        }
    }

    /// Counts an answer; the code is 0 if there was none. The answer to a watch takes as long as
    /// the watch, and is not measured.
    pub fn count(&self, metrics: &Metrics, method: &Method, code: u16, taken: SignedDuration) {
        let code = if code == 0 { "<error>".to_owned() } else { code.to_string() };
        metrics.increment(&CLIENT_REQUESTS, &[&code, method.as_str()]);
        if !self.is_watch {
            let Self { group, version, resource, subresource, .. } = self;
            let labels = [self.verb(method), group, version, resource, subresource];
            metrics.observe(&CLIENT_DURATION, &labels, taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(path: &str, query: &str, method: &Method) -> String {
        let one = Requested::parse(path, query);
        format!(
            "{} {}/{}/{}/{}",
            one.verb(method),
            one.group,
            one.version,
            one.resource,
            one.subresource
        )
    }

    #[test]
    fn requests_are_read_by_group_resource_and_verb() {
        for (method, path, query, expected) in [
            (Method::GET, "/api/v1/pods", "watch=true&limit=5", "watch /v1/pods/"),
            (Method::GET, "/api/v1/pods", "limit=5", "list /v1/pods/"),
            (Method::GET, "/api/v1/nodes/a", "", "get /v1/nodes/"),
            (Method::GET, "/api/v1/namespaces", "", "list /v1/namespaces/"),
            (Method::POST, "/api/v1/namespaces/a/pods/b/eviction", "", "create /v1/pods/eviction"),
            (
                Method::PATCH,
                "/apis/karpenter.sh/v1/nodeclaims/a/status",
                "",
                "patch karpenter.sh/v1/nodeclaims/status",
            ),
            (Method::GET, "/version", "", "list ///"),
        ] {
            assert_eq!(parsed(path, query, &method), expected);
        }
    }
}
