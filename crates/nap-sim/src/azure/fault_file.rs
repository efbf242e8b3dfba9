//! Fault plans as text: the file of `nap try --faults`, and lines that are typed while it runs.
//!
//! `docs/faults.md` describes the language. Everything is checked when it is read: names of sizes,
//! zones and quota families must exist in the region.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nap_engine::CapacityType;
use nap_kubelets::VmEvent;
use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::Spanned;

use super::faults::{Fault, Place, REGIONAL_QUOTA, SPOT_QUOTA, TimedFault, matches};
use super::{Emulator, Inner};

/// Maximum number of faults that wait or last.
const MAX_FAULTS: usize = 1000;
/// Largest number in a plan.
const MAX_NUMBER: u32 = 1_000_000;
/// Time between the notice of an eviction and the end of the VM, as Azure gives it.
const EVICTION_NOTICE: Duration = Duration::from_secs(30);

/// A problem of a fault plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct FaultFileError {
    /// Line of the file, from 1.
    pub line: u64,
    /// The field, and what is allowed.
    pub message: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    faults: Vec<Spanned<Entry>>,
}

/// One fault: its time, and exactly one of the kinds.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Entry {
    at: Option<String>,
    r#for: Option<String>,
    stock_out: Option<PlaceFields>,
    not_available: Option<PlaceFields>,
    refused_creates: Option<RefusalFields>,
    failed_creates: Option<FailureFields>,
    lost_creates: Option<PlaceFields>,
    slow_creates: Option<SlowFields>,
    never_join: Option<PlaceFields>,
    no_prices: Option<NoFields>,
    quota: Option<QuotaFields>,
    throttle: Option<ThrottleFields>,
    unavailable: Option<RequestFields>,
    internal_errors: Option<MachineFields>,
    evict: Option<EvictFields>,
    not_ready: Option<TargetFields>,
    new_image: Option<VersionFields>,
    upgrade: Option<VersionFields>,
}

/// The kinds, for the error of an entry without one.
const KINDS: &str = "stockOut, notAvailable, refusedCreates, failedCreates, lostCreates, \
                     slowCreates, neverJoin, noPrices, quota, throttle, unavailable, \
                     internalErrors, evict, notReady, newImage, upgrade";

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoFields {}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct PlaceFields {
    size: Option<String>,
    zone: Option<String>,
    capacity_type: Option<String>,
    room: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FailureFields {
    size: Option<String>,
    zone: Option<String>,
    capacity_type: Option<String>,
    room: Option<Value>,
    code: String,
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RefusalFields {
    size: Option<String>,
    zone: Option<String>,
    capacity_type: Option<String>,
    room: Option<Value>,
    status: Value,
    code: String,
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SlowFields {
    factor: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QuotaFields {
    of: String,
    vcpus: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ThrottleFields {
    requests: Value,
    retry_after: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestFields {
    requests: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineFields {
    machines: Value,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct EvictFields {
    machine: Option<String>,
    count: Option<Value>,
    notice: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TargetFields {
    machine: Option<String>,
    count: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VersionFields {
    version: String,
}

/// A checked fault.
enum Action {
    Lasting(Fault),
    Throttle { requests: u32, until_a_date: bool },
    Unavailable(u32),
    InternalErrors(u32),
    Evict { machine: Option<String>, count: u32, notice: Duration },
    NotReady { machine: Option<String>, count: u32 },
    NewImage(String),
    Upgrade(String),
}

struct Scheduled {
    at: Duration,
    lasts: Option<Duration>,
    action: Action,
}

impl Emulator {
    /// Schedules the faults of a plan file, from now on. Nothing is scheduled if it has an error.
    /// Returns their number.
    pub fn schedule_faults(&self, text: &str) -> Result<usize, FaultFileError> {
        let file: File = serde_saphyr::from_str(text).map_err(|error| {
            let error = error.without_snippet();
            let line = error.location().map_or(1, |location| location.line());
            FaultFileError { line, message: first_line(&error.to_string()) }
        })?;
        let mut all = Vec::new();
        for entry in file.faults {
            let line = entry.referenced.line();
            let scheduled = self.check(entry.value);
            all.push(scheduled.map_err(|message| FaultFileError { line, message })?);
        }
        let count = all.len();
        if self.0.state().faults.timed.len() + count > MAX_FAULTS {
            let message =
                format!("faults: more than {MAX_FAULTS}; type `clear` to end earlier ones");
            return Err(FaultFileError { line: 1, message });
        }
        for scheduled in all {
            self.0.schedule(scheduled);
        }
        Ok(count)
    }

    /// Schedules the fault of one typed line, such as `stockOut: {size: Standard_D*}`.
    pub fn schedule_fault(&self, line: &str) -> Result<(), String> {
        let text = format!("faults:\n- {}\n", line.trim());
        self.schedule_faults(&text).map(|_| ()).map_err(|error| error.message)
    }

    /// Ends all faults; those that have not begun do not begin.
    pub fn clear_faults(&self) {
        let mut state = self.0.state();
        state.faults = super::FaultPlan::default();
        state.fault_generation += 1;
    }

    fn check(&self, entry: Entry) -> Result<Scheduled, String> {
        let at = entry.at.map(|text| duration("at", &text)).transpose()?.unwrap_or_default();
        let lasts = entry.r#for.map(|text| duration("for", &text)).transpose()?;
        let place = |field: &str, place: PlaceFields| self.place(field, place);
        let target =
            |field: &str, machine: &Option<String>, count: Option<Value>| match (machine, count) {
                (Some(_), Some(_)) => Err(format!("{field}: has `machine` and `count`: use one")),
                (_, Some(count)) => number(&format!("{field}.count"), &count, 1..=MAX_NUMBER),
                (_, None) => Ok(1),
            };
        let mut actions = Vec::new();
        if let Some(fields) = entry.stock_out {
            let place = place("stockOut", fields)?;
            actions.push(Action::Lasting(Fault::FailedCreates { place, error: None }));
        }
        if let Some(fields) = entry.not_available {
            actions.push(Action::Lasting(Fault::NotAvailable(place("notAvailable", fields)?)));
        }
        if let Some(fields) = entry.refused_creates {
            let RefusalFields { size, zone, capacity_type, room, status, code, message } = fields;
            let place = PlaceFields { size, zone, capacity_type, room };
            let place = self.place("refusedCreates", place)?;
            let status = number("refusedCreates.status", &status, 400..=599)?;
            let status = u16::try_from(status).unwrap_or(500);
            let error = (code, message);
            actions.push(Action::Lasting(Fault::RefusedCreates { place, status, error }));
        }
        if let Some(fields) = entry.failed_creates {
            let FailureFields { size, zone, capacity_type, room, code, message } = fields;
            let place = PlaceFields { size, zone, capacity_type, room };
            let place = self.place("failedCreates", place)?;
            let error = Some((code, message));
            actions.push(Action::Lasting(Fault::FailedCreates { place, error }));
        }
        if let Some(fields) = entry.lost_creates {
            actions.push(Action::Lasting(Fault::LostCreates(place("lostCreates", fields)?)));
        }
        if let Some(SlowFields { factor }) = entry.slow_creates {
            let factor = number("slowCreates.factor", &factor, 1..=1000)?;
            actions.push(Action::Lasting(Fault::SlowCreates(factor)));
        }
        if let Some(fields) = entry.never_join {
            actions.push(Action::Lasting(Fault::NeverJoin(place("neverJoin", fields)?)));
        }
        if let Some(NoFields {}) = entry.no_prices {
            actions.push(Action::Lasting(Fault::NoPrices));
        }
        if let Some(QuotaFields { of, vcpus }) = entry.quota {
            self.check_quota_name(&of)?;
            let vcpus = number("quota.vcpus", &vcpus, 0..=MAX_NUMBER)?.into();
            actions.push(Action::Lasting(Fault::Quota { of, vcpus }));
        }
        if let Some(ThrottleFields { requests, retry_after }) = entry.throttle {
            let requests = number("throttle.requests", &requests, 1..=MAX_NUMBER)?;
            let until_a_date = match retry_after.as_deref() {
                None | Some("seconds") => false,
                Some("date") => true,
                Some(other) => {
                    let message = "is unknown; allowed: seconds, date";
                    return Err(format!("throttle.retryAfter: `{other}` {message}"));
                }
            };
            actions.push(Action::Throttle { requests, until_a_date });
        }
        if let Some(RequestFields { requests }) = entry.unavailable {
            let requests = number("unavailable.requests", &requests, 1..=MAX_NUMBER)?;
            actions.push(Action::Unavailable(requests));
        }
        if let Some(MachineFields { machines }) = entry.internal_errors {
            let machines = number("internalErrors.machines", &machines, 1..=MAX_NUMBER)?;
            actions.push(Action::InternalErrors(machines));
        }
        if let Some(EvictFields { machine, count, notice }) = entry.evict {
            let count = target("evict", &machine, count)?;
            let notice = notice.map(|text| duration("evict.notice", &text)).transpose()?;
            let notice = notice.unwrap_or(EVICTION_NOTICE);
            actions.push(Action::Evict { machine, count, notice });
        }
        if let Some(TargetFields { machine, count }) = entry.not_ready {
            let count = target("notReady", &machine, count)?;
            actions.push(Action::NotReady { machine, count });
        }
        if let Some(VersionFields { version }) = entry.new_image {
            actions.push(Action::NewImage(three_numbers("newImage.version", version)?));
        }
        if let Some(VersionFields { version }) = entry.upgrade {
            actions.push(Action::Upgrade(three_numbers("upgrade.version", version)?));
        }
        let count = actions.len();
        let (Some(action), 1) = (actions.pop(), count) else {
            return Err(format!("a fault has exactly one of {KINDS}; this one has {count}"));
        };
        let may_last = matches!(action, Action::Lasting(_) | Action::NotReady { .. });
        if lasts.is_some() && !may_last {
            return Err("for: this fault has no duration; leave `for` out".to_owned());
        }
        Ok(Scheduled { at, lasts, action })
    }

    fn place(&self, field: &str, place: PlaceFields) -> Result<Place, String> {
        let config = self.config();
        if let Some(size) = &place.size
            && !self.0.region.size_names().any(|name| matches(size, name))
        {
            let region = &config.region;
            return Err(format!(
                "{field}.size: `{size}` is no size of {region}; a full name such as \
                 Standard_D4s_v5 is allowed, with * for any text"
            ));
        }
        if let Some(zone) = &place.zone {
            let zones = ["1", "2", "3"].map(|zone| format!("{}-{zone}", config.region));
            if zone != "0" && !zones.contains(zone) {
                let zones = zones.join(", ");
                return Err(format!("{field}.zone: `{zone}` is unknown; allowed: {zones}, \"0\""));
            }
        }
        let capacity_type = match place.capacity_type.as_deref() {
            None => None,
            Some("on-demand") => Some(CapacityType::OnDemand),
            Some("spot") => Some(CapacityType::Spot),
            Some(other) => {
                let message = "is unknown; allowed: on-demand, spot";
                return Err(format!("{field}.capacityType: `{other}` {message}"));
            }
        };
        let room = place.room.map(|room| number(&format!("{field}.room"), &room, 0..=MAX_NUMBER));
        let room = room.transpose()?.unwrap_or(0);
        Ok(Place { size: place.size, zone: place.zone, capacity_type, room })
    }

    fn check_quota_name(&self, of: &str) -> Result<(), String> {
        let families = self.0.region.families();
        if [REGIONAL_QUOTA, SPOT_QUOTA].contains(&of) || families.contains(&of) {
            return Ok(());
        }
        let like = |family: &&str| family.to_lowercase().contains(&of.to_lowercase());
        let mut near: Vec<&str> = families.into_iter().filter(like).collect();
        near.sort_by_key(|family| family.len());
        near.truncate(3);
        let near = if near.is_empty() { vec!["standardDSv5Family"] } else { near };
        let near = near.join(", ");
        Err(format!(
            "quota.of: `{of}` is unknown; allowed: {REGIONAL_QUOTA}, {SPOT_QUOTA}, or a quota \
             family such as {near}"
        ))
    }
}

/// A version of three numbers, as images and Kubernetes have.
fn three_numbers(field: &str, version: String) -> Result<String, String> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if version.split('.').count() == 3 && version.split('.').all(is_number) {
        return Ok(version);
    }
    let example = if field.starts_with("upgrade") { "1.35.0" } else { "202612.1.0" };
    Err(format!("{field}: `{version}` is not three numbers such as {example}"))
}

impl Inner {
    fn schedule(self: &Arc<Self>, scheduled: Scheduled) {
        let Scheduled { at, lasts, action } = scheduled;
        let now = self.config.clock.now();
        let fault = match action {
            Action::Lasting(fault) => {
                let from = after(now, at);
                let until = lasts.map(|lasts| after(from, lasts));
                self.state().faults.timed.push(TimedFault { from, until, fault });
                return;
            }
            other => other,
        };
        let generation = self.state().fault_generation;
        self.later_with(at, move |inner| {
            if inner.state().fault_generation == generation {
                inner.begin(fault, lasts);
            }
        });
    }

    fn begin(self: &Arc<Self>, action: Action, lasts: Option<Duration>) {
        match action {
            Action::Lasting(_) => {}
            Action::Throttle { requests, until_a_date } => {
                let faults = &mut self.state().faults;
                faults.throttle_next += requests;
                faults.throttles_until_a_date = until_a_date;
            }
            Action::Unavailable(requests) => self.state().faults.unavailable_next += requests,
            Action::InternalErrors(machines) => {
                self.state().faults.internal_errors_next += machines;
            }
            Action::Evict { machine, count, notice } => {
                let spot = machine.is_none();
                for (name, node_name) in self.running(machine.as_deref(), count, spot) {
                    self.report(
                        node_name,
                        "PreemptionScheduled",
                        true,
                        "PreemptScheduled",
                        "the spot VM is about to be evicted",
                    );
                    self.later_with(notice, move |inner| {
                        inner.evict(&name);
                    });
                }
            }
            Action::NewImage(version) => self.state().changes.publish_image(version),
            Action::Upgrade(version) => self.state().changes.upgrade(version),
            Action::NotReady { machine, count } => {
                for (_, node_name) in self.running(machine.as_deref(), count, false) {
                    let message = "the kubelet stopped posting node status";
                    self.report(node_name.clone(), "Ready", false, "KubeletNotReady", message);
                    if let Some(lasts) = lasts {
                        self.later_with(lasts, move |inner| {
                            inner.report(node_name, "Ready", true, "KubeletReady", "");
                        });
                    }
                }
            }
        }
    }

    /// Machine and Node names of running VMs, in name order: the named one, or the first ones.
    fn running(&self, name: Option<&str>, count: u32, spot: bool) -> Vec<(String, String)> {
        let state = self.state();
        let runs = state.machines.values().filter(|machine| {
            machine.billed.is_some()
                && name.is_none_or(|name| name == machine.name || name == machine.vm_name)
                && (!spot || machine.capacity_type == CapacityType::Spot)
        });
        let found: Vec<_> = runs
            .take(usize::try_from(count).unwrap_or(usize::MAX))
            .map(|machine| (machine.name.clone(), machine.vm_name.clone()))
            .collect();
        if found.is_empty() {
            tracing::warn!(machine = name, spot, "no running VM for this fault");
        }
        found
    }

    fn report(
        self: &Arc<Self>,
        node_name: String,
        condition: &str,
        status: bool,
        reason: &str,
        message: &str,
    ) {
        let (condition, reason) = (condition.to_owned(), reason.to_owned());
        let message = message.to_owned();
        let event = VmEvent::Condition { node_name, condition, status, reason, message };
        self.later(Duration::ZERO, move |_| Some(event));
    }
}

fn after(now: Timestamp, delay: Duration) -> Timestamp {
    let delay = SignedDuration::try_from(delay).unwrap_or(SignedDuration::MAX);
    now.checked_add(delay).unwrap_or(Timestamp::MAX)
}

fn number(field: &str, value: &Value, allowed: RangeInclusive<u32>) -> Result<u32, String> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number.filter(|number| allowed.contains(number)).ok_or_else(|| {
        let (low, high) = allowed.into_inner();
        format!("{field}: is {value}; a whole number from {low} to {high} is allowed")
    })
}

fn duration(field: &str, text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<SignedDuration>().ok();
    let parsed = parsed.and_then(|duration| Duration::try_from(duration).ok());
    parsed
        .ok_or_else(|| format!("{field}: `{text}` is no duration; write it like 30s, 10m or 1h30m"))
}

/// The first line of an error, without the place, which is said apart.
fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let line = line.split(" at line ").next().unwrap_or(line);
    line.trim_start_matches("error: ").to_owned()
}
