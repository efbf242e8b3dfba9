//! Tidy checks and generated files.
//!
//! - `cargo run -p xtask -- tidy`: checks that compilers and linters do not make. Prints one line
//!   per violation and fails if there is one.
//! - `cargo run -p xtask -- generate`: writes the generated files. `tidy` fails if one of them is
//!   stale.
//! - `cargo run -p xtask -- image BINARY CA_ROOTS TAG ARCHIVE`: writes a container image.

mod dependencies;
mod generate;
mod image;
mod named_tests;
mod sources;
mod stages;
mod workspace;

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::workspace::Workspace;

/// A violation of a tidy check.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    path: String,
    line: usize,
    /// The problem and its remedy.
    message: String,
}

impl Violation {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let workspace = || Workspace::load().context("reading the workspace");
    match arguments.as_slice() {
        ["tidy"] => {
            let violations = tidy(&workspace()?)?;
            for Violation { path, line, message } in &violations {
                println!("{path}:{line}: {message}");
            }
            Ok(if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        ["generate"] => {
            for path in generate::write(&workspace()?.root)? {
                println!("{path}");
            }
            Ok(ExitCode::SUCCESS)
        }
        ["image", binary, roots, tag, archive] => {
            let image = image::Parts::read(binary.as_ref(), roots.as_ref(), tag)?.archive()?;
            std::fs::write(archive, &image).with_context(|| (*archive).to_owned())?;
            println!("{archive}: {tag}, {} bytes", image.len());
            Ok(ExitCode::SUCCESS)
        }
        _ => {
            eprintln!(
                "usage: cargo run -p xtask -- tidy|generate|image BINARY CA_ROOTS TAG ARCHIVE"
            );
            Ok(ExitCode::from(2))
        }
    }
}

fn tidy(workspace: &Workspace) -> Result<Vec<Violation>> {
    let mut violations = dependencies::check(workspace);
    let mut functions = BTreeSet::new();
    let mut documents = Vec::new();
    for path in &workspace.files {
        let Some(text) = workspace.read(path)? else { continue };
        violations.extend(sources::check(path, &text));
        violations.extend(stages::check(path, &text));
        match path.rsplit_once('.').map_or("", |(_, extension)| extension) {
            "rs" => functions.extend(named_tests::functions(&text).map(str::to_owned)),
            "md" => documents.push((path, text)),
            _ => {}
        }
    }
    for (path, text) in &documents {
        violations.extend(named_tests::check(path, text, &functions));
    }
    violations.extend(generate::check(&workspace.root)?);
    violations.sort();
    Ok(violations)
}
