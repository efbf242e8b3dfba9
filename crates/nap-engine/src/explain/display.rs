//! Decisions in English: one line each, for an event, a log or a terminal.

use std::fmt;

use nap_api::labels::zone_text;
use nap_units::{CPU, MEMORY};

use crate::model::refusal::VolumeProblem;
use crate::model::{
    Launch, Plan, PoolReason, PoolRejection, PriceEstimates, Refusal, RequirementsConflict, Rule,
    Shortage, Unsupported,
};
use crate::plan::launches::MAX_ALTERNATIVES;

/// A reason with the prices that are estimates, which its text marks with `~`.
struct Marked<'r, T>(&'r T, PriceEstimates);

impl Refusal {
    /// The text with `~` before each price that is an estimate.
    pub fn marked(&self, estimates: PriceEstimates) -> impl fmt::Display {
        Marked(self, estimates)
    }
}

impl PoolRejection {
    /// The text with `~` before each price that is an estimate.
    pub fn marked(&self, estimates: PriceEstimates) -> impl fmt::Display {
        Marked(self, estimates)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Marked(self, PriceEstimates::None).fmt(f)
    }
}

impl fmt::Display for Marked<'_, Refusal> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Refusal::Unsupported { constraint: Unsupported::Volume(problem) } => problem.fmt(f),
            Refusal::Unsupported { constraint: Unsupported::Field(path) } => {
                write!(f, "`{path}` is not supported yet")
            }
            Refusal::Unsupported {
                constraint: Unsupported::Selectors { key, node_selector, node_affinity },
            } => write!(
                f,
                "`{key}`: the node selector wants {node_selector} and the node affinity \
                 {node_affinity}, which exclude each other"
            ),
            Refusal::NoPools => f.write_str("there is no nodepool that could make nodes"),
            Refusal::Pools(reasons) => {
                for (position, PoolReason { pool, why }) in reasons.iter().enumerate() {
                    let separator = if position > 0 { "; " } else { "" };
                    write!(f, "{separator}nodepool \"{pool}\": {}", Marked(why, self.1))?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for VolumeProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("spec.volumes: ")?;
        match self {
            Self::ClaimMissing(claim) => write!(f, "claim `{claim}` does not exist"),
            Self::VolumeMissing(volume) => write!(f, "volume `{volume}` does not exist"),
            Self::ClaimWaitsForVolume(claim) => write!(f, "claim `{claim}` waits for a volume"),
            Self::StorageClassMissing(claim) => {
                write!(f, "claim `{claim}` has no storage class that exists")
            }
            Self::ClaimUnbound(claim) => write!(f, "claim `{claim}` is not bound yet"),
            Self::Elsewhere(volume) => write!(f, "`{volume}` is nowhere near the other volumes"),
            Self::Affinity { volume, field } => write!(f, "volume `{volume}` ({field})"),
        }
    }
}

impl fmt::Display for PoolReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nodepool \"{}\": {}", self.pool, self.why)
    }
}

impl fmt::Display for PoolRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Marked(self, PriceEstimates::None).fmt(f)
    }
}

impl fmt::Display for Marked<'_, PoolRejection> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            PoolRejection::Taint(taint) => write!(f, "taint `{taint}` is not tolerated"),
            PoolRejection::Requirements(RequirementsConflict::Label(conflict)) => conflict.fmt(f),
            PoolRejection::Requirements(RequirementsConflict::VolumeTopology) => {
                f.write_str("the pod's volumes are where its node affinity does not allow it to be")
            }
            PoolRejection::PriceCeiling { ceiling, excluded, cheapest, capacity_type } => write!(
                f,
                "its price ceiling of {ceiling}/h excludes all {} that could be launched; the \
                 cheapest costs {}{cheapest}/h",
                offerings(*excluded),
                self.1.mark(*capacity_type)
            ),
            PoolRejection::Limit(resource) => write!(f, "its limit on {resource} leaves no room"),
            PoolRejection::MinValues { key, wanted, found } => {
                write!(
                    f,
                    "its minValues asks for {wanted} values of `{key}`; left for the pod: {found}"
                )
            }
            PoolRejection::Rule(rule) => rule.fmt(f),
            PoolRejection::Offerings { total: 0, .. } => f.write_str("it has no offerings"),
            PoolRejection::Offerings { total, compatible: 0, .. } => {
                write!(f, "{}, none compatible", offerings(*total))
            }
            PoolRejection::Offerings { total, compatible, large_enough: 0, shortage, .. } => {
                write!(f, "{}, {compatible} compatible, none ", offerings(*total))?;
                match shortage {
                    Some(Shortage::HostPort { port, protocol }) => {
                        write!(f, "with host port {port}/{protocol} free")
                    }
                    Some(Shortage::Resource(name)) => write!(f, "with enough {name}"),
                    Some(Shortage::HostSlot) => f.write_str("with enough places by host name"),
                    None => f.write_str("large enough in every resource at once"),
                }
            }
            PoolRejection::Offerings { total, compatible, large_enough, available, .. } => {
                write!(
                    f,
                    "{}, {compatible} compatible, {large_enough} large enough, ",
                    offerings(*total)
                )?;
                match available {
                    0 => f.write_str("none available at present"),
                    available => write!(f, "{available} available, but no room in this plan"),
                }
            }
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spread(key) => write!(f, "no `{key}` left within the pod's topology spread"),
            Self::Affinity(key) => {
                write!(f, "no `{key}` with a pod that the pod's affinity asks for")
            }
            Self::AntiAffinity(key) => {
                write!(f, "no `{key}` without a pod that excludes the pod or is excluded by it")
            }
        }
    }
}

fn offerings(count: usize) -> String {
    if count == 1 { "1 offering".to_owned() } else { format!("{count} offerings") }
}

impl Plan {
    /// Percentage by which the cost exceeds the lower bound: the plan is at most this far from the
    /// optimum. `None` without a positive bound.
    #[expect(clippy::cast_precision_loss, reason = "costs are far below 2^52 micro-dollars")]
    pub fn gap_percent(&self) -> Option<f64> {
        let bound = self.lower_bound?.micros();
        (bound > 0).then(|| (self.cost.micros() - bound) as f64 / bound as f64 * 100.0)
    }

    /// Explains a launch: the offering, the number of alternatives, its pods, and the next best.
    pub fn explain_launch(&self, launch: &Launch, estimates: PriceEstimates) -> String {
        let Launch { instance_type, capacity_type, zone, price, .. } = launch;
        let pods = match launch.pods.len() {
            1 => "1 pod".to_owned(),
            count => format!("{count} pods"),
        };
        let cpu = tenths(launch.requests.get(CPU), 1000);
        let memory = tenths(launch.requests.get(MEMORY), 1 << 30);
        let choice = match launch.alternatives.len() {
            0 => "the only offering that holds".to_owned(),
            MAX_ALTERNATIVES => {
                format!("cheapest of more than {MAX_ALTERNATIVES} offerings that hold")
            }
            others => format!("cheapest of {} offerings that hold", others + 1),
        };
        let other_type =
            launch.alternatives.iter().find(|other| *other.instance_type != **instance_type);
        let next = match (other_type, launch.alternatives.iter().next()) {
            (Some(next), _) => {
                let mark = estimates.mark(next.capacity_type);
                format!("; next: {} at {mark}{}/h", next.instance_type, next.price)
            }
            (None, Some(next)) => {
                let mark = estimates.mark(next.capacity_type);
                let zone = zone_text(&next.zone);
                format!("; next: {} {zone} at {mark}{}/h", next.capacity_type, next.price)
            }
            (None, None) => String::new(),
        };
        let (mark, zone) = (estimates.mark(*capacity_type), zone_text(zone));
        format!(
            "{instance_type} {capacity_type} {zone} at {mark}{price}/h: {choice} {pods} ({cpu} vCPU, {memory} GiB){next}"
        )
    }
}

/// Formats an amount in larger units with one decimal, rounded to the nearest.
fn tenths(amount: i64, unit: i64) -> String {
    let tenths = (i128::from(amount.max(0)) * 10 + i128::from(unit) / 2) / i128::from(unit);
    format!("{}.{}", tenths / 10, tenths % 10)
}
