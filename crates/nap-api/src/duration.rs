//! Durations as users write them (`30s`, `1h30m`, `Never`), kept in their own words.

use std::borrow::Cow;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration or `Never`. It prints as it was written, so that a GitOps tool sees no difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NillableDuration {
    text: String,
    value: Option<Duration>,
}

impl NillableDuration {
    /// `Never`.
    pub fn never() -> Self {
        Self { text: "Never".to_owned(), value: None }
    }

    /// Reads `Never` or a Go duration. `None` if it is neither.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "Never" {
            return Some(Self::never());
        }
        Some(Self { text: text.to_owned(), value: Some(parse_go_duration(text)?) })
    }

    /// The duration; `None` means never.
    pub fn get(&self) -> Option<Duration> {
        self.value
    }

    /// The duration as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// Reads a non-negative Go duration such as `1h30m`, `100ms` or `1.5s`. `None` if it is none, or
/// longer than Go can count.
pub fn parse_go_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut total) = (text, 0_u128);
    while let Some(start) =
        rest.find(|character: char| !character.is_ascii_digit() && character != '.')
    {
        let (number, tail) = rest.split_at(start);
        let end = tail
            .find(|character: char| character.is_ascii_digit() || character == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let nanoseconds: u128 = match unit {
            "h" => 3_600_000_000_000,
            "m" => 60_000_000_000,
            "s" => 1_000_000_000,
            "ms" => 1_000_000,
            "us" | "µs" => 1_000,
            "ns" => 1,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let digits: u64 = format!("{whole}{fraction}").parse().ok()?;
        let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        total = total.checked_add(u128::from(digits) * nanoseconds / scale)?;
        rest = tail;
    }
    if text.is_empty() || !rest.is_empty() {
        return None;
    }
    let total = i64::try_from(total).ok()?;
    Some(Duration::from_nanos(total.unsigned_abs()))
}

impl Serialize for NillableDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for NillableDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            D::Error::custom(format!(
                "`{text}` is not a duration: write it like `30s`, `1h30m` or `Never`"
            ))
        })
    }
}

impl JsonSchema for NillableDuration {
    fn schema_name() -> Cow<'static, str> {
        "NillableDuration".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": r"^(([0-9]+(s|m|h))+|Never)$" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_print_as_they_were_written() {
        let duration = NillableDuration::parse("1h30m").unwrap();
        assert_eq!(duration.get(), Some(Duration::from_mins(90)));
        assert_eq!(serde_json::to_string(&duration).unwrap(), "\"1h30m\"");
        assert_eq!(NillableDuration::parse("Never").unwrap().get(), None);
        assert_eq!(parse_go_duration("1m1.5s.5ms"), Some(Duration::from_micros(61_500_500)));
        for bad in ["", "5", "h", "1d", "-1s", "never", "1h5", ".s", "1.2.3s", "3000000h"] {
            assert!(NillableDuration::parse(bad).is_none(), "{bad}");
        }
    }
}
