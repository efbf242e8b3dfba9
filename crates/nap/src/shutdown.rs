//! Shutdown signals.

use tokio::signal::unix::{SignalKind, signal};

/// Waits for SIGINT (Ctrl-C) or SIGTERM.
pub async fn interrupted() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        biased;
        result = tokio::signal::ctrl_c() => result?,
        _ = terminate.recv() => {}
    }
    Ok(())
}
