//! Checks of a CronJob: the form of its schedule, and its policy. When a schedule hits is the
//! controller's business, which says it in an event if it cannot read one.

use serde_json::{Value, json};

use crate::error::FieldError;
use crate::object;

const MACROS: [&str; 7] =
    ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];
const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

pub(super) fn check(spec: &Value, errors: &mut Vec<FieldError>) {
    let schedule = object::text(spec, &["schedule"]);
    if schedule.is_empty() {
        errors.push(FieldError::required("spec.schedule", ""));
    } else if schedule.contains("TZ") {
        let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        errors.push(FieldError::invalid("spec.schedule", schedule, detail));
    } else if let Err(problem) = schedule_form(schedule) {
        errors.push(FieldError::invalid("spec.schedule", schedule, problem));
    }
    let zone = object::text(spec, &["timeZone"]);
    if zone.eq_ignore_ascii_case("local") {
        let detail = "timeZone must be an explicit time zone as defined in \
                      https://www.iana.org/time-zones";
        errors.push(FieldError::invalid("spec.timeZone", zone, detail));
    }
    let policy = object::text(spec, &["concurrencyPolicy"]);
    if !matches!(policy, "" | "Allow" | "Forbid" | "Replace") {
        let supported = vec![json!("Allow"), json!("Forbid"), json!("Replace")];
        errors.push(FieldError::not_supported("spec.concurrencyPolicy", policy, supported));
    }
}

fn schedule_form(schedule: &str) -> Result<(), String> {
    if MACROS.contains(&schedule.trim()) {
        return Ok(());
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    let [minute, hour, day, month, weekday] = fields.as_slice() else {
        return Err(format!("expected exactly 5 fields, found {}: {fields:?}", fields.len()));
    };
    field(minute, 0, 59, &[])?;
    field(hour, 0, 23, &[])?;
    field(day, 1, 31, &[])?;
    field(month, 1, 12, &MONTHS)?;
    field(weekday, 0, 6, &DAYS)
}

/// A list of stars, numbers, names and ranges, each with an optional step.
fn field(text: &str, low: u32, high: u32, names: &[&str]) -> Result<(), String> {
    let number = |part: &str| {
        let name = names.iter().position(|name| part.eq_ignore_ascii_case(name));
        let named = name.and_then(|place| u32::try_from(place).ok()).map(|place| place + low);
        named.or_else(|| part.parse().ok()).ok_or_else(|| format!("failed to parse {part:?}"))
    };
    for part in text.split(',') {
        let (range, step) = part.split_once('/').unwrap_or((part, "1"));
        if !step.parse::<u32>().is_ok_and(|step| step > 0) {
            return Err(format!("step of range should be a positive number: {part}"));
        }
        if matches!(range, "*" | "?") {
            continue;
        }
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (from, to) = (number(from)?, number(to)?);
        if from < low {
            return Err(format!("beginning of range ({from}) below minimum ({low}): {part}"));
        }
        if to > high {
            return Err(format!("end of range ({to}) above maximum ({high}): {part}"));
        }
        if from > to {
            return Err(format!("beginning of range ({from}) beyond end of range ({to}): {part}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_out_of_range_are_refused() {
        for good in ["* * * * *", "*/5 1-3,7 ? JAN-mar sun", "@daily", "0 0 1 1 0"] {
            assert_eq!(schedule_form(good), Ok(()), "{good}");
        }
        for bad in ["61 * * * *", "* * * *", "* 24 * * *", "*/0 * * * *", "a * * * *", "* * * * 7"]
        {
            assert!(schedule_form(bad).is_err(), "{bad}");
        }
    }
}
