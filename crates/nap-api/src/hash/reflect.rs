//! A value as Go's reflection sees it, and the incumbent's hash of it.

use std::collections::BTreeMap;

/// A value as Go's reflection sees it, pointers followed.
pub(crate) enum Value {
    Text(String),
    Int32(i32),
    Int64(i64),
    Bool(bool),
    /// A slice; its order does not count.
    Set(Vec<Value>),
    Map(BTreeMap<String, Value>),
    /// The type's name and its fields in the order of declaration. `None` is a zero value, which is
    /// left out.
    Struct(&'static str, Vec<(&'static str, Option<Value>)>),
}

impl Value {
    /// The incumbent's hash.
    pub(crate) fn hash(&self) -> u64 {
        match self {
            Self::Text(text) => fnv(text.as_bytes()),
            Self::Int32(number) => fnv(&number.to_le_bytes()),
            Self::Int64(number) => fnv(&number.to_le_bytes()),
            Self::Bool(value) => fnv(&[u8::from(*value)]),
            Self::Set(items) => items.iter().fold(0, |hash, item| hash ^ item.hash()),
            Self::Map(entries) => {
                let pair =
                    |(key, value): (&String, &Self)| ordered(fnv(key.as_bytes()), value.hash());
                finish(entries.iter().map(pair).fold(0, |hash, pair| hash ^ pair))
            }
            Self::Struct(name, fields) => {
                let mut hash = fnv(name.as_bytes());
                for (field, value) in fields {
                    if let Some(value) = value {
                        hash = finish(hash ^ ordered(fnv(field.as_bytes()), value.hash()));
                    }
                }
                hash
            }
        }
    }
}

/// FNV-1 of 64 bits: multiply, then xor.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(*byte)
    })
}

fn ordered(first: u64, second: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&second.to_le_bytes());
    fnv(&bytes)
}

fn finish(hash: u64) -> u64 {
    fnv(&hash.to_le_bytes())
}

impl From<i32> for Value {
    fn from(number: i32) -> Self {
        Self::Int32(number)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int64(number)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}
