//! Kubernetes quantities: exact, all suffixes and exponents, no floats.
//!
//! A quantity is an integer count of nanos (the finest unit that Kubernetes keeps) and the format
//! it was written in, which decides how it prints. Finer digits round away from zero, as Kubernetes
//! does, and what leaves the range of a 64-bit integer saturates there.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Rounding;

const NANOS: i128 = 1_000_000_000;
/// The largest magnitude: Kubernetes caps quantities at the 64-bit maximum.
const MAX_NANOS: i128 = i64::MAX as i128 * NANOS;

/// Notation of a quantity, kept for printing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `Ki`, `Mi`, `Gi` …
    BinarySi,
    /// `m`, none, `k`, `M` …
    DecimalSi,
    /// `e3`, `E6` …
    DecimalExponent,
}

/// An exact amount such as `100m`, `1.5Gi` or `1e3`. Equality and order go by value: `1` equals
/// `1000m`.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

/// Text that is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a quantity: {why}")]
pub struct ParseQuantityError {
    text: String,
    why: &'static str,
}

impl Quantity {
    /// Thousandths, as CPU is counted; prints as `1500m` or `2`.
    pub const fn from_milli(milli: i64) -> Self {
        Self { nanos: milli as i128 * 1_000_000, format: Format::DecimalSi }
    }

    /// Whole units; prints as a decimal number.
    pub const fn from_units(units: i64) -> Self {
        Self { nanos: units as i128 * NANOS, format: Format::DecimalSi }
    }

    /// Bytes; prints with a binary suffix where it divides evenly.
    pub const fn from_bytes(bytes: i64) -> Self {
        Self { nanos: bytes as i128 * NANOS, format: Format::BinarySi }
    }

    /// The amount in thousandths.
    pub fn to_milli(self, rounding: Rounding) -> i64 {
        scaled(self.nanos, 1_000_000, rounding)
    }

    /// The amount in whole units.
    pub fn to_units(self, rounding: Rounding) -> i64 {
        scaled(self.nanos, NANOS, rounding)
    }

    /// Notation that the quantity was written in.
    pub fn format(self) -> Format {
        self.format
    }
}

fn scaled(nanos: i128, unit: i128, rounding: Rounding) -> i64 {
    let floor = nanos.div_euclid(unit);
    let exact = nanos.rem_euclid(unit) == 0;
    let value = if rounding == Rounding::Up && !exact { floor + 1 } else { floor };
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}
impl Eq for Quantity {}
impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

enum Suffix {
    Binary(u32),
    Decimal(i32),
    Exponent(i32),
}

fn suffix(text: &str) -> Result<Suffix, &'static str> {
    Ok(match text {
        "Ki" => Suffix::Binary(10),
        "Mi" => Suffix::Binary(20),
        "Gi" => Suffix::Binary(30),
        "Ti" => Suffix::Binary(40),
        "Pi" => Suffix::Binary(50),
        "Ei" => Suffix::Binary(60),
        "n" => Suffix::Decimal(-9),
        "u" => Suffix::Decimal(-6),
        "m" => Suffix::Decimal(-3),
        "" => Suffix::Decimal(0),
        "k" => Suffix::Decimal(3),
        "M" => Suffix::Decimal(6),
        "G" => Suffix::Decimal(9),
        "T" => Suffix::Decimal(12),
        "P" => Suffix::Decimal(15),
        "E" => Suffix::Decimal(18),
        _ => {
            let exponent = text.strip_prefix(['e', 'E']).ok_or("its suffix is unknown")?;
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err("its exponent is not a number");
            }
            // An exponent beyond `i32` leaves nothing of the number, on one side or the other.
            let beyond = if exponent.starts_with('-') { i32::MIN } else { i32::MAX };
            Suffix::Exponent(exponent.parse().unwrap_or(beyond))
        }
    })
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, ParseQuantityError> {
        parse(text).map_err(|why| ParseQuantityError { text: text.to_owned(), why })
    }
}

fn parse(text: &str) -> Result<Quantity, &'static str> {
    let (negative, unsigned) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        Some(_) => (false, text),
        None => return Err("it is empty"),
    };
    let number_end = unsigned
        .bytes()
        .position(|byte| !byte.is_ascii_digit() && byte != b'.')
        .unwrap_or(unsigned.len());
    let (number, suffix_text) = unsigned.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') {
        return Err("it has two decimal points");
    }
    if whole.is_empty() && fraction.is_empty() {
        return Err("it has no digits");
    }
    let suffix = suffix(suffix_text)?;
    let (format, power_of_ten, power_of_two) = match suffix {
        Suffix::Binary(bits) => (Format::BinarySi, 0, bits),
        Suffix::Decimal(exponent) => (Format::DecimalSi, exponent, 0),
        Suffix::Exponent(exponent) => (Format::DecimalExponent, exponent, 0),
    };
    let digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|byte| byte - b'0').collect();
    let fraction_digits = i64::try_from(fraction.len()).map_err(|_| "it is too long")?;
    let nanos = magnitude(&digits, i64::from(power_of_ten) + 9 - fraction_digits, power_of_two);
    Ok(Quantity { nanos: if negative { -nanos } else { nanos }, format })
}

/// `digits × 10^power × 2^bits`, rounded up to an integer and capped at the largest magnitude.
///
/// Exact for any number of digits: the binary suffix doubles the decimal digits themselves, and
/// only then is the decimal point set, so that what is left behind it decides alone about rounding
/// up.
fn magnitude(digits: &[u8], power: i64, bits: u32) -> i128 {
    /// Digits of the largest magnitude.
    const MAX_DIGITS: i64 = 28;
    let mut digits: Vec<u8> = digits.iter().copied().skip_while(|digit| *digit == 0).collect();
    for _ in 0..bits {
        double(&mut digits);
    }
    let length = i64::try_from(digits.len()).unwrap_or(i64::MAX);
    let whole = length.saturating_add(power).max(0);
    if digits.is_empty() {
        return 0;
    }
    if whole > MAX_DIGITS {
        return MAX_NANOS;
    }
    let whole = usize::try_from(whole).unwrap_or(0);
    let integer = (0..whole).fold(0, |value, position| {
        value * 10 + i128::from(digits.get(position).copied().unwrap_or(0))
    });
    let rest = digits.iter().skip(whole).any(|digit| *digit != 0);
    (integer + i128::from(rest)).min(MAX_NANOS)
}

/// Doubles a number that is given by its decimal digits.
fn double(digits: &mut Vec<u8>) {
    let mut carry = 0;
    for digit in digits.iter_mut().rev() {
        let doubled = *digit * 2 + carry;
        *digit = doubled % 10;
        carry = doubled / 10;
    }
    if carry > 0 {
        digits.insert(0, carry);
    }
}

impl fmt::Display for Quantity {
    /// The canonical form: the largest suffix that leaves no fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.nanos < 0 { "-" } else { "" };
        let nanos = self.nanos.unsigned_abs();
        let unit = NANOS.unsigned_abs();
        if nanos == 0 {
            return f.write_str("0");
        }
        if self.format == Format::BinarySi && nanos.is_multiple_of(unit) && nanos / unit >= 1024 {
            let mut value = nanos / unit;
            let mut index = 0;
            while index < 6 && value.is_multiple_of(1024) {
                value /= 1024;
                index += 1;
            }
            return write!(f, "{sign}{value}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][index]);
        }
        let mut value = nanos;
        let mut exponent = -9;
        while exponent < 18 && value.is_multiple_of(1000) {
            value /= 1000;
            exponent += 3;
        }
        if self.format == Format::DecimalExponent {
            return if exponent == 0 {
                write!(f, "{sign}{value}")
            } else {
                write!(f, "{sign}{value}e{exponent}")
            };
        }
        let suffix = match exponent {
            -9 => "n",
            -6 => "u",
            -3 => "m",
            0 => "",
            3 => "k",
            6 => "M",
            9 => "G",
            12 => "T",
            15 => "P",
            _ => "E",
        };
        write!(f, "{sign}{value}{suffix}")
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct QuantityVisitor;
        impl Visitor<'_> for QuantityVisitor {
            type Value = Quantity;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity such as `100m`, `1Gi` or `2`")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Quantity, E> {
                self.visit_str(&value.to_string())
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Quantity, E> {
                self.visit_str(&value.to_string())
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Quantity, E> {
                self.visit_str(&value.to_string())
            }
        }
        deserializer.deserialize_any(QuantityVisitor)
    }
}

impl JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{ "type": "integer" }, { "type": "string" }],
            "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
            "x-kubernetes-int-or-string": true,
        })
    }
}
