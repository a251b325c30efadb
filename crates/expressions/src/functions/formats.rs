//! Named string formats.

use super::Row;
use crate::value::{Fault, Value};
use base64::Engine;
use machinery::names;

/// A format: returns the errors of a text that does not match it.
pub struct Format {
    pub name: &'static str,
    /// Size of the pattern, for cost estimates.
    pub pattern_size: usize,
    check: fn(&str) -> Vec<String>,
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Formats by the name of the function that returns them.
static FORMATS: &[(&str, Format)] = &[
    (
        "dns1123Label",
        Format { name: "DNS1123Label", pattern_size: 30, check: |text| names::dns_label(text, false) },
    ),
    (
        "dns1123Subdomain",
        Format {
            name: "DNS1123Subdomain",
            pattern_size: 60,
            check: |text| names::dns_subdomain(text, false),
        },
    ),
    (
        "dns1035Label",
        Format { name: "DNS1035Label", pattern_size: 30, check: |text| names::dns1035_label(text, false) },
    ),
    ("qualifiedName", Format { name: "QualifiedName", pattern_size: 60, check: names::qualified_name }),
    (
        "dns1123LabelPrefix",
        Format { name: "DNS1123LabelPrefix", pattern_size: 30, check: |text| names::dns_label(text, true) },
    ),
    (
        "dns1123SubdomainPrefix",
        Format {
            name: "DNS1123SubdomainPrefix",
            pattern_size: 60,
            check: |text| names::dns_subdomain(text, true),
        },
    ),
    (
        "dns1035LabelPrefix",
        Format {
            name: "DNS1035LabelPrefix",
            pattern_size: 30,
            check: |text| names::dns1035_label(text, true),
        },
    ),
    ("labelValue", Format { name: "LabelValue", pattern_size: 40, check: names::label_value }),
    (
        "uri",
        Format {
            name: "URI",
            pattern_size: 1103,
            check: |text| match super::url::parse(text) {
                Ok(_) => Vec::new(),
                Err(why) => vec![format!("parse {text:?}: {why}")],
            },
        },
    ),
    (
        "uuid",
        Format {
            name: "uuid",
            pattern_size: 75,
            check: |text| unless(is_uuid(text), "does not match the UUID format"),
        },
    ),
    (
        "byte",
        Format {
            name: "byte",
            pattern_size: 79,
            check: |text| {
                let decoded = base64::engine::general_purpose::STANDARD.decode(text);
                unless(!text.is_empty() && decoded.is_ok(), "invalid base64")
            },
        },
    ),
    (
        "date",
        Format {
            name: "date",
            pattern_size: 148,
            check: |text| {
                unless(text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(), "invalid date")
            },
        },
    ),
    (
        "datetime",
        Format {
            name: "datetime",
            pattern_size: 148,
            check: |text| unless(text.parse::<jiff::Timestamp>().is_ok(), "invalid datetime"),
        },
    ),
];

/// Row of a format with a function of its own.
macro_rules! constant {
    ($name:literal) => {
        (concat!("format.", $name), &["() -> Format"], |_| {
            find($name).map(Value::Format).ok_or_else(Fault::no_such_overload)
        })
    };
}

pub const ROWS: &[Row] = &[
    ("format.named", &["(string) -> optional(Format)"], |values| match values {
        [Value::String(name)] => {
            Ok(find(name).map_or(Value::Optional(None), |format| Value::some(Value::Format(format))))
        }
        _ => Err(Fault::no_such_overload()),
    }),
    ("validate", &["Format.(string) -> optional(list(string))"], |values| match values {
        [Value::Format(format), Value::String(text)] => {
            let wrong = (format.check)(text);
            if wrong.is_empty() {
                return Ok(Value::Optional(None));
            }
            Ok(Value::some(Value::list(wrong.into_iter().map(Value::from).collect())))
        }
        _ => Err(Fault::no_such_overload()),
    }),
    constant!("dns1123Label"),
    constant!("dns1123Subdomain"),
    constant!("dns1035Label"),
    constant!("qualifiedName"),
    constant!("dns1123LabelPrefix"),
    constant!("dns1123SubdomainPrefix"),
    constant!("dns1035LabelPrefix"),
    constant!("labelValue"),
    constant!("uri"),
    constant!("uuid"),
    constant!("byte"),
    constant!("date"),
    constant!("datetime"),
];

fn find(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|(known, _)| *known == name).map(|(_, format)| format)
}

fn unless(holds: bool, why: &str) -> Vec<String> {
    if holds { Vec::new() } else { vec![why.to_owned()] }
}

fn is_uuid(text: &str) -> bool {
    let plain: String = text.chars().filter(|c| *c != '-').collect();
    let dashes = text.char_indices().filter(|(_, c)| *c == '-').map(|(at, _)| at);
    let placed = text.len() == 32 || dashes.eq([8, 13, 18, 23]);
    plain.len() == 32 && plain.bytes().all(|byte| byte.is_ascii_hexdigit()) && placed
}
