//! Tokens of the user who is logged in to the Azure CLI, for commands on a laptop.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use nap_cloud::{CloudError, ErrorClass};
use serde::Deserialize;
use tokio::task::JoinSet;

use super::token::{AccessToken, TokenProvider};

const OPERATION: &str = "get a token by the Azure CLI";
/// Longest time that the CLI may take: it is slow to start, and asks Entra.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// The login of the Azure CLI.
pub struct AzureCli {
    /// The program, `az`.
    pub program: PathBuf,
    /// Resource that the token is for, such as `https://management.azure.com/`.
    pub resource: String,
    /// Subscription whose tenant issues the token; `None` for the one that `az` has selected.
    pub subscription: Option<String>,
}

#[derive(Deserialize)]
struct CliToken {
    #[serde(rename = "accessToken")]
    access_token: String,
    /// Seconds since 1970.
    expires_on: i64,
}

#[async_trait]
impl TokenProvider for AzureCli {
    async fn token(&self) -> Result<AccessToken, CloudError> {
        let mut command = Command::new(&self.program);
        command.args(["account", "get-access-token", "--output", "json", "--resource"]);
        command.arg(&self.resource).stdin(std::process::Stdio::null());
        if let Some(subscription) = &self.subscription {
            command.args(["--subscription", subscription]);
        }
        // The thread outlives a CLI that hangs, and ends with it.
        let mut thread = JoinSet::new();
        thread.spawn_blocking(move || command.output());
        let output = match tokio::time::timeout(MAX_WAIT, thread.join_next()).await {
            Ok(Some(Ok(output))) => output,
            Ok(_) => return Err(error("Failed", "the process could not be waited for")),
            Err(_) => return Err(error("Timeout", "`az` did not answer within 30 s")),
        };
        match output {
            Ok(output) => parse(&output),
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                Err(error("NotInstalled", "`az` is not on the PATH"))
            }
            Err(cause) => Err(error("Failed", &format!("cannot run `az`: {cause}"))),
        }
    }
}

fn parse(output: &Output) -> Result<AccessToken, CloudError> {
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("`az` failed");
        let line: String = line.chars().take(300).collect();
        return Err(error("NotLoggedIn", &line));
    }
    let token: CliToken = serde_json::from_slice(&output.stdout).map_err(|cause| {
        error("InvalidTokenResponse", &format!("{cause}; update the Azure CLI to 2.54 or later"))
    })?;
    let expires = Timestamp::from_second(token.expires_on).unwrap_or(Timestamp::MIN);
    Ok(AccessToken { secret: token.access_token, expires })
}

fn error(code: &str, message: &str) -> CloudError {
    CloudError::new(ErrorClass::Auth, OPERATION, code, message)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use super::*;

    fn output(code: i32, stdout: &str, stderr: &str) -> Output {
        let (stdout, stderr) = (stdout.as_bytes().to_vec(), stderr.as_bytes().to_vec());
        Output { status: ExitStatus::from_raw(code << 8), stdout, stderr }
    }

    #[tokio::test]
    async fn the_cli_is_asked_for_the_tenant_of_the_subscription() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = std::env::temp_dir().join(format!("nap-az-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (program, arguments) = (folder.join("az"), folder.join("arguments"));
        let script = format!(
            "#!/bin/sh\necho \"$@\" > {}\necho '{{\"accessToken\":\"t\",\"expires_on\":9}}'\n",
            arguments.display()
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let subscription = Some("sub-1".to_owned());
        let cli = AzureCli { program, resource: "https://arm/".to_owned(), subscription };
        assert_eq!(cli.token().await.unwrap().secret, "t");
        let said = std::fs::read_to_string(&arguments).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(
            said.trim(),
            "account get-access-token --output json --resource https://arm/ --subscription sub-1"
        );
    }

    #[test]
    fn a_token_is_read_with_its_expiry() {
        let text = r#"{"accessToken":"t","expiresOn":"2026-01-01 00:00:00.000000","expires_on":9,
            "subscription":"s","tenant":"t","tokenType":"Bearer"}"#;
        let token = parse(&output(0, text, "")).unwrap();
        assert_eq!((token.secret.as_str(), token.expires.as_second()), ("t", 9));
    }

    #[test]
    fn the_first_line_of_the_cli_is_the_cause() {
        let text = "\nERROR: Please run 'az login' to setup account.\nmore\n";
        let error = parse(&output(1, "", text)).map(|_| ()).unwrap_err();
        assert_eq!(error.message, "ERROR: Please run 'az login' to setup account.");
        assert_eq!(
            parse(&output(0, "{}", "")).map(|_| ()).unwrap_err().code,
            "InvalidTokenResponse"
        );
    }

    #[tokio::test]
    async fn a_missing_cli_is_named() {
        let cli = AzureCli {
            program: "nap-no-such-program".into(),
            resource: "r".to_owned(),
            subscription: None,
        };
        assert_eq!(cli.token().await.map(|_| ()).unwrap_err().message, "`az` is not on the PATH");
    }
}
