//! The two watches: all Nodes, and all pods that are bound to a node.

use std::fmt::Debug;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures::Stream;
use futures::stream::{BoxStream, StreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};

/// One event of one watch.
pub(crate) enum Change {
    Node(Box<Event<Node>>),
    Pod(Box<Event<Pod>>),
    Failure(watcher::Error),
}

/// The watches, polled in a fixed order.
pub(crate) struct Watches([BoxStream<'static, Change>; 2]);

impl Watches {
    pub(crate) fn new(client: &Client) -> Self {
        let bound = watcher::Config::default().fields("spec.nodeName!=");
        Self([
            follow(client, watcher::Config::default(), |event| Change::Node(Box::new(event))),
            follow(client, bound, |event| Change::Pod(Box::new(event))),
        ])
    }

    /// Waits for the next event.
    pub(crate) async fn next(&mut self) -> Change {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    /// An event that is ready without waiting.
    pub(crate) fn ready(&mut self) -> Option<Change> {
        match self.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(change) => Some(change),
            Poll::Pending => None,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Change> {
        for stream in &mut self.0 {
            if let Poll::Ready(Some(change)) = Pin::new(stream).poll_next(context) {
                return Poll::Ready(change);
            }
        }
        Poll::Pending
    }
}

fn follow<T>(
    client: &Client,
    config: watcher::Config,
    change: fn(Event<T>) -> Change,
) -> BoxStream<'static, Change>
where
    T: Resource<DynamicType = ()> + Clone + Debug + serde::de::DeserializeOwned + Send + 'static,
{
    watcher(Api::<T>::all(client.clone()), config)
        .map(move |event| event.map_or_else(Change::Failure, change))
        .boxed()
}
