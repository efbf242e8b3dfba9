//! Dependency rules: the arrows between crates of the workspace, and banned crates.

use std::collections::BTreeSet;

use crate::Violation;
use crate::workspace::{Dependency, Package, Workspace};

/// Allowed dependencies between crates of the workspace. A new arrow needs a decision record.
const ARROWS: &[(&str, &[&str])] = &[
    ("nap-clock", &[]),
    ("nap-units", &[]),
    ("nap-api", &["nap-units"]),
    ("nap-engine", &["nap-units", "nap-api"]),
    ("nap-oracle", &["nap-units", "nap-api", "nap-engine"]),
    ("nap-problem", &["nap-units", "nap-api", "nap-engine"]),
    ("nap-cloud", &["nap-units", "nap-api", "nap-engine"]),
    ("nap-azure", &["nap-clock", "nap-units", "nap-api", "nap-engine", "nap-cloud"]),
    ("nap-controllers", &["nap-clock", "nap-units", "nap-api", "nap-engine", "nap-cloud"]),
    ("nap-apiserver", &["nap-clock", "nap-units"]),
    ("nap-kubelets", &["nap-clock", "nap-units", "nap-api"]),
    ("nap-controlplane-build", &[]),
    ("nap-conformance", &["nap-clock", "nap-controlplane-build"]),
    (
        "nap-controlplane",
        &[
            "nap-controlplane-build",
            "nap-clock",
            "nap-units",
            "nap-api",
            "nap-engine",
            "nap-controllers",
        ],
    ),
    (
        "nap-sim",
        &[
            "nap-clock",
            "nap-units",
            "nap-api",
            "nap-engine",
            "nap-oracle",
            "nap-cloud",
            "nap-azure",
            "nap-controllers",
            "nap-apiserver",
            "nap-kubelets",
        ],
    ),
    ("xtask", &["nap-api"]),
];

/// The binary, which may use every crate.
const BINARY: &str = "nap";

/// Crates that the tests of every crate may use: the oracle, the problems, and the simulated world.
/// Any other dependency of a test needs an arrow of its crate.
const FOR_TESTS: &[&str] = &[
    "nap-oracle",
    "nap-problem",
    "nap-apiserver",
    "nap-kubelets",
    "nap-sim",
    "nap-controlplane",
    "nap-controlplane-build",
];

/// Crates that must not be direct dependencies, with their replacements.
const BANNED: &[(&str, &str)] = &[
    ("actix-web", "axum"),
    ("ahash", "BTreeMap, whose order is the same everywhere"),
    ("async-std", "tokio"),
    ("chrono", "jiff"),
    ("cron", "the schedules of nap-api"),
    ("croner", "the schedules of nap-api"),
    ("dashmap", "a BTreeMap with one owner"),
    ("env_logger", "tracing-subscriber"),
    ("eyre", "anyhow in binaries, thiserror in libraries"),
    ("humantime", "jiff, or the durations of nap-api"),
    ("kube_quantity", "nap_units::Quantity"),
    ("lazy_static", "std::sync::LazyLock"),
    ("log", "tracing"),
    ("metrics", "prometheus-client"),
    ("mockito", "a service in the same process"),
    ("native-tls", "rustls with ring"),
    ("once_cell", "std::sync::OnceLock"),
    ("openssl", "rustls with ring"),
    ("prometheus", "prometheus-client"),
    ("reqwest", "hyper-util"),
    ("serde_norway", "serde-saphyr"),
    ("serde_yaml", "serde-saphyr"),
    ("serde_yaml_ng", "serde-saphyr"),
    ("serde_yml", "serde-saphyr"),
    ("slog", "tracing"),
    ("snafu", "thiserror"),
    ("structopt", "clap"),
    ("time", "jiff"),
    ("warp", "axum"),
    ("wiremock", "a service in the same process"),
    ("yaml-rust", "serde-saphyr"),
];

/// Crates of [`BANNED`] that tests may use as a reference.
const TO_COMPARE_WITH: &[&str] = &["croner"];

/// Checks every direct dependency of every package, and every row of [`ARROWS`].
pub(crate) fn check(workspace: &Workspace) -> Vec<Violation> {
    let members: Vec<&str> =
        workspace.packages.iter().map(|package| package.name.as_str()).collect();
    let packages = workspace.packages.iter();
    let mut violations: Vec<Violation> =
        packages.flat_map(|package| check_package(package, &members)).collect();
    violations.extend(dead_arrows(ARROWS, &members));
    violations
}

/// Names in the table of arrows that are not crates of the workspace.
fn dead_arrows(arrows: &[(&str, &[&str])], members: &[&str]) -> Vec<Violation> {
    let names = arrows.iter().flat_map(|(name, targets)| std::iter::once(name).chain(*targets));
    let dead: BTreeSet<&&str> = names.filter(|name| !members.contains(name)).collect();
    let violation = |name: &&str| {
        let message = format!("dead arrow: there is no crate `{name}`; remove it from the table");
        Violation::new("xtask/src/dependencies.rs", 1, message)
    };
    dead.into_iter().map(violation).collect()
}

fn check_package(package: &Package, members: &[&str]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let arrows = ARROWS.iter().find(|(name, _)| *name == package.name).map(|(_, arrows)| *arrows);
    if arrows.is_none() && package.name != BINARY {
        let message =
            format!("`{}` has no row in the table of arrows; add one to xtask", package.name);
        violations.push(Violation::new(&package.manifest, 1, message));
    }
    for Dependency { name, dev } in &package.dependencies {
        let compared = *dev && TO_COMPARE_WITH.contains(&name.as_str());
        if let Some((_, instead)) = BANNED.iter().find(|(banned, _)| banned == name && !compared) {
            let message = format!("`{name}` does a job that is taken; use {instead}");
            violations.push(Violation::new(&package.manifest, 1, message));
        }
        let allowed = package.name == BINARY
            || arrows.is_none_or(|arrows| arrows.contains(&name.as_str()))
            || (*dev && FOR_TESTS.contains(&name.as_str()))
            || *name == package.name;
        if members.contains(&name.as_str()) && !allowed {
            let message = format!(
                "`{}` may not use `{name}`; move the code, or decide on a new arrow",
                package.name
            );
            violations.push(Violation::new(&package.manifest, 1, message));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(name: &str, dependencies: &[(&str, bool)]) -> Vec<String> {
        let dependencies = dependencies
            .iter()
            .map(|(name, dev)| Dependency { name: (*name).to_owned(), dev: *dev })
            .collect();
        let package =
            Package { name: name.to_owned(), manifest: "Cargo.toml".to_owned(), dependencies };
        let members = ["nap", "nap-api", "nap-azure", "nap-controllers", "nap-sim", "nap-units"];
        check_package(&package, &members).into_iter().map(|violation| violation.message).collect()
    }

    #[test]
    fn dependency_without_arrow_is_a_violation() {
        assert!(messages("nap-api", &[("nap-units", false), ("serde", false)]).is_empty());
        assert_eq!(
            messages("nap-controllers", &[("nap-azure", false)]),
            ["`nap-controllers` may not use `nap-azure`; move the code, or decide on a new arrow"]
        );
        assert_eq!(
            messages("nap-controllers", &[("nap-azure", true)]).len(),
            1,
            "tests obey the same arrows"
        );
        assert!(
            messages("nap-controllers", &[("nap-sim", true)]).is_empty(),
            "except for the world they run in"
        );
        assert_eq!(messages("nap-controllers", &[("nap-sim", false)]).len(), 1);
        assert!(messages("nap", &[("nap-sim", false)]).is_empty());
        assert_eq!(
            messages("nap-new", &[]),
            ["`nap-new` has no row in the table of arrows; add one to xtask"]
        );
    }

    #[test]
    fn arrow_of_a_missing_crate_is_a_violation() {
        let arrows: &[(&str, &[&str])] = &[("a", &[]), ("b", &["a", "gone"]), ("old", &["gone"])];
        let dead: Vec<String> = dead_arrows(arrows, &["a", "b"])
            .into_iter()
            .map(|violation| violation.message)
            .collect();
        assert_eq!(
            dead,
            ["gone", "old"].map(|name| format!(
                "dead arrow: there is no crate `{name}`; remove it from the table"
            ))
        );
        assert!(dead_arrows(arrows, &["a", "b", "gone", "old"]).is_empty());
    }

    #[test]
    fn banned_dependency_is_a_violation() {
        assert_eq!(
            messages("nap-api", &[("chrono", false)]),
            ["`chrono` does a job that is taken; use jiff"]
        );
        assert_eq!(messages("nap-api", &[("serde_yaml", true)]).len(), 1);
        assert_eq!(messages("nap-api", &[("croner", false), ("croner", true)]).len(), 1);
    }
}
