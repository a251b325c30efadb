//! Logs to standard error, as text or JSON.
//!
//! A separate thread writes buffered lines, so that a request never waits for a slow terminal; warnings and errors
//! are written immediately. A disabled line costs a load and a compare.

mod json;
mod vmodule;

pub use vmodule::VModule;

use std::cell::RefCell;
use std::fmt::{Display, Write as _};
use std::io::{self, Write};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

use parking_lot::Mutex;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::JsonFields;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::clock::Clock;

/// Target of access log lines, so that they can be filtered separately.
pub const ACCESS: &str = "access";

/// Ferry's crates that log; a test compares them with `crates/`. Other crates log at the highest verbosity only.
const OWN: &[&str] = &[
    "apiserver",
    "base",
    "client",
    "cloud",
    "cluster",
    "container",
    "controllers",
    "cri",
    "dns",
    "ferry",
    "kubelet",
    "metrics",
    "network",
    "policy",
    "proxy",
    "runtime",
    "scheduler",
    "simulate",
    "store",
];

/// Interval at which buffered lines are written.
const GATHER: Duration = Duration::from_millis(20);
/// Limit of the buffer: a thread that finds it full writes it out itself, which bounds memory.
const MAX_WAITING: usize = 256 * 1024;
/// Capacity of a thread's line buffer that is retained.
const RETAINED_LINE: usize = 4 * 1024;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Text,
    Json,
}

/// Settings of the log. `verbosity`: 0 is the minimum for operators, 1 adds a line per request, 2 details of Ferry, 4
/// all of Ferry, 6 everything.
#[derive(Clone, Debug, Default)]
pub struct LogSettings {
    pub verbosity: u32,
    pub format: Format,
    /// Verbosity of single files.
    pub modules: VModule,
}

/// Starts logging for the process.
pub fn init(settings: LogSettings) -> Result<(), TryInitError> {
    let LogSettings { verbosity, format, modules } = settings;
    let sink = Arc::new(Sink::default());
    let _ = LOG.set(Log { sink: Arc::clone(&sink), access: (verbosity > 0).then_some(format) });
    let writer = Gathered(sink);
    let filter = vmodule::Verbosity { targets: filter(verbosity), modules };
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(false);
    match format {
        Format::Text => registry.with(layer).try_init()?,
        Format::Json => {
            let layer = layer.fmt_fields(JsonFields::new()).event_format(json::KlogJson);
            registry.with(layer).try_init()?;
        }
    }
    std::panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        tracing::error!(thread = thread.name().unwrap_or("unnamed"), "{panic}");
        flush();
    }));
    Ok(())
}

/// Writes out buffered lines; call it before the process exits.
pub fn flush() {
    if let Some(log) = LOG.get() {
        log.sink.flush();
    }
}

/// A request in the access log.
pub struct Access<'a> {
    pub client: &'a dyn Display,
    pub user: &'a str,
    pub verb: &'a str,
    pub path: &'a str,
    pub code: u16,
    pub micros: u64,
}

/// Writes an access log line, if enabled. Because of their number these lines bypass `tracing`, with the same format.
pub fn access(request: &Access<'_>) {
    thread_local! {
        static LINE: RefCell<String> = const { RefCell::new(String::new()) };
    }
    match LOG.get().and_then(|log| Some((log, log.access?))) {
        None => {}
        Some((log, Format::Text)) => LINE.with_borrow_mut(|line| {
            line.clear();
            request.write(line, Clock::system().now());
            log.sink.push(line.as_bytes(), false);
            line.shrink_to(RETAINED_LINE);
        }),
        Some((_, Format::Json)) => {
            let Access { client, user, verb, path, code, micros } = *request;
            tracing::info!(target: "access", client = client.to_string(), user, verb, path, code, micros);
        }
    }
}

impl Access<'_> {
    fn write(&self, line: &mut String, now: jiff::Timestamp) {
        let Self { client, user, verb, path, code, micros } = self;
        // Writing into memory cannot fail.
        let _ = write!(line, "{now:.6}  INFO {ACCESS}: client=\"{client}\"");
        for (name, text) in [(" user=", user), (" verb=", verb), (" path=", path)] {
            line.push_str(name);
            push_quoted(line, text);
        }
        let _ = writeln!(line, " code={code} micros={micros}");
    }
}

/// Formats text like `{:?}`, with a fast path for text that needs no escapes.
fn push_quoted(line: &mut String, text: &str) {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\')) {
        line.push('"');
        line.push_str(text);
        line.push('"');
    } else {
        let _ = write!(line, "{text:?}");
    }
}

/// The levels of Ferry's own crates that a verbosity shows.
fn level(verbosity: u32) -> LevelFilter {
    match verbosity {
        0..=1 => LevelFilter::INFO,
        2..=3 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

fn filter(verbosity: u32) -> Targets {
    let rest = match verbosity {
        0..=3 => LevelFilter::WARN,
        4..=5 => LevelFilter::INFO,
        _ => LevelFilter::TRACE,
    };
    let own = level(verbosity);
    let access = if verbosity == 0 { LevelFilter::OFF } else { LevelFilter::INFO };
    let own = OWN.iter().map(|name| (*name, own));
    Targets::new().with_default(rest).with_targets(own).with_target(ACCESS, access)
}

static LOG: OnceLock<Log> = OnceLock::new();

/// State of a started log.
struct Log {
    sink: Arc<Sink>,
    /// Format of access log lines, if enabled.
    access: Option<Format>,
}

#[derive(Default)]
struct Sink {
    waiting: Mutex<Vec<u8>>,
    writer: OnceLock<Thread>,
}

impl Sink {
    fn push(self: &Arc<Self>, line: &[u8], urgent: bool) {
        let mut waiting = self.waiting.lock();
        let first = waiting.is_empty();
        waiting.extend_from_slice(line);
        if urgent || waiting.len() > MAX_WAITING {
            write_out(&mut waiting);
            return;
        }
        drop(waiting);
        if first {
            self.writer.get_or_init(|| self.start()).unpark();
        }
    }

    #[expect(clippy::disallowed_methods, reason = "a named thread with a small stack")]
    fn start(self: &Arc<Self>) -> Thread {
        let sink = Arc::clone(self);
        let run = move || loop {
            thread::park();
            thread::sleep(GATHER);
            sink.flush();
        };
        match thread::Builder::new().name("log".to_owned()).stack_size(128 * 1024).spawn(run) {
            Ok(handle) => handle.thread().clone(),
            // If no thread can be started, lines are written with the next warning, when the buffer is full, or by
            // `flush`.
            Err(_) => thread::current(),
        }
    }

    fn flush(&self) {
        write_out(&mut self.waiting.lock());
    }
}

/// Standard error may be closed or full; there is no other output for the error.
fn write_out(waiting: &mut Vec<u8>) {
    let _ = io::stderr().write_all(waiting);
    waiting.clear();
    waiting.shrink_to(64 * 1024);
}

struct Gathered(Arc<Sink>);

struct Line {
    sink: Arc<Sink>,
    urgent: bool,
}

impl Write for Line {
    /// Writes a line, without the numbers of system errors.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(line) {
            Ok(text) if text.contains(crate::errors::NUMBER) => {
                self.sink.push(crate::errors::without_numbers(text).as_bytes(), self.urgent);
            }
            _ => self.sink.push(line, self.urgent),
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Gathered {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line { sink: Arc::clone(&self.0), urgent: false }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Line {
        Line { sink: Arc::clone(&self.0), urgent: *metadata.level() <= Level::WARN }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives the output of a subscriber.
    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Write for Captured {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn access_log_lines_have_the_common_format() {
        for (user, path) in [("admin", "/api/v1/pods"), ("a\"b\\c\n", "/ü/%20"), ("", "/\u{7f}")] {
            let captured = Captured::default();
            let writer = captured.clone();
            let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone()).with_ansi(false);
            let (client, verb, code, micros) = ("127.0.0.1:80", "get", 200u16, 17u64);
            tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
                tracing::info!(target: "access", client, user, verb, path, code, micros);
            });
            let want = String::from_utf8(captured.0.lock().clone()).expect("text");
            let mut line = String::new();
            let request = Access { client: &client, user, verb, path, code, micros };
            request.write(&mut line, jiff::Timestamp::now());
            let (stamp, rest) = line.split_at(27);
            let (want_stamp, want_rest) = want.split_at(27);
            assert_eq!((rest, stamp.len()), (want_rest, want_stamp.len()));
            assert!(stamp.ends_with('Z') && want_stamp.ends_with('Z'), "{stamp} {want_stamp}");
        }
    }

    #[test]
    fn json_lines_are_those_of_kubernetes() {
        let captured = Captured::default();
        let writer = captured.clone();
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(move || writer.clone())
            .fmt_fields(JsonFields::new())
            .event_format(json::KlogJson);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let _span = tracing::info_span!("reconcile", controller = "c\"d", tries = 2).entered();
            tracing::info!(count = 3, ratio = 0.5, on = true, path = "a\nb", "one {}", "line");
            tracing::error!(error = "no \"disk\"", pod = ?Some(1), "failed to mount");
            tracing::debug!("details");
            tracing::info!(target: "access", code = 200);
        });
        let text = String::from_utf8(captured.0.lock().clone()).expect("text");
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let keys = |line: &str| {
            let parts = line.split("\"").collect::<Vec<_>>();
            parts.windows(2).filter(|pair| pair[1].starts_with(':')).map(|pair| pair[0].to_owned()).collect()
        };
        let order: Vec<Vec<String>> = text.lines().map(keys).collect();
        assert_eq!(
            order[1],
            ["ts", "caller", "msg", "logger", "controller", "tries", "pod", "err"],
            "{text}"
        );
        let now = jiff::Timestamp::now().as_millisecond();
        for line in &lines {
            let stamp = line["ts"].as_f64().expect("a number");
            assert!((stamp - now as f64).abs() < 60_000.0, "{line}");
            assert!(line["caller"].as_str().is_some_and(|at| at.starts_with("src/logging.rs:")), "{line}");
            assert_eq!((&line["controller"], &line["tries"]), (&"c\"d".into(), &2.into()), "{line}");
        }
        let first = serde_json::json!({"msg": "one line", "v": 0, "count": 3, "ratio": 0.5, "on": true, "path": "a\nb"});
        for (key, want) in first.as_object().expect("an object") {
            assert_eq!(&lines[0][key], want, "{}", lines[0]);
        }
        assert_eq!((&lines[1]["err"], &lines[1]["pod"]), (&"no \"disk\"".into(), &"Some(1)".into()));
        assert!(lines[1].get("v").is_none() && lines[1].get("error").is_none());
        assert_eq!(lines[2]["v"], 2);
        assert_eq!((&lines[3]["msg"], &lines[3]["v"]), (&"HTTP".into(), &1.into()));
    }

    #[test]
    fn verbosity_selects_the_logged_levels() {
        let cases = [
            (0, "apiserver::serve", Level::INFO, true),
            (0, "kubelet::pods::start", Level::INFO, true),
            (2, "scheduler::queue", Level::DEBUG, true),
            (0, ACCESS, Level::INFO, false),
            (1, ACCESS, Level::INFO, true),
            (1, "apiserver::serve", Level::DEBUG, false),
            (2, "apiserver::serve", Level::DEBUG, true),
            (2, "h2", Level::INFO, false),
            (4, "store", Level::TRACE, true),
            (4, "h2", Level::DEBUG, false),
            (6, "h2", Level::TRACE, true),
            (0, "h2", Level::WARN, true),
        ];
        for (verbosity, target, level, want) in cases {
            let got = filter(verbosity).would_enable(target, &level);
            assert_eq!(got, want, "-v {verbosity} {target} {level}");
        }
    }

    #[test]
    fn filter_covers_every_crate_that_logs() {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut logging: Vec<String> = std::fs::read_dir(crates)
            .expect("the crates")
            .map(|entry| entry.expect("an entry"))
            .filter(|entry| {
                let manifest = std::fs::read_to_string(entry.path().join("Cargo.toml")).unwrap_or_default();
                manifest.lines().any(|line| line.starts_with("tracing.") || line.starts_with("tracing "))
            })
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        logging.sort();
        assert_eq!(logging, OWN, "crates that depend on tracing, and OWN");
    }
}
