//! Faults of the emulated Azure in `nap try`: a plan file, and lines that are typed.

use std::convert::Infallible;
use std::io::{BufRead as _, IsTerminal as _};
use std::path::Path;

use nap_sim::azure::Emulator;
use tokio::sync::mpsc;

use crate::user_error::UserError;

/// Maximum number of typed lines that wait.
const MAX_LINES: usize = 16;

/// Schedules the faults of a plan file.
pub(super) fn schedule_file(emulator: &Emulator, file: Option<&Path>) -> anyhow::Result<()> {
    let Some(file) = file else { return Ok(()) };
    let shown = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| {
        let message = format!("--faults {shown}: {error}");
        UserError::new(message, "name a file with a fault plan, as in examples/faults.plan")
    })?;
    let count = emulator.schedule_faults(&text).map_err(|error| {
        let message = format!("{shown}:{}: {}", error.line, error.message);
        UserError::new(
            message,
            "docs/faults.md describes the fields, examples/faults.plan has some",
        )
    })?;
    println!("{count} fault(s) of {shown} are scheduled.");
    Ok(())
}

/// Injects the faults of typed lines. The end of the input ends nothing.
pub(super) async fn typed(emulator: &Emulator) -> Infallible {
    if std::io::stdin().is_terminal() && is_in_background() {
        // A read would stop the process until it is in the foreground.
        return std::future::pending().await;
    }
    let (lines, mut typed) = mpsc::channel(MAX_LINES);
    // A thread of its own: a blocking read of tokio's would keep the runtime from ending.
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if lines.blocking_send(line).is_err() {
                return;
            }
        }
    });
    while let Some(line) = typed.recv().await {
        match line.trim() {
            "" => {}
            "clear" => {
                emulator.clear_faults();
                println!("fault: all ended");
            }
            line => match emulator.schedule_fault(line) {
                Ok(()) => println!("fault: scheduled"),
                Err(message) => println!("fault: not understood: {message}"),
            },
        }
    }
    std::future::pending().await
}

/// Whether another process group has the terminal, as after `nap try &`. False where Linux's
/// process table is not there to tell.
fn is_in_background() -> bool {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name in parentheses: state, parent, process group, session, terminal, its group.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split(' ').collect();
    match (fields.get(3), fields.get(6)) {
        (Some(own), Some(foreground)) => own != foreground,
        _ => false,
    }
}
