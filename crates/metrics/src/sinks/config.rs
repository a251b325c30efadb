//! Sinks as flags name them: `influxdb:http://host:8086?db=k8s`.

use http::Uri;
use std::path::PathBuf;

/// The encoding and protocol of a sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkKind {
    /// Line protocol to `/write`.
    InfluxV1 {
        database: String,
    },
    /// Line protocol to `/api/v2/write`.
    InfluxV2 {
        org: String,
        bucket: String,
    },
    /// Remote write 1.0.
    RemoteWriteV1,
    /// Remote write 2.0.
    RemoteWriteV2,
    /// OTLP over HTTP, as protobuf.
    Otlp,
    StatsD,
    Graphite,
    /// Line protocol appended to a file.
    File,
}

/// A configured sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkConfig {
    pub kind: SinkKind,
    /// The URL without its query; empty for files.
    pub url: String,
    /// Host and port of sinks without HTTP.
    pub address: (String, u16),
    pub path: PathBuf,
    /// User name and password.
    pub basic: Option<(String, String)>,
    /// A file with a token.
    pub token_file: Option<PathBuf>,
    pub insecure: bool,
    /// Settings that distinguish this sink from others, without secrets.
    identity: String,
}

/// Reason why a text names no sink.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SinkError {
    #[error("{0:?} is not of the form KIND:URL")]
    Form(String),
    #[error(
        "unknown kind of sink {0:?}; known are influxdb, influxdb2, prometheus, otlp, statsd, graphite and file"
    )]
    Kind(String),
    #[error("{0:?} is not a URL")]
    Url(String),
    #[error("the sink {kind} needs the parameter {parameter:?}")]
    Missing { kind: String, parameter: &'static str },
    #[error("unknown version {0:?} of remote write; known are 1 and 2")]
    Version(String),
    #[error("unknown parameter {0:?}")]
    Parameter(String),
}

impl SinkConfig {
    /// Parses `KIND:URL?PARAMETERS`.
    pub fn parse(text: &str) -> Result<Self, SinkError> {
        let (kind, rest) = text.split_once(':').ok_or_else(|| SinkError::Form(text.to_owned()))?;
        let (url, query) = rest.split_once('?').unwrap_or((rest, ""));
        let query = crate::serve::Query::parse(Some(query));
        const KNOWN: [&str; 8] = ["db", "org", "bucket", "user", "pw", "token-file", "insecure", "version"];
        if let Some(unknown) = query.names().find(|name| !KNOWN.contains(name)) {
            return Err(SinkError::Parameter(unknown.to_owned()));
        }
        let needed = |parameter: &'static str| match query.text(parameter) {
            "" => Err(SinkError::Missing { kind: kind.to_owned(), parameter }),
            text => Ok(text.to_owned()),
        };
        let parsed = match kind {
            "influxdb" => SinkKind::InfluxV1 { database: query.or("db", "k8s") },
            "influxdb2" => SinkKind::InfluxV2 { org: needed("org")?, bucket: needed("bucket")? },
            "prometheus" => match query.text("version") {
                "" | "1" => SinkKind::RemoteWriteV1,
                "2" => SinkKind::RemoteWriteV2,
                other => return Err(SinkError::Version(other.to_owned())),
            },
            "otlp" => SinkKind::Otlp,
            "statsd" => SinkKind::StatsD,
            "graphite" => SinkKind::Graphite,
            "file" => SinkKind::File,
            other => return Err(SinkError::Kind(other.to_owned())),
        };
        let bad = || SinkError::Url(url.to_owned());
        let public = ["db", "org", "bucket", "user", "version"].map(|name| query.text(name));
        let mut config = Self {
            identity: format!("{kind} {} {}", without_password(url), public.join(" ")),
            kind: parsed,
            url: url.to_owned(),
            address: (String::new(), 0),
            path: PathBuf::new(),
            basic: Some((query.or("user", ""), query.or("pw", ""))).filter(|(user, _)| !user.is_empty()),
            token_file: Some(query.text("token-file")).filter(|path| !path.is_empty()).map(PathBuf::from),
            insecure: query.flag("insecure"),
        };
        match config.kind {
            SinkKind::File => {
                config.path = Some(PathBuf::from(url)).filter(|path| path.is_absolute()).ok_or_else(bad)?;
            }
            SinkKind::StatsD | SinkKind::Graphite => {
                let usual = if config.kind == SinkKind::StatsD { 8125 } else { 2003 };
                let authority: http::uri::Authority =
                    url.trim_start_matches('/').parse().map_err(|_| bad())?;
                let port = authority.port_u16().unwrap_or(usual);
                config.address = (authority.host().trim_matches(['[', ']']).to_owned(), port);
            }
            _ => {
                let uri: Uri = url.parse().map_err(|_| bad())?;
                if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
                    return Err(bad());
                }
            }
        }
        Ok(config)
    }

    /// A name for logs, metrics and the directory of the queue: kind, address and a checksum of the identity. It has no
    /// secrets, and a changed password does not change it, so the queue is kept.
    pub fn name(&self) -> String {
        let kind = match self.kind {
            SinkKind::InfluxV1 { .. } => "influxdb",
            SinkKind::InfluxV2 { .. } => "influxdb2",
            SinkKind::RemoteWriteV1 | SinkKind::RemoteWriteV2 => "prometheus",
            SinkKind::Otlp => "otlp",
            SinkKind::StatsD => "statsd",
            SinkKind::Graphite => "graphite",
            SinkKind::File => "file",
        };
        let place = self.url.rsplit_once('@').map_or(self.url.as_str(), |(_, place)| place);
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        let place: String = place.chars().take(100).map(plain).collect();
        format!("{kind}-{}-{:08x}", place.trim_matches('-'), crc32c::crc32c(self.identity.as_bytes()))
    }
}

/// A URL without the password of its user.
fn without_password(url: &str) -> String {
    match url.rsplit_once('@') {
        Some((user, place)) => match user.rsplit_once(':') {
            Some((user, _)) if !user.ends_with("http") && !user.ends_with("https") => {
                format!("{user}@{place}")
            }
            _ => url.to_owned(),
        },
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_by_identity_and_have_no_secrets() {
        let name = |text: &str| SinkConfig::parse(text).expect("a sink").name();
        let all = [
            "influxdb:http://db:8086?db=one",
            "influxdb:http://db:8086?db=two",
            "influxdb:http://db:8086?db=one&user=u&pw=hunter2",
            "influxdb2:http://db:8086?org=o&bucket=a",
            "influxdb2:http://db:8086?org=o&bucket=b",
            "prometheus:http://db:8086",
            "prometheus:http://db:8086?version=2",
            "otlp:http://db-8086",
            "otlp:http://db.8086",
            "otlp:http://user:hunter2@db",
        ];
        let names: std::collections::BTreeSet<String> = all.iter().map(|text| name(text)).collect();
        assert_eq!(names.len(), all.len(), "{names:?}");
        assert!(names.iter().all(|name| !name.contains("hunter2") && name.len() < 200), "{names:?}");
        for (one, other) in [
            ("influxdb:http://db:8086?user=u&pw=a", "influxdb:http://db:8086?user=u&pw=b"),
            ("otlp:http://user:a@db", "otlp:http://user:b@db"),
        ] {
            assert_eq!(name(one), name(other), "a password is no part of the identity");
        }
    }

    #[test]
    fn flags_name_sinks() {
        let influx = SinkConfig::parse("influxdb:http://db:8086?db=metrics&user=u&pw=p").expect("a sink");
        assert_eq!(influx.kind, SinkKind::InfluxV1 { database: "metrics".to_owned() });
        assert_eq!(influx.basic, Some(("u".to_owned(), "p".to_owned())));
        assert!(influx.name().starts_with("influxdb-http---db-8086-"), "{}", influx.name());
        let second = SinkConfig::parse("prometheus:https://p/api/v1/write?version=2").expect("a sink");
        assert_eq!(second.kind, SinkKind::RemoteWriteV2);
        assert_eq!(SinkConfig::parse("statsd:[::1]").expect("a sink").address, ("::1".to_owned(), 8125));
        assert_eq!(SinkConfig::parse("graphite:g:2103").expect("a sink").address, ("g".to_owned(), 2103));
        assert_eq!(
            SinkConfig::parse("file:/var/log/usage").expect("a sink").path,
            PathBuf::from("/var/log/usage")
        );
        for bad in [
            "x",
            "x:http://a",
            "influxdb:ftp://a",
            "influxdb2:http://a?org=o",
            "file:relative",
            "otlp:http://a?x=1",
            "prometheus:http://a?version=3",
        ] {
            assert!(SinkConfig::parse(bad).is_err(), "{bad}");
        }
    }
}
