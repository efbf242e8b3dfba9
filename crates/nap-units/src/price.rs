//! Money: integer micro-dollars per hour, so that sums of prices are exact and comparable.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

/// A price in micro-dollars per hour.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct UsdPerHour(i64);

impl UsdPerHour {
    /// No cost at all.
    pub const ZERO: Self = Self(0);

    /// A price given in millionths of a dollar per hour.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Millionths of a dollar per hour.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Reads a decimal number of dollars (`0.096`), rounding half up to a micro-dollar. `None` if
    /// it is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(fraction) {
            return None;
        }
        let whole: i64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        let mut micros: i64 = 0;
        for position in 0..6 {
            let digit = fraction.as_bytes().get(position).map_or(0, |byte| i64::from(byte - b'0'));
            micros = micros * 10 + digit;
        }
        if fraction.as_bytes().get(6).is_some_and(|byte| *byte >= b'5') {
            micros += 1;
        }
        whole.checked_mul(1_000_000)?.checked_add(micros).map(Self)
    }

    /// The cost of having this for `seconds`, in micro-dollars.
    pub fn cost_micros(self, seconds: i64) -> i64 {
        let exact = i128::from(self.0) * i128::from(seconds) / 3600;
        i64::try_from(exact).unwrap_or(i64::MAX)
    }

    /// The price for a month of 730 hours.
    #[must_use]
    pub fn per_month(self) -> Self {
        Self(self.0.saturating_mul(730))
    }
}

impl fmt::Display for UsdPerHour {
    /// Dollars with four significant digits, and at least three and at most six decimals: `$0.192`,
    /// `$0.0416`, `$12.346`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let micros = self.0.unsigned_abs();
        // Zeros after the point go before the significant digits.
        let decimals = match micros {
            0..10_000 => 6,
            10_000..100_000 => 5,
            100_000..1_000_000 => 4,
            1_000_000.. => 3,
        };
        let unit = 10_u64.pow(6 - decimals);
        let micros = micros.saturating_add(unit / 2) / unit * unit;
        let mut fraction = format!("{:06}", micros % 1_000_000);
        while fraction.len() > 3 && fraction.ends_with('0') {
            fraction.pop();
        }
        write!(f, "{sign}${}.{fraction}", micros / 1_000_000)
    }
}

impl Add for UsdPerHour {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for UsdPerHour {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for UsdPerHour {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Sum for UsdPerHour {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_shown_with_four_significant_digits() {
        for (micros, shown) in [
            (645_585, "$0.6456"),
            (18_917, "$0.01892"),
            (1_234, "$0.001234"),
            (12_345_600, "$12.346"),
            (108_160_000, "$108.160"),
            (999_960, "$1.000"),
            (-80_449, "-$0.08045"),
        ] {
            assert_eq!(UsdPerHour::from_micros(micros).to_string(), shown);
        }
    }

    #[test]
    fn prices_are_read_and_shown_exactly() {
        for (text, micros, shown) in [
            ("0.096", 96_000, "$0.096"),
            ("0.0416", 41_600, "$0.0416"),
            ("12", 12_000_000, "$12.000"),
            (".5", 500_000, "$0.500"),
            ("0.0000015", 2, "$0.000002"),
        ] {
            let price = UsdPerHour::parse(text).unwrap();
            assert_eq!(price.micros(), micros, "{text}");
            assert_eq!(price.to_string(), shown);
        }
        for bad in ["", ".", "-1", "1e3", "abc", "1.2.3", "99999999999999999999"] {
            assert_eq!(UsdPerHour::parse(bad), None, "{bad}");
        }
    }
}
