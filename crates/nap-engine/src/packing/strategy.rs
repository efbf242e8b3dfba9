//! Strategies: a fill rule with a cap on the size of nodes.

use crate::model::Tier;

/// Cap on the size of a bin.
///
/// Without a cap, bins grow towards the largest type on sale whatever it costs. A cap never keeps a
/// pod out: where the pod alone is larger than the cap, the smallest size that holds it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SizeCap {
    /// Any size.
    None,
    /// Up to this many milli-cores.
    Cpu(i64),
    /// Up to the size with the lowest price per pod of the class that opens the bin.
    BestValue,
}

/// Order in which bins are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FillRule {
    /// The incumbent's order: bins with the fewest pods first, and pools of equal weight by name
    /// instead of by price.
    Incumbent,
    /// The oldest bin first, and pools of equal weight by price.
    InOrder,
    /// One bin at a time, filled with complementary classes; see `patterns`.
    Patterns,
    /// Patterns that respect topology constraints; see `constrained_patterns`.
    ConstrainedPatterns,
    /// Nodes of column generation, then patterns for the rest; see `rounded_columns`.
    Columns,
}

/// A fill rule with a size cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strategy {
    pub(crate) cap: SizeCap,
    pub(crate) fill_rule: FillRule,
}

impl Strategy {
    /// First fit in the incumbent's order: no plan may be worse than this one.
    pub(crate) const BASELINE: Self = Self { cap: SizeCap::None, fill_rule: FillRule::Incumbent };

    /// First fit, oldest bin first, with a cap.
    pub(crate) fn first_fit(cap: SizeCap) -> Self {
        Self { cap, fill_rule: FillRule::InOrder }
    }

    /// The tier of plans that the strategy finds.
    pub(crate) fn tier(self) -> Tier {
        match (self.fill_rule, self.cap) {
            (FillRule::Patterns, _) => Tier::Patterns,
            (FillRule::ConstrainedPatterns, _) => Tier::ConstrainedPatterns,
            (FillRule::Columns, _) => Tier::ColumnGeneration,
            (FillRule::Incumbent | FillRule::InOrder, SizeCap::None) => Tier::FirstFit,
            (FillRule::Incumbent | FillRule::InOrder, _) => Tier::CappedFirstFit,
        }
    }
}
