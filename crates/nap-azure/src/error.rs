//! What can go wrong outside of a call to the cloud, which has [`nap_cloud::CloudError`].

use std::path::PathBuf;

use nap_cloud::CloudError;

/// A failure to set the provider up, or to read or write its data.
#[derive(Debug, thiserror::Error)]
pub enum AzureError {
    /// A setting that has no default was not given.
    #[error("environment variable `{name}` is not set\nhint: {hint}")]
    MissingVariable {
        /// The variable.
        name: &'static str,
        /// What it should hold.
        hint: &'static str,
    },
    /// A setting cannot be understood.
    #[error("environment variable `{name}` has the value `{value}`, which {why}")]
    InvalidVariable {
        /// The variable.
        name: &'static str,
        /// What it holds.
        value: String,
        /// What is wrong with it.
        why: String,
    },
    /// A region that the catalogue does not have.
    #[error("region `{name}` is unknown\nhint: {}", hint(nearest))]
    UnknownRegion {
        /// The region that was asked for.
        name: String,
        /// Names that look like it, best first.
        nearest: Vec<String>,
    },
    /// A catalogue file cannot be understood.
    #[error("catalogue file `{file}`, line {line}: {why}")]
    Catalogue {
        /// The file's name.
        file: &'static str,
        /// The line, counted from one.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// A catalogue file cannot be read or written.
    #[error("cannot access `{}`: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// TLS cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Tls(String),
    /// The cloud refused.
    #[error(transparent)]
    Cloud(#[from] CloudError),
}

fn hint(nearest: &[String]) -> String {
    if nearest.is_empty() {
        "use a name such as `eastus`".to_owned()
    } else {
        format!("did you mean `{}`?", nearest.join("`, `"))
    }
}
