//! Life of VM sizes: which are gone, which only old subscriptions get, and which will go.
//!
//! The retail price API keeps the prices of sizes that are gone, so a price alone does not make an
//! offering. The table is dated and does not depend on the day on which it is read: the same
//! manifests give the same plan at any time.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use jiff::civil::{Date, date};

use super::files::{bad, rows};
use crate::AzureError;
use crate::config::canonical_region;

const LIFECYCLE: &str = "lifecycle.csv";

/// Day for which the built-in catalogue is true: sizes that were retired until then are not in it.
pub const CATALOGUE_DAY: Date = date(2026, 11, 17);

static BUILT_IN: LazyLock<Lifecycle> = LazyLock::new(|| {
    Lifecycle::parse(include_str!("../../catalogue/lifecycle.csv"))
        .expect("the built-in table is checked by a test")
});

/// The dates of sizes, by exact name. A size that is absent is on sale without a known end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lifecycle(BTreeMap<String, SizeLife>);

/// Dates of one size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SizeLife {
    retires_on: Option<Date>,
    /// Later retirement, by region.
    later_in: BTreeMap<String, Date>,
    /// Year and month, such as `2026-07`.
    closed_since: Option<String>,
    /// Whether it is in price lists only and was never a size.
    price_list_only: bool,
}

/// Reason why a size cannot be bought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// It was retired on this day.
    Retired(Date),
    /// It stands in price lists, but in no list of sizes.
    PriceListOnly,
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retired(on) => write!(f, "retired since {on}"),
            Self::PriceListOnly => f.write_str("in price lists only, never sold as a size"),
        }
    }
}

impl Lifecycle {
    /// The built-in table.
    pub fn built_in() -> &'static Self {
        &BUILT_IN
    }

    /// Parses `lifecycle.csv`.
    pub fn parse(text: &str) -> Result<Self, AzureError> {
        let mut sizes = BTreeMap::new();
        for (line, cells) in rows(text) {
            let [name, retires_on, later_in, closed_since, mark] = cells.as_slice() else {
                return Err(bad(LIFECYCLE, line, "a size has five cells"));
            };
            let date = |cell: &str| {
                let problem = || bad(LIFECYCLE, line, format!("`{cell}` is not a date"));
                cell.parse::<Date>().map_err(|_| problem())
            };
            let mut life = SizeLife { price_list_only: !mark.is_empty(), ..SizeLife::default() };
            if !retires_on.is_empty() {
                life.retires_on = Some(date(retires_on)?);
            }
            if !later_in.is_empty() {
                let (region, until) = later_in
                    .split_once(':')
                    .ok_or_else(|| bad(LIFECYCLE, line, "`later_in` is `region:date`"))?;
                life.later_in.insert(region.to_owned(), date(until)?);
            }
            if !closed_since.is_empty() {
                date(&format!("{closed_since}-01"))?;
                life.closed_since = Some((*closed_since).to_owned());
            }
            sizes.insert((*name).to_owned(), life);
        }
        Ok(Self(sizes))
    }

    /// Sizes of the table, in name order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Why a size cannot be bought in a region on a day; `None` if it can, or is unknown.
    pub fn gone(&self, name: &str, region: &str, on: Date) -> Option<Gone> {
        if self.0.get(name)?.price_list_only {
            return Some(Gone::PriceListOnly);
        }
        self.retires_on(name, region).filter(|end| *end <= on).map(Gone::Retired)
    }

    /// Day of a size's retirement in a region, past or future; `None` if there is none.
    pub fn retires_on(&self, name: &str, region: &str) -> Option<Date> {
        let life = self.0.get(name)?;
        life.later_in.get(&canonical_region(region)).copied().or(life.retires_on)
    }

    /// Year and month since which new subscriptions cannot get a size, nor existing ones more
    /// quota; `None` if it is open.
    pub fn closed_since(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.closed_since.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_decide_what_can_be_bought() {
        let table = Lifecycle::built_in();
        let gone = |name, region, on| table.gone(name, region, on).map(|gone| gone.to_string());
        let today = CATALOGUE_DAY;
        assert_eq!(
            gone("Standard_NC6s_v3", "eastus", today).as_deref(),
            Some("retired since 2025-09-30")
        );
        assert_eq!(gone("Standard_NC6s_v3", "eastus", date(2025, 9, 29)), None);
        assert_eq!(gone("Standard_NC6s_v3", "Jio India West", today), None);
        assert_eq!(gone("Standard_HB120rs_v2", "eastus", today), None);
        assert_eq!(table.retires_on("Standard_HB120rs_v2", "eastus"), Some(date(2027, 5, 31)));
        let promo = gone("Standard_D4as_v5_Promo", "eastus2", today).unwrap();
        assert!(promo.contains("price lists only"), "{promo}");
        assert_eq!(table.closed_since("Standard_D4s_v3"), Some("2026-07"));
        assert_eq!(table.closed_since("Standard_D4s_v5"), None);
    }

    #[test]
    fn a_malformed_table_is_refused_with_its_line() {
        for (row, says) in [
            ("a,b", "a size has five cells"),
            ("a,soon,,,", "`soon` is not a date"),
            ("a,,eastus,,", "`region:date`"),
            ("a,,,July,", "`July-01` is not a date"),
        ] {
            let error = Lifecycle::parse(&format!("header\n{row}\n")).unwrap_err().to_string();
            assert!(error.contains("line 2") && error.contains(says), "{error}");
        }
    }
}
