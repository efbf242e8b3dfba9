//! Tests that documents name: a table whose last column is `test` names tests that exist.

use std::collections::BTreeSet;

use crate::Violation;

/// Names of the functions of a Rust file.
pub(crate) fn functions(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let (_, rest) = line.split_once("fn ")?;
        rest.split(['(', '<']).next()
    })
}

/// Checks one document.
pub(crate) fn check(path: &str, text: &str, functions: &BTreeSet<String>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut names_tests = false;
    let mut in_table = false;
    for (index, line) in text.lines().enumerate() {
        let Some(row) = line.strip_prefix('|') else {
            in_table = false;
            continue;
        };
        let last = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default().trim();
        if !in_table {
            (in_table, names_tests) = (true, last == "test");
            continue;
        }
        // Names stand between backticks: every second part.
        for name in last.split('`').skip(1).step_by(2).filter(|_| names_tests) {
            if !functions.contains(name) {
                let message = format!("there is no test `{name}`; name one that exists");
                violations.push(Violation::new(path, index + 1, message));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_name_tests_that_exist() {
        let known = functions("async fn it_works() {\nfn other<T>(x: T) {\n").map(str::to_owned);
        let known = known.collect();
        let table = "| a | test |\n|---|---|\n| x | `it_works`, `gone` |\n| `y` | `other` |\n";
        let found = check("d.md", table, &known);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 3);
        assert!(found[0].message.contains("`gone`"));
        assert_eq!(check("d.md", "| a | b |\n|---|---|\n| x | `gone` |\n", &known), []);
    }
}
