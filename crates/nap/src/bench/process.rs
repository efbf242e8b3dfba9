//! What the system says about this process: memory and time on the core. Linux says it in `/proc`;
//! elsewhere it is unknown.

/// The most memory that was resident since the start or since [`forget_peak`], in MiB.
pub(super) fn peak_mib() -> Option<f64> {
    status_mib("VmHWM:")
}

/// The memory that is resident now, in MiB.
pub(super) fn resident_mib() -> Option<f64> {
    status_mib("VmRSS:")
}

fn status_mib(name: &str) -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024.0)
}

/// Makes the peak start from what is resident now. Where that is not possible the peak is that of
/// the whole run.
pub(super) fn forget_peak() {
    // An error means that the system has no such thing, and the peak is still true, just larger.
    drop(std::fs::write("/proc/self/clear_refs", "5"));
}

/// How long the main thread has been on a core.
pub(super) fn cpu_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    let nanoseconds: f64 = text.split_whitespace().next()?.parse().ok()?;
    Some(nanoseconds / 1e9)
}
