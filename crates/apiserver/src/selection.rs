//! Label and field selectors of one request, checked once and matched against cached attributes.

use crate::cache::{Entry, Layout};
use crate::options::ListOptions;
use crate::registry::Served;
use machinery::selector::{FieldSelector, LabelSelector};
use machinery::status::{Result, Status};

/// What a list, watch or deletecollection asks for.
#[derive(Debug)]
pub struct Selection {
    labels: LabelSelector,
    fields: FieldSelector,
}

impl Selection {
    pub fn read(served: &Served, options: &ListOptions) -> Result<Self> {
        let labels = LabelSelector::parse(&options.label_selector).map_err(|e| Status::bad_request(e.to_string()))?;
        let fields = FieldSelector::parse(&options.field_selector).map_err(|e| Status::bad_request(e.to_string()))?;
        let kind = served.kind;
        for (name, value) in fields.terms() {
            api::field_selectors::check(kind.group, kind.version, kind.resource, name, value)
                .map_err(Status::bad_request)?;
        }
        Ok(Self { labels, fields })
    }

    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    pub fn matches(&self, entry: &Entry, layout: &Layout) -> bool {
        if self.is_everything() {
            return true;
        }
        let attributes = entry.attributes(layout);
        self.labels.matches(attributes) && self.fields.matches(|name| attributes.field(layout, name))
    }

    /// A selector that names one object or namespace narrows the keys to look at.
    pub fn narrow(&self, scope: String, all_namespaces: bool) -> String {
        if all_namespaces {
            if let Some(namespace) = self.fields.required("metadata.namespace") {
                return format!("{scope}{namespace}/");
            }
        }
        scope
    }
}
