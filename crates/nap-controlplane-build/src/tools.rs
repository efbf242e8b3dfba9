//! Tools that judge what nap ships: helm for the chart, Prometheus' linter for the metrics, crane
//! for the image. They are built by name from the modules that `tools/go.mod` pins.

use std::path::PathBuf;

use super::{beside, cache, fingerprint, go, make, version};

const PINS: [&str; 3] = [
    include_str!("../tools/go.mod"),
    include_str!("../tools/go.sum"),
    include_str!("../tools/promlint/main.go"),
];

pub(super) fn folder() -> Result<PathBuf, String> {
    let helm = version(PINS[0], "helm.sh/helm/v4");
    Ok(cache()?.join(format!("tools-helm-{helm}-{:016x}", fingerprint(&PINS))))
}

/// The folder with `helm`, `promlint` and `crane`; the error is one line with the remedy.
pub fn tools() -> Result<PathBuf, String> {
    let folder = folder()?;
    if folder.exists() {
        Ok(folder)
    } else {
        Err("they are not built yet; `make controlplane` builds them".to_owned())
    }
}

/// Builds the tools if they are missing. Reports progress on standard error.
pub fn build_tools() -> Result<PathBuf, String> {
    let folder = folder()?;
    if folder.exists() {
        return Ok(folder);
    }
    eprintln!(
        "building helm, promlint and crane into {}: about 3 minutes of CPU, once",
        folder.display()
    );
    let made = beside(&folder)?;
    let out = format!("{}/", made.display());
    let arguments =
        ["build", "-v", "-trimpath", "-ldflags", "-s -w", "-o", &out, "tool", "./promlint"];
    make(go("tools", &arguments), &made, &folder)?;
    Ok(folder)
}
