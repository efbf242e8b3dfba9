//! Versions of the Azure CLI and of Kubernetes.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;
use tokio::task::JoinSet;

use super::facts::{Fact, Unknown};

/// Longest time that the CLI may take: it is slow to start.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Versions of the Azure CLI and its extensions.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct CliVersions {
    #[serde(rename = "azure-cli")]
    pub cli: String,
    #[serde(default)]
    pub extensions: BTreeMap<String, String>,
}

/// A version such as `1.34.2` or `13.0.0b3`; a preview is lower than its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    numbers: [u64; 3],
    /// Number of the preview; the maximum for a release.
    preview: u64,
}

impl Version {
    /// Parses a version with or without `v`; missing numbers are zero.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches('v');
        let (numbers, preview) = match text
            .find(|letter: char| letter != '.' && !letter.is_ascii_digit())
        {
            Some(at) => {
                let digits = text[at..].trim_start_matches(|letter: char| !letter.is_ascii_digit());
                (&text[..at], digits.parse().unwrap_or(0))
            }
            None => (text, u64::MAX),
        };
        let mut found = [0; 3];
        for (index, part) in numbers.trim_end_matches('.').split('.').enumerate() {
            *found.get_mut(index)? = part.parse().ok()?;
        }
        Some(Self { numbers: found, preview })
    }
}

/// Asks the Azure CLI for its versions; `None` if it is not installed.
pub(super) async fn read_cli(program: &Path) -> Fact<Option<CliVersions>> {
    let mut command = Command::new(program);
    command.args(["version", "--output", "json"]).stdin(std::process::Stdio::null());
    // The thread outlives a CLI that hangs, and ends with it.
    let mut thread = JoinSet::new();
    thread.spawn_blocking(move || command.output());
    let output = match tokio::time::timeout(MAX_WAIT, thread.join_next()).await {
        Ok(Some(Ok(Ok(output)))) => output,
        Ok(Some(Ok(Err(error)))) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(None);
        }
        Ok(_) => return Err(Unknown("`az version` could not be run".to_owned())),
        Err(_) => return Err(Unknown("`az version` did not end within 30 s".to_owned())),
    };
    serde_json::from_slice(&output.stdout)
        .map(Some)
        .map_err(|_| Unknown("`az version` did not print its versions as JSON".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number_and_preview() {
        let version = |text| Version::parse(text).unwrap();
        assert!(version("2.76.0") < version("2.100.0"));
        assert!(version("13.0.0b3") < version("13.0.0b12"));
        assert!(version("13.0.0b12") < version("13.0.0"));
        assert_eq!(version("v1.34"), version("1.34.0"));
        for bad in ["", "x", "1.2.3.4"] {
            assert_eq!(Version::parse(bad), None, "{bad}");
        }
    }
}
