//! User errors: one line, then a hint.

use std::fmt;

/// An error with a hint.
#[derive(Debug)]
pub struct UserError {
    message: String,
    hint: String,
}

impl UserError {
    /// An error of one line, with a hint that says what to do.
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into() }
    }
}

impl fmt::Display for UserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for UserError {}

/// Prints an error to stderr.
pub fn print(error: &anyhow::Error) {
    let line = format!("{error:#}").replace('\n', " ");
    eprintln!("error: {line}");
    if let Some(error) = error.downcast_ref::<UserError>() {
        eprintln!("hint: {}", error.hint);
    }
}
