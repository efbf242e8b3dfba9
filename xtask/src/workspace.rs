//! Input of the checks: packages from cargo, files from git.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The packages and files of the workspace.
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    pub(crate) packages: Vec<Package>,
    /// Tracked and untracked files that are not ignored, relative to the root, sorted.
    pub(crate) files: Vec<String>,
}

/// One package of the workspace.
pub(crate) struct Package {
    pub(crate) name: String,
    /// Path of its `Cargo.toml`, relative to the root.
    pub(crate) manifest: String,
    pub(crate) dependencies: Vec<Dependency>,
}

/// One direct dependency of a package.
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// Whether only tests, examples, benchmarks and build scripts use it.
    pub(crate) dev: bool,
}

impl Workspace {
    pub(crate) fn load() -> Result<Self> {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let output =
            run(Command::new(cargo).args(["metadata", "--no-deps", "--format-version", "1"]))?;
        let metadata: Value = serde_json::from_str(&output).context("reading `cargo metadata`")?;
        let root = PathBuf::from(text(&metadata, "workspace_root")?);
        let files = run(Command::new("git").current_dir(&root).args([
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
        ]))?;
        let mut files: Vec<String> = files.lines().map(str::to_owned).collect();
        files.sort_unstable();
        files.dedup();
        let packages =
            metadata["packages"].as_array().context("`cargo metadata` has no packages")?;
        let package = |package: &Value| -> Result<Package> {
            let manifest = PathBuf::from(text(package, "manifest_path")?);
            let manifest = manifest.strip_prefix(&root).unwrap_or(&manifest).display().to_string();
            let dependencies =
                package["dependencies"].as_array().context("a package has no dependencies")?;
            let dependencies = dependencies.iter().map(|dependency| {
                let dev = matches!(dependency["kind"].as_str(), Some("dev" | "build"));
                Ok(Dependency { name: text(dependency, "name")?, dev })
            });
            Ok(Package {
                name: text(package, "name")?,
                manifest,
                dependencies: dependencies.collect::<Result<_>>()?,
            })
        };
        let packages = packages.iter().map(package).collect::<Result<_>>()?;
        Ok(Self { root, packages, files })
    }

    /// The text of a file; `None` if it is not UTF-8, or is deleted but still tracked.
    pub(crate) fn read(&self, path: &str) -> Result<Option<String>> {
        let full = self.root.join(path);
        if !full.is_file() {
            return Ok(None);
        }
        let bytes = std::fs::read(&full).with_context(|| format!("reading {path}"))?;
        Ok(String::from_utf8(bytes).ok())
    }
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn text(value: &Value, field: &str) -> Result<String> {
    let text =
        value[field].as_str().with_context(|| format!("`cargo metadata` lacks `{field}`"))?;
    Ok(text.to_owned())
}
