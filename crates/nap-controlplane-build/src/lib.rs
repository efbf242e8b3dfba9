//! Location and build of the control plane's binaries.
//!
//! They are built from Go modules at the versions pinned in `go/go.mod`, into the user's cache
//! folder: a fresh clone finds them again, and a changed pin builds new ones. `KUBEBUILDER_ASSETS`
//! names a folder to use instead. The incumbent's definitions are copied from its modules in the
//! same way, as a reference.

mod incumbent_controller;
mod kubectl;
mod suites;
mod tools;

use std::io::{BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub use incumbent_controller::{build_incumbent_controller, incumbent_controller};
pub use kubectl::Kubectl;
pub use suites::{build_suites, suites_version};
pub use tools::{build_tools, tools};

/// Binaries that every test on a control plane needs.
const NEEDED: [&str; 3] = ["etcd", "kube-apiserver", "kubectl"];
/// Further binaries for tests that run pods.
const NEEDED_FOR_PODS: [&str; 2] = ["kube-controller-manager", "kube-scheduler"];

const PINS: [&str; 3] = [
    include_str!("../go/go.mod"),
    include_str!("../go/go.sum"),
    include_str!("../go/etcd/main.go"),
];
const INCUMBENT_PINS: &str = include_str!("../incumbent/go.mod");

/// Modules with the incumbent's definitions. If both have a definition, the first is newer and
/// wins.
const INCUMBENT: [&str; 2] = ["sigs.k8s.io/karpenter", "github.com/Azure/karpenter-provider-azure"];

/// The folder with the binaries; the error is one line with the remedy.
pub fn binaries() -> Result<PathBuf, String> {
    if let Some(folder) = given() {
        return match NEEDED.iter().find(|name| !folder.join(name).exists()) {
            Some(missing) => Err(format!(
                "KUBEBUILDER_ASSETS names {}, which has no {missing}: put it there, or unset the variable",
                folder.display()
            )),
            None => Ok(folder),
        };
    }
    let folder = binaries_folder()?;
    if folder.exists() {
        Ok(folder)
    } else {
        Err("it is not built yet; `make controlplane` builds it".to_owned())
    }
}

/// The control plane's kubectl, or the one on the PATH; the error is one line.
pub fn kubectl() -> Result<PathBuf, String> {
    let own = binaries().map(|folder| folder.join("kubectl"));
    own.or_else(|missing| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path)
            .map(|folder| folder.join("kubectl"))
            .find(|file| file.is_file());
        found.ok_or_else(|| {
            format!(
                "there is no kubectl on the PATH, and as for the control plane's own, {missing}"
            )
        })
    })
}

/// For build scripts: sets the cfgs `no_kubectl`, `no_control_plane`, `no_incumbent`,
/// `no_incumbent_controller` and `no_tools` for what is missing, so that tests which need it are
/// ignored and reported as ignored.
pub fn set_cfgs() {
    for variable in ["KUBEBUILDER_ASSETS", "XDG_CACHE_HOME", "HOME", "PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    for folder in searched() {
        println!("cargo::rerun-if-changed={}", folder.display());
    }
    for (cfg, found) in [
        ("no_kubectl", kubectl()),
        ("no_control_plane", binaries()),
        ("no_incumbent", incumbent_definitions()),
        ("no_incumbent_controller", incumbent_controller()),
        ("no_tools", tools()),
    ] {
        println!("cargo::rustc-check-cfg=cfg({cfg})");
        if found.is_err() {
            println!("cargo::rustc-cfg={cfg}");
        }
    }
}

/// Fails if the folder lacks binaries to run pods: `KUBEBUILDER_ASSETS` may have the API server
/// only.
pub fn runs_pods(folder: &Path) -> Result<(), String> {
    match NEEDED_FOR_PODS.iter().find(|name| !folder.join(name).exists()) {
        Some(missing) => Err(format!("{} has no {missing}: put it there", folder.display())),
        None => Ok(()),
    }
}

/// The folder with the incumbent's definitions; the error is one line with the remedy.
pub fn incumbent_definitions() -> Result<PathBuf, String> {
    let folder = incumbent_folder()?;
    if folder.exists() {
        Ok(folder)
    } else {
        Err("they are not there yet; `make controlplane` fetches them".to_owned())
    }
}

/// Folders whose existence decides the cfgs.
fn searched() -> Vec<PathBuf> {
    let folders = [
        given(),
        binaries_folder().ok(),
        incumbent_folder().ok(),
        incumbent_controller::folder().ok(),
        tools::folder().ok(),
    ];
    folders.into_iter().flatten().collect()
}

/// Builds and fetches what is missing; reports progress on standard error.
pub fn build() -> Result<PathBuf, String> {
    if incumbent_definitions().is_err() {
        fetch_incumbent_definitions()?;
    }
    build_tools()?;
    build_incumbent_controller()?;
    if given().is_some() {
        return binaries();
    }
    let folder = binaries_folder()?;
    if !folder.exists() {
        compile(&folder)?;
    }
    Ok(folder)
}

fn given() -> Option<PathBuf> {
    std::env::var_os("KUBEBUILDER_ASSETS").filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn cache() -> Result<PathBuf, String> {
    let set =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("XDG_CACHE_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".cache")))
        .map(|cache| cache.join("nap"))
        .ok_or_else(|| {
            "neither XDG_CACHE_HOME nor HOME is set: set one, for the cache folder".to_owned()
        })
}

fn binaries_folder() -> Result<PathBuf, String> {
    let versions =
        [version(PINS[0], "k8s.io/kubernetes"), version(PINS[0], "go.etcd.io/etcd/server/v3")];
    Ok(cache()?.join(format!(
        "controlplane-{}-etcd-{}-{:016x}",
        versions[0],
        versions[1],
        fingerprint(&PINS)
    )))
}

fn incumbent_folder() -> Result<PathBuf, String> {
    let versions = INCUMBENT.map(|module| version(INCUMBENT_PINS, module));
    Ok(cache()?.join(format!("incumbent-{}-azure-{}", versions[0], versions[1])))
}

/// Version of a module in a go.mod; `unknown` if it is not required.
fn version<'a>(pins: &'a str, module: &str) -> &'a str {
    let mut words = pins.lines().map(|line| line.trim_start_matches("require").split_whitespace());
    words
        .find_map(|mut words| if words.next() == Some(module) { words.next() } else { None })
        .unwrap_or("unknown")
}

/// FNV-1a hash for the name of a folder.
fn fingerprint(texts: &[&str]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn go(folder: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("go");
    command
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-mod=readonly -buildvcs=false")
        .env("GOTOOLCHAIN", "auto")
        .stdin(Stdio::null());
    command
}

fn not_started(error: &std::io::Error) -> String {
    if error.kind() == std::io::ErrorKind::NotFound {
        "Go is missing: install Go 1.26 or newer from https://go.dev/dl, or set KUBEBUILDER_ASSETS to a folder with the binaries"
            .to_owned()
    } else {
        format!("go could not be started: {error}")
    }
}

/// Compiles all binaries in one `go build`, because they share most packages.
fn compile(folder: &Path) -> Result<(), String> {
    let kubernetes = version(PINS[0], "k8s.io/kubernetes");
    let mut numbers = kubernetes.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let flags = [
        "gitVersion=".to_owned() + kubernetes,
        format!("gitMajor={major}"),
        format!("gitMinor={minor}"),
    ]
    .map(|value| format!("-X k8s.io/component-base/version.{value}"))
    .join(" ");
    let made = beside(folder)?;
    let out = format!("{}/", made.display());
    let ldflags = format!("-s -w {flags} -X k8s.io/component-base/version.gitTreeState=clean");
    eprintln!(
        "building Kubernetes {kubernetes} and etcd {} into {}: about 13 minutes of CPU, once",
        version(PINS[0], "go.etcd.io/etcd/server/v3"),
        folder.display()
    );
    make(
        go("go", &["build", "-v", "-trimpath", "-ldflags", &ldflags, "-o", &out, "tool", "./etcd"]),
        &made,
        folder,
    )
}

/// Runs Go, which writes into `made`, with progress on standard error, and moves the result to
/// `folder`.
fn make(mut command: Command, made: &Path, folder: &Path) -> Result<(), String> {
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| not_started(&error))?;
    let errors = child.stderr.take().map(follow).unwrap_or_default();
    let status = child.wait().map_err(|error| format!("go: {error}"))?;
    if !status.success() {
        std::fs::remove_dir_all(made).ok();
        return Err(format!("go failed: {}", errors.join("\n")));
    }
    move_into_place(made, folder)
}

/// Reports the number of compiled packages; returns all other output of go.
fn follow(stderr: impl std::io::Read) -> Vec<String> {
    let terminal = std::io::stderr().is_terminal();
    let mut packages = 0_u32;
    let mut rest = Vec::new();
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        if line.contains(' ') {
            rest.push(line);
            continue;
        }
        packages += 1;
        if terminal {
            eprint!("\r  {packages} packages compiled");
        } else if packages.is_multiple_of(250) {
            eprintln!("  {packages} packages compiled");
        }
    }
    if terminal {
        eprintln!();
    }
    rest
}

fn fetch_incumbent_definitions() -> Result<(), String> {
    let folder = incumbent_folder()?;
    eprintln!("fetching the incumbent's definitions into {}", folder.display());
    let made = beside(&folder)?;
    std::fs::create_dir_all(&made).map_err(|error| format!("{}: {error}", made.display()))?;
    for module in INCUMBENT {
        let source = downloaded("incumbent", module)?;
        let definitions = source.join("pkg/apis/crds");
        let entries = std::fs::read_dir(&definitions)
            .map_err(|error| format!("{}: {error}", definitions.display()))?;
        for entry in entries.flatten() {
            let copy = made.join(entry.file_name());
            if !copy.exists() {
                // Files of the module cache are read-only, and `fs::copy` would keep that.
                let text = std::fs::read(entry.path()).map_err(|error| error.to_string())?;
                std::fs::write(&copy, text)
                    .map_err(|error| format!("{}: {error}", copy.display()))?;
            }
        }
    }
    move_into_place(&made, &folder)
}

/// The folder of a module in the module cache, at the version that the go.mod in `pins` has.
fn downloaded(pins: &str, module: &str) -> Result<PathBuf, String> {
    let output = go(pins, &["mod", "download", "-json", module])
        .output()
        .map_err(|error| not_started(&error))?;
    let answer = String::from_utf8_lossy(&output.stdout);
    let folder = field(&answer, "Dir").filter(|_| output.status.success());
    folder.map(PathBuf::from).ok_or_else(|| {
        let why = field(&answer, "Error").unwrap_or_default();
        let said = String::from_utf8_lossy(&output.stderr);
        format!("{module} could not be downloaded: {why}{said}")
    })
}

/// A text field of go's flat JSON, which has one field per line.
fn field<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    let start = format!("\"{name}\": \"");
    json.lines()
        .find_map(|line| line.trim().strip_prefix(&start)?.trim_end_matches(',').strip_suffix('"'))
}

/// A temporary folder beside `folder`; renamed when complete, so that `folder` is never incomplete.
fn beside(folder: &Path) -> Result<PathBuf, String> {
    let cache = folder.parent().unwrap_or(folder);
    std::fs::create_dir_all(cache).map_err(|error| format!("{}: {error}", cache.display()))?;
    Ok(cache.join(format!("making-{}", std::process::id())))
}

fn move_into_place(made: &Path, folder: &Path) -> Result<(), String> {
    match std::fs::rename(made, folder) {
        Err(error) if !folder.exists() => Err(format!("{}: {error}", folder.display())),
        Err(_) => {
            std::fs::remove_dir_all(made).map_err(|error| format!("{}: {error}", made.display()))
        }
        Ok(()) => Ok(()),
    }
}
