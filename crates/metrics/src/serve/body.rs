//! NodeMetrics and PodMetrics as the API writes them.

use super::discovery::API_VERSION;
use crate::point::Usage;
use crate::record::RecordLabels;
use crate::storage::PodUsage;
use jiff::Timestamp;
use machinery::codec::time::format_duration;
use machinery::quantity::{Format, Quantity};
use objects::meta::v1::ObjectMeta;
use serde::Serialize;
use std::collections::BTreeMap;

/// A list of items.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct List<'a, T> {
    kind: &'static str,
    api_version: &'static str,
    metadata: BTreeMap<(), ()>,
    items: &'a [T],
}

pub fn list<'a, T>(kind: &'static str, items: &'a [T]) -> List<'a, T> {
    List { kind, api_version: API_VERSION, metadata: BTreeMap::new(), items }
}

/// Metadata of an item.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Meta<'a> {
    pub name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub namespace: &'a str,
    pub creation_timestamp: String,
    #[serde(skip_serializing_if = "is_empty", serialize_with = "as_map")]
    pub labels: &'a RecordLabels,
}

fn is_empty(labels: &&RecordLabels) -> bool {
    labels.is_empty()
}

fn as_map<S: serde::Serializer>(labels: &&RecordLabels, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(labels.iter().map(|(name, value)| (name, value)))
}

impl<'a> Meta<'a> {
    fn of(metadata: &'a ObjectMeta, labels: &'a RecordLabels, now: Timestamp) -> Self {
        Self {
            name: metadata.name.as_deref().unwrap_or_default(),
            namespace: metadata.namespace.as_deref().unwrap_or_default(),
            creation_timestamp: second(now),
            labels,
        }
    }
}

/// CPU and memory as quantities.
#[derive(Serialize)]
pub struct Amounts {
    pub cpu: String,
    pub memory: String,
}

impl Amounts {
    /// `cpu` is in billionths of a core, `memory` in bytes.
    pub fn of(cpu: u64, memory: u64) -> Self {
        Self { cpu: quantity(cpu, "n", Format::Decimal), memory: quantity(memory, "", Format::Binary) }
    }
}

fn quantity(value: u64, suffix: &str, format: Format) -> String {
    let text = format!("{value}{suffix}");
    Quantity::parse(&text).map_or(text, |amount| amount.with_format(format).to_string())
}

fn second(time: Timestamp) -> String {
    let whole = Timestamp::from_second(time.as_second()).unwrap_or(time);
    whole.to_string()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeMetrics<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_version: Option<&'static str>,
    pub metadata: Meta<'a>,
    pub timestamp: String,
    pub window: String,
    pub usage: Amounts,
}

impl<'a> NodeMetrics<'a> {
    pub fn new(metadata: &'a ObjectMeta, labels: &'a RecordLabels, used: &Usage, now: Timestamp) -> Self {
        Self {
            kind: None,
            api_version: None,
            metadata: Meta::of(metadata, labels, now),
            timestamp: second(used.timestamp()),
            window: format_duration(used.window),
            usage: Amounts::of(used.cpu, used.memory),
        }
    }

    /// The item with its type, as it is written alone.
    pub fn typed(self) -> Self {
        Self { kind: Some("NodeMetrics"), api_version: Some(API_VERSION), ..self }
    }
}

#[derive(Serialize)]
pub struct ContainerMetrics {
    pub name: Box<str>,
    pub usage: Amounts,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodMetrics<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_version: Option<&'static str>,
    pub metadata: Meta<'a>,
    pub timestamp: String,
    pub window: String,
    pub containers: Vec<ContainerMetrics>,
    /// Sums over the containers: billionths of a core, bytes.
    #[serde(skip)]
    pub total: (u64, u64),
}

impl<'a> PodMetrics<'a> {
    pub fn new(metadata: &'a ObjectMeta, labels: &'a RecordLabels, used: PodUsage, now: Timestamp) -> Self {
        let total = used.total();
        let end = Usage { cpu: 0, memory: 0, at: used.at, window: used.window };
        let containers = used.containers.into_iter();
        Self {
            kind: None,
            api_version: None,
            metadata: Meta::of(metadata, labels, now),
            timestamp: second(end.timestamp()),
            window: format_duration(used.window),
            containers: containers
                .map(|(name, used)| ContainerMetrics { name, usage: Amounts::of(used.cpu, used.memory) })
                .collect(),
            total,
        }
    }

    pub fn typed(self) -> Self {
        Self { kind: Some("PodMetrics"), api_version: Some(API_VERSION), ..self }
    }
}
