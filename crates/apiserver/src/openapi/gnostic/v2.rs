//! The messages of a version 2 document.

use super::{Message, NodeType};

pub static DOCUMENT: Message = Message::Struct {
    fields: &[
        ("swagger", 1, NodeType::Text),
        ("info", 2, NodeType::One(&INFO)),
        ("schemes", 5, NodeType::Texts),
        ("consumes", 6, NodeType::Texts),
        ("produces", 7, NodeType::Texts),
        ("paths", 8, NodeType::One(&PATHS)),
        ("definitions", 9, NodeType::One(&SCHEMAS)),
        ("parameters", 10, NodeType::One(&PARAMETERS)),
        ("security", 12, NodeType::Many(&SECURITY_REQUIREMENT)),
        ("securityDefinitions", 13, NodeType::One(&SECURITY_DEFINITIONS)),
    ],
    extensions: 16,
};

static INFO: Message = Message::Struct {
    fields: &[
        ("title", 1, NodeType::Text),
        ("version", 2, NodeType::Text),
        ("description", 3, NodeType::Text),
    ],
    extensions: 7,
};

static PATHS: Message = Message::Map { entries: 2, value: &PATH_ITEM };

static PATH_ITEM: Message = Message::Struct {
    fields: &[
        ("$ref", 1, NodeType::Text),
        ("get", 2, NodeType::One(&OPERATION)),
        ("put", 3, NodeType::One(&OPERATION)),
        ("post", 4, NodeType::One(&OPERATION)),
        ("delete", 5, NodeType::One(&OPERATION)),
        ("options", 6, NodeType::One(&OPERATION)),
        ("head", 7, NodeType::One(&OPERATION)),
        ("patch", 8, NodeType::One(&OPERATION)),
        ("parameters", 9, NodeType::Many(&PARAMETERS_ITEM)),
    ],
    extensions: 10,
};

static OPERATION: Message = Message::Struct {
    fields: &[
        ("tags", 1, NodeType::Texts),
        ("summary", 2, NodeType::Text),
        ("description", 3, NodeType::Text),
        ("operationId", 5, NodeType::Text),
        ("produces", 6, NodeType::Texts),
        ("consumes", 7, NodeType::Texts),
        ("parameters", 8, NodeType::Many(&PARAMETERS_ITEM)),
        ("responses", 9, NodeType::One(&RESPONSES)),
        ("schemes", 10, NodeType::Texts),
        ("deprecated", 11, NodeType::Flag),
    ],
    extensions: 13,
};

static PARAMETERS: Message = Message::Map { entries: 1, value: &PARAMETER };

static PARAMETERS_ITEM: Message =
    Message::Choice(|value| if value.get("$ref").is_some() { (2, &REFERENCE) } else { (1, &PARAMETER) });

static REFERENCE: Message = Message::Struct {
    fields: &[("$ref", 1, NodeType::Text), ("description", 2, NodeType::Text)],
    extensions: 0,
};

static PARAMETER: Message =
    Message::Choice(|value| if value["in"] == "body" { (1, &BODY_PARAMETER) } else { (2, &OTHER_PARAMETER) });

static BODY_PARAMETER: Message = Message::Struct {
    fields: &[
        ("description", 1, NodeType::Text),
        ("name", 2, NodeType::Text),
        ("in", 3, NodeType::Text),
        ("required", 4, NodeType::Flag),
        ("schema", 5, NodeType::One(&SCHEMA)),
    ],
    extensions: 6,
};

static OTHER_PARAMETER: Message =
    Message::Choice(|value| if value["in"] == "path" { (4, &PATH_PARAMETER) } else { (3, &QUERY_PARAMETER) });

static PATH_PARAMETER: Message = Message::Struct {
    fields: &[
        ("required", 1, NodeType::Flag),
        ("in", 2, NodeType::Text),
        ("description", 3, NodeType::Text),
        ("name", 4, NodeType::Text),
        ("type", 5, NodeType::Text),
        ("format", 6, NodeType::Text),
        ("uniqueItems", 19, NodeType::Flag),
    ],
    extensions: 22,
};

static QUERY_PARAMETER: Message = Message::Struct {
    fields: &[
        ("required", 1, NodeType::Flag),
        ("in", 2, NodeType::Text),
        ("description", 3, NodeType::Text),
        ("name", 4, NodeType::Text),
        ("type", 6, NodeType::Text),
        ("format", 7, NodeType::Text),
        ("uniqueItems", 20, NodeType::Flag),
    ],
    extensions: 23,
};

static RESPONSES: Message = Message::Map { entries: 1, value: &RESPONSE_VALUE };

static RESPONSE_VALUE: Message = Message::Choice(|_| (1, &RESPONSE));

static RESPONSE: Message = Message::Struct {
    fields: &[("description", 1, NodeType::Text), ("schema", 2, NodeType::One(&SCHEMA_ITEM))],
    extensions: 5,
};

static SCHEMA_ITEM: Message = Message::Choice(|_| (1, &SCHEMA));

static SCHEMAS: Message = Message::Map { entries: 1, value: &SCHEMA };

static SCHEMA: Message = Message::Struct {
    fields: &[
        ("$ref", 1, NodeType::Text),
        ("format", 2, NodeType::Text),
        ("title", 3, NodeType::Text),
        ("description", 4, NodeType::Text),
        ("default", 5, NodeType::Yaml),
        ("multipleOf", 6, NodeType::Number),
        ("maximum", 7, NodeType::Number),
        ("exclusiveMaximum", 8, NodeType::Flag),
        ("minimum", 9, NodeType::Number),
        ("exclusiveMinimum", 10, NodeType::Flag),
        ("maxLength", 11, NodeType::Integer),
        ("minLength", 12, NodeType::Integer),
        ("pattern", 13, NodeType::Text),
        ("maxItems", 14, NodeType::Integer),
        ("minItems", 15, NodeType::Integer),
        ("uniqueItems", 16, NodeType::Flag),
        ("maxProperties", 17, NodeType::Integer),
        ("minProperties", 18, NodeType::Integer),
        ("required", 19, NodeType::Texts),
        ("enum", 20, NodeType::Yamls),
        ("additionalProperties", 21, NodeType::FlagOr(&SCHEMA)),
        ("type", 22, NodeType::WrappedTexts),
        ("items", 23, NodeType::Wrapped(&SCHEMA)),
        ("allOf", 24, NodeType::Many(&SCHEMA)),
        ("properties", 25, NodeType::One(&SCHEMAS)),
        ("example", 30, NodeType::Yaml),
    ],
    extensions: 31,
};

static SECURITY_REQUIREMENT: Message = Message::Map { entries: 1, value: &Message::Texts };

static SECURITY_DEFINITIONS: Message = Message::Map { entries: 1, value: &SECURITY_DEFINITION };

static SECURITY_DEFINITION: Message = Message::Choice(|_| (2, &API_KEY));

static API_KEY: Message = Message::Struct {
    fields: &[
        ("type", 1, NodeType::Text),
        ("name", 2, NodeType::Text),
        ("in", 3, NodeType::Text),
        ("description", 4, NodeType::Text),
    ],
    extensions: 5,
};
