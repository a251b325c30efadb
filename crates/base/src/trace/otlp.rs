//! Messages of OTLP (`opentelemetry.proto.collector.trace.v1`), and finished spans in their form.

use super::context::SpanContext;
use super::span::{Kind, Recording, Value};
use prost::Message;
use std::sync::Arc;

/// Name of the instrumentation library in exported spans.
const SCOPE: &str = "ferry";

#[derive(Clone, PartialEq, Message)]
pub struct ExportTraceServiceRequest {
    #[prost(message, repeated, tag = "1")]
    pub resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ExportTraceServiceResponse {
    #[prost(message, optional, tag = "1")]
    pub partial_success: Option<ExportTracePartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ExportTracePartialSuccess {
    #[prost(int64, tag = "1")]
    pub rejected_spans: i64,
    #[prost(string, tag = "2")]
    pub error_message: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub resource: Option<ResourceMessage>,
    #[prost(message, repeated, tag = "2")]
    pub scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ResourceMessage {
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    pub spans: Vec<SpanMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub struct InstrumentationScope {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub version: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct SpanMessage {
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub name: String,
    #[prost(int32, tag = "6")]
    pub kind: i32,
    #[prost(fixed64, tag = "7")]
    pub start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    pub end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<KeyValue>,
    #[prost(uint32, tag = "10")]
    pub dropped_attributes_count: u32,
    #[prost(message, repeated, tag = "13")]
    pub links: Vec<LinkMessage>,
    #[prost(message, optional, tag = "15")]
    pub status: Option<StatusMessage>,
    #[prost(fixed32, tag = "16")]
    pub flags: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinkMessage {
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub trace_state: String,
    #[prost(fixed32, tag = "6")]
    pub flags: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct StatusMessage {
    #[prost(string, tag = "2")]
    pub message: String,
    /// 2 is an error.
    #[prost(int32, tag = "3")]
    pub code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub struct AnyValue {
    #[prost(oneof = "any_value::Value", tags = "1, 2, 3")]
    pub value: Option<any_value::Value>,
}

pub mod any_value {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Value {
        #[prost(string, tag = "1")]
        String(String),
        #[prost(bool, tag = "2")]
        Bool(bool),
        #[prost(int64, tag = "3")]
        Int(i64),
    }
}

const STATUS_ERROR: i32 = 2;
const FLAG_HAS_REMOTE: u32 = 0x100;
const FLAG_REMOTE: u32 = 0x200;

/// The component whose spans are exported.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Resource {
    pub service: String,
    pub instance: String,
}

/// A span in the queue, with its component.
pub(super) struct FinishedSpan {
    resource: Arc<Resource>,
    span: SpanMessage,
}

impl FinishedSpan {
    pub fn new(recording: Recording, end: u64, resource: Arc<Resource>) -> Self {
        let Recording { name, kind, context, parent, link, start, attributes, error, .. } = recording;
        let parent_flags = parent.as_ref().map_or(0, |parent| remote_flags(parent.remote));
        let span = SpanMessage {
            trace_state: context.tracestate().unwrap_or_default(),
            trace_id: context.trace_id.to_vec(),
            span_id: context.span_id.to_vec(),
            parent_span_id: parent.map(|parent| parent.span_id.to_vec()).unwrap_or_default(),
            name: name.into_owned(),
            kind: match kind {
                Kind::Internal => 1,
                Kind::Server => 2,
                Kind::Client => 3,
                Kind::Consumer => 5,
            },
            start_time_unix_nano: start,
            end_time_unix_nano: end,
            attributes: attributes.values.into_iter().map(|(key, value)| key_value(key, value)).collect(),
            dropped_attributes_count: attributes.dropped,
            links: link.as_ref().map(link_message).into_iter().collect(),
            status: error.map(|message| StatusMessage { message, code: STATUS_ERROR }),
            flags: u32::from(context.sampled) | FLAG_HAS_REMOTE | parent_flags,
        };
        Self { resource, span }
    }

    /// Memory of the span, approximately.
    pub fn size(&self) -> usize {
        let text = |value: &KeyValue| match value.value.as_ref().and_then(|value| value.value.as_ref()) {
            Some(any_value::Value::String(text)) => text.len(),
            _ => 0,
        };
        let attributes: usize = self
            .span
            .attributes
            .iter()
            .map(|value| size_of::<KeyValue>() + value.key.len() + text(value))
            .sum();
        let links = self.span.links.len() * (size_of::<LinkMessage>() + 512);
        let status = self.span.status.as_ref().map_or(0, |status| status.message.len());
        size_of::<Self>()
            + 64
            + self.span.name.len()
            + self.span.trace_state.len()
            + attributes
            + links
            + status
    }
}

/// Request with these spans, grouped by component.
pub(super) fn request(spans: impl Iterator<Item = FinishedSpan>) -> ExportTraceServiceRequest {
    let mut groups: Vec<(Arc<Resource>, Vec<SpanMessage>)> = Vec::new();
    for FinishedSpan { resource, span } in spans {
        match groups.iter_mut().find(|(other, _)| **other == *resource) {
            Some((_, group)) => group.push(span),
            None => groups.push((resource, vec![span])),
        }
    }
    let resource_spans = groups.into_iter().map(|(resource, spans)| {
        let mut attributes = vec![key_value("service.name", resource.service.clone().into())];
        if !resource.instance.is_empty() {
            attributes.push(key_value("service.instance.id", resource.instance.clone().into()));
        }
        let scope =
            InstrumentationScope { name: SCOPE.to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
        ResourceSpans {
            resource: Some(ResourceMessage { attributes }),
            scope_spans: vec![ScopeSpans { scope: Some(scope), spans }],
        }
    });
    ExportTraceServiceRequest { resource_spans: resource_spans.collect() }
}

fn remote_flags(remote: bool) -> u32 {
    if remote { FLAG_REMOTE } else { 0 }
}

fn link_message(link: &SpanContext) -> LinkMessage {
    LinkMessage {
        trace_id: link.trace_id.to_vec(),
        span_id: link.span_id.to_vec(),
        trace_state: link.tracestate().unwrap_or_default(),
        flags: u32::from(link.sampled) | FLAG_HAS_REMOTE | remote_flags(link.remote),
    }
}

fn key_value(key: &str, value: Value) -> KeyValue {
    let value = match value {
        Value::Text(text) => any_value::Value::String(text.into_owned()),
        Value::Number(number) => any_value::Value::Int(number),
        Value::Bool(value) => any_value::Value::Bool(value),
    };
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}
