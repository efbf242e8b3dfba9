//! Memory and CPU time of this process, from `/proc`; `None` on systems without it.

/// Peak resident memory since the start or since [`forget_peak`], in MiB.
pub(super) fn peak_mib() -> Option<f64> {
    status_mib("VmHWM:")
}

/// Resident memory, in MiB.
pub(super) fn resident_mib() -> Option<f64> {
    status_mib("VmRSS:")
}

fn status_mib(name: &str) -> Option<f64> {
    status_mib_of(std::process::id(), name)
}

/// A line of a process's status, such as `VmRSS:`, in MiB.
pub(super) fn status_mib_of(process: u32, name: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024.0)
}

/// Resets the peak to the current resident memory, where the system can.
pub(super) fn forget_peak() {
    // On an error the peak stays that of the whole run, which is an upper bound.
    drop(std::fs::write("/proc/self/clear_refs", "5"));
}

/// CPU time of all threads of a process, in seconds.
pub(super) fn cpu_seconds_of(process: u32) -> Option<f64> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let mut nanoseconds = 0.0;
    for thread in threads {
        let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        nanoseconds += text.split_whitespace().next()?.parse::<f64>().ok()?;
    }
    Some(nanoseconds / 1e9)
}

/// CPU time of the main thread, in seconds.
pub(super) fn cpu_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    let nanoseconds: f64 = text.split_whitespace().next()?.parse().ok()?;
    Some(nanoseconds / 1e9)
}
