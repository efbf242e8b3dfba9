//! User errors: one line for each problem, then a hint.

use std::fmt;

/// Maximum number of problems that are printed.
const MAX_PROBLEMS: usize = 50;

/// An error with a hint.
#[derive(Debug)]
pub struct UserError {
    message: String,
    /// Further problems of the same input.
    more: Vec<String>,
    hint: String,
    code: u8,
}

impl UserError {
    /// An error of one line, with a hint that says what to do.
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), more: Vec::new(), hint: hint.into(), code: 1 }
    }

    /// An error of one line for each problem.
    pub fn several(mut messages: Vec<String>, hint: impl Into<String>) -> Self {
        let message = if messages.is_empty() { String::new() } else { messages.remove(0) };
        Self { more: messages, ..Self::new(message, hint) }
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
    eprintln!("error: {}", one_line(&format!("{error:#}")));
    if let Some(error) = error.downcast_ref::<UserError>() {
        for problem in error.more.iter().take(MAX_PROBLEMS - 1) {
            eprintln!("error: {}", one_line(problem));
        }
        if error.more.len() >= MAX_PROBLEMS {
            eprintln!("error: and {} more problems", error.more.len() + 1 - MAX_PROBLEMS);
        }
        eprintln!("hint: {}", error.hint);
    } else if let Some(hint) = error.chain().find_map(hint_of) {
        eprintln!("hint: {hint}");
    }
}

/// The hint of an error of the Azure provider.
fn hint_of(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    cause.downcast_ref::<nap_azure::AzureError>()?.hint()
}

fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

/// Exit code of the process for an error.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    error.downcast_ref::<UserError>().map_or(1, |error| error.code)
}
