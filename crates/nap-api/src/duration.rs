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

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// Reads a non-negative Go duration such as `1h30m` or `100ms`.
pub fn parse_go_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.bytes().position(|byte| !byte.is_ascii_digit())?;
        let (number, tail) = rest.split_at(digits);
        let number: u64 = number.parse().ok()?;
        let unit_len = tail.bytes().position(|byte| byte.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_len);
        let part = match unit {
            "h" => Duration::from_secs(number.checked_mul(3600)?),
            "m" => Duration::from_secs(number.checked_mul(60)?),
            "s" => Duration::from_secs(number),
            "ms" => Duration::from_millis(number),
            "us" | "µs" => Duration::from_micros(number),
            "ns" => Duration::from_nanos(number),
            _ => return None,
        };
        total = total.checked_add(part)?;
        rest = tail;
    }
    Some(total)
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
            D::Error::custom(format!("`{text}` is not a duration: write it like `30s`, `1h30m` or `Never`"))
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
    fn durations_keep_their_words() {
        let duration = NillableDuration::parse("1h30m").unwrap();
        assert_eq!(duration.get(), Some(Duration::from_mins(90)));
        assert_eq!(serde_json::to_string(&duration).unwrap(), "\"1h30m\"");
        assert_eq!(NillableDuration::parse("Never").unwrap().get(), None);
        for bad in ["", "5", "h", "1d", "-1s", "never", "1.5h"] {
            assert!(NillableDuration::parse(bad).is_none(), "{bad}");
        }
    }
}
