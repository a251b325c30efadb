//! Path items as JSON of either version of OpenAPI.

use super::Dialect;
use super::route::{Content, Operation, Parameter, ParameterLocation, PathItem};
use super::shared_parameters::SharedParameters;
use serde_json::{Map, Value, json};

impl ParameterLocation {
    fn as_str(self) -> &'static str {
        match self {
            ParameterLocation::Path => "path",
            ParameterLocation::Query => "query",
        }
    }
}

impl Content {
    fn schema(&self, dialect: Dialect) -> Value {
        match self {
            Content::Type(name) => json!({"$ref": dialect.reference(name)}),
            Content::Text => json!({"type": "string"}),
        }
    }
}

/// A path item for version 3.
pub fn v3(item: &PathItem) -> Value {
    let mut out = Map::new();
    for operation in &item.operations {
        out.insert(operation.method.to_owned(), v3_operation(operation));
    }
    if !item.parameters.is_empty() {
        out.insert("parameters".to_owned(), item.parameters.iter().map(v3_parameter).collect());
    }
    Value::Object(out)
}

fn v3_operation(operation: &Operation) -> Value {
    let mut out = common(operation);
    if !operation.parameters.is_empty() {
        out.insert("parameters".to_owned(), operation.parameters.iter().map(v3_parameter).collect());
    }
    if let Some(body) = &operation.body {
        let mut request = json!({"content": v3_content(operation.consumes, &body.content)});
        if body.required {
            request["required"] = json!(true);
        }
        out.insert("requestBody".to_owned(), request);
    }
    let answer = v3_content(operation.produces, &operation.answer);
    let mut responses = Map::new();
    for (code, text) in operation.codes {
        responses.insert((*code).to_owned(), json!({"description": text, "content": answer}));
    }
    responses.insert("401".to_owned(), json!({"description": "Unauthorized"}));
    out.insert("responses".to_owned(), Value::Object(responses));
    Value::Object(out)
}

fn v3_content(encodings: &[&str], content: &Content) -> Value {
    let schema = content.schema(Dialect::V3);
    let by_encoding = encodings.iter().map(|encoding| ((*encoding).to_owned(), json!({"schema": schema})));
    Value::Object(by_encoding.collect())
}

fn v3_parameter(parameter: &Parameter) -> Value {
    let mut out = json!({
        "name": parameter.name,
        "in": parameter.location.as_str(),
        "description": parameter.text.as_ref(),
        "schema": {"type": parameter.kind, "uniqueItems": true},
    });
    if parameter.location == ParameterLocation::Path {
        out["required"] = json!(true);
    }
    out
}

/// A path item for version 2, with references to shared parameters.
pub fn v2(item: &PathItem, shared: &mut SharedParameters) -> Value {
    let mut out = Map::new();
    for operation in &item.operations {
        out.insert(operation.method.to_owned(), v2_operation(operation, shared));
    }
    if !item.parameters.is_empty() {
        let parameters = item.parameters.iter().map(|parameter| shared.parameter(parameter)).collect();
        out.insert("parameters".to_owned(), parameters);
    }
    Value::Object(out)
}

fn v2_operation(operation: &Operation, shared: &mut SharedParameters) -> Value {
    let mut out = common(operation);
    if !operation.consumes.is_empty() {
        out.insert("consumes".to_owned(), json!(operation.consumes));
    }
    out.insert("produces".to_owned(), json!(operation.produces));
    out.insert("schemes".to_owned(), json!(["https"]));
    let mut parameters: Vec<(&str, Value)> =
        operation.parameters.iter().map(|parameter| (parameter.name, shared.parameter(parameter))).collect();
    if let Some(body) = &operation.body {
        parameters.push(("body", shared.body(&body.content.schema(Dialect::V2), body.required)));
    }
    parameters.sort_by_key(|(name, _)| *name);
    if !parameters.is_empty() {
        out.insert("parameters".to_owned(), parameters.into_iter().map(|(_, parameter)| parameter).collect());
    }
    let schema = operation.answer.schema(Dialect::V2);
    let mut responses = Map::new();
    for (code, text) in operation.codes {
        responses.insert((*code).to_owned(), json!({"description": text, "schema": schema}));
    }
    responses.insert("401".to_owned(), json!({"description": "Unauthorized"}));
    out.insert("responses".to_owned(), Value::Object(responses));
    Value::Object(out)
}

/// The common part of an operation in both versions.
fn common(operation: &Operation) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("description".to_owned(), json!(operation.text));
    out.insert("operationId".to_owned(), json!(operation.id));
    out.insert("tags".to_owned(), json!([operation.tag]));
    if !operation.action.is_empty() {
        out.insert("x-kubernetes-action".to_owned(), json!(operation.action));
    }
    if let Some(kind) = &operation.kind {
        let kind = json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
        out.insert("x-kubernetes-group-version-kind".to_owned(), kind);
    }
    out
}
