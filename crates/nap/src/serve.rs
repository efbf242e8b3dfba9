//! HTTP server on loopback for a tower service.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::body::Body;
use axum::response::IntoResponse;
use http::Request;
use tokio::net::TcpListener;
use tower::Service;

use crate::user_error::UserError;

/// Binds a port. The error says what to do if it is in use.
pub async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let message = format!("cannot listen on {address}: {error}");
        UserError::new(message, "choose another port with `--listen`, or port 0 for a free one")
            .into()
    })
}

/// Serves until the listener fails.
pub async fn serve<S>(listener: TcpListener, service: S) -> anyhow::Result<()>
where
    S: Service<Request<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Response: IntoResponse,
    S::Future: Send + 'static,
{
    let router = axum::Router::new().fallback_service(service);
    axum::serve(listener, router).await?;
    Ok(())
}
