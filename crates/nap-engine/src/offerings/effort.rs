//! Effort: a measure of time that is the same on every machine.

use std::cell::Cell;

/// Approximate number of comparisons made so far. It bounds the time of a decision without a clock,
/// so that plans stay reproducible.
#[derive(Default)]
pub(crate) struct EffortMeter {
    comparisons: Cell<usize>,
}

impl EffortMeter {
    /// Adds comparisons.
    pub(crate) fn spend(&self, comparisons: usize) {
        self.comparisons.set(self.comparisons.get().saturating_add(comparisons));
    }

    /// Comparisons made so far.
    pub(crate) fn spent(&self) -> usize {
        self.comparisons.get()
    }
}
