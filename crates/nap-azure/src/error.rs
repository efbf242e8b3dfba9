//! Errors outside of calls to the cloud, which return [`nap_cloud::CloudError`].

use std::path::PathBuf;

use nap_cloud::CloudError;

/// Failure to set up the provider, or to read or write its data.
#[derive(Debug, thiserror::Error)]
pub enum AzureError {
    /// A required setting is missing.
    #[error("environment variable `{name}` is not set")]
    MissingVariable {
        /// Variable.
        name: &'static str,
        /// Expected contents.
        hint: &'static str,
    },
    /// A setting cannot be parsed.
    #[error("environment variable `{name}` has the value `{value}`, which {why}")]
    InvalidVariable {
        /// Variable.
        name: &'static str,
        /// Contents.
        value: String,
        /// Problem, as the rest of a sentence about the value.
        why: String,
    },
    /// The catalogue does not have the region.
    #[error("region `{name}` is unknown")]
    UnknownRegion {
        /// Requested region.
        name: String,
        /// Similar names, most similar first.
        nearest: Vec<String>,
    },
    /// A catalogue file cannot be parsed.
    #[error("catalogue file `{file}`, line {line}: {why}")]
    Catalogue {
        /// Name of the file.
        file: &'static str,
        /// Line, counted from one.
        line: usize,
        /// Problem, as the rest of a sentence about the value.
        why: String,
    },
    /// A catalogue file cannot be read or written.
    #[error("cannot access `{}`: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// TLS cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Tls(String),
    /// A call to the cloud failed.
    #[error(transparent)]
    Cloud(#[from] CloudError),
}

impl AzureError {
    /// What to do about it; `None` if the message says everything.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::MissingVariable { hint, .. } => Some((*hint).to_owned()),
            Self::UnknownRegion { nearest, .. } if nearest.is_empty() => {
                Some("use a name such as `eastus`".to_owned())
            }
            Self::UnknownRegion { nearest, .. } => {
                Some(format!("did you mean `{}`?", nearest.join("`, `")))
            }
            _ => None,
        }
    }
}
