//! Files that are made from code: `generate` writes them, `tidy` fails while one is stale.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::Violation;

const FOLDER: &str = "crds";
/// Copy of the definitions in the chart: helm installs what is in its own folder only.
const CHART_FOLDER: &str = "charts/nap/crds";
const POLICY: &str = "deploy/old-spellings-policy.yaml";
const HEADER: &str = "# Made by `cargo run -p xtask -- generate`; do not edit.\n";

/// Writes every generated file; the paths that changed.
pub(crate) fn write(root: &Path) -> Result<Vec<String>> {
    let mut changed = Vec::new();
    let files = files()?;
    for (path, text) in &files {
        let full = root.join(path);
        if let Some(folder) = full.parent() {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("making the folder of {path}"))?;
        }
        if std::fs::read_to_string(&full).ok().as_ref() != Some(text) {
            std::fs::write(&full, text).with_context(|| format!("writing {path}"))?;
            changed.push(path.clone());
        }
    }
    for path in left_over(root, &files)? {
        std::fs::remove_file(root.join(&path)).with_context(|| format!("removing {path}"))?;
        changed.push(path);
    }
    Ok(changed)
}

/// Generated files that are missing, stale, or not generated any more.
pub(crate) fn check(root: &Path) -> Result<Vec<Violation>> {
    let files = files()?;
    let mut violations: Vec<Violation> = Vec::new();
    for (path, text) in &files {
        let written = std::fs::read_to_string(root.join(path)).unwrap_or_default();
        if written != *text {
            let line = 1 + written.lines().zip(text.lines()).take_while(|(a, b)| a == b).count();
            violations.push(Violation::new(
                path,
                line,
                "stale; run `cargo run -p xtask -- generate`",
            ));
        }
    }
    let left_over = left_over(root, &files)?;
    violations.extend(left_over.iter().map(|path| {
        Violation::new(
            path,
            1,
            "nothing makes this file any more; run `cargo run -p xtask -- generate`",
        )
    }));
    Ok(violations)
}

fn left_over(root: &Path, files: &[(String, String)]) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    for folder in [FOLDER, CHART_FOLDER] {
        let Ok(entries) = std::fs::read_dir(root.join(folder)) else { continue };
        for entry in entries {
            let name = entry.context("reading the folder of the definitions")?.file_name();
            let path = format!("{folder}/{}", name.to_string_lossy());
            if !files.iter().any(|(generated, _)| *generated == path) {
                paths.push(path);
            }
        }
    }
    paths.sort_unstable();
    Ok(paths)
}

/// All generated files: path and text.
fn files() -> Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    for definition in nap_api::crds::all() {
        let name = format!("{}_{}.yaml", definition.spec.group, definition.spec.names.plural);
        let yaml = yaml(&name, &definition)?;
        for folder in [FOLDER, CHART_FOLDER] {
            files.push((format!("{folder}/{name}"), format!("{HEADER}{yaml}")));
        }
    }
    let (policy, binding) = nap_api::policy::old_spellings();
    let text = format!("{HEADER}{}---\n{}", yaml(POLICY, &policy)?, yaml(POLICY, &binding)?);
    files.push((POLICY.to_owned(), text));
    Ok(files)
}

/// One YAML document; fails if it does not survive a round trip.
fn yaml(path: &str, object: &impl serde::Serialize) -> Result<String> {
    let mut value = serde_json::to_value(object).with_context(|| format!("making {path}"))?;
    // The map type of a build may or may not sort its keys.
    value.sort_all_objects();
    let yaml = serde_saphyr::to_string(&value).with_context(|| format!("making {path}"))?;
    let read: Value =
        serde_saphyr::from_str(&yaml).with_context(|| format!("reading {path} back"))?;
    ensure!(read == value, "{path} does not read back as it was written");
    Ok(yaml)
}
