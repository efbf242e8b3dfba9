//! Logs of `nap run`: JSON lines with the incumbent's keys, or text on a terminal.

use std::fmt::{self, Write as _};
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use jiff::Timestamp;
use nap_clock::Clock;
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use super::args::{LogFormat, LogLevel, OperatorArgs};
use crate::user_error::UserError;

/// The commit of this binary, if the build names it.
pub const COMMIT: &str = match option_env!("NAP_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};
/// Name of the logger, as the incumbent has it.
const LOGGER: &str = "controller";

/// Fields that name an object, and the key of its reference.
const OBJECTS: [(&str, &str); 5] = [
    ("nodeclaim", "NodeClaim"),
    ("nodepool", "NodePool"),
    ("node", "Node"),
    ("pod", "Pod"),
    ("nodeclass", "AKSNodeClass"),
];

/// Starts to log as the options say; `filter` is that of `--log`.
pub fn start(args: &OperatorArgs, filter: Option<&str>) -> anyhow::Result<()> {
    let level = match args.log_level {
        LogLevel::Debug => "debug",
        LogLevel::Info => "info",
        LogLevel::Error => "error",
    };
    // The client reports every refusal as an error: an eviction that a budget blocks, each attempt
    // while a control plane starts.
    let by_level = format!("{level},hyper=info,h2=info,tower=info,kube=warn,kube_client=off");
    let is_json = match args.log_format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !std::io::stdout().is_terminal(),
    };
    let filter = filter.unwrap_or(&by_level);
    // What is being reconciled is part of each JSON line and would fill those of a terminal.
    let spans = if is_json { "nap_reconcile=info" } else { "nap_reconcile=off" };
    let filter = EnvFilter::try_new(format!("{filter},{spans}"))
        .with_context(|| format!("--log: `{filter}` is not a log filter"))?;
    let outputs = Outputs {
        outputs: open("--log-output-paths", &args.log_output_paths)?,
        problems: open("--log-error-output-paths", &args.log_error_output_paths)?,
    };
    let layer = Lines { is_json, outputs: outputs.into(), clock: Clock::wall() };
    tracing_subscriber::registry().with(layer.with_filter(filter)).init();
    Ok(())
}

/// Logs text to stderr, for commands whose output is data.
pub fn to_stderr(filter: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter)
        .with_context(|| format!("--log: `{filter}` is not a log filter"))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(is_colourful())
        .with_target(false)
        .init();
    Ok(())
}

/// Whether logs on stderr have colours: on a terminal, unless `NO_COLOR` is set.
fn is_colourful() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty())
}

type Output = Box<dyn Write + Send>;

fn open(option: &str, paths: &[String]) -> anyhow::Result<Vec<Output>> {
    let paths = paths.iter().map(|path| path.trim()).filter(|path| !path.is_empty());
    let open = |path: &str| -> anyhow::Result<Output> {
        match path {
            "stdout" => Ok(Box::new(std::io::stdout())),
            "stderr" => Ok(Box::new(std::io::stderr())),
            path => match std::fs::File::options().create(true).append(true).open(path) {
                Ok(file) => Ok(Box::new(file)),
                Err(error) => Err(UserError::new(
                    format!("{option}: cannot write to `{path}`: {error}"),
                    "name `stdout`, `stderr` or files in a folder that exists",
                )
                .into()),
            },
        }
    };
    paths.map(open).collect()
}

struct Outputs {
    outputs: Vec<Output>,
    problems: Vec<Output>,
}

impl Outputs {
    /// Writes a line to every output. One that cannot be written is named in the outputs for
    /// problems.
    fn write(&mut self, line: &str) {
        for output in &mut self.outputs {
            let written = output.write_all(line.as_bytes()).and_then(|()| output.flush());
            if let Err(error) = written {
                for problem in &mut self.problems {
                    // There is nobody left to tell.
                    let _ = writeln!(problem, "cannot write the log: {error}");
                }
            }
        }
    }
}

/// The layer that writes lines.
struct Lines {
    is_json: bool,
    outputs: Mutex<Outputs>,
    clock: Clock,
}

/// Fields of a span.
struct SpanFields(Map<String, Value>);

impl<S: Subscriber + for<'l> LookupSpan<'l>> Layer<S> for Lines {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(SpanFields(fields.others));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut outer = Map::new();
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(SpanFields(of_span)) = span.extensions().get::<SpanFields>() {
                outer.extend(of_span.clone());
            }
        }
        let now = self.clock.now();
        let level = event.metadata().level().as_str();
        let line = if self.is_json {
            json_line(now, level, &fields, outer)
        } else {
            text_line(now, level, &fields)
        };
        self.outputs.lock().unwrap_or_else(PoisonError::into_inner).write(&line);
    }
}

/// The line of an event: the incumbent's keys, then those of its span, then its own.
fn json_line(now: Timestamp, level: &str, fields: &Fields, outer: Map<String, Value>) -> String {
    let mut line = Map::new();
    line.insert("level".to_owned(), json!(level));
    line.insert("time".to_owned(), json!(now.strftime("%FT%T%.3fZ").to_string()));
    line.insert("logger".to_owned(), json!(LOGGER));
    line.insert("message".to_owned(), json!(fields.message));
    line.insert("commit".to_owned(), json!(COMMIT));
    line.extend(outer);
    for (key, value) in &fields.others {
        let object = OBJECTS.iter().find(|(field, _)| field == key).map(|(_, object)| *object);
        match (object, value.as_str()) {
            (Some(object), Some(name)) => {
                line.insert(object.to_owned(), reference(name));
            }
            _ => {
                line.insert(key.clone(), value.clone());
            }
        }
    }
    format!("{}\n", Value::Object(line))
}

/// A reference to an object: `namespace/name` or its name.
fn reference(name: &str) -> Value {
    match name.split_once('/') {
        Some((namespace, name)) => json!({ "namespace": namespace, "name": name }),
        None => json!({ "name": name }),
    }
}

fn text_line(now: Timestamp, level: &str, fields: &Fields) -> String {
    let mut line = format!("{} {level:>5} {}", now.strftime("%FT%T%.3fZ"), fields.message);
    for (key, value) in &fields.others {
        let value = value.as_str().map_or_else(|| value.to_string(), |text| format!("{text:?}"));
        // Writing to a String cannot fail.
        let _ = write!(line, " {key}={value}");
    }
    line.push('\n');
    line
}

/// Fields of an event or a span.
#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn insert(&mut self, field: &Field, value: Value) {
        self.others.insert(field.name().to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" {
            self.message = text;
        } else {
            self.insert(field, Value::String(text));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        // A field that is called `message` is not the message of the line.
        let key = if field.name() == "message" { "detail" } else { field.name() };
        self.others.insert(key.to_owned(), json!(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, json!(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, json!(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, json!(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.insert(field, json!(value));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(is_json: bool) -> String {
        let written = Written::default();
        let outputs: Vec<Output> = vec![Box::new(written.clone())];
        let outputs = Outputs { outputs, problems: Vec::new() };
        let clock = Clock::starting_at("2026-01-02T03:04:05Z".parse().unwrap(), 1);
        let lines = Lines { is_json, outputs: outputs.into(), clock };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            let span = tracing::info_span!("reconcile", controller = "disruption", name = "a");
            let _inside = span.enter();
            let (pod, detail) = ("shop/web", "why");
            tracing::warn!(pod, nodeclaim = "c", pods = 3, message = detail, "disrupting node");
        });
        String::from_utf8(written.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_json_line_has_the_incumbents_keys_and_references() {
        let line: Value = serde_json::from_str(&logged(true)).unwrap();
        let object = line.as_object().unwrap();
        let keys: Vec<&str> = object.keys().map(String::as_str).collect();
        for key in ["level", "time", "logger", "message", "commit", "controller", "name"] {
            assert!(keys.contains(&key), "{keys:?}");
        }
        assert_eq!(line["level"], "WARN");
        assert!(line["time"].as_str().unwrap().starts_with("2026-01-02T03:04:05."), "{line}");
        assert_eq!(line["message"], "disrupting node");
        assert_eq!(line["controller"], "disruption");
        assert_eq!(line["Pod"], json!({ "namespace": "shop", "name": "web" }));
        assert_eq!(line["NodeClaim"], json!({ "name": "c" }));
        assert_eq!((&line["pods"], &line["detail"]), (&json!(3), &json!("why")));
    }

    #[test]
    fn a_text_line_is_short() {
        let line = logged(false);
        assert!(line.contains(" WARN disrupting node "), "{line}");
        assert!(line.contains(" pod=\"shop/web\""), "{line}");
        assert!(!line.contains("controller"), "{line}");
    }
}
