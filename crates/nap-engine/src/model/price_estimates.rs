//! Which prices of a catalogue are estimates, for texts that show them.

use crate::CapacityType;

/// Prices that are estimates. Published tables have no spot prices, and none of some regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PriceEstimates {
    /// None: the cloud states all of them.
    #[default]
    None,
    /// Those of spot.
    Spot,
    /// All of them.
    All,
}

impl PriceEstimates {
    /// Whether prices of a capacity type are estimates.
    pub fn covers(self, capacity_type: CapacityType) -> bool {
        match self {
            Self::None => false,
            Self::Spot => capacity_type == CapacityType::Spot,
            Self::All => true,
        }
    }

    /// `~` before a price that is an estimate.
    pub fn mark(self, capacity_type: CapacityType) -> &'static str {
        if self.covers(capacity_type) { "~" } else { "" }
    }

    /// `~` before a sum of prices if one of them is an estimate.
    pub fn mark_sum(self, capacity_types: impl IntoIterator<Item = CapacityType>) -> &'static str {
        if capacity_types.into_iter().any(|one| self.covers(one)) { "~" } else { "" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_with_an_estimate_is_one() {
        let (od, spot) = (CapacityType::OnDemand, CapacityType::Spot);
        for (estimates, marks) in [
            (PriceEstimates::None, ["", "", ""]),
            (PriceEstimates::Spot, ["", "~", "~"]),
            (PriceEstimates::All, ["~", "~", "~"]),
        ] {
            let found = [estimates.mark(od), estimates.mark(spot), estimates.mark_sum([od, spot])];
            assert_eq!(found, marks, "{estimates:?}");
            assert_eq!(estimates.mark_sum([]), "");
        }
    }
}
