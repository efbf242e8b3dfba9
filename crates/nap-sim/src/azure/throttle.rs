//! ARM's request limits: a token bucket per principal for reads, writes and deletes.
//!
//! The emulator has one subscription and one region, so that the principal alone tells buckets
//! apart. A refused request takes no token.

use std::collections::BTreeMap;

use http::Method;
use jiff::Timestamp;

/// Maximum number of principals whose buckets are kept; further ones share the last bucket.
const MAX_PRINCIPALS: usize = 1024;
/// Parts of a token, so that a bucket refills evenly.
const PARTS: i64 = 1000;

/// Size and refill of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketLimit {
    /// Requests of a full bucket.
    pub size: i64,
    /// Requests added in a second.
    pub refill: i64,
}

/// ARM's limits per subscription, region and principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// GET and HEAD.
    pub reads: BucketLimit,
    /// PUT, PATCH and POST.
    pub writes: BucketLimit,
    /// DELETE.
    pub deletes: BucketLimit,
}

impl Default for RequestLimits {
    /// The limits that Azure publishes.
    fn default() -> Self {
        Self {
            reads: BucketLimit { size: 250, refill: 25 },
            writes: BucketLimit { size: 200, refill: 10 },
            deletes: BucketLimit { size: 200, refill: 10 },
        }
    }
}

/// A kind of request with its own bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RequestKind {
    Read,
    Write,
    Delete,
}

impl RequestKind {
    pub(crate) fn of(method: &Method) -> Self {
        match *method {
            Method::GET | Method::HEAD => Self::Read,
            Method::DELETE => Self::Delete,
            _ => Self::Write,
        }
    }

    /// The word of ARM's error texts.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Delete => "delete",
        }
    }

    /// Name of the response header with the number of requests left.
    pub(crate) fn header(self) -> &'static str {
        match self {
            Self::Read => "x-ms-ratelimit-remaining-subscription-reads",
            Self::Write => "x-ms-ratelimit-remaining-subscription-writes",
            Self::Delete => "x-ms-ratelimit-remaining-subscription-deletes",
        }
    }

    fn limit(self, limits: &RequestLimits) -> BucketLimit {
        match self {
            Self::Read => limits.reads,
            Self::Write => limits.writes,
            Self::Delete => limits.deletes,
        }
    }
}

/// The buckets of all principals.
#[derive(Default)]
pub(crate) struct Buckets(BTreeMap<(String, RequestKind), Bucket>);

struct Bucket {
    parts: i64,
    filled: Timestamp,
}

impl Buckets {
    /// Takes a token. Returns the number left, or the seconds until there is one.
    pub(crate) fn take(
        &mut self,
        limits: &RequestLimits,
        principal: &str,
        kind: RequestKind,
        now: Timestamp,
    ) -> Result<i64, i64> {
        let limit = kind.limit(limits);
        let mut key = (principal.to_owned(), kind);
        if self.0.len() >= MAX_PRINCIPALS && !self.0.contains_key(&key) {
            key.0.clear();
        }
        let full = limit.size.max(1) * PARTS;
        let bucket = self.0.entry(key).or_insert(Bucket { parts: full, filled: now });
        let millis = i64::try_from(now.duration_since(bucket.filled).as_millis()).unwrap_or(0);
        bucket.parts = (bucket.parts + millis.clamp(0, full) * limit.refill).min(full);
        bucket.filled = now;
        if bucket.parts >= PARTS {
            bucket.parts -= PARTS;
            return Ok(bucket.parts / PARTS);
        }
        let missing = PARTS - bucket.parts;
        let per_second = limit.refill.max(1) * PARTS;
        Err((missing + per_second - 1) / per_second)
    }
}

#[cfg(test)]
mod tests {
    use jiff::ToSpan;

    use super::*;

    #[test]
    fn bucket_empties_and_refills_by_time_and_principal() {
        let limits = RequestLimits {
            writes: BucketLimit { size: 3, refill: 2 },
            ..RequestLimits::default()
        };
        let (mut buckets, now) = (Buckets::default(), Timestamp::UNIX_EPOCH);
        let mut take = |who: &str, kind, now| buckets.take(&limits, who, kind, now);
        for left in [2, 1, 0] {
            assert_eq!(take("a", RequestKind::Write, now), Ok(left));
        }
        assert_eq!(take("a", RequestKind::Write, now), Err(1));
        assert_eq!(take("b", RequestKind::Write, now), Ok(2));
        assert_eq!(take("a", RequestKind::Read, now), Ok(249));
        assert_eq!(take("a", RequestKind::Write, now + 400.milliseconds()), Err(1));
        assert_eq!(take("a", RequestKind::Write, now + 500.milliseconds()), Ok(0));
        assert_eq!(take("a", RequestKind::Write, now + 1.hour()), Ok(2));
    }
}
