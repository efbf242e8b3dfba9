//! Stages of the engine: which module of `nap-engine` may use which.
//!
//! The stages are in a total order, and each may use only itself and the ones before it. Tests are
//! checked like all other code.

use crate::Violation;

/// Folder with the sources of the engine.
const SOURCES: &str = "crates/nap-engine/src/";

/// The stages, lowest first.
const STAGES: [&str; 14] = [
    "ids",
    "intern",
    "simplex",
    "model",
    "topology",
    "classes",
    "offerings",
    "packing",
    "optimize",
    "plan",
    "explain",
    "solve",
    "consolidate",
    "remedy",
];

/// Checks one file: every `crate::stage` in it must name its own stage or an earlier one.
pub(crate) fn check(path: &str, text: &str) -> Vec<Violation> {
    let Some(own) = stage_of(path) else { return Vec::new() };
    let Some(position) = STAGES.iter().position(|stage| *stage == own) else {
        let message = format!("`{own}` is no stage of the engine: add it to xtask/src/stages.rs");
        return vec![Violation::new(path, 1, message)];
    };
    let mut violations = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for used in used_stages(line) {
            let message = if used.is_empty() {
                "name one stage for each `use crate::`, so that the order is checked".to_owned()
            } else if STAGES[position + 1..].contains(&used) {
                format!("stage `{own}` must not use `{used}`, which comes later")
            } else {
                continue;
            };
            violations.push(Violation::new(path, number + 1, message));
        }
    }
    violations
}

/// The stage of a file: the first part of its path below the sources. `None` for other files and
/// for `lib.rs`, which declares the stages.
fn stage_of(path: &str) -> Option<&str> {
    let inside = path.strip_prefix(SOURCES)?;
    let first = inside.split('/').next()?;
    let stage = first.strip_suffix(".rs").unwrap_or(first);
    (stage != "lib").then_some(stage)
}

/// The names that follow `crate::` in a line of code; comments are left out.
fn used_stages(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split("//").next().unwrap_or_default();
    code.split("crate::").skip(1).map(|rest| {
        let end = rest.find(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
        &rest[..end.unwrap_or(rest.len())]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(path, text).into_iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn a_stage_may_use_itself_and_earlier_ones() {
        let path = "crates/nap-engine/src/packing/bins.rs";
        let text = "use crate::packing::bin_queue::Cursor;\nuse crate::classes::Class;\n";
        assert_eq!(lines(path, text), [0; 0]);
    }

    #[test]
    fn a_stage_must_not_use_later_ones() {
        let path = "crates/nap-engine/src/packing/bins.rs";
        let text = "use crate::ids::BinId;\nuse crate::optimize::portfolio::Score;\n";
        assert_eq!(lines(path, text), [2]);
        let inline = "fn now(plan: &crate::plan::launches::LaunchWriter<'_, '_>) {}\n";
        assert_eq!(lines("crates/nap-engine/src/simplex.rs", inline), [1]);
    }

    #[test]
    fn a_list_of_stages_in_one_use_is_reported() {
        let text = "use crate::{ids, plan};\n";
        assert_eq!(lines("crates/nap-engine/src/model/mod.rs", text), [1]);
    }

    #[test]
    fn comments_and_other_crates_are_not_checked() {
        let text = "/// See [`crate::solve`].\n";
        assert_eq!(lines("crates/nap-engine/src/ids.rs", text), [0; 0]);
        let other = "use crate::optimize::Score;\n";
        assert_eq!(lines("crates/nap-azure/src/packing.rs", other), [0; 0]);
        assert_eq!(lines("crates/nap-engine/src/lib.rs", other), [0; 0]);
    }

    #[test]
    fn a_module_outside_the_table_is_reported() {
        assert_eq!(lines("crates/nap-engine/src/helpers/mod.rs", ""), [1]);
    }
}
