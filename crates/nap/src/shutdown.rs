//! Shutdown signals.

use tokio::signal::unix::{SignalKind, signal};

/// Listens from now on for SIGINT (Ctrl-C) and SIGTERM; the future ends with the first.
pub fn interrupted() -> anyhow::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            biased;
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
