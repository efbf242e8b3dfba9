//! `nap crds`: prints or installs the custom resource definitions.

use nap_controllers::install::{self, Outcome};

use crate::cli::ClusterArgs;
use crate::connect::connect;
use crate::user_error::UserError;

/// Prints the definitions as YAML, for `kubectl apply -f -`.
pub fn print() -> anyhow::Result<()> {
    for crd in nap_api::crds::all() {
        println!("---\n{}", serde_saphyr::to_string(&crd)?.trim_end());
    }
    Ok(())
}

/// Applies the definitions, prints the outcome of each, and returns when all are served.
pub async fn install(cluster: ClusterArgs) -> anyhow::Result<()> {
    let client = connect(&cluster).await?;
    let installed = install::install(&client, |kind, name, outcome| {
        let outcome = match outcome {
            Outcome::Created => "created",
            Outcome::Updated => "updated",
            Outcome::Unchanged => "unchanged",
            Outcome::NotSupported => {
                "skipped: this server does not know such objects (only warnings depend on it)"
            }
        };
        println!("{kind} {name}: {outcome}");
    });
    installed.await.map_err(|error| {
        let hint = "check that the cluster can be reached and that you may write CustomResourceDefinitions; doing it again is safe";
        UserError::new(error.to_string(), hint).into()
    })
}
