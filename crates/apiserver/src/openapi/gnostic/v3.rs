//! The messages of a version 3 document.

use super::{Message, NodeType};

pub static DOCUMENT: Message = Message::Struct {
    fields: &[
        ("openapi", 1, NodeType::Text),
        ("info", 2, NodeType::One(&INFO)),
        ("paths", 4, NodeType::One(&PATHS)),
        ("components", 5, NodeType::One(&COMPONENTS)),
    ],
    extensions: 9,
};

static INFO: Message = Message::Struct {
    fields: &[
        ("title", 1, NodeType::Text),
        ("description", 2, NodeType::Text),
        ("version", 6, NodeType::Text),
    ],
    extensions: 7,
};

static PATHS: Message = Message::Map { entries: 1, value: &PATH_ITEM };

static PATH_ITEM: Message = Message::Struct {
    fields: &[
        ("summary", 2, NodeType::Text),
        ("description", 3, NodeType::Text),
        ("get", 4, NodeType::One(&OPERATION)),
        ("put", 5, NodeType::One(&OPERATION)),
        ("post", 6, NodeType::One(&OPERATION)),
        ("delete", 7, NodeType::One(&OPERATION)),
        ("options", 8, NodeType::One(&OPERATION)),
        ("head", 9, NodeType::One(&OPERATION)),
        ("patch", 10, NodeType::One(&OPERATION)),
        ("parameters", 13, NodeType::Many(&PARAMETER_OR_REFERENCE)),
    ],
    extensions: 14,
};

static OPERATION: Message = Message::Struct {
    fields: &[
        ("tags", 1, NodeType::Texts),
        ("summary", 2, NodeType::Text),
        ("description", 3, NodeType::Text),
        ("operationId", 5, NodeType::Text),
        ("parameters", 6, NodeType::Many(&PARAMETER_OR_REFERENCE)),
        ("requestBody", 7, NodeType::One(&REQUEST_BODY_OR_REFERENCE)),
        ("responses", 8, NodeType::One(&RESPONSES)),
        ("deprecated", 10, NodeType::Flag),
    ],
    extensions: 13,
};

static REFERENCE: Message = Message::Struct { fields: &[("$ref", 1, NodeType::Text)], extensions: 0 };

static PARAMETER_OR_REFERENCE: Message =
    Message::Choice(|value| if value.get("$ref").is_some() { (2, &REFERENCE) } else { (1, &PARAMETER) });

static PARAMETER: Message = Message::Struct {
    fields: &[
        ("name", 1, NodeType::Text),
        ("in", 2, NodeType::Text),
        ("description", 3, NodeType::Text),
        ("required", 4, NodeType::Flag),
        ("schema", 10, NodeType::One(&SCHEMA_OR_REFERENCE)),
    ],
    extensions: 14,
};

static REQUEST_BODY_OR_REFERENCE: Message = Message::Choice(|_| (1, &REQUEST_BODY));

static REQUEST_BODY: Message = Message::Struct {
    fields: &[
        ("description", 1, NodeType::Text),
        ("content", 2, NodeType::One(&MEDIA_TYPES)),
        ("required", 3, NodeType::Flag),
    ],
    extensions: 4,
};

static MEDIA_TYPES: Message = Message::Map { entries: 1, value: &MEDIA_TYPE };

static MEDIA_TYPE: Message =
    Message::Struct { fields: &[("schema", 1, NodeType::One(&SCHEMA_OR_REFERENCE))], extensions: 5 };

static RESPONSES: Message = Message::Map { entries: 2, value: &RESPONSE_OR_REFERENCE };

static RESPONSE_OR_REFERENCE: Message = Message::Choice(|_| (1, &RESPONSE));

static RESPONSE: Message = Message::Struct {
    fields: &[("description", 1, NodeType::Text), ("content", 3, NodeType::One(&MEDIA_TYPES))],
    extensions: 5,
};

static COMPONENTS: Message = Message::Struct {
    fields: &[
        ("schemas", 1, NodeType::One(&SCHEMAS_OR_REFERENCES)),
        ("securitySchemes", 7, NodeType::One(&SECURITY_SCHEMES)),
    ],
    extensions: 10,
};

static SECURITY_SCHEMES: Message = Message::Map { entries: 1, value: &SECURITY_SCHEME_OR_REFERENCE };

static SECURITY_SCHEME_OR_REFERENCE: Message = Message::Choice(|_| (1, &SECURITY_SCHEME));

static SECURITY_SCHEME: Message = Message::Struct {
    fields: &[
        ("type", 1, NodeType::Text),
        ("description", 2, NodeType::Text),
        ("name", 3, NodeType::Text),
        ("in", 4, NodeType::Text),
    ],
    extensions: 9,
};

static SCHEMAS_OR_REFERENCES: Message = Message::Map { entries: 1, value: &SCHEMA_OR_REFERENCE };

static SCHEMA_OR_REFERENCE: Message =
    Message::Choice(|value| if value.get("$ref").is_some() { (2, &REFERENCE) } else { (1, &SCHEMA) });

static SCHEMA: Message = Message::Struct {
    fields: &[
        ("nullable", 1, NodeType::Flag),
        ("example", 7, NodeType::Yaml),
        ("title", 9, NodeType::Text),
        ("multipleOf", 10, NodeType::Number),
        ("maximum", 11, NodeType::Number),
        ("exclusiveMaximum", 12, NodeType::Flag),
        ("minimum", 13, NodeType::Number),
        ("exclusiveMinimum", 14, NodeType::Flag),
        ("maxLength", 15, NodeType::Integer),
        ("minLength", 16, NodeType::Integer),
        ("pattern", 17, NodeType::Text),
        ("maxItems", 18, NodeType::Integer),
        ("minItems", 19, NodeType::Integer),
        ("uniqueItems", 20, NodeType::Flag),
        ("maxProperties", 21, NodeType::Integer),
        ("minProperties", 22, NodeType::Integer),
        ("required", 23, NodeType::Texts),
        ("enum", 24, NodeType::Yamls),
        ("type", 25, NodeType::Text),
        ("allOf", 26, NodeType::Many(&SCHEMA_OR_REFERENCE)),
        ("oneOf", 27, NodeType::Many(&SCHEMA_OR_REFERENCE)),
        ("anyOf", 28, NodeType::Many(&SCHEMA_OR_REFERENCE)),
        ("not", 29, NodeType::One(&SCHEMA)),
        ("items", 30, NodeType::Wrapped(&SCHEMA_OR_REFERENCE)),
        ("properties", 31, NodeType::One(&SCHEMAS_OR_REFERENCES)),
        ("additionalProperties", 32, NodeType::FlagOr(&SCHEMA_OR_REFERENCE)),
        ("default", 33, NodeType::Plain),
        ("description", 34, NodeType::Text),
        ("format", 35, NodeType::Text),
    ],
    extensions: 36,
};
