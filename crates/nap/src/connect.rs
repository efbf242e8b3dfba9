//! Connection to the user's cluster.

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::cli::ClusterArgs;
use crate::user_error::UserError;

/// Client of the cluster from `--kubeconfig`, `--context` or the environment.
pub async fn connect(args: &ClusterArgs) -> anyhow::Result<Client> {
    let options =
        KubeConfigOptions { context: args.context.clone(), ..KubeConfigOptions::default() };
    let found = match &args.kubeconfig {
        Some(path) => match Kubeconfig::read_from(path) {
            Ok(kubeconfig) => Config::from_custom_kubeconfig(kubeconfig, &options)
                .await
                .map_err(anyhow::Error::from),
            Err(error) => Err(error.into()),
        },
        None if args.context.is_some() => {
            Config::from_kubeconfig(&options).await.map_err(anyhow::Error::from)
        }
        None => Config::infer().await.map_err(anyhow::Error::from),
    };
    let mut config = found.map_err(|error| {
        let message = format!("no cluster to run on: {error}");
        UserError::new(
            message,
            "set KUBECONFIG or pass --kubeconfig; `nap try --no-controllers` starts a cluster to run on",
        )
    })?;
    // The client would retry a refused eviction (429) for minutes by itself; the controllers do it,
    // with a back-off per object.
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use k8s_openapi::api::core::v1::Pod;
    use kube::Api;
    use kube::api::EvictParams;

    use super::*;

    #[tokio::test]
    async fn a_refused_eviction_is_reported_at_once_and_not_sent_again() {
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        let answer = move || {
            counted.fetch_add(1, Ordering::SeqCst);
            let status = serde_json::json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 429,
                "reason": "TooManyRequests", "message": "it would violate the budget",
            });
            std::future::ready((http::StatusCode::TOO_MANY_REQUESTS, status.to_string()))
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let serving = axum::serve(listener, axum::Router::new().fallback(answer));
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(serving.into_future());
        let kubeconfig = std::env::temp_dir().join(format!("nap-connect-{}", std::process::id()));
        std::fs::write(&kubeconfig, crate::try_cluster::files::kubeconfig(&server)).unwrap();
        let args = ClusterArgs { kubeconfig: Some(kubeconfig.clone()), context: None };
        let pods: Api<Pod> = Api::default_namespaced(connect(&args).await.unwrap());
        let refused = pods.evict("web", &EvictParams::default()).await.unwrap_err();
        std::fs::remove_file(kubeconfig).unwrap();
        assert!(matches!(refused, kube::Error::Api(status) if status.code == 429));
        assert_eq!(requests.load(Ordering::SeqCst), 1);
    }
}
