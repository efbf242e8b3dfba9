//! Ages as kubectl prints them: two units at most, coarser with time.

/// Age of `text`, an RFC 3339 time, as kubectl prints it.
pub(super) fn since(text: &str, now: jiff::Timestamp) -> String {
    if text.is_empty() {
        return "<unknown>".to_owned();
    }
    match text.parse::<jiff::Timestamp>() {
        Ok(then) => human(now.as_second() - then.as_second()),
        Err(_) => "<invalid>".to_owned(),
    }
}

/// A duration in seconds.
pub(super) fn human(seconds: i64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let pair = |large: i64, unit: &str, small: i64, small_unit: &str| {
        if small == 0 {
            format!("{large}{unit}")
        } else {
            format!("{large}{unit}{small}{small_unit}")
        }
    };
    match seconds {
        i64::MIN..=-2 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        _ if seconds < 120 => format!("{seconds}s"),
        _ if minutes < 10 => pair(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => pair(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 24 * 8 => pair(hours / 24, "d", hours % 24, "h"),
        _ if hours < 24 * 365 * 2 => format!("{}d", hours / 24),
        _ if hours < 24 * 365 * 8 => pair(hours / 24 / 365, "y", hours / 24 % 365, "d"),
        _ => format!("{}y", hours / 24 / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_in_kubectl() {
        for (seconds, expected) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (3600, "60m"),
            (4 * 3600 + 60, "4h1m"),
            (47 * 3600, "47h"),
            (50 * 3600, "2d2h"),
            (400 * 86400, "400d"),
            (800 * 86400, "2y70d"),
        ] {
            assert_eq!(human(seconds), expected);
        }
    }
}
