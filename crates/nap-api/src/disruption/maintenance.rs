//! Planned maintenance of the managed cluster, as far as windows of a NodePool can follow it.
//!
//! AKS has a calendar for new node images and one for upgrades of Kubernetes. A window names one of
//! them as its schedule. What cannot be read is neither open nor closed.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;

use super::spans::{Span, without};

/// A maintenance configuration of the managed cluster that a window can follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MaintenanceSchedule {
    /// When nodes get a new image.
    NodeOsUpgrade,
    /// When the auto-upgrade channel upgrades Kubernetes.
    AutoUpgrade,
}

impl MaintenanceSchedule {
    /// Both schedules.
    pub const ALL: [Self; 2] = [Self::NodeOsUpgrade, Self::AutoUpgrade];

    /// Name of the maintenance configuration, and of the schedule in a window.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NodeOsUpgrade => "aksManagedNodeOSUpgradeSchedule",
            Self::AutoUpgrade => "aksManagedAutoUpgradeSchedule",
        }
    }

    /// The schedule of a name; `None` if there is no such one.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|schedule| schedule.as_str() == name)
    }
}

impl fmt::Display for MaintenanceSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The window of one maintenance configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Maintenance {
    /// It could not be read.
    #[default]
    Unknown,
    /// The cluster has none, so it never opens.
    Absent,
    /// The parts of a time in which it is open, as a union.
    Known {
        /// The time that is known.
        within: Span,
        /// The open parts.
        open: Vec<Span>,
    },
}

impl Maintenance {
    /// Whether the window is open; `None` if that is unknown.
    pub(super) fn contains(&self, moment: Timestamp) -> Option<bool> {
        match self {
            Self::Absent => Some(false),
            Self::Known { within, open } if within.contains(moment) => {
                Some(open.iter().any(|span| span.contains(moment)))
            }
            Self::Unknown | Self::Known { .. } => None,
        }
    }

    /// The parts of a span in which the window is open, and those in which that is unknown.
    pub(super) fn spans(&self, within: Span) -> (Vec<Span>, Vec<Span>) {
        match self {
            Self::Unknown => (Vec::new(), vec![within]),
            Self::Absent => (Vec::new(), Vec::new()),
            Self::Known { within: known, open } => {
                let open = open.iter().filter_map(|span| span.common(within)).collect();
                (open, without(&[within], &[*known]))
            }
        }
    }
}

/// What is known of every maintenance configuration; by default nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlannedMaintenance(BTreeMap<MaintenanceSchedule, Maintenance>);

impl PlannedMaintenance {
    /// The window of a schedule.
    pub fn of(&self, schedule: MaintenanceSchedule) -> &Maintenance {
        self.0.get(&schedule).unwrap_or(&Maintenance::Unknown)
    }
}

impl FromIterator<(MaintenanceSchedule, Maintenance)> for PlannedMaintenance {
    fn from_iter<I: IntoIterator<Item = (MaintenanceSchedule, Maintenance)>>(windows: I) -> Self {
        Self(windows.into_iter().collect())
    }
}
