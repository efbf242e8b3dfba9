//! `nap crds`: prints or installs the custom resource definitions.

use nap_controllers::install::{self, InstallError, Outcome};

use crate::cli::ClusterArgs;
use crate::connect::{connect_to, unreachable};
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
    let (client, url) = connect_to(&cluster).await?;
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
    installed.await.map_err(|error| failed(&url, &error))
}

/// The error of an installation: the server, what was asked of it, and why it failed.
pub fn failed(url: &str, error: &InstallError) -> anyhow::Error {
    match error {
        InstallError::Refused { verb, resource, error, .. } => {
            unreachable(url, verb, resource, error)
        }
        InstallError::NotServed { .. } => {
            let hint = "the conditions of the definition say why; doing it again is safe";
            UserError::new(format!("{url}: {error}"), hint).into()
        }
    }
}
