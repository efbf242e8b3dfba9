//! Pods end by eviction, which the API server refuses where a PodDisruptionBudget is used up. nap
//! deletes a pod itself only so that it ends with the time of its node.

use std::task::{Context, Poll};

use http::{Method, Request};
use jiff::{SignedDuration, Timestamp};
use tower::Service;

use super::{Invariants, State};

/// The API server as nap reaches it: deletions of pods are looked at.
#[derive(Clone)]
pub(crate) struct Guarded<S> {
    inner: S,
    invariants: Invariants,
}

impl<S> Guarded<S> {
    pub(crate) fn new(inner: S, invariants: Invariants) -> Self {
        Self { inner, invariants }
    }
}

impl<S, B> Service<Request<B>> for Guarded<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if request.method() == Method::DELETE
            && let Some(pod) = pod_of(request.uri().path())
        {
            let mut state = self.invariants.state();
            let now = state.clock.now();
            if let Some(violation) = check(&state, &pod, now) {
                state.violation(now, &violation);
            }
        }
        self.inner.call(request)
    }
}

/// Namespace and name of the pod that a path is of.
fn pod_of(path: &str) -> Option<(String, String)> {
    let path = path.strip_prefix("/api/v1/namespaces/")?;
    let (namespace, rest) = path.split_once('/')?;
    let name = rest.strip_prefix("pods/")?;
    (!name.contains('/')).then(|| (namespace.to_owned(), name.to_owned()))
}

/// Looks at a pod that nap is about to delete.
fn check(state: &State, key: &(String, String), now: Timestamp) -> Option<String> {
    let pod = state.pods.get(key)?;
    let node = pod.node.as_ref()?;
    let claim = state.claims.values().find(|claim| claim.node == *node)?;
    let grace = SignedDuration::from_secs(pod.grace);
    let is_due = claim.ends.is_some_and(|ends| now.checked_add(grace).is_ok_and(|at| at >= ends));
    let (namespace, name) = key;
    (!is_due).then(|| format!("pod {namespace}/{name} is deleted before the time of its node"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_told_from_their_subresources_and_other_kinds() {
        let pod = ("shop".to_owned(), "web-1".to_owned());
        assert_eq!(pod_of("/api/v1/namespaces/shop/pods/web-1"), Some(pod));
        for path in [
            "/api/v1/namespaces/shop/pods/web-1/eviction",
            "/api/v1/namespaces/shop/pods",
            "/api/v1/namespaces/shop/configmaps/web-1",
            "/api/v1/nodes/web-1",
        ] {
            assert_eq!(pod_of(path), None, "{path}");
        }
    }
}
