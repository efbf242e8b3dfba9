//! A proxy between nap and the API server, for what a healthy server does not do: refuse, stall,
//! or show a watch less than it has.

use std::sync::Arc;

use futures::FutureExt;
use http::{Request, Response, Uri};
use kube::Client;
use kube::client::Body;
use nap_controllers::{Context, Settings};
use serde_json::json;

use crate::harness::User;

/// The fate of one request.
pub enum Fate {
    Pass,
    /// The list or watch shows no object.
    Hide,
    /// The server answers with this status and message.
    Refuse(u16, &'static str),
    /// The server does it, and the answer is lost.
    Lose,
    /// The server never answers.
    Stall,
}

/// Hides the objects of a plural from nap's watches. Reads of one object, lists by field selector
/// and lists without pages are answered: nap makes them when it has to be sure.
pub fn hide(request: &Request<Body>, plural: &str) -> Fate {
    let query = request.uri().query().unwrap_or_default();
    let is_watch = query.contains("watch=true") || query.contains("limit=");
    if request.uri().path().ends_with(&format!("/{plural}")) && is_watch {
        Fate::Hide
    } else {
        Fate::Pass
    }
}

fn client(inner: Client, fate: impl Fn(&Request<Body>) -> Fate + Send + Sync + 'static) -> Client {
    let fate = Arc::new(fate);
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let (inner, fate) = (inner.clone(), Arc::clone(&fate));
        async move {
            match fate(&request) {
                Fate::Pass => inner.send(request).await,
                Fate::Lose => {
                    inner.send(request).await?;
                    Err(kube::Error::Service("connection reset".into()))
                }
                Fate::Hide => {
                    let uri = format!("{}&labelSelector=hidden", request.uri());
                    *request.uri_mut() = uri.parse::<Uri>().unwrap();
                    inner.send(request).await
                }
                Fate::Refuse(code, message) => {
                    let status = json!({
                        "kind": "Status", "apiVersion": "v1", "status": "Failure",
                        "code": code, "reason": "Forbidden", "message": message,
                    });
                    let body = Body::from(status.to_string().into_bytes());
                    Ok(Response::builder().status(code).body(body).unwrap())
                }
                Fate::Stall => std::future::pending().await,
            }
        }
        .boxed()
    });
    Client::new(service, "default")
}

impl User {
    /// Runs a script while nap runs behind the proxy. The cluster has to run already.
    pub async fn with_proxied_nap(
        &self,
        fate: impl Fn(&Request<Body>) -> Fate + Send + Sync + 'static,
        script: impl Future<Output = ()>,
    ) {
        let provider = Arc::new(self.world.provider());
        let client = client(self.client.clone(), fate);
        let context =
            Context::new(client, provider, self.world.clock().clone(), Settings::default());
        nap_controllers::run(&context, script).await;
    }
}
