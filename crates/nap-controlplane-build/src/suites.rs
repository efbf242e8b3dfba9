//! The incumbent's end-to-end suites, built by name from its module. Nothing of theirs is copied
//! here: the sources stay in the module cache.

use std::path::PathBuf;

use super::{beside, cache, fingerprint, go, make, version};

const PINS: [&str; 2] = [
    include_str!("../../../conformance/karpenter/go.mod"),
    include_str!("../../../conformance/karpenter/go.sum"),
];
const MODULE: &str = "sigs.k8s.io/karpenter";
const SUITES: [&str; 2] = ["regression", "disruption"];

/// Version of the suites.
pub fn suites_version() -> &'static str {
    version(PINS[0], MODULE)
}

/// Builds the suites if they are missing; returns the folder with `regression.test` and
/// `disruption.test`. Reports progress on standard error.
pub fn build_suites() -> Result<PathBuf, String> {
    let name = format!("karpenter-suites-{}-{:016x}", suites_version(), fingerprint(&PINS));
    let folder = cache()?.join(name);
    if folder.exists() {
        return Ok(folder);
    }
    eprintln!(
        "building Karpenter's suites {} into {}: about 3 minutes of CPU, once",
        suites_version(),
        folder.display()
    );
    let made = beside(&folder)?;
    std::fs::create_dir_all(&made).map_err(|error| format!("{}: {error}", made.display()))?;
    let out = format!("{}/", made.display());
    let packages = SUITES.map(|suite| format!("{MODULE}/test/suites/{suite}"));
    let mut arguments = vec!["test", "-c", "-v", "-trimpath", "-ldflags", "-s -w", "-o", &out];
    arguments.extend(packages.iter().map(String::as_str));
    make(go("../../conformance/karpenter", &arguments), &made, &folder)?;
    Ok(folder)
}
