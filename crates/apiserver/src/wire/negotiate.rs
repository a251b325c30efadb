//! Content negotiation: encodings of request and response bodies.

use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use machinery::status::{Details, Result, Status};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Json,
    Yaml,
    Protobuf,
    Cbor,
}

impl Encoding {
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
            Self::Cbor => "application/cbor",
        }
    }
}

/// Alternative form of the object, requested with `as=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Table,
    PartialObjectMetadata,
    PartialObjectMetadataList,
}

/// Result of parsing the `Accept` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    pub encoding: Encoding,
    pub pretty: bool,
    pub form: Option<Form>,
    /// Requested version of `meta.k8s.io` for a form: `v1` or `v1beta1`.
    pub form_version: &'static str,
    /// True for `stream=watch`.
    pub stream: bool,
    /// Encoding of errors. They have no other form: if only such were accepted, they are JSON.
    pub errors: Encoding,
}

impl Accepted {
    /// The object in its own form.
    pub fn plain(encoding: Encoding, pretty: bool) -> Self {
        Self { encoding, pretty, form: None, form_version: "v1", stream: false, errors: encoding }
    }
}

/// Forms that an endpoint offers, besides the objects' own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forms {
    None,
    /// `PartialObjectMetadata`.
    Metadata,
    /// `PartialObjectMetadata` and `Table`.
    All,
}

/// Representations that an endpoint offers.
#[derive(Clone, Copy, Debug)]
pub struct Offers {
    pub cbor: bool,
    pub forms: Forms,
    /// Requests may stream (collections), which extends the list in the error text.
    pub streams: bool,
    /// Objects have a protobuf form. Those of custom resources have none, only their metadata and errors.
    pub protobuf: bool,
}

impl Offers {
    fn encodings(self) -> &'static [Encoding] {
        use Encoding::{Cbor, Json, Protobuf, Yaml};
        if self.cbor { &[Json, Yaml, Protobuf, Cbor] } else { &[Json, Yaml, Protobuf] }
    }

    /// 406 for a media type that is not offered.
    pub fn none_of_these(self) -> Status {
        let message = format!("406: Not Acceptable\n\nAvailable representations: {}", self.text());
        Status::not_acceptable(message).with_details(Details::default())
    }

    /// 406 for an unavailable form of an offered media type; for a custom resource, of any other media type too.
    pub fn only_these(self) -> Status {
        let names: Vec<&str> = self.encodings().iter().map(|e| e.media_type()).collect();
        Status::not_acceptable(format!("only the following media types are accepted: {}", names.join(", ")))
    }

    /// 406 for a stream in a media type without streams.
    pub fn only_streams(self) -> Status {
        let names = self.stream_types().join(", ");
        Status::not_acceptable(format!("only the following media types are accepted: {names}"))
    }

    fn stream_types(self) -> &'static [&'static str] {
        let all = &[
            "application/json;stream=watch",
            "application/vnd.kubernetes.protobuf;stream=watch",
            "application/cbor-seq",
        ];
        if self.cbor { all } else { &all[..2] }
    }

    fn text(self) -> String {
        let mut names: Vec<&str> = self.encodings().iter().map(|e| e.media_type()).collect();
        if self.streams {
            names.extend(self.stream_types());
        }
        names.join(", ")
    }
}

struct Clause<'a> {
    kind: &'a str,
    subkind: &'a str,
    quality: f32,
    parameters: Vec<(&'a str, &'a str)>,
}

/// Parses `Accept`; quality first, then the client's order.
pub fn accept(headers: &HeaderMap, pretty_query: Option<&str>, offers: Offers) -> Result<Accepted> {
    let header = headers.get(ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("");
    let human = || match pretty_query {
        Some(text) if !text.is_empty() => matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True"),
        _ => {
            let agent = headers.get(USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or("");
            ["curl", "Wget", "Mozilla/5.0"].iter().any(|known| agent.starts_with(known))
        }
    };
    if header.is_empty() || header == "application/json" || header == "*/*" {
        return Ok(Accepted::plain(Encoding::Json, human()));
    }
    let mut clauses: Vec<Clause<'_>> = header.split(',').filter_map(clause).collect();
    clauses.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    let first = |offers: Offers| {
        let pairs = clauses.iter().flat_map(|clause| offers.encodings().iter().map(move |e| (clause, *e)));
        pairs.into_iter().find_map(|(clause, encoding)| fit(clause, encoding, offers))
    };
    if let Some(mut accepted) = first(offers) {
        accepted.pretty |= human();
        if accepted.form.is_some() || !offers.protobuf {
            let plain = first(Offers { forms: Forms::None, protobuf: true, ..offers });
            accepted.errors = plain.map_or(Encoding::Json, |plain| plain.encoding);
        }
        return Ok(accepted);
    }
    // The media type is offered, but not with the requested parameters.
    let known = !offers.protobuf
        || clauses.iter().any(|clause| {
            let media = format!("{}/{}", clause.kind, clause.subkind);
            let streamed = offers.streams && offers.cbor && media == "application/cbor-seq";
            let offered = offers.encodings().iter().any(|encoding| encoding.media_type() == media);
            offered || streamed || media == "*/*"
        });
    Err(if known { offers.only_these() } else { offers.none_of_these() })
}

fn clause(text: &str) -> Option<Clause<'_>> {
    let mut pieces = text.split(';').map(str::trim);
    let media = pieces.next()?;
    let (kind, subkind) = media.split_once('/')?;
    let (kind, subkind) = (kind.trim(), subkind.trim());
    let mut clause = Clause { kind, subkind, quality: 1.0, parameters: Vec::new() };
    for piece in pieces {
        let Some((key, value)) = piece.split_once('=') else { continue };
        let (key, value) = (key.trim(), value.trim());
        if key == "q" {
            clause.quality = value.parse().unwrap_or(1.0);
        } else {
            clause.parameters.push((key, value));
        }
    }
    Some(clause)
}

fn fit(clause: &Clause<'_>, encoding: Encoding, offers: Offers) -> Option<Accepted> {
    let (kind, subkind) = encoding.media_type().split_once('/')?;
    let matches = match (clause.kind, clause.subkind) {
        ("*", "*") => true,
        (k, s) => k == kind && s == subkind,
    };
    if !matches {
        return None;
    }
    let mut accepted = Accepted::plain(encoding, false);
    let (mut form, mut group, mut version) = (None, None, None);
    for (key, value) in &clause.parameters {
        match *key {
            "as" => form = Some(*value),
            "g" => group = Some(*value),
            "v" => version = Some(*value),
            "stream" if !value.is_empty() => {
                if *value != "watch" || encoding == Encoding::Yaml {
                    return None;
                }
                accepted.stream = true;
            }
            "sv" if !value.is_empty() => return None,
            "pretty" => accepted.pretty = *value == "1",
            _ => {}
        }
    }
    if form.is_none() && group.is_none() && version.is_none() {
        if encoding == Encoding::Protobuf && !offers.protobuf {
            return None;
        }
    } else {
        if offers.forms == Forms::None || group != Some("meta.k8s.io") {
            return None;
        }
        accepted.form_version = match version {
            Some("v1") => "v1",
            Some("v1beta1") => "v1beta1",
            _ => return None,
        };
        accepted.form = Some(match form {
            Some("Table") if has_tables(encoding) && offers.forms == Forms::All => Form::Table,
            Some("PartialObjectMetadata") => Form::PartialObjectMetadata,
            Some("PartialObjectMetadataList") => Form::PartialObjectMetadataList,
            _ => return None,
        });
    }
    Some(accepted)
}

/// Tables are available in JSON and YAML only.
fn has_tables(encoding: Encoding) -> bool {
    matches!(encoding, Encoding::Json | Encoding::Yaml)
}

/// Returns 406 unless `Accept` contains this media type or `*/*`.
pub fn accepts_only(headers: &HeaderMap, media_type: &str) -> Result<()> {
    let header = headers.get(ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("");
    let named = |clause: &str| clause.split(';').next().unwrap_or("").trim().to_owned();
    if header.is_empty() || header.split(',').map(named).any(|name| name == "*/*" || name == media_type) {
        return Ok(());
    }
    let message = format!("406: Not Acceptable\n\nAvailable representations: {media_type}");
    Err(Status::not_acceptable(message).with_details(Details::default()))
}

/// The media type of a header in lower case; `None` if its parameters are malformed.
fn media_type(header: &str) -> Option<String> {
    let mut pieces = header.split(';');
    let media = pieces.next().unwrap_or("").trim().to_ascii_lowercase();
    let sound = |piece: &str| {
        let piece = piece.trim();
        piece.is_empty()
            || piece.split_once('=').is_some_and(|(key, value)| !key.is_empty() && !value.is_empty())
    };
    pieces.all(sound).then_some(media)
}

/// The encoding of a request body. An empty header is JSON.
pub fn content_type(headers: &HeaderMap, cbor: bool) -> Result<Encoding> {
    let header = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    match media_type(header).as_deref().unwrap_or("unreadable") {
        "" | "application/json" => Ok(Encoding::Json),
        "application/yaml" => Ok(Encoding::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(Encoding::Protobuf),
        "application/cbor" if cbor => Ok(Encoding::Cbor),
        _ => {
            let offers = Offers { cbor, forms: Forms::None, streams: false, protobuf: true };
            Err(unsupported_media_type(&offers.text()))
        }
    }
}

/// 415 with the list of supported media types.
pub fn unsupported_media_type(supported: &str) -> Status {
    Status::unsupported_media_type(format!(
        "the body of the request was in an unknown format - accepted media types include: {supported}"
    ))
}

/// 415 for a patch, whose type is given by its content type.
pub fn unsupported_patch_type() -> Status {
    Status::unsupported_media_type("415: Unsupported Media Type").with_details(Details::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negotiate(header: &str) -> Result<Accepted> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, header.parse().unwrap());
        accept(&headers, None, OBJECTS)
    }

    const OBJECTS: Offers = Offers { cbor: false, forms: Forms::All, streams: false, protobuf: true };

    #[test]
    fn protobuf_of_custom_resources_is_limited_to_metadata_and_errors() {
        let custom = |header: &str| {
            let headers = HeaderMap::from_iter([(ACCEPT, header.parse().unwrap())]);
            accept(&headers, None, Offers { protobuf: false, ..OBJECTS })
        };
        const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
        for (parameters, other, encoding, errors) in [
            ("", ",application/json", Encoding::Json, Encoding::Protobuf),
            ("", ", */*", Encoding::Json, Encoding::Protobuf),
            (";stream=watch", ",application/json;stream=watch", Encoding::Json, Encoding::Protobuf),
            (";as=Table;v=v1;g=meta.k8s.io", ",application/yaml", Encoding::Yaml, Encoding::Yaml),
            (";as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "", Encoding::Protobuf, Encoding::Json),
        ] {
            let header = format!("{PROTOBUF}{parameters}{other}");
            let accepted = custom(&header).unwrap();
            assert_eq!((accepted.encoding, accepted.errors), (encoding, errors), "{header}");
        }
        for header in [PROTOBUF, "application/cbor", "text/html", "application/json;as=Bogus"] {
            let refused = custom(header).unwrap_err();
            let message = "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf";
            assert_eq!((refused.code, &*refused.message), (406, message), "{header}");
        }
    }

    #[test]
    fn accept_prefers_quality_then_order() {
        for (header, encoding) in [
            ("application/json;q=0.5,application/yaml", Encoding::Yaml),
            ("application/vnd.kubernetes.protobuf,application/json", Encoding::Protobuf),
            ("application/cbor,application/json", Encoding::Json),
            ("application/yaml;q=0.1,application/json;q=0.9", Encoding::Json),
            ("*/*", Encoding::Json),
        ] {
            assert_eq!(negotiate(header).unwrap().encoding, encoding, "{header}");
        }
        for header in ["text/html", "application/*", "bogus", "application/cbor", "application/xml", "*"] {
            assert_eq!(negotiate(header).unwrap_err().code, 406, "{header}");
        }
    }

    #[test]
    fn errors_are_encoded_without_form() {
        for (header, errors) in [
            ("application/yaml", Encoding::Yaml),
            ("application/yaml;as=Table;v=v1;g=meta.k8s.io", Encoding::Json),
            ("application/yaml;as=Table;v=v1;g=meta.k8s.io,application/yaml", Encoding::Yaml),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/vnd.kubernetes.protobuf",
                Encoding::Protobuf,
            ),
        ] {
            assert_eq!(negotiate(header).unwrap().errors, errors, "{header}");
        }
    }

    #[test]
    fn content_type_selects_encoding() {
        let read = |header: &str| {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, header.parse().unwrap())]);
            content_type(&headers, false).ok()
        };
        for (header, encoding) in [
            ("", Some(Encoding::Json)),
            ("APPLICATION/JSON", Some(Encoding::Json)),
            ("application/json; charset=utf-8;", Some(Encoding::Json)),
            ("application/json; charset", None),
            ("application/yaml", Some(Encoding::Yaml)),
            ("application/cbor", None),
            ("text/yaml", None),
        ] {
            assert_eq!(read(header), encoding, "{header}");
        }
    }

    #[test]
    fn not_acceptable_lists_available_media_types() {
        let offers = Offers { streams: true, ..OBJECTS };
        let streams = "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";
        assert!(offers.only_streams().message.ends_with(&format!("accepted: {streams}")));
        assert!(offers.none_of_these().message.ends_with(&format!("protobuf, {streams}")));
        let more = Offers { cbor: true, ..offers }.only_streams();
        assert!(more.message.ends_with(", application/cbor-seq"));
    }

    #[test]
    fn accepts_only_rejects_other_media_types() {
        for (header, fits) in [
            ("", true),
            ("*/*", true),
            ("text/html, application/json;q=0.5", true),
            ("application/*", false),
            ("application/yaml", false),
            ("APPLICATION/JSON", false),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT, header.parse().unwrap())]);
            assert_eq!(accepts_only(&headers, "application/json").is_ok(), fits, "{header}");
        }
    }

    #[test]
    fn accept_parses_forms() {
        let table = negotiate("application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json").unwrap();
        assert_eq!((table.form, table.form_version), (Some(Form::Table), "v1beta1"));
        let plain = negotiate("application/json;as=Bogus;v=v1;g=meta.k8s.io,application/json").unwrap();
        assert_eq!(plain.form, None);
        assert_eq!(negotiate("application/json;as=Table;v=v9;g=meta.k8s.io").unwrap_err().code, 406);
        let with_cbor = |header: &str| {
            let headers = HeaderMap::from_iter([(ACCEPT, header.parse().unwrap())]);
            accept(&headers, None, Offers { cbor: true, streams: true, ..OBJECTS })
        };
        for header in ["application/cbor;as=Table;v=v1;g=meta.k8s.io", "application/cbor-seq"] {
            assert!(with_cbor(header).unwrap_err().message.starts_with("only the following"), "{header}");
        }
        assert_eq!(with_cbor("application/cbor").unwrap().encoding, Encoding::Cbor);
        // Reviews have no table form.
        let review = |header: &str| {
            let headers = HeaderMap::from_iter([(ACCEPT, header.parse().unwrap())]);
            accept(&headers, None, Offers { forms: Forms::Metadata, ..OBJECTS })
        };
        assert_eq!(review("application/json;as=Table;v=v1;g=meta.k8s.io").unwrap_err().code, 406);
        let plain = review("application/json;as=Table;v=v1;g=meta.k8s.io,application/json").unwrap();
        assert_eq!(plain.form, None);
    }
}
