//! What `nap run` serves: metrics, health for probes, and profiles if they are switched on.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use nap_controllers::Context;
use tokio::net::TcpListener;

use super::args::OperatorArgs;
use super::profiling;
use crate::user_error::UserError;

/// Content type of the text format of Prometheus.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Listeners, bound before anything else is done: two processes that fight for a port should not
/// both act.
pub struct Listeners {
    metrics: Option<TcpListener>,
    health: Option<TcpListener>,
    has_profiles: bool,
}

impl Listeners {
    /// Binds the ports of the options; port 0 is none.
    pub async fn bind(args: &OperatorArgs) -> anyhow::Result<Self> {
        Ok(Self {
            metrics: bind(args, args.metrics_port, "--metrics-port").await?,
            health: bind(args, args.health_probe_port, "--health-probe-port").await?,
            has_profiles: args.enable_profiling,
        })
    }

    /// Serves until dropped.
    pub async fn serve(self, context: Arc<Context>) {
        let served = Arc::clone(&context);
        let mut metrics = Router::new().route("/metrics", get(|| async move { metrics(&served) }));
        if self.has_profiles {
            metrics = metrics.merge(profiling::routes());
        }
        let health = Router::new()
            .route("/healthz", get(|| async { "ok" }))
            .route("/readyz", get(|| async move { readyz(&context) }));
        tokio::join!(serve(self.metrics, metrics), serve(self.health, health));
    }
}

async fn bind(args: &OperatorArgs, port: u16, option: &str) -> anyhow::Result<Option<TcpListener>> {
    if port == 0 {
        return Ok(None);
    }
    let address = SocketAddr::new(args.bind_address, port);
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(Some(listener)),
        Err(error) => Err(UserError::new(
            format!("{option}: cannot listen on {address}: {error}"),
            format!("choose another port with `{option}`, or 0 for none"),
        )
        .into()),
    }
}

async fn serve(listener: Option<TcpListener>, router: Router) {
    let Some(listener) = listener else { return std::future::pending().await };
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "metrics or health cannot be served any more");
    }
}

fn metrics(context: &Context) -> impl IntoResponse + use<> {
    ([(header::CONTENT_TYPE, METRICS_TYPE)], context.render_metrics())
}

/// Ready once every kind was listed. A replica that does not lead is ready too: it takes over.
fn readyz(context: &Context) -> (StatusCode, &'static str) {
    if context.is_synced() {
        (StatusCode::OK, "ok")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the cluster has not been listed yet")
    }
}
