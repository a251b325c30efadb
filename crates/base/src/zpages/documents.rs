//! `/statusz` and `/flagz`: the state of the process and its flags, as text or as objects of `config.k8s.io`.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::Page;
use crate::version;

const GROUP: &str = "config.k8s.io";
const NOTICE: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.";
const JSON: &str = "application/json";
const YAML: &str = "application/yaml";

/// Form of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    /// An object of a media type, in this version.
    Object(&'static str, &'static str),
}

/// State of a component.
#[derive(Clone, Copy, Debug)]
pub struct Status<'a> {
    pub component: &'a str,
    pub started: Timestamp,
    pub now: Timestamp,
    /// Folders of the paths that are for debugging, sorted.
    pub paths: &'a [String],
}

impl Status<'_> {
    /// `/statusz`.
    #[must_use]
    pub fn page(&self, accept: &str) -> Page {
        page(self.component, "Statusz", accept, || self.text(), || self.fields())
    }

    fn uptime(&self) -> i64 {
        self.now.as_second().saturating_sub(self.started.as_second()).max(0)
    }

    fn fields(&self) -> Map<String, Value> {
        let version = version::version();
        let version = |name: &str| version[name].as_str().unwrap_or_default().to_owned();
        let emulated = format!("{}.{}", version("emulationMajor"), version("emulationMinor"));
        let fields = [
            ("startTime", self.started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into()),
            ("uptimeSeconds", self.uptime().into()),
            ("goVersion", version("goVersion").into()),
            ("binaryVersion", version("gitVersion").trim_start_matches('v').to_owned().into()),
            ("emulationVersion", emulated.into()),
            ("paths", self.paths.into()),
        ];
        fields.into_iter().map(|(name, value): (_, Value)| (name.to_owned(), value)).collect()
    }

    fn text(&self) -> String {
        let fields = self.fields();
        let field = |name: &str| fields[name].as_str().unwrap_or_default().to_owned();
        let up = self.uptime();
        format!(
            "\n{} statusz\n{NOTICE}\n\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nGo version: {}\nBinary version: {}\nEmulation version: {}\nPaths: {}\n",
            self.component,
            self.started.strftime("%a %b %e %H:%M:%S UTC %Y"),
            up / 3600,
            up / 60 % 60,
            up % 60,
            field("goVersion"),
            field("binaryVersion"),
            field("emulationVersion"),
            self.paths.join(" "),
        )
    }
}

/// `/flagz`: names and values of flags.
#[must_use]
pub fn flagz(component: &str, flags: &[(String, String)], accept: &str) -> Page {
    let text = || {
        let rows: String = flags.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        format!("\n{component} flagz\n{NOTICE}\n\n{rows}")
    };
    let fields = || {
        let flags = flags.iter().map(|(name, value)| (name.clone(), value.as_str().into()));
        Map::from_iter([("flags".to_owned(), Value::Object(flags.collect()))])
    };
    page(component, "Flagz", accept, text, fields)
}

/// A page in the form that the client accepts.
fn page(
    component: &str,
    kind: &str,
    accept: &str,
    text: impl FnOnce() -> String,
    fields: impl FnOnce() -> Map<String, Value>,
) -> Page {
    let (media_type, version) = match form(accept, kind) {
        None => return not_acceptable(),
        Some(Form::Text) => return Page::text(200, text()),
        Some(Form::Object(media_type, version)) => (media_type, version),
    };
    let mut object = Map::from_iter([
        ("kind".to_owned(), kind.into()),
        ("apiVersion".to_owned(), format!("{GROUP}/{version}").into()),
        ("metadata".to_owned(), json!({"name": component})),
    ]);
    object.extend(fields());
    let object = Value::Object(object);
    let mut body = String::new();
    match media_type {
        YAML => yaml(&object, 0, &mut body),
        _ => body = format!("{object}\n"),
    }
    let warning = (version == "v1alpha1").then(|| {
        let page = kind.to_lowercase();
        format!("299 - \"This version of the {page} endpoint is deprecated. Please use a newer version.\"")
    });
    Page { warning, ..Page::new(200, media_type, body) }
}

fn not_acceptable() -> Page {
    let message =
        "only the following media types are accepted: text/plain, application/json, application/yaml";
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": "NotAcceptable", "code": 406});
    Page::new(406, JSON, format!("{status}\n"))
}

/// Writes objects and lists in block style; scalars are as in JSON, which YAML includes.
fn yaml(value: &Value, indent: usize, text: &mut String) {
    let is_block = |value: &Value| match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let name = Value::String(name.clone());
                text.push_str(&" ".repeat(indent));
                if is_block(value) {
                    text.push_str(&format!("{name}:\n"));
                    yaml(value, indent + 2, text);
                } else {
                    text.push_str(&format!("{name}: {value}\n"));
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                text.push_str(&format!("{}- {item}\n", " ".repeat(indent)));
            }
        }
        scalar => text.push_str(&format!("{scalar}\n")),
    }
}

/// The first acceptable form: text, or an object if the client names its group, version and kind.
fn form(accepted: &str, kind: &str) -> Option<Form> {
    if accepted.trim().is_empty() {
        return Some(Form::Text);
    }
    accepted.split(',').find_map(|clause| {
        let mut parts = clause.split(';').map(str::trim);
        let media_type = match parts.next()? {
            "text/plain" | "text/*" | "*/*" => None,
            JSON => Some(JSON),
            YAML => Some(YAML),
            _ => return None,
        };
        let (mut group, mut version, mut named) = ("", "", "");
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name {
                "g" => group = value,
                "v" => version = value,
                "as" => named = value,
                _ => {}
            }
        }
        let Some(media_type) = media_type else {
            return (group, version, named).eq(&("", "", "")).then_some(Form::Text);
        };
        let version = ["v1alpha1", "v1beta1"].into_iter().find(|known| *known == version)?;
        (group == GROUP && named == kind).then_some(Form::Object(media_type, version))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn form_follows_the_accept_header() {
        let json = |version| Some(Form::Object(JSON, version));
        for (accepted, want) in [
            ("", Some(Form::Text)),
            ("*/*", Some(Form::Text)),
            ("text/plain", Some(Form::Text)),
            ("application/json", None),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Statusz", json("v1beta1")),
            ("application/json; v=v1alpha1; g=config.k8s.io; as=Statusz", json("v1alpha1")),
            ("application/json;v=v1;g=config.k8s.io;as=Statusz", None),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Flagz, text/plain", Some(Form::Text)),
            ("application/yaml;v=v1beta1;g=config.k8s.io;as=Statusz", Some(Form::Object(YAML, "v1beta1"))),
            ("application/vnd.kubernetes.protobuf", None),
        ] {
            assert_eq!(form(accepted, "Statusz"), want, "{accepted}");
        }
    }

    #[test]
    fn status_has_uptime_versions_and_paths() {
        let at = |seconds| Timestamp::from_second(seconds).expect("a time");
        let paths = ["/healthz".to_owned(), "/metrics".to_owned()];
        let status = Status { component: "kube-scheduler", started: at(0), now: at(10_862), paths: &paths };
        let text = String::from_utf8(status.page("").body).expect("text");
        assert!(text.starts_with("\nkube-scheduler statusz\nWarning: "), "{text}");
        for line in ["Up: 3 hr 01 min 02 sec", "Emulation version: 1.36", "Paths: /healthz /metrics"] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
        let object = status.page("application/json;v=v1alpha1;g=config.k8s.io;as=Statusz");
        assert!(object.warning.is_some_and(|warning| warning.contains("deprecated")));
        let object: Value = serde_json::from_slice(&object.body).expect("JSON");
        assert_eq!((&object["uptimeSeconds"], &object["paths"]), (&json!(10_862), &json!(paths)));
        let set_back = Status { started: at(9), now: at(0), ..status };
        assert_eq!(set_back.uptime(), 0);
        assert_eq!(status.page("application/json").status, 406);
    }

    #[test]
    fn flags_are_served_as_yaml() {
        let flags = [("v".to_owned(), "2".to_owned())];
        let page = flagz("kubelet", &flags, "application/yaml;v=v1beta1;g=config.k8s.io;as=Flagz");
        let text = String::from_utf8(page.body).expect("text");
        assert_eq!(page.content_type, YAML);
        assert!(text.contains("\"flags\":\n  \"v\": \"2\"\n"), "{text}");
    }
}
