//! Sets of time as lists of spans that are in order and do not touch.

use jiff::Timestamp;

/// Time from one moment to another, the first included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// First moment.
    pub from: Timestamp,
    /// First moment after it.
    pub until: Timestamp,
}

impl Span {
    /// A span; `None` if it is empty.
    pub fn new(from: Timestamp, until: Timestamp) -> Option<Self> {
        (from < until).then_some(Self { from, until })
    }

    /// Whether a moment is in the span.
    pub fn contains(self, moment: Timestamp) -> bool {
        (self.from..self.until).contains(&moment)
    }

    /// The common part of two spans; `None` if there is none.
    pub fn common(self, other: Self) -> Option<Self> {
        Self::new(self.from.max(other.from), self.until.min(other.until))
    }
}

/// The union of spans, in order; those that touch become one.
pub fn union(spans: impl IntoIterator<Item = Span>) -> Vec<Span> {
    let mut spans: Vec<Span> = spans.into_iter().collect();
    spans.sort_unstable();
    let mut joined: Vec<Span> = Vec::new();
    for span in spans {
        match joined.last_mut() {
            Some(last) if span.from <= last.until => last.until = last.until.max(span.until),
            _ => joined.push(span),
        }
    }
    joined
}

/// The parts of spans that are not in others. Both are unions.
pub fn without(spans: &[Span], others: &[Span]) -> Vec<Span> {
    let mut left = Vec::new();
    for span in spans {
        let mut from = span.from;
        for other in others.iter().filter_map(|other| other.common(*span)) {
            left.extend(Span::new(from, other.from));
            from = other.until;
        }
        left.extend(Span::new(from, span.until));
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(pairs: &[(i64, i64)]) -> Vec<Span> {
        let at = |second| Timestamp::from_second(second).unwrap();
        pairs.iter().map(|(from, until)| Span::new(at(*from), at(*until)).unwrap()).collect()
    }

    #[test]
    fn spans_that_touch_or_overlap_become_one() {
        let union = union(spans(&[(5, 7), (0, 2), (2, 3), (6, 9), (20, 21)]));
        assert_eq!(union, spans(&[(0, 3), (5, 9), (20, 21)]));
    }

    #[test]
    fn what_is_taken_out_leaves_the_rest() {
        let all = spans(&[(0, 10), (20, 30)]);
        assert_eq!(without(&all, &spans(&[(2, 4), (9, 22)])), spans(&[(0, 2), (4, 9), (22, 30)]));
        assert_eq!(without(&all, &[]), all);
        assert_eq!(without(&all, &spans(&[(0, 30)])), []);
    }
}
