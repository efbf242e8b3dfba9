//! User errors: one line, then a hint.

use std::fmt;

/// An error with a hint.
#[derive(Debug)]
pub struct UserError {
    message: String,
    hint: String,
    code: u8,
}

impl UserError {
    /// An error of one line, with a hint that says what to do.
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into(), code: 1 }
    }

    /// The same error with another exit code of the process than 1.
    #[must_use]
    pub fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
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

/// Exit code of the process for an error.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    error.downcast_ref::<UserError>().map_or(1, |error| error.code)
}
