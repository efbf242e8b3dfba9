//! Connection to the user's cluster.

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::cli::ClusterArgs;
use crate::user_error::UserError;

/// Client of the cluster from `--kubeconfig`, `--context` or the environment. Fails if the cluster
/// does not answer.
pub async fn connect(args: &ClusterArgs) -> anyhow::Result<Client> {
    Ok(connect_to(args).await?.0)
}

/// The same, with the URL of the API server.
pub async fn connect_to(args: &ClusterArgs) -> anyhow::Result<(Client, String)> {
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
    let mut config = found.map_err(|error| no_cluster(args, &error))?;
    // The client would retry a refused eviction (429) for minutes by itself; the controllers do it,
    // with a back-off per object.
    config.default_retry = false;
    let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    let client = Client::try_from(config)?;
    // Any answer but a refusal of the credentials will do: not every user may read the version.
    match client.apiserver_version().await {
        Err(error @ kube::Error::Api(_)) if !is_unauthorized(&error) => {}
        Err(error) => return Err(unreachable(&server, "get", "/version", &error)),
        Ok(_) => {}
    }
    Ok((client, server))
}

/// The error of a missing or unreadable kubeconfig.
fn no_cluster(args: &ClusterArgs, error: &anyhow::Error) -> UserError {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let given = args.kubeconfig.is_some()
        || args.context.is_some()
        || is_set("KUBECONFIG")
        || is_set("KUBERNETES_SERVICE_HOST");
    let missing = || {
        let home = std::env::var_os("HOME").unwrap_or_default();
        !std::path::Path::new(&home).join(".kube/config").exists()
    };
    if !given && missing() {
        return UserError::new(
            "no cluster to run on: there is neither `~/.kube/config` nor `KUBECONFIG`",
            "pass --kubeconfig FILE; `nap try` starts a cluster on this machine, and `nap plan -f \
             FILE` needs none",
        );
    }
    UserError::new(
        format!("no cluster to run on: {error}"),
        "correct the kubeconfig, or name another one with --kubeconfig or a context of it with \
         --context; `kubectl config get-contexts` shows what there is",
    )
}

fn is_unauthorized(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 401)
}

/// The error of a request to an API server: who was asked, for what, and why it failed.
pub fn unreachable(server: &str, verb: &str, what: &str, error: &kube::Error) -> anyhow::Error {
    let (message, hint) = match error {
        kube::Error::Api(status) if status.code == 401 => (
            format!("{server} does not accept the credentials of the kubeconfig (401): {verb} {what}"),
            "log in again, for example with `az aks get-credentials`; `kubectl auth whoami` tells \
             who you are"
                .to_owned(),
        ),
        kube::Error::Api(status) if status.code == 403 => (
            format!("{server} forbids to {verb} {what} (403): {}", status.message),
            format!("ask for a role that allows it; `kubectl auth can-i {verb} {what} -A` checks"),
        ),
        kube::Error::Api(status) => (
            format!("{server} cannot {verb} {what} ({}): {}", status.code, status.message),
            "`kubectl get` of the same kind says more; reading is all that is needed".to_owned(),
        ),
        other => (
            format!("{server} cannot be reached: {}", cause(other)),
            "see whether the cluster runs, and whether the kubeconfig or --context names the right \
             one; `kubectl version` tells the same"
                .to_owned(),
        ),
    };
    UserError::new(message, hint).into()
}

/// The innermost cause of an error, in the words of users.
fn cause(error: &kube::Error) -> String {
    let mut innermost: &(dyn std::error::Error + 'static) = error;
    let mut lookup = false;
    while let Some(source) = innermost.source() {
        lookup |= source.to_string().contains("dns error");
        innermost = source;
    }
    let text = innermost.to_string();
    let kind = innermost.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    match kind {
        Some(std::io::ErrorKind::ConnectionRefused) => "connection refused".to_owned(),
        Some(std::io::ErrorKind::TimedOut) => "no answer in time".to_owned(),
        _ if lookup || text.contains("lookup address") => format!("unknown host ({text})"),
        _ if text.contains("certificate") || text.contains("tls") => format!("TLS: {text}"),
        _ if text.contains("InvalidContentType") || text.contains("corrupt message") => {
            format!("TLS: the server does not speak it ({text})")
        }
        _ => text,
    }
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
        // Connecting asks for the version.
        requests.store(0, Ordering::SeqCst);
        let refused = pods.evict("web", &EvictParams::default()).await.unwrap_err();
        std::fs::remove_file(kubeconfig).unwrap();
        assert!(matches!(refused, kube::Error::Api(status) if status.code == 429));
        assert_eq!(requests.load(Ordering::SeqCst), 1);
    }
}
