//! Reading of maintenance windows in the form of the `maintenanceConfigurations` API.

use jiff::civil::{Date, Time, Weekday};
use jiff::tz::Offset;
use serde_json::Value;

use super::window::{DateSpan, MAX_INTERVAL, MaintenanceWindow, Schedule, WeekIndex};

/// A maintenance window that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("maintenanceWindow.{field}: `{value}` is not {expected}")]
pub struct ParseWindowError {
    field: &'static str,
    value: String,
    expected: &'static str,
}

type Read<T> = Result<T, ParseWindowError>;

impl MaintenanceWindow {
    /// Reads a maintenance configuration; `None` if it has no window.
    pub fn parse(configuration: &Value) -> Read<Option<Self>> {
        let window = configuration.pointer("/properties/maintenanceWindow");
        let Some(window) = window.filter(|window| !window.is_null()) else { return Ok(None) };
        let duration = number(window, "durationHours", "/durationHours", 1..=24)?;
        let dates = window.get("notAllowedDates").and_then(Value::as_array);
        let span = |span: &Value| {
            let from = date(span.get("start"), "notAllowedDates.start")?;
            Ok(DateSpan { from, to: date(span.get("end"), "notAllowedDates.end")? })
        };
        let start_date = window.get("startDate").filter(|value| !value.is_null());
        Ok(Some(Self {
            schedule: schedule(window.get("schedule").unwrap_or(&Value::Null))?,
            duration_hours: duration,
            utc_offset: offset(window.get("utcOffset"))?,
            start_date: start_date.map(|value| date(Some(value), "startDate")).transpose()?,
            start_time: time(window.get("startTime"))?,
            not_allowed: dates.into_iter().flatten().map(span).collect::<Read<_>>()?,
        }))
    }
}

fn schedule(schedule: &Value) -> Read<Schedule> {
    let given = |name: &str| schedule.get(name).filter(|value| !value.is_null());
    let interval = |value: &Value, field, pointer| number(value, field, pointer, 1..=MAX_INTERVAL);
    if let Some(daily) = given("daily") {
        let days = interval(daily, "schedule.daily.intervalDays", "/intervalDays")?;
        return Ok(Schedule::Daily { days });
    }
    if let Some(weekly) = given("weekly") {
        let weeks = interval(weekly, "schedule.weekly.intervalWeeks", "/intervalWeeks")?;
        return Ok(Schedule::Weekly { weeks, day: weekday(weekly, "schedule.weekly.dayOfWeek")? });
    }
    if let Some(monthly) = given("absoluteMonthly") {
        let field = "schedule.absoluteMonthly.intervalMonths";
        let months = interval(monthly, field, "/intervalMonths")?;
        let field = "schedule.absoluteMonthly.dayOfMonth";
        return Ok(Schedule::AbsoluteMonthly {
            months,
            day: number(monthly, field, "/dayOfMonth", 1..=31)?,
        });
    }
    if let Some(monthly) = given("relativeMonthly") {
        let field = "schedule.relativeMonthly.intervalMonths";
        let months = interval(monthly, field, "/intervalMonths")?;
        let text = monthly.get("weekIndex").and_then(Value::as_str).unwrap_or_default();
        let week = WeekIndex::parse(text).ok_or_else(|| ParseWindowError {
            field: "schedule.relativeMonthly.weekIndex",
            value: text.to_owned(),
            expected: "First, Second, Third, Fourth or Last",
        })?;
        let day = weekday(monthly, "schedule.relativeMonthly.dayOfWeek")?;
        return Ok(Schedule::RelativeMonthly { months, week, day });
    }
    Err(ParseWindowError {
        field: "schedule",
        value: schedule.to_string(),
        expected: "daily, weekly, absoluteMonthly or relativeMonthly",
    })
}

fn number<T: TryFrom<i64> + PartialOrd>(
    value: &Value,
    field: &'static str,
    pointer: &str,
    range: std::ops::RangeInclusive<T>,
) -> Read<T> {
    let value = value.pointer(pointer).unwrap_or(&Value::Null);
    let number = value.as_i64().and_then(|number| T::try_from(number).ok());
    number.filter(|number| range.contains(number)).ok_or_else(|| ParseWindowError {
        field,
        value: value.to_string(),
        expected: "a whole number in the range that AKS allows",
    })
}

/// Reads the text of a field with `parse`; a missing field is an empty text.
fn text<T>(
    value: Option<&Value>,
    field: &'static str,
    expected: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Read<T> {
    let text = value.and_then(Value::as_str).unwrap_or_default();
    parse(text).ok_or_else(|| ParseWindowError { field, value: text.to_owned(), expected })
}

fn date(value: Option<&Value>, field: &'static str) -> Read<Date> {
    // Some clients write a time behind the date.
    text(value, field, "a date such as 2026-01-31", |text| text.get(..10)?.parse().ok())
}

fn time(value: Option<&Value>) -> Read<Time> {
    text(value, "startTime", "a time such as 22:00", |text| {
        let (hour, minute) = text.split_once(':')?;
        Time::new(hour.parse().ok()?, minute.parse().ok()?, 0, 0).ok()
    })
}

fn offset(value: Option<&Value>) -> Read<Offset> {
    text(value, "utcOffset", "an offset such as +05:30", |text| {
        if text.is_empty() {
            return Some(Offset::UTC);
        }
        let sign = if text.starts_with('-') { -1 } else { 1 };
        let (hours, minutes) = text.strip_prefix(['+', '-'])?.split_once(':')?;
        let minutes = minutes.parse::<i32>().ok().filter(|minutes| (0..60).contains(minutes))?;
        let hours = hours.parse::<i32>().ok().filter(|hours| (0..24).contains(hours))?;
        Offset::from_seconds(sign * (hours * 3600 + minutes * 60)).ok()
    })
}

fn weekday(value: &Value, field: &'static str) -> Read<Weekday> {
    text(value.get("dayOfWeek"), field, "a day such as Monday", |text| {
        Some(match text {
            "Monday" => Weekday::Monday,
            "Tuesday" => Weekday::Tuesday,
            "Wednesday" => Weekday::Wednesday,
            "Thursday" => Weekday::Thursday,
            "Friday" => Weekday::Friday,
            "Saturday" => Weekday::Saturday,
            "Sunday" => Weekday::Sunday,
            _ => return None,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn configuration(schedule: &Value) -> Value {
        json!({ "name": "aksManagedNodeOSUpgradeSchedule", "properties": { "maintenanceWindow": {
            "schedule": schedule, "durationHours": 8, "utcOffset": "-07:00",
            "startDate": "2026-01-01", "startTime": "22:30",
            "notAllowedDates": [{ "start": "2026-12-23", "end": "2027-01-03" }],
        } } })
    }

    #[test]
    fn the_four_kinds_of_schedules_are_read() {
        for (schedule, expected) in [
            (json!({ "daily": { "intervalDays": 3 } }), Schedule::Daily { days: 3 }),
            (
                json!({ "weekly": { "intervalWeeks": 2, "dayOfWeek": "Friday" }, "daily": null }),
                Schedule::Weekly { weeks: 2, day: Weekday::Friday },
            ),
            (
                json!({ "absoluteMonthly": { "intervalMonths": 1, "dayOfMonth": 15 } }),
                Schedule::AbsoluteMonthly { months: 1, day: 15 },
            ),
            (
                json!({ "relativeMonthly": {
                    "intervalMonths": 1, "weekIndex": "Last", "dayOfWeek": "Sunday",
                } }),
                Schedule::RelativeMonthly {
                    months: 1,
                    week: WeekIndex::Last,
                    day: Weekday::Sunday,
                },
            ),
        ] {
            let window = MaintenanceWindow::parse(&configuration(&schedule)).unwrap().unwrap();
            assert_eq!(window.schedule, expected);
            assert_eq!(window.utc_offset.seconds(), -7 * 3600);
            assert_eq!(window.start_time, Time::constant(22, 30, 0, 0));
            assert_eq!(window.not_allowed.len(), 1);
        }
    }

    #[test]
    fn a_configuration_without_a_window_has_none() {
        let configuration = json!({ "properties": { "timeInWeek": [] } });
        assert_eq!(MaintenanceWindow::parse(&configuration), Ok(None));
    }

    #[test]
    fn malformed_fields_are_named() {
        for (field, value, expected) in [
            ("schedule", json!({}), "maintenanceWindow.schedule: `{}` is not daily, weekly"),
            ("durationHours", json!(0), "maintenanceWindow.durationHours: `0` is not"),
            ("startTime", json!("25:00"), "maintenanceWindow.startTime: `25:00` is not a time"),
            ("utcOffset", json!("5"), "maintenanceWindow.utcOffset: `5` is not an offset"),
            ("startDate", json!("soon"), "maintenanceWindow.startDate: `soon` is not a date"),
            (
                "notAllowedDates",
                json!([{ "start": "2026-01-01" }]),
                "maintenanceWindow.notAllowedDates.end: `` is not a date",
            ),
        ] {
            let mut bad = configuration(&json!({ "daily": { "intervalDays": 1 } }));
            bad["properties"]["maintenanceWindow"][field] = value;
            let error = MaintenanceWindow::parse(&bad).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
