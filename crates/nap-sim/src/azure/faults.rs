//! Injected faults.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use nap_engine::CapacityType;

use super::state::{MachineRecord, MachineState};

/// The faults that requests meet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Size and zone label (`0` without a zone) of VMs whose creation is accepted and then fails
    /// for lack of capacity.
    pub capacity_errors: BTreeSet<(String, String)>,
    /// Number of machines from now on whose creation is refused with an internal error.
    pub internal_errors_next: u32,
    /// Whether VM creations that are accepted from now on never end.
    pub stuck_creates: bool,
    /// On-demand vCPU quota by the exact name of the quota family.
    pub family_quota: BTreeMap<String, i64>,
    /// On-demand vCPU quota of the region; `None` for that of the configuration.
    pub regional_quota: Option<i64>,
    /// Spot vCPU quota of the region; `None` for that of the configuration.
    pub spot_quota: Option<i64>,
    /// Number of authorized requests from now on that get status 429.
    pub throttle_next: u32,
    /// Whether their `Retry-After` is an HTTP date instead of seconds.
    pub throttles_until_a_date: bool,
    /// Number of authorized requests from now on that get status 503.
    pub unavailable_next: u32,
    /// Whether the kubelets of VMs that are created from now on never join.
    pub never_boots: bool,
    /// Faults of a plan file, in its order; of several that apply the last counts.
    pub timed: Vec<TimedFault>,
}

/// A fault during a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedFault {
    /// Start.
    pub from: Timestamp,
    /// End; `None` for never.
    pub until: Option<Timestamp>,
    /// The fault.
    pub fault: Fault,
}

/// A fault that lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// VMs are refused at once.
    NotAvailable(Place),
    /// VMs are refused at once with this error.
    RefusedCreates {
        /// The VMs.
        place: Place,
        /// Status of the answer.
        status: u16,
        /// Code and text of the error.
        error: (String, String),
    },
    /// Creations of VMs are accepted and then fail. Without a code: for lack of capacity.
    FailedCreates {
        /// The VMs.
        place: Place,
        /// Code and text of the error.
        error: Option<(String, String)>,
    },
    /// Creations never end.
    LostCreates(Place),
    /// Creations take longer by this factor.
    SlowCreates(u32),
    /// The price API answers with status 503.
    NoPrices,
    /// Kubelets never join.
    NeverJoin(Place),
    /// Another vCPU quota.
    Quota {
        /// A quota family, [`REGIONAL_QUOTA`] or [`SPOT_QUOTA`].
        of: String,
        /// The limit.
        vcpus: i64,
    },
}

/// Name of the region's on-demand quota in plan files.
pub const REGIONAL_QUOTA: &str = "regional";
/// Name of the region's spot quota in plan files.
pub const SPOT_QUOTA: &str = "spot";

/// VMs by size, zone and capacity type, beyond a number of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Name, in which `*` stands for any text; `None` for all sizes.
    pub size: Option<String>,
    /// Zone label; `None` for all zones.
    pub zone: Option<String>,
    /// `None` for both.
    pub capacity_type: Option<CapacityType>,
    /// Number of VMs that the place takes before it strikes.
    pub room: u32,
}

impl Place {
    /// Whether the fault strikes a machine: it covers it, and earlier machines there have taken the
    /// room. A failed or evicted machine takes none.
    pub(crate) fn strikes(
        &self,
        machines: &BTreeMap<String, MachineRecord>,
        machine: &MachineRecord,
    ) -> bool {
        let takes_room = |other: &&MachineRecord| {
            other.incarnation < machine.incarnation
                && other.state != MachineState::Failed
                && !other.evicted
                && self.covers(other)
        };
        let room = usize::try_from(self.room).unwrap_or(usize::MAX);
        self.covers(machine) && (room == 0 || machines.values().filter(takes_room).count() >= room)
    }

    fn covers(&self, machine: &MachineRecord) -> bool {
        self.size.as_ref().is_none_or(|size| matches(size, &machine.size.name))
            && self.zone.as_ref().is_none_or(|zone| *zone == machine.zone_label)
            && self.capacity_type.is_none_or(|kind| kind == machine.capacity_type)
    }
}

impl FaultPlan {
    /// Faults of the plan file at a time, the last first.
    pub(crate) fn active(&self, now: Timestamp) -> impl Iterator<Item = &Fault> {
        let lasts = move |timed: &&TimedFault| {
            timed.from <= now && timed.until.is_none_or(|until| now < until)
        };
        self.timed.iter().rev().filter(lasts).map(|timed| &timed.fault)
    }

    /// The limit of a quota at a time; `None` if no fault sets it.
    pub(crate) fn quota(&self, name: &str, now: Timestamp) -> Option<i64> {
        let timed = self.active(now).find_map(|fault| match fault {
            Fault::Quota { of, vcpus } if of == name => Some(*vcpus),
            _ => None,
        });
        timed.or_else(|| match name {
            REGIONAL_QUOTA => self.regional_quota,
            SPOT_QUOTA => self.spot_quota,
            family => self.family_quota.get(family).copied(),
        })
    }
}

/// Whether a text matches a pattern in which `*` stands for any text.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((front, rest)) => text.strip_prefix(front).is_some_and(|tail| {
            (0..=tail.len())
                .any(|cut| tail.get(cut..).is_some_and(|remaining| matches(rest, remaining)))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_any_text_at_a_star() {
        for (pattern, text, expected) in [
            ("Standard_D4s_v5", "Standard_D4s_v5", true),
            ("Standard_D4s_v5", "Standard_D4s_v", false),
            ("Standard_D*_v5", "Standard_D4s_v5", true),
            ("Standard_D*_v5", "Standard_D4s_v6", false),
            ("*", "Standard_D4s_v6", true),
            ("*D*s*", "Standard_D4s_v6", true),
            ("", "x", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn the_last_fault_that_lasts_counts() {
        let quota = |from: i64, until: Option<i64>, vcpus| TimedFault {
            from: Timestamp::from_second(from).unwrap(),
            until: until.map(|until| Timestamp::from_second(until).unwrap()),
            fault: Fault::Quota { of: SPOT_QUOTA.to_owned(), vcpus },
        };
        let timed = vec![quota(10, None, 1), quota(20, Some(30), 2)];
        let plan = FaultPlan { timed, spot_quota: Some(9), ..FaultPlan::default() };
        let at = |second: i64| plan.quota(SPOT_QUOTA, Timestamp::from_second(second).unwrap());
        assert_eq!([at(9), at(10), at(20), at(30)], [Some(9), Some(1), Some(2), Some(1)]);
        assert_eq!(plan.quota(REGIONAL_QUOTA, Timestamp::UNIX_EPOCH), None);
    }
}
