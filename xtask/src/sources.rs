//! What every text file must keep to, and Rust files besides.

use crate::Violation;

/// The most lines of a source file or a document.
const MAX_LINES: usize = 600;

/// Folders of machines that people work on; nothing in the project may depend on them. Written in
/// parts, so that this file passes.
const MACHINE_PATHS: [&str; 3] =
    [concat!("/", "work/"), concat!("/", "root/"), concat!("/", "home/")];

/// How a private registry shows itself in a text file.
const REGISTRY_SIGNS: [&str; 3] =
    [concat!("sparse", "+http"), concat!("[regis", "tries."), concat!("replace-", "with")];

/// The only registry that the lock file may name.
const PUBLIC_REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Checks one file.
pub(crate) fn check(path: &str, text: &str) -> Vec<Violation> {
    let mut violations = machine_traces(path, text);
    let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
    if matches!(extension, "rs" | "md") {
        violations.extend(length(path, text));
    }
    if extension == "rs" {
        violations.extend(opening(path, text));
        violations.extend(unbiased_selects(path, text));
    }
    violations
}

fn machine_traces(path: &str, text: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut found = |message: String| violations.push(Violation::new(path, index + 1, message));
        for machine_path in MACHINE_PATHS.iter().filter(|machine_path| line.contains(*machine_path))
        {
            found(format!(
                "`{machine_path}` is a path of one machine; use a relative path or a parameter"
            ));
        }
        if REGISTRY_SIGNS.iter().any(|sign| line.contains(sign)) {
            found(
                "a private registry is named here; keep it in your own cargo configuration"
                    .to_owned(),
            );
        }
        let source = line.strip_prefix("source = \"").filter(|_| path.ends_with("Cargo.lock"));
        if source.is_some_and(|source| source.trim_end_matches('"') != PUBLIC_REGISTRY) {
            found(
                "only crates.io may be locked; make the lock file again without a mirror"
                    .to_owned(),
            );
        }
    }
    violations
}

fn length(path: &str, text: &str) -> Option<Violation> {
    let lines = text.lines().count();
    let message =
        format!("{lines} lines are more than {MAX_LINES}; split the file by what it knows");
    (lines > MAX_LINES).then(|| Violation::new(path, MAX_LINES + 1, message))
}

fn opening(path: &str, text: &str) -> Option<Violation> {
    let message = "the file does not open with `//!`; say first why it exists";
    (!text.starts_with("//!")).then(|| Violation::new(path, 1, message))
}

/// A `select!` that is not biased picks a branch at random.
fn unbiased_selects(path: &str, text: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (start, name) in text.match_indices("select!") {
        let before = text.get(..start).unwrap_or_default();
        let line_so_far = before.rsplit('\n').next().unwrap_or_default();
        let after = text.get(start + name.len()..).unwrap_or_default().trim_start();
        let is_comment = line_so_far.trim_start().starts_with("//");
        let Some(body) = after.strip_prefix('{') else { continue };
        if !is_comment && !body.trim_start().starts_with("biased;") {
            let line = before.matches('\n').count() + 1;
            let message = "`select!` picks a branch at random; begin its body with `biased;`";
            violations.push(Violation::new(path, line, message));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        check(path, text).into_iter().map(|violation| (violation.line, violation.message)).collect()
    }

    #[test]
    fn rust_files_say_why_they_exist() {
        assert!(found("a.rs", "//! Why.\n").is_empty());
        assert_eq!(found("a.rs", "use std::fmt;\n").len(), 1);
        assert!(found("a.toml", "[package]\n").is_empty());
    }

    #[test]
    fn selects_are_biased() {
        let source = |body: &str| {
            format!("//! Why.\nfn f() {{\n    tokio::{} {{\n        {body} }}\n}}\n", "select!")
        };
        assert!(found("a.rs", &source("biased;")).is_empty());
        let violations = found("a.rs", &source("x = y => {}"));
        assert_eq!(violations.len(), 1);
        assert_eq!(violations[0].0, 3);
        assert!(found("a.rs", &format!("//! Why `{} {{}}` is banned.\n", "select!")).is_empty());
    }

    #[test]
    fn long_files_are_split_but_data_is_not() {
        let long = "//! Why.\n".repeat(601);
        assert_eq!(found("a.rs", &long)[0].0, 601);
        assert!(found("crds/a.yaml", &long).is_empty());
    }

    #[test]
    fn machines_leave_no_traces() {
        for path in MACHINE_PATHS {
            assert_eq!(found("notes.md", &format!("one\nsee {path}notes\n"))[0].0, 2);
        }
        assert!(found("a.txt", "/networking/ and homework/ are fine").is_empty());
        let lock = |source: &str| found("Cargo.lock", &format!("source = \"{source}\"\n")).len();
        assert_eq!(lock(PUBLIC_REGISTRY), 0);
        assert_eq!(lock("registry+https://mirror.example.com/index"), 1);
    }
}
