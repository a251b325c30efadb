//! Lines in the form of Kubernetes' JSON logs: `ts` in milliseconds, `caller`, `msg`, `v` (not on errors), `logger`, the
//! fields of the event, and its error as `err`.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

use super::ACCESS;

/// The formatter. The fields of spans must be formatted as JSON objects.
pub(super) struct KlogJson;

impl<S, N> FormatEvent<S, N> for KlogJson
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let mut fields = Fields::default();
        event.record(&mut fields);
        if metadata.target() == ACCESS && fields.message.is_empty() {
            fields.message.push_str("HTTP");
        }
        write!(writer, "{{\"ts\":{},\"caller\":", milliseconds())?;
        write_text(&mut writer, &caller(metadata))?;
        writer.write_str(",\"msg\":")?;
        write_text(&mut writer, &fields.message)?;
        if let Some(verbosity) = verbosity(metadata) {
            write!(writer, ",\"v\":{verbosity}")?;
        }
        writer.write_str(",\"logger\":")?;
        write_text(&mut writer, metadata.target())?;
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            let extensions = span.extensions();
            let object = extensions.get::<FormattedFields<N>>().map_or("", |fields| fields.fields.as_str());
            let members = object.strip_prefix('{').and_then(|object| object.strip_suffix('}'));
            if let Some(members) = members.filter(|members| !members.is_empty()) {
                write!(writer, ",{members}")?;
            }
        }
        writer.write_str(&fields.members)?;
        if let Some(error) = &fields.error {
            writer.write_str(",\"err\":")?;
            write_text(&mut writer, error)?;
        }
        writer.write_str("}\n")
    }
}

fn milliseconds() -> f64 {
    let nanos = crate::clock::Clock::system().now().as_nanosecond();
    // Milliseconds with three decimals, the precision of a float of this size.
    #[expect(
        clippy::cast_precision_loss,
        reason = "microseconds since the epoch fit into 53 bits until 2255"
    )]
    let micros = (nanos / 1000) as f64;
    micros / 1000.0
}

/// File and line, with the directory of the file.
fn caller(metadata: &Metadata<'_>) -> String {
    let file = metadata.file().unwrap_or_default();
    let start = file.rmatch_indices('/').nth(1).map_or(0, |(at, _)| at + 1);
    format!("{}:{}", &file[start..], metadata.line().unwrap_or_default())
}

/// The verbosity that shows the line; errors have none.
fn verbosity(metadata: &Metadata<'_>) -> Option<u8> {
    match *metadata.level() {
        Level::ERROR => None,
        Level::WARN => Some(0),
        Level::INFO => Some(u8::from(metadata.target() == ACCESS)),
        Level::DEBUG => Some(2),
        Level::TRACE => Some(4),
    }
}

fn write_text(writer: &mut impl fmt::Write, text: &str) -> fmt::Result {
    writer.write_str(&serde_json::to_string(text).map_err(|_| fmt::Error)?)
}

/// Fields of an event, `members` already encoded.
#[derive(Default)]
struct Fields {
    message: String,
    error: Option<String>,
    members: String,
}

impl Fields {
    fn add(&mut self, field: &Field, value: &str) {
        // Writing into memory cannot fail.
        self.members.push(',');
        let _ = write_text(&mut self.members, field.name());
        let _ = write!(self.members, ":{value}");
    }

    fn text(&mut self, field: &Field, text: String) {
        match field.name() {
            "message" => self.message = text,
            "error" => self.error = Some(text),
            _ => {
                let quoted = serde_json::to_string(&text).unwrap_or_default();
                self.add(field, &quoted);
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, value.to_owned());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, &value.to_string());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, &value.to_string());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, &serde_json::to_string(&value).unwrap_or_default());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, if value { "true" } else { "false" });
    }
}
