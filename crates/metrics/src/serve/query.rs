//! Query parameters and selectors.

use crate::record::RecordLabels;
use machinery::selector::{FieldSelector, LabelSelector};
use machinery::status::{Result, Status};
use objects::meta::v1::ObjectMeta;
use percent_encoding::percent_decode_str;

/// Parameters of a query, decoded.
#[derive(Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(query: Option<&str>) -> Self {
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let decode = |text: &str| {
            let spaced = text.replace('+', " ");
            percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
        };
        Self(
            pairs
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                .map(|(k, v)| (decode(k), decode(v)))
                .collect(),
        )
    }

    /// The first value of a parameter; empty if absent.
    pub fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// The first value of a parameter; `usual` if it is absent or empty.
    pub fn or(&self, name: &str, usual: &str) -> String {
        Some(self.text(name)).filter(|text| !text.is_empty()).unwrap_or(usual).to_owned()
    }

    /// All values of a parameter.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(key, _)| key.as_str())
    }

    /// Anything but `false` and `0` is true, an empty value too.
    pub fn flag(&self, name: &str) -> bool {
        let value = self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.to_ascii_lowercase());
        value.is_some_and(|value| !matches!(value.as_str(), "false" | "0"))
    }
}

/// Selectors of a list.
pub struct Selection {
    labels: LabelSelector,
    fields: FieldSelector,
}

const FIELDS: [&str; 2] = ["metadata.name", "metadata.namespace"];

impl Selection {
    pub fn of(query: &Query) -> Result<Self> {
        let labels = LabelSelector::parse(query.text("labelSelector"));
        let labels = labels.map_err(|error| Status::bad_request(error.to_string()))?;
        let fields = FieldSelector::parse(query.text("fieldSelector"));
        let fields = fields.map_err(|error| Status::bad_request(error.to_string()))?;
        if let Some(unknown) = fields.unsupported(|name| FIELDS.contains(&name)) {
            let why = format!(
                "{unknown:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
            );
            return Err(Status::bad_request(why));
        }
        Ok(Self { labels, fields })
    }

    pub fn matches(&self, metadata: &ObjectMeta, labels: &RecordLabels) -> bool {
        let field = |name: &str| match name {
            "metadata.name" => metadata.name.as_deref(),
            _ => metadata.namespace.as_deref(),
        };
        self.fields.matches(field) && (self.labels.is_empty() || self.labels.matches(&**labels))
    }
}
