//! `nap lint`: validation of manifests without a cluster.
//!
//! The manifests are applied to an embedded API server, so the verdict is that of a cluster.
//! Accepted objects are then read as nap reads them and searched for suspicious settings.

mod sizes;
mod suspicious;

use std::fmt;
use std::path::Path;

use anyhow::Context as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Error};
use nap_api::disruption::Settings;
use nap_api::{AKSNodeClass, NodePool, normalise, validation};
use nap_apiserver::{ApiServer, Config};
use nap_clock::Clock;
use serde_json::Value;

use crate::catalogue;
use crate::cli::LintArgs;
use crate::user_error::UserError;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// Accepted; the text says how it is interpreted.
    Note,
    /// Accepted, but probably a mistake.
    Warning,
    /// Refused by the API server.
    Error,
}

/// A finding in a manifest.
struct Finding {
    level: Level,
    place: String,
    text: String,
}

impl Finding {
    fn new(level: Level, place: &str, text: String) -> Self {
        Self { level, place: place.to_owned(), text }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Error => "error",
        };
        write!(f, "{level}: {}: {}", self.place, self.text)
    }
}

/// Checks the files and prints the findings. Fails on errors, and with `--deny-warnings` on
/// warnings too.
pub async fn lint(args: LintArgs) -> anyhow::Result<()> {
    let mut findings = Vec::new();
    let mut objects = Vec::new();
    for file in &args.files {
        match read(file) {
            Ok(found) => objects.extend(found),
            Err(error) => {
                let (place, text) = (file.display().to_string(), format!("{error:#}"));
                findings.push(Finding { level: Level::Error, place, text });
            }
        }
    }
    let judge = Judge::new().await?;
    let mut pools = Vec::new();
    let mut classes = Vec::new();
    for Object { place, value } in &objects {
        let mut note = |level, text| findings.push(Finding { level, place: place.clone(), text });
        let stored = match judge.judge(value).await? {
            Verdict::NotOurs => continue,
            Verdict::Refused(problems) => {
                for problem in problems {
                    note(Level::Error, problem);
                }
                continue;
            }
            Verdict::Taken(stored) => stored,
        };
        let notes = normalise::manifest(&mut value.clone());
        for understood in notes {
            note(Level::Note, understood.to_string());
        }
        match value.get("kind").and_then(Value::as_str) {
            Some("NodePool") => {
                let pool: NodePool =
                    serde_json::from_value(stored).context("reading a NodePool")?;
                let mut problems = validation::validate_nodepool(&pool);
                problems.extend(Settings::of(&pool).err().unwrap_or_default());
                for problem in problems {
                    note(Level::Error, problem);
                }
                pools.push((place.clone(), pool));
            }
            Some("AKSNodeClass") => {
                let class: AKSNodeClass =
                    serde_json::from_value(stored).context("reading an AKSNodeClass")?;
                for problem in validation::validate_nodeclass(&class) {
                    note(Level::Error, problem);
                }
                classes.push(class);
            }
            _ => note(Level::Warning, "nap does not act on objects of this kind yet".to_owned()),
        }
    }
    let workloads: Vec<&Value> = objects.iter().map(|object| &object.value).collect();
    let sizes = catalogue::load(&args.catalogue)?;
    findings.extend(suspicious::find(&pools, &classes, &workloads, (&sizes, &args.region))?);
    conclude(&findings, &args)
}

fn conclude(findings: &[Finding], args: &LintArgs) -> anyhow::Result<()> {
    for finding in findings {
        println!("{finding}");
    }
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (errors, warnings) = (count(Level::Error), count(Level::Warning));
    let summary =
        format!("{errors} refused, {warnings} likely mistakes, in {} files", args.files.len());
    if errors > 0 || (args.deny_warnings && warnings > 0) {
        return Err(
            UserError::new(summary, "each line above names the field and what to do").into()
        );
    }
    println!("{summary}");
    Ok(())
}

/// One document of a manifest file.
struct Object {
    place: String,
    value: Value,
}

fn read(file: &Path) -> anyhow::Result<Vec<Object>> {
    let text = if file == Path::new("-") {
        std::io::read_to_string(std::io::stdin()).context("reading standard input")?
    } else {
        std::fs::read_to_string(file).context("cannot be read")?
    };
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).context("is not YAML")?;
    let mut objects = Vec::new();
    for document in documents {
        match document.get("items").and_then(Value::as_array) {
            Some(items) if document.get("kind").and_then(Value::as_str) == Some("List") => {
                objects.extend(items.iter().cloned());
            }
            _ if document.is_null() => {}
            _ => objects.push(document),
        }
    }
    Ok(objects
        .into_iter()
        .map(|value| {
            let text = |pointer: &str| {
                value.pointer(pointer).and_then(Value::as_str).unwrap_or("?").to_owned()
            };
            let place = format!("{}: {}/{}", file.display(), text("/kind"), text("/metadata/name"));
            Object { place, value }
        })
        .collect())
}

/// The API server's answer to an object.
enum Verdict {
    /// Not a kind of nap or Kubernetes; not checked.
    NotOurs,
    Refused(Vec<String>),
    /// Accepted: the stored object, with defaults.
    Taken(Value),
}

/// An embedded API server with nap's definitions.
struct Judge {
    client: Client,
    definitions: Vec<CustomResourceDefinition>,
}

impl Judge {
    async fn new() -> anyhow::Result<Self> {
        // `nap lint` prints no timestamp of an object, so any time serves.
        let clock = Clock::fixed(jiff::Timestamp::UNIX_EPOCH);
        let config = Config { clock, seed: 1, git_version: "v1.34.0".to_owned() };
        let client = Client::new(ApiServer::new(config), "default");
        let definitions = nap_api::crds::all();
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        for definition in &definitions {
            api.create(&PostParams::default(), definition)
                .await
                .context("installing the definitions")?;
        }
        Ok(Self { client, definitions })
    }

    async fn judge(&self, object: &Value) -> anyhow::Result<Verdict> {
        let text =
            |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind, name) =
            (text("/apiVersion"), text("/kind"), text("/metadata/name"));
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let refused = |problem: String| Ok(Verdict::Refused(vec![problem]));
        if kind.is_empty() || api_version.is_empty() {
            return refused("apiVersion and kind are needed to know what this is".to_owned());
        }
        let mut of_group =
            self.definitions.iter().filter(|definition| definition.spec.group == group).peekable();
        if of_group.peek().is_none() {
            return Ok(Verdict::NotOurs);
        }
        let Some(definition) = of_group.find(|definition| definition.spec.names.kind == kind)
        else {
            return refused(format!("kind: there is no `{kind}` in `{group}`"));
        };
        let mut versions = definition.spec.versions.iter();
        if !versions.any(|served| served.name == version) {
            let current =
                definition.spec.versions.first().map_or("", |current| current.name.as_str());
            return refused(format!(
                "apiVersion: `{api_version}` is not served; write `{group}/{current}`"
            ));
        }
        if name.is_empty() {
            return refused("metadata.name: a name is needed".to_owned());
        }
        let resource = ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk(group, version, kind),
            &definition.spec.names.plural,
        );
        let api: Api<DynamicObject> = if definition.spec.scope == "Namespaced" {
            Api::namespaced_with(self.client.clone(), "default", &resource)
        } else {
            Api::all_with(self.client.clone(), &resource)
        };
        let mut params = PatchParams::apply("nap-lint").validation_strict();
        params.dry_run = true;
        match api.patch(name, &params, &Patch::Apply(object)).await {
            Ok(stored) => Ok(Verdict::Taken(serde_json::to_value(stored)?)),
            Err(Error::Api(status)) => {
                let causes = status.details.iter().flat_map(|details| &details.causes);
                let causes: Vec<String> = causes
                    .filter(|cause| cause.field != "<nil>")
                    .map(|cause| format!("{}: {}", cause.field, cause.message))
                    .collect();
                let problems =
                    if causes.is_empty() { vec![status.message.clone()] } else { causes };
                Ok(Verdict::Refused(problems))
            }
            Err(other) => Err(other.into()),
        }
    }
}
