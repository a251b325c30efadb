//! Rows of the tables: kinds, families, and the sources of their values.

use super::object::{flag, list, number, seconds, text};
use super::series::Series;
use serde_json::Value;

/// Stability of a family; stable ones say so in their help text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    Stable,
    Alpha,
}

/// A metric family of a kind.
pub struct Family {
    pub name: &'static str,
    pub help: &'static str,
    pub stability: Stability,
    pub is_counter: bool,
    /// True if the family must be named to be served.
    pub is_opt_in: bool,
    pub source: Source,
}

/// Source of the series of an object. Paths name fields, separated by dots.
pub enum Source {
    /// One series of value 1.
    One,
    /// A number; 0 if absent.
    Number(&'static str),
    /// A number, if present.
    Given(&'static str),
    /// A boolean; false if absent.
    Flag(&'static str),
    /// A boolean, if present.
    GivenFlag(&'static str),
    /// Unix seconds of a timestamp, if present.
    Time(&'static str),
    /// Length of a list.
    Count(&'static str),
    /// One series of value 1 with labels from fields.
    Info(&'static [(&'static str, &'static str)]),
    /// One series for each value, 1 for the present one: label, path, values. None if the field is absent.
    OneOf(&'static str, &'static str, &'static [&'static str]),
    /// `status.conditions` by type and status.
    Conditions,
    /// The resource version as a number.
    ResourceVersion,
    /// Owner references with kind, name and the controller flag.
    Owners,
    /// Labels of the object that the allow list has.
    Labels,
    /// Annotations of the object that the allow list has.
    Annotations,
    /// Any other series.
    Each(fn(&Value, &mut Series<'_>)),
}

pub const CREATED: Source = Source::Time("metadata.creationTimestamp");
pub const DELETED: Source = Source::Time("metadata.deletionTimestamp");
pub const GENERATION: Source = Source::Number("metadata.generation");

/// A resource with its families.
pub struct Kind {
    /// Plural name, as `--resources` has it.
    pub resource: &'static str,
    /// Kind name, for telemetry.
    pub kind: &'static str,
    /// Path of the group version.
    pub path: &'static str,
    pub is_namespaced: bool,
    /// Labels of every series, with the fields of their values.
    pub identity: &'static [(&'static str, &'static str)],
    pub families: &'static [Family],
}

pub const fn stable(name: &'static str, help: &'static str, source: Source) -> Family {
    Family { name, help, stability: Stability::Stable, is_counter: false, is_opt_in: false, source }
}

pub const fn alpha(name: &'static str, help: &'static str, source: Source) -> Family {
    Family { name, help, stability: Stability::Alpha, is_counter: false, is_opt_in: false, source }
}

impl Family {
    pub const fn counter(mut self) -> Self {
        self.is_counter = true;
        self
    }

    pub const fn opt_in(mut self) -> Self {
        self.is_opt_in = true;
        self
    }

    /// `# HELP` and `# TYPE`.
    pub fn header(&self) -> String {
        let Self { name, help, .. } = self;
        let prefix = if self.stability == Stability::Stable { "[STABLE] " } else { "" };
        let kind = if self.is_counter { "counter" } else { "gauge" };
        format!("# HELP {name} {prefix}{help}\n# TYPE {name} {kind}\n")
    }

    /// Appends the series of an object.
    pub fn render(&self, object: &Value, series: &mut Series<'_>) {
        match self.source {
            Source::One => series.add(&[], 1.0),
            Source::Number(path) => series.add(&[], number(object, path).unwrap_or(0.0)),
            Source::Given(path) => series.add_some(number(object, path)),
            Source::Flag(path) => series.add(&[], flag(object, path).unwrap_or(false).into()),
            Source::GivenFlag(path) => series.add_some(flag(object, path).map(f64::from)),
            Source::Time(path) => series.add_some(seconds(object, path)),
            Source::Count(path) => series.add(&[], list(object, path).len() as f64),
            Source::Info(fields) => {
                let labels: Vec<_> =
                    fields.iter().map(|(label, path)| (*label, text(object, path))).collect();
                series.add(&labels, 1.0);
            }
            Source::OneOf(label, path, values) => {
                let present = text(object, path);
                for value in values.iter().filter(|_| !present.is_empty()) {
                    series.add(&[(label, value)], (*value == present).into());
                }
            }
            Source::Conditions => {
                for condition in list(object, "status.conditions") {
                    let labels = [("condition", text(condition, "type"))];
                    series.add_statuses(&labels, "status", text(condition, "status"));
                }
            }
            Source::ResourceVersion => {
                series.add_some(text(object, "metadata.resourceVersion").parse().ok());
            }
            Source::Owners => owners(object, series),
            Source::Labels => series.add_allowed_labels(object),
            Source::Annotations => series.add_allowed_annotations(object),
            Source::Each(render) => render(object, series),
        }
    }
}

fn owners(object: &Value, series: &mut Series<'_>) {
    let owners = list(object, "metadata.ownerReferences");
    let mut add = |kind: &str, name: &str, controller: &str| {
        let labels = [("owner_kind", kind), ("owner_name", name), ("owner_is_controller", controller)];
        series.add(&labels, 1.0);
    };
    if owners.is_empty() {
        add("", "", "");
    }
    for owner in owners {
        let is_controller = flag(owner, "controller").unwrap_or(false);
        add(text(owner, "kind"), text(owner, "name"), if is_controller { "true" } else { "false" });
    }
}

impl Kind {
    /// API group; empty for the core group.
    pub fn group(&self) -> &'static str {
        let group = self.path.strip_prefix("/apis/").and_then(|rest| rest.split_once('/'));
        group.map_or("", |(group, _)| group)
    }

    /// Path of the collection, of one namespace if `namespace` is not empty.
    pub fn collection(&self, namespace: &str) -> String {
        let Self { path, resource, .. } = self;
        if namespace.is_empty() || !self.is_namespaced {
            format!("{path}/{resource}")
        } else {
            format!("{path}/namespaces/{}/{resource}", client::escape(namespace))
        }
    }

    /// Value of the label `resource` of telemetry, as kube-state-metrics writes it.
    pub fn telemetry_name(&self) -> String {
        let version = self.path.rsplit('/').next().unwrap_or_default();
        format!("*{version}.{}", self.kind)
    }
}
