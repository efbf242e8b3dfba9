//! Kubernetes quantities, exactly as far as an API server needs them: is it one, what is its
//! canonical spelling, and which of two is larger.

/// Billionths, the finest unit a quantity has.
const NANO: i128 = 1_000_000_000;

const BINARY: [(&str, u32); 6] =
    [("Ei", 60), ("Pi", 50), ("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
/// Suffix and power of ten, largest first.
const DECIMAL: [(&str, i32); 10] = [
    ("E", 18),
    ("P", 15),
    ("T", 12),
    ("G", 9),
    ("M", 6),
    ("k", 3),
    ("", 0),
    ("m", -3),
    ("u", -6),
    ("n", -9),
];

enum Format {
    Decimal,
    Binary,
    Exponent,
}

/// The value in billionths, rounded up as the real parser does.
pub(crate) fn nanos(text: &str) -> Option<i128> {
    parse(text).map(|(nanos, _)| nanos)
}

/// The spelling the API server stores.
pub(crate) fn canonical(text: &str) -> Option<String> {
    let (nanos, format) = parse(text)?;
    if nanos == 0 {
        return Some("0".to_owned());
    }
    let whole = (nanos % NANO == 0).then_some(nanos / NANO);
    if let (Format::Binary, Some(whole)) = (&format, whole)
        && whole.abs() >= 1024
    {
        let fitting = BINARY.iter().find(|(_, bits)| whole % (1_i128 << bits) == 0);
        return Some(match fitting {
            Some((suffix, bits)) => format!("{}{suffix}", whole >> bits),
            None => whole.to_string(),
        });
    }
    DECIMAL.iter().find_map(|(suffix, power)| {
        let unit = 10_i128.checked_pow(u32::try_from(power + 9).ok()?)?;
        (nanos % unit == 0).then(|| match (&format, *power) {
            (Format::Exponent, power) if power != 0 => format!("{}e{power}", nanos / unit),
            _ => format!("{}{suffix}", nanos / unit),
        })
    })
}

fn parse(text: &str) -> Option<(i128, Format)> {
    let split = text
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-')))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(split)?;
    let (unit, power, format) =
        if let Some((_, bits)) = BINARY.iter().find(|(name, _)| *name == suffix) {
            (1_i128 << bits, 0, Format::Binary)
        } else if let Some((_, power)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
            (1, *power, Format::Decimal)
        } else {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            (1, exponent.parse().ok()?, Format::Exponent)
        };
    let (negative, digits) = match number.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = power + 9 - i32::try_from(fraction.len()).ok()?;
    let scaled = mantissa.checked_mul(unit)?;
    let nanos = if scale >= 0 {
        scaled.checked_mul(10_i128.checked_pow(scale.unsigned_abs())?)?
    } else {
        let divisor = 10_i128.checked_pow(scale.unsigned_abs())?;
        scaled / divisor + i128::from(scaled % divisor != 0)
    };
    Some((if negative { -nanos } else { nanos }, format))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_become_canonical() {
        for (given, expected) in [
            ("0.5", "500m"),
            ("1000m", "1"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("512", "512"),
            ("1000", "1k"),
            ("1e3", "1e3"),
            ("0", "0"),
            ("100Mi", "100Mi"),
            ("-1", "-1"),
            ("0.5Ki", "512"),
            ("3n", "3n"),
        ] {
            assert_eq!(canonical(given).as_deref(), Some(expected), "{given}");
        }
        for wrong in ["", "abc", "1.2.3", "1Zi", "1 Gi", "--1", "."] {
            assert_eq!(canonical(wrong), None, "{wrong}");
        }
        assert!(nanos("1Gi") > nanos("1G"));
    }
}
