//! Standard output, in one place. A reader that has gone ends the command quietly, and output that
//! cannot be written is an error, in every subcommand.

use std::fmt;
use std::io::{ErrorKind, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

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

/// Writes to standard output.
pub fn write(arguments: fmt::Arguments<'_>) {
    let mut stdout = std::io::stdout().lock();
    if let Err(error) = stdout.write_fmt(arguments).and_then(|()| stdout.flush()) {
        failed(&error);
    }
}

fn failed(error: &std::io::Error) {
    if OUTLIVES_READER.load(Ordering::Relaxed) {
        return;
    }
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    eprintln!("error: standard output cannot be written: {error}");
    eprintln!("hint: see whether the disk is full, or write elsewhere");
    std::process::exit(1);
}
