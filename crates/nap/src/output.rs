//! Standard output, in one place. A reader that has gone ends the command quietly, and output that
//! cannot be written is an error, in every subcommand.

use std::fmt;
use std::io::{ErrorKind, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::user_error::UserError;

/// Whether the command goes on without a reader: a cluster that others use.
static OUTLIVES_READER: AtomicBool = AtomicBool::new(false);

/// Instead of the macros of the standard library, which panic if the reader has gone.
macro_rules! println {
    () => { $crate::output::write(format_args!("\n")) };
    ($($arguments:tt)*) => { $crate::output::write(format_args!("{}\n", format_args!($($arguments)*))) };
}

/// Lets the command go on although nobody reads its output.
pub fn outlive_reader() {
    OUTLIVES_READER.store(true, Ordering::Relaxed);
}

/// Writes to standard output. Ends the process if nobody reads it or it cannot be written.
pub fn write(arguments: fmt::Arguments<'_>) {
    if let Err(error) = try_write(arguments) {
        failed(&error);
    }
}

/// Writes the last text of a command, whose exit code may still follow. A reader that has gone is
/// no error.
pub fn write_last(text: &str) -> anyhow::Result<()> {
    match try_write(format_args!("{text}")) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(UserError::new(message(&error), HINT).into())
        }
        _ => Ok(()),
    }
}

fn try_write(arguments: fmt::Arguments<'_>) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_fmt(arguments).and_then(|()| stdout.flush())
}

const HINT: &str = "see whether the disk is full, or write elsewhere";

fn message(error: &std::io::Error) -> String {
    format!("standard output cannot be written: {error}")
}

fn failed(error: &std::io::Error) {
    if OUTLIVES_READER.load(Ordering::Relaxed) {
        return;
    }
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    eprintln!("error: {}", message(error));
    eprintln!("hint: {HINT}");
    std::process::exit(1);
}
