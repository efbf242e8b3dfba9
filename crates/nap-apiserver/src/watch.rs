//! A watch: a response body that follows a collection's history from a position.
//!
//! The body owns no queue. It reads the shared history when polled and leaves a waker when there is
//! nothing new, so that an idle watch costs a map entry and a dropped one costs nothing.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use serde_json::{Value, json};
use tokio::time::Sleep;

use crate::error::ApiError;
use crate::request::View;
use crate::resources::{GroupResource, Resource};
use crate::selectors::Filter;
use crate::server::State;
use crate::{lock, render};

/// Default duration of a watch.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_mins(30);
/// Interval of bookmarks on a quiet watch that allows them.
const BOOKMARK_PERIOD: Duration = Duration::from_mins(1);
/// Time before the end of a watch at which it sends its last bookmark.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

/// The body of a watch response.
pub(crate) struct Watch {
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) resource: Arc<Resource>,
    pub(crate) collection: GroupResource,
    pub(crate) id: u64,
    pub(crate) position: u64,
    /// Changes up to this revision are not sent; it may lie in the future.
    pub(crate) after: u64,
    pub(crate) filter: Filter,
    pub(crate) view: View,
    /// Events that precede the history, rendered when the watch was opened.
    pub(crate) initial: Vec<u8>,
    /// Whether a Table row event has been sent: only the first carries column definitions.
    pub(crate) headed: bool,
    pub(crate) bookmark: Option<Pin<Box<Sleep>>>,
    pub(crate) deadline: Pin<Box<Sleep>>,
    pub(crate) ended: bool,
    /// The revision of the store at which the watch began to wait, and its waker.
    pub(crate) waits: Option<(u64, Waker)>,
    /// The registry at which the resource was last found to be served, by its number of changes.
    pub(crate) served_at: Option<u64>,
}

impl Watch {
    /// The time of the next bookmark; `None` if the watch ends too soon for one.
    pub(crate) fn next_bookmark(deadline: &Sleep) -> Option<Pin<Box<Sleep>>> {
        let sleep = tokio::time::sleep(BOOKMARK_PERIOD);
        // The time at which a sleep of no length ends is now.
        let now = sleep.deadline().checked_sub(BOOKMARK_PERIOD)?;
        let last = deadline.deadline().checked_sub(LAST_BOOKMARK)?;
        let due = sleep.deadline().min(last);
        (due > now).then(|| Box::pin(tokio::time::sleep_until(due)))
    }

    fn collect(&mut self, context: &Context<'_>) -> Vec<u8> {
        let state = Arc::clone(&self.state);
        let mut state = lock(&state);
        let revision = state.store.revision();
        let still_waits = self
            .waits
            .as_ref()
            .is_some_and(|(since, waker)| *since == revision && waker.will_wake(context.waker()));
        if still_waits {
            return Vec::new();
        }
        let now = state.now();
        let mut out = std::mem::take(&mut self.initial);
        let registry = &state.registry;
        if self.served_at != Some(registry.changes()) {
            let Resource { group, version, plural, .. } = &*self.resource;
            if registry.find(group, version, plural).is_none() {
                self.ended = true;
                return out;
            }
            self.served_at = Some(registry.changes());
        }
        let Some(collection) = state.store.collections.get_mut(&self.collection) else {
            self.ended = true;
            return out;
        };
        match collection.changes_from(self.position) {
            None => {
                let error =
                    ApiError::expired("The resourceVersion for the provided watch is too old.");
                write_event(&mut out, "ERROR", &error.to_status());
                self.ended = true;
                return out;
            }
            Some(changes) => {
                for change in changes.filter(|change| change.revision > self.after) {
                    let before = change.old.as_ref().is_some_and(|old| self.filter.matches(old));
                    let after = !change.deleted && self.filter.matches(&change.new);
                    let kind = match (before, after) {
                        (false, false) => continue,
                        (false, true) => "ADDED",
                        (true, true) => "MODIFIED",
                        (true, false) => "DELETED",
                    };
                    // An object that leaves the selection is shown as it was in it.
                    let left = (before && !after && !change.deleted).then(|| change.last_seen());
                    let object = render::event(
                        &self.resource,
                        left.as_ref().unwrap_or(&change.new),
                        self.view,
                        now,
                        &mut self.headed,
                    );
                    write_event(&mut out, kind, &object);
                }
            }
        }
        self.position = collection.end();
        if out.is_empty() {
            collection.wakers.insert(self.id, context.waker().clone());
            self.waits = Some((revision, context.waker().clone()));
        }
        out
    }

    fn bookmark(&mut self) -> Vec<u8> {
        let state = lock(&self.state);
        let mut out = Vec::new();
        let mark = bookmark(&self.resource, state.store.revision(), self.view);
        write_event(&mut out, "BOOKMARK", &mark);
        out
    }
}

/// An object that carries nothing but a revision.
pub(crate) fn bookmark(resource: &Resource, revision: u64, view: View) -> Value {
    let metadata = json!({ "resourceVersion": revision.to_string() });
    match view {
        View::Object => json!({
            "kind": resource.kind, "apiVersion": resource.api_version(), "metadata": metadata,
        }),
        View::Metadata => json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        }),
        View::Table(_) => json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1",
            "metadata": { "resourceVersion": revision.to_string() },
            "columnDefinitions": null,
            "rows": [{ "cells": [], "object": {
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
            }}],
        }),
    }
}

pub(crate) fn write_event(out: &mut Vec<u8>, kind: &str, object: &Value) {
    out.extend_from_slice(br#"{"type":""#);
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(br#"","object":"#);
    // Writing plain JSON values into memory cannot fail.
    if serde_json::to_writer(&mut *out, object).is_err() {
        out.extend_from_slice(b"null");
    }
    out.extend_from_slice(b"}\n");
}

impl http_body::Body for Watch {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        let out = this.collect(context);
        if !out.is_empty() {
            if this.bookmark.is_some() {
                this.bookmark = Self::next_bookmark(&this.deadline);
            }
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from(out)))));
        }
        if this.ended {
            return Poll::Ready(None);
        }
        if this.deadline.as_mut().poll(context).is_ready() {
            this.ended = true;
            return Poll::Ready(None);
        }
        let due =
            this.bookmark.as_mut().is_some_and(|sleep| sleep.as_mut().poll(context).is_ready());
        if due {
            let mut next = Self::next_bookmark(&this.deadline);
            // Registers the waker for the next one.
            if let Some(next) = &mut next {
                let _ = next.as_mut().poll(context);
            }
            this.bookmark = next;
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from(this.bookmark())))));
        }
        Poll::Pending
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        if let Some(collection) = state.store.collections.get_mut(&self.collection) {
            collection.wakers.remove(&self.id);
        }
    }
}
