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
