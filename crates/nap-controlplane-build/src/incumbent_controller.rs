//! The incumbent's Azure controller, built by name from its module for the test of a takeover.
//! Nothing of it is copied into this repository.
//!
//! Two of its modules are copied into the cache folder and built with one line changed each, so
//! that it runs on a computer that is no pod: it finds its service account in its working folder,
//! and its ports are on loopback.

use std::fmt::Write as _;
use std::fs::{create_dir_all, read, read_dir, read_to_string, write};
use std::path::{Path, PathBuf};

use super::{beside, cache, downloaded, fingerprint, go, make, version};

const PINS: [&str; 2] = [
    include_str!("../incumbent-controller/go.mod"),
    include_str!("../incumbent-controller/go.sum"),
];
const FOLDER: &str = "incumbent-controller";
const MODULE: &str = "github.com/Azure/karpenter-provider-azure";

/// A module of which a file is changed: module, file, text, and its replacement.
const CHANGED: [(&str, &str, &str, &str); 2] = [
    (
        "k8s.io/client-go",
        "rest/config.go",
        "\"/var/run/secrets/kubernetes.io/serviceaccount/",
        "\"serviceaccount/",
    ),
    (
        "sigs.k8s.io/karpenter",
        "pkg/operator/operator.go",
        "Sprintf(\":%d\"",
        "Sprintf(\"127.0.0.1:%d\"",
    ),
];

pub(super) fn folder() -> Result<PathBuf, String> {
    let changes: Vec<&str> = CHANGED.iter().flat_map(|(_, _, text, new)| [*text, *new]).collect();
    let hash = fingerprint(&[&PINS[..], &changes].concat());
    Ok(cache()?.join(format!("incumbent-controller-{}-{hash:016x}", version(PINS[0], MODULE))))
}

/// The folder with `controller`; the error is one line with the remedy.
pub fn incumbent_controller() -> Result<PathBuf, String> {
    let folder = folder()?;
    if folder.exists() {
        Ok(folder)
    } else {
        Err("it is not built yet; `make controlplane` builds it".to_owned())
    }
}

/// Builds the controller if it is missing. Reports progress on standard error.
pub fn build_incumbent_controller() -> Result<PathBuf, String> {
    let folder = folder()?;
    if folder.exists() {
        return Ok(folder);
    }
    eprintln!(
        "building the incumbent's controller {} into {}: about 5 minutes of CPU, once",
        version(PINS[0], MODULE),
        folder.display()
    );
    let made = beside(&folder)?;
    let sources = made.join("sources");
    let pins = sources.join("go.mod");
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error: std::io::Error| format!("{path}: {error}")
    };
    create_dir_all(&sources).map_err(failed(&sources))?;
    let mut content = PINS[0].to_owned();
    for (number, (module, file, text, replacement)) in CHANGED.into_iter().enumerate() {
        let own = sources.join(number.to_string());
        copy_folder(Path::new(&downloaded(FOLDER, module)?), &own)?;
        let changed = own.join(file);
        let source = read_to_string(&changed).map_err(failed(&changed))?;
        if !source.contains(text) {
            return Err(format!("{module}: {file} does not contain `{text}` any more"));
        }
        write(&changed, source.replace(text, replacement)).map_err(failed(&changed))?;
        let _ = writeln!(content, "\nreplace {module} => {}", own.display());
    }
    write(&pins, content).map_err(failed(&pins))?;
    write(sources.join("go.sum"), PINS[1]).map_err(failed(&sources))?;
    let pins = pins.display().to_string();
    let modfile = format!("-modfile={pins}");
    let out = format!("{}/", made.join("built").display());
    let arguments = ["build", "-v", "-trimpath", "-ldflags", "-s -w", &modfile, "-o", &out, "tool"];
    make(go(FOLDER, &arguments), &made.join("built"), &folder)?;
    std::fs::remove_dir_all(&made).map_err(failed(&made))?;
    Ok(folder)
}

/// Copies the files of a module.
fn copy_folder(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", from.display());
    create_dir_all(to).map_err(failed)?;
    for entry in read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let copied = to.join(entry.file_name());
        if entry.file_type().map_err(failed)?.is_dir() {
            copy_folder(&entry.path(), &copied)?;
        } else {
            // `fs::copy` would keep that the files of the module cache are read-only.
            let content = read(entry.path()).map_err(failed)?;
            write(&copied, content).map_err(failed)?;
        }
    }
    Ok(())
}
