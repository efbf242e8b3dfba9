//! Rules for text files, and further ones for Rust files.

use crate::Violation;

/// Maximum number of lines of a source file or a document.
const MAX_LINES: usize = 600;

/// Maximum width of a comment line, in columns.
const MAX_COMMENT_COLUMNS: usize = 100;

/// Prefix that names of constants must not have; written in parts, so that this file passes.
const FORBIDDEN_PREFIX: &str = concat!("MO", "ST_");

/// Folders of single computers, on which nothing in the project may depend; written in parts, so
/// that this file passes.
const MACHINE_PATHS: [&str; 3] =
    [concat!("/", "work/"), concat!("/", "root/"), concat!("/", "home/")];

/// Signs of a private registry in a text file.
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
        violations.extend(constant_names(path, text));
    }
    let mark = match extension {
        "rs" | "go" => Some("//"),
        "toml" | "yaml" => Some("#"),
        _ if path == "Makefile" => Some("#"),
        _ => None,
    };
    if let Some(mark) = mark {
        violations.extend(wide_comments(path, text, mark));
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

/// Comment lines, which begin with `mark`, of more than [`MAX_COMMENT_COLUMNS`]. A line that cannot
/// be broken, because it has one word such as a URL, is allowed.
fn wide_comments(path: &str, text: &str, mark: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let comment = line.trim_start();
        let columns = line.chars().count();
        let words = comment.trim_start_matches(['/', '!', '#']).split_whitespace().count();
        if comment.starts_with(mark) && columns > MAX_COMMENT_COLUMNS && words > 1 {
            let message = format!(
                "the comment has {columns} columns, {MAX_COMMENT_COLUMNS} are allowed; break it"
            );
            violations.push(Violation::new(path, index + 1, message));
        }
    }
    violations
}

/// Constants with a name that readers and linters do not expect for an upper bound.
fn constant_names(path: &str, text: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
        let is_constant = matches!(words.next(), Some("const" | "static"));
        let name = words.next().unwrap_or_default();
        if is_constant && name.starts_with(FORBIDDEN_PREFIX) {
            let name = name.trim_end_matches(':');
            let message = format!("`{name}` is an upper bound; begin its name with `MAX_`");
            violations.push(Violation::new(path, index + 1, message));
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
    fn rust_files_open_with_a_module_comment() {
        assert!(found("a.rs", "//! Why.\n").is_empty());
        assert_eq!(found("a.rs", "use std::fmt;\n").len(), 1);
        assert!(found("a.toml", "[package]\n").is_empty());
    }

    #[test]
    fn wide_comment_is_a_violation_unless_it_is_one_word() {
        let word = "x".repeat(60);
        let wide = format!("//! Why.\nfn f() {{\n    // {word} {word}\n}}\n");
        assert_eq!(found("a.rs", &wide)[0].0, 3);
        assert!(found("a.rs", &format!("//! Why.\n/// {word}\n")).is_empty());
        assert!(found("a.rs", &format!("//! Why.\n// https://{word}{word}\n")).is_empty());
        assert_eq!(found("a.rs", &format!("//! | {word} | {word} |\n"))[0].0, 1, "tables too");
        assert!(found("a.rs", &format!("//! Why.\nlet a = \"{word} {word}\";\n")).is_empty());
        for path in ["a.yaml", "Cargo.toml", "Makefile"] {
            assert_eq!(found(path, &format!("a: 1\n# {word} {word}\n"))[0].0, 2, "{path}");
        }
        assert!(found("a.md", &format!("# {word} {word}\n")).is_empty(), "a heading");
    }

    #[test]
    fn constant_with_the_forbidden_prefix_is_a_violation() {
        let source = |item: &str| format!("//! Why.\n{item} {FORBIDDEN_PREFIX}PODS: usize = 1;\n");
        for item in ["const", "pub const", "pub(crate) const", "    static"] {
            let violations = found("a.rs", &source(item));
            assert_eq!(violations.len(), 1, "{item}");
            assert_eq!(violations[0].0, 2);
        }
        assert!(found("a.rs", "//! Why.\nconst MAX_PODS: usize = 1;\n").is_empty());
    }

    #[test]
    fn unbiased_select_is_a_violation() {
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
    fn long_rust_file_is_a_violation_and_long_data_is_not() {
        let long = "//! Why.\n".repeat(601);
        assert_eq!(found("a.rs", &long)[0].0, 601);
        assert!(found("crds/a.yaml", &long).is_empty());
    }

    #[test]
    fn paths_of_one_machine_and_private_registries_are_violations() {
        for path in MACHINE_PATHS {
            assert_eq!(found("notes.md", &format!("one\nsee {path}notes\n"))[0].0, 2);
        }
        assert!(found("a.txt", "/networking/ and homework/ are fine").is_empty());
        let lock = |source: &str| found("Cargo.lock", &format!("source = \"{source}\"\n")).len();
        assert_eq!(lock(PUBLIC_REGISTRY), 0);
        assert_eq!(lock("registry+https://mirror.example.com/index"), 1);
    }
}
