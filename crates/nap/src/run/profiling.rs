//! CPU profiles of `nap run` for `go tool pprof`, served with `--enable-profiling` only.
//!
//! Nothing runs until a profile is asked for: then a timer interrupts the process a hundred times
//! per second of CPU time, and the stacks that it met are written as pprof's protobuf.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::extract::RawQuery;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use nap_clock::Clock;
use pprof::{ProfilerGuard, ProfilerGuardBuilder, Report};

/// Samples per second of CPU time, as Go takes.
const FREQUENCY: i32 = 100;
/// Length of a profile in seconds if the request has none, as Go has it.
const DEFAULT_SECONDS: u64 = 30;
const MAX_SECONDS: u64 = 300;
/// Libraries that are not unwound from: they may hold locks that the unwinder needs.
const NOT_UNWOUND: [&str; 4] = ["libc", "libgcc", "pthread", "vdso"];

const INDEX: &str =
    "/debug/pprof/profile?seconds=N  CPU profile of N seconds, for `go tool pprof`\n";

/// Routes under `/debug/pprof`.
pub fn routes() -> Router {
    Router::new()
        .route("/debug/pprof/", get(|| async { INDEX }))
        .route("/debug/pprof/profile", get(profile))
}

/// Serves a profile of the next seconds. A client that goes away ends it.
async fn profile(RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    let asked = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "seconds");
    let seconds = match asked.map(|(_, text)| text.parse::<u64>()) {
        None => DEFAULT_SECONDS,
        Some(Ok(seconds)) if (1..=MAX_SECONDS).contains(&seconds) => seconds,
        Some(_) => {
            let message = format!("seconds: a whole number from 1 to {MAX_SECONDS} is needed\n");
            return (StatusCode::BAD_REQUEST, message).into_response();
        }
    };
    let guard = match ProfilerGuardBuilder::default()
        .frequency(FREQUENCY)
        .blocklist(&NOT_UNWOUND)
        .build()
    {
        Ok(guard) => guard,
        Err(pprof::Error::Running) => {
            let message = "another profile is being taken: ask again when it has ended\n";
            return (StatusCode::CONFLICT, message).into_response();
        }
        Err(error) => {
            let message = format!("no profile: {error}; is there a folder /tmp to write to?\n");
            return (StatusCode::INTERNAL_SERVER_ERROR, message).into_response();
        }
    };
    Clock::wall().sleep(Duration::from_secs(seconds)).await;
    match tokio::task::spawn_blocking(move || write(guard)).await {
        Ok(Ok(bytes)) => {
            let headers = [
                (header::CONTENT_TYPE, "application/octet-stream"),
                (header::CONTENT_DISPOSITION, "attachment; filename=\"profile\""),
            ];
            (headers, bytes).into_response()
        }
        Ok(Err(error)) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("no profile: {error}\n")).into_response()
        }
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("no profile: {error}\n")).into_response()
        }
    }
}

/// Ends a profile and writes it, which reads the symbols of the binary.
fn write(guard: ProfilerGuard<'static>) -> anyhow::Result<Vec<u8>> {
    let report = guard.report().build()?;
    drop(guard);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&Profile::of(&report))?;
    Ok(gzip.finish()?)
}

/// A message of protobuf that is being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }

    fn number(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    fn bytes(&mut self, field: u64, value: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }
}

/// Tables of a profile: strings, functions and locations are written once each.
#[derive(Default)]
struct Profile {
    strings: BTreeMap<String, u64>,
    /// Ids by name and file.
    functions: BTreeMap<(u64, u64), u64>,
    /// Ids by the function and line of each frame that the compiler inlined into one.
    locations: BTreeMap<Vec<(u64, u64)>, u64>,
}

impl Profile {
    /// Bytes of a `perftools.profiles.Profile`.
    fn of(report: &Report) -> Vec<u8> {
        let mut tables = Self::default();
        tables.string("");
        let mut profile = Message::default();
        for (kind, unit) in [("samples", "count"), ("cpu", "nanoseconds")] {
            let value = tables.value_type(kind, unit);
            profile.bytes(1, &value.0);
        }
        let period = 1_000_000_000 / u64::from(FREQUENCY.unsigned_abs());
        let thread = tables.string("thread");
        let mut samples = Vec::new();
        for (frames, count) in &report.data {
            let mut sample = Message::default();
            for symbols in &frames.frames {
                let lines: Vec<(u64, u64)> = symbols
                    .iter()
                    .map(|symbol| {
                        let name = tables.string(&symbol.name());
                        let file = tables.string(&symbol.filename());
                        (id(&mut tables.functions, (name, file)), u64::from(symbol.lineno()))
                    })
                    .collect();
                sample.number(1, id(&mut tables.locations, lines));
            }
            let count = count.unsigned_abs() as u64;
            sample.number(2, count);
            sample.number(2, count * period);
            let mut label = Message::default();
            label.number(1, thread);
            label.number(2, tables.string(&frames.thread_name_or_id()));
            sample.bytes(3, &label.0);
            samples.push(sample.0);
        }
        for sample in &samples {
            profile.bytes(2, sample);
        }
        let period_type = tables.value_type("cpu", "nanoseconds");
        let started = report.timing.start_time.duration_since(SystemTime::UNIX_EPOCH);
        profile.number(9, nanoseconds(started.unwrap_or_default()));
        profile.number(10, nanoseconds(report.timing.duration));
        profile.bytes(11, &period_type.0);
        profile.number(12, period);
        tables.write(&mut profile);
        profile.0
    }

    /// Index of a string; the empty one has index 0.
    fn string(&mut self, text: &str) -> u64 {
        let next = self.strings.len() as u64;
        *self.strings.entry(text.to_owned()).or_insert(next)
    }

    fn value_type(&mut self, kind: &str, unit: &str) -> Message {
        let mut value = Message::default();
        value.number(1, self.string(kind));
        value.number(2, self.string(unit));
        value
    }

    fn write(self, profile: &mut Message) {
        for (lines, id) in &self.locations {
            let mut location = Message::default();
            location.number(1, *id);
            for (function, number) in lines {
                let mut line = Message::default();
                line.number(1, *function);
                line.number(2, *number);
                location.bytes(4, &line.0);
            }
            profile.bytes(4, &location.0);
        }
        for ((name, file), id) in &self.functions {
            let mut function = Message::default();
            function.number(1, *id);
            function.number(2, *name);
            function.number(3, *name);
            function.number(4, *file);
            profile.bytes(5, &function.0);
        }
        let mut strings: Vec<(String, u64)> = self.strings.into_iter().collect();
        strings.sort_by_key(|(_, index)| *index);
        for (text, _) in &strings {
            profile.bytes(6, text.as_bytes());
        }
    }
}

/// Id of an entry of a table, counted from 1.
fn id<K: Ord>(table: &mut BTreeMap<K, u64>, key: K) -> u64 {
    let next = table.len() as u64 + 1;
    *table.entry(key).or_insert(next)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
