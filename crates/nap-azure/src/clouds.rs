//! Azure clouds: the endpoint of ARM, and where and for which audience tokens are issued.
//!
//! `ARM_CLOUD` names one that is built in, `AZURE_ENVIRONMENT_FILEPATH` a file that describes
//! another, as the incumbent has it. `NAP_ARM_ENDPOINT` and `AZURE_AUTHORITY_HOST` change one
//! endpoint of either.

use std::path::Path;

use serde_json::Value;

use crate::AzureError;

/// Name, other spelling, host of ARM and host of Entra of the built-in clouds; the first is the
/// default. A test compares the hosts with those of Azure's Python SDK. Tokens are asked for the
/// host of ARM. Azure's SDKs name that host or `management.core.…`, which differs by SDK and cloud;
/// which of them ARM takes was never tried on live Azure. A file can state another audience.
const CLOUDS: [[&str; 4]; 3] = [
    ["AzurePublicCloud", "AzureCloud", "management.azure.com", "login.microsoftonline.com"],
    [
        "AzureUSGovernmentCloud",
        "AzureUSGovernment",
        "management.usgovcloudapi.net",
        "login.microsoftonline.us",
    ],
    ["AzureChinaCloud", "AzureChina", "management.chinacloudapi.cn", "login.chinacloudapi.cn"],
];

const CLOUD: &str = "ARM_CLOUD";
const FILE: &str = "AZURE_ENVIRONMENT_FILEPATH";
const ARM_ENDPOINT: &str = "NAP_ARM_ENDPOINT";
const AUTHORITY_HOST: &str = "AZURE_AUTHORITY_HOST";
/// Largest environment file that is read, in bytes.
const MAX_FILE: usize = 1 << 20;

/// Where and for which audience Entra issues tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entra {
    /// URL without a slash at its end, such as `https://login.microsoftonline.com`.
    pub authority_host: String,
    /// Audience of tokens for ARM, such as `https://management.azure.com/`.
    pub token_audience: String,
}

impl Entra {
    /// OAuth scope of a token for ARM.
    pub fn scope(&self) -> String {
        format!("{}/.default", self.token_audience.trim_end_matches('/'))
    }
}

/// An Azure cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AzureCloud {
    /// URL of ARM without a slash at its end.
    pub arm_endpoint: String,
    /// Issuer of tokens.
    pub entra: Entra,
}

impl Default for AzureCloud {
    /// The public cloud.
    fn default() -> Self {
        Self::built_in(&CLOUDS[0])
    }
}

impl AzureCloud {
    fn built_in([_, _, arm, entra]: &[&str; 4]) -> Self {
        let entra = Entra {
            authority_host: format!("https://{entra}"),
            token_audience: format!("https://{arm}/"),
        };
        Self { arm_endpoint: format!("https://{arm}"), entra }
    }

    /// Reads the environment of the process.
    pub fn from_env() -> Result<Self, AzureError> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// Reads variables from any source. An empty variable counts as unset.
    pub fn from_variables(read: impl Fn(&str) -> Option<String>) -> Result<Self, AzureError> {
        let get =
            |name: &str| read(name).map(|value| value.trim().to_owned()).filter(|v| !v.is_empty());
        let stated = match (get(CLOUD), get(FILE)) {
            (Some(value), Some(file)) => {
                let why = format!("names a cloud beside `{FILE}` (`{file}`): unset one of them");
                return Err(AzureError::InvalidVariable { name: CLOUD, value, why });
            }
            (Some(name), None) => Some(Self::named(name)?),
            (None, Some(file)) => Some(Self::of_file(&file)?),
            (None, None) => None,
        };
        let is_stated = stated.is_some();
        let mut cloud = stated.unwrap_or_default();
        if let Some(value) = get(ARM_ENDPOINT) {
            cloud.arm_endpoint = url(ARM_ENDPOINT, value)?;
            // An emulator, or a cloud that nothing else describes.
            if !is_stated {
                cloud.entra.token_audience = format!("{}/", cloud.arm_endpoint);
            }
        }
        if let Some(value) = get(AUTHORITY_HOST) {
            cloud.entra.authority_host = url(AUTHORITY_HOST, value)?;
        }
        Ok(cloud)
    }

    fn named(value: String) -> Result<Self, AzureError> {
        let is_it = |cloud: &&[&str; 4]| {
            cloud[..2].iter().any(|spelling| spelling.eq_ignore_ascii_case(&value))
        };
        let Some(cloud) = CLOUDS.iter().find(is_it) else {
            let names = CLOUDS.map(|[name, ..]| format!("`{name}`")).join(", ");
            let why = format!("is not one of {names}; `{FILE}` describes other clouds");
            return Err(AzureError::InvalidVariable { name: CLOUD, value, why });
        };
        Ok(Self::built_in(cloud))
    }

    /// Reads an environment file.
    fn of_file(file: &str) -> Result<Self, AzureError> {
        let refuse =
            |why: String| AzureError::InvalidVariable { name: FILE, value: file.to_owned(), why };
        let text = std::fs::read(Path::new(file))
            .map_err(|error| refuse(format!("cannot be read: {error}")))?;
        if text.len() > MAX_FILE {
            return Err(refuse(format!("is larger than {MAX_FILE} bytes")));
        }
        // Other tools skip a byte order mark too.
        let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&text);
        let content: Value = serde_json::from_slice(text)
            .map_err(|error| refuse(format!("is not JSON: {error}")))?;
        let field = |name: &str| match content.get(name) {
            Some(Value::String(text)) if !text.trim().is_empty() => Ok(text.trim().to_owned()),
            Some(Value::String(_) | Value::Null) | None => {
                Err(refuse(format!("has no `{name}`: add it to the file")))
            }
            Some(_) => Err(refuse(format!("has a `{name}` that is not a string"))),
        };
        let endpoint = |name: &str| {
            let value = field(name)?;
            let problem = format!("has the `{name}` `{value}`, which {NOT_A_URL}");
            stripped(&value).ok_or_else(|| refuse(problem))
        };
        Ok(Self {
            arm_endpoint: endpoint("resourceManagerEndpoint")?,
            entra: Entra {
                authority_host: endpoint("activeDirectoryEndpoint")?,
                token_audience: field("tokenAudience")?,
            },
        })
    }
}

const NOT_A_URL: &str = "is not a URL with `http://` or `https://`";

/// The URL of a variable without a slash at its end.
pub(crate) fn url(name: &'static str, value: String) -> Result<String, AzureError> {
    let why = NOT_A_URL.to_owned();
    stripped(&value).ok_or(AzureError::InvalidVariable { name, value, why })
}

fn stripped(value: &str) -> Option<String> {
    let is_url = value.starts_with("https://") || value.starts_with("http://");
    is_url.then(|| value.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cloud(pairs: &[(&str, &str)]) -> Result<AzureCloud, String> {
        let found = AzureCloud::from_variables(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        });
        found.map_err(|error| error.to_string())
    }

    fn file(test: &str, content: &str) -> String {
        let path = std::env::temp_dir().join(format!("nap-cloud-{}-{test}", std::process::id()));
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    #[test]
    fn clouds_are_named_in_any_case_and_by_either_spelling() {
        let public = AzureCloud::default();
        assert_eq!(public.entra.scope(), "https://management.azure.com/.default");
        for name in ["", "AzurePublicCloud", "AZURECLOUD", " azurepubliccloud "] {
            assert_eq!(cloud(&[("ARM_CLOUD", name)]).unwrap(), public, "{name}");
        }
        for (name, arm, entra) in [
            ("AzureUSGovernmentCloud", "management.usgovcloudapi.net", "login.microsoftonline.us"),
            ("azureusgovernment", "management.usgovcloudapi.net", "login.microsoftonline.us"),
            ("AZURECHINACLOUD", "management.chinacloudapi.cn", "login.chinacloudapi.cn"),
        ] {
            let found = cloud(&[("ARM_CLOUD", name)]).unwrap();
            assert_eq!(found.arm_endpoint, format!("https://{arm}"));
            assert_eq!(found.entra.authority_host, format!("https://{entra}"));
            assert_eq!(found.entra.token_audience, format!("https://{arm}/"));
            assert_eq!(found.entra.scope(), format!("https://{arm}/.default"));
        }
        let error = cloud(&[("ARM_CLOUD", "AzureMoonCloud")]).unwrap_err();
        for part in ["`ARM_CLOUD`", "`AzureMoonCloud`", "`AzureUSGovernmentCloud`, `AzureChina"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_file_describes_another_cloud() {
        let path = file(
            "whole",
            r#"{"name":"AzureStackCloud","resourceManagerEndpoint":"https://arm.local/",
                "activeDirectoryEndpoint":"https://login.local/","tokenAudience":"https://aud/x"}"#,
        );
        let found = cloud(&[("AZURE_ENVIRONMENT_FILEPATH", &path)]).unwrap();
        assert_eq!(found.arm_endpoint, "https://arm.local");
        assert_eq!(found.entra.authority_host, "https://login.local");
        assert_eq!(found.entra.token_audience, "https://aud/x");
        assert_eq!(found.entra.scope(), "https://aud/x/.default");
        let both = [("AZURE_ENVIRONMENT_FILEPATH", &*path), ("ARM_CLOUD", "AzureCloud")];
        let error = cloud(&both).unwrap_err();
        assert!(error.contains(&path) && error.contains("unset one of them"), "{error}");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_bad_file_is_refused_with_its_name_and_field() {
        let arm = r#""resourceManagerEndpoint":"https://a""#;
        let login = r#""activeDirectoryEndpoint":"https://l""#;
        for (number, (content, part)) in [
            ("{", "is not JSON"),
            ("[]", "has no `resourceManagerEndpoint`"),
            (&*format!("{{{arm}}}"), "has no `activeDirectoryEndpoint`"),
            (&*format!("{{{arm},{login}}}"), "has no `tokenAudience`"),
            (&*format!("{{{arm},{login},\"tokenAudience\":7}}"), "`tokenAudience` that is not a"),
            (r#"{"resourceManagerEndpoint":"a.b"}"#, "`resourceManagerEndpoint` `a.b`, which"),
        ]
        .into_iter()
        .enumerate()
        {
            let path = file(&format!("bad{number}"), content);
            let error = cloud(&[("AZURE_ENVIRONMENT_FILEPATH", &path)]).unwrap_err();
            std::fs::remove_file(&path).unwrap();
            assert!(error.contains(part) && error.contains(&path), "{content}: {error}");
        }
        let error = cloud(&[("AZURE_ENVIRONMENT_FILEPATH", "/nowhere/x")]).unwrap_err();
        assert!(error.contains("`/nowhere/x`, which cannot be read"), "{error}");
    }

    #[test]
    fn single_endpoints_win_and_keep_the_audience_of_a_stated_cloud() {
        let emulator = [
            ("NAP_ARM_ENDPOINT", "http://127.0.0.1:9/"),
            ("AZURE_AUTHORITY_HOST", "http://127.0.0.1:8/"),
        ];
        let found = cloud(&emulator).unwrap();
        assert_eq!(found.arm_endpoint, "http://127.0.0.1:9");
        assert_eq!(found.entra.token_audience, "http://127.0.0.1:9/");
        assert_eq!(found.entra.authority_host, "http://127.0.0.1:8");
        let found = cloud(&[emulator[0], ("ARM_CLOUD", "AzureChinaCloud")]).unwrap();
        assert_eq!(found.arm_endpoint, "http://127.0.0.1:9");
        assert_eq!(found.entra.token_audience, "https://management.chinacloudapi.cn/");
        let error = cloud(&[("AZURE_AUTHORITY_HOST", "login.local")]).unwrap_err();
        assert!(error.contains("`AZURE_AUTHORITY_HOST`") && error.contains("URL"), "{error}");
    }
}
