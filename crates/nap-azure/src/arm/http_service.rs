//! The only connection to the network: a boxed tower service with collected bodies.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service};

use crate::AzureError;

/// A service that answers HTTP requests: a TLS client, or an emulator in the same process.
pub type HttpService = BoxCloneSyncService<Request<Full<Bytes>>, Response<Bytes>, BoxError>;

/// Largest response that is accepted. The SKU list of a region is about 20 MB.
const MAX_RESPONSE_BYTES: usize = 128 << 20;

/// Wraps a service with streamed bodies, such as an in-process emulator.
pub fn http_service<S, B>(service: S) -> HttpService
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    BoxCloneSyncService::new(Collecting(service))
}

/// Creates a client that speaks HTTPS with the trusted roots of the system, or plain HTTP to an
/// emulator on loopback.
pub fn https_client() -> Result<HttpService, AzureError> {
    let connector = hyper_rustls::HttpsConnectorBuilder::new()
        .with_provider_and_native_roots(rustls::crypto::ring::default_provider())
        .map_err(|error| AzureError::Tls(error.to_string()))?
        .https_or_http()
        .enable_http1()
        .enable_http2()
        .build();
    Ok(http_service(Client::builder(TokioExecutor::new()).build::<_, Full<Bytes>>(connector)))
}

#[derive(Clone)]
struct Collecting<S>(S);

impl<S, B> Service<Request<Full<Bytes>>> for Collecting<S>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Bytes>;
    type Error = BoxError;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Response<Bytes>, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        let response = self.0.call(request);
        Box::pin(async move {
            let (head, body) = response.await.map_err(Into::into)?.into_parts();
            let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await?.to_bytes();
            Ok(Response::from_parts(head, body))
        })
    }
}
