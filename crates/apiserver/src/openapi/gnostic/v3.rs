//! The messages of a version 3 document.

use super::{Kind, Message};

pub static DOCUMENT: Message = Message::Struct {
    fields: &[
        ("openapi", 1, Kind::Text),
        ("info", 2, Kind::One(&INFO)),
        ("paths", 4, Kind::One(&PATHS)),
        ("components", 5, Kind::One(&COMPONENTS)),
    ],
    extensions: 9,
};

static INFO: Message = Message::Struct {
    fields: &[("title", 1, Kind::Text), ("description", 2, Kind::Text), ("version", 6, Kind::Text)],
    extensions: 7,
};

static PATHS: Message = Message::Map { entries: 1, value: &PATH_ITEM };

static PATH_ITEM: Message = Message::Struct {
    fields: &[
        ("summary", 2, Kind::Text),
        ("description", 3, Kind::Text),
        ("get", 4, Kind::One(&OPERATION)),
        ("put", 5, Kind::One(&OPERATION)),
        ("post", 6, Kind::One(&OPERATION)),
        ("delete", 7, Kind::One(&OPERATION)),
        ("options", 8, Kind::One(&OPERATION)),
        ("head", 9, Kind::One(&OPERATION)),
        ("patch", 10, Kind::One(&OPERATION)),
        ("parameters", 13, Kind::Many(&PARAMETER_OR_REFERENCE)),
    ],
    extensions: 14,
};

static OPERATION: Message = Message::Struct {
    fields: &[
        ("tags", 1, Kind::Texts),
        ("summary", 2, Kind::Text),
        ("description", 3, Kind::Text),
        ("operationId", 5, Kind::Text),
        ("parameters", 6, Kind::Many(&PARAMETER_OR_REFERENCE)),
        ("requestBody", 7, Kind::One(&REQUEST_BODY_OR_REFERENCE)),
        ("responses", 8, Kind::One(&RESPONSES)),
        ("deprecated", 10, Kind::Flag),
    ],
    extensions: 13,
};

static REFERENCE: Message = Message::Struct { fields: &[("$ref", 1, Kind::Text)], extensions: 0 };

static PARAMETER_OR_REFERENCE: Message =
    Message::Choice(|value| if value.get("$ref").is_some() { (2, &REFERENCE) } else { (1, &PARAMETER) });

static PARAMETER: Message = Message::Struct {
    fields: &[
        ("name", 1, Kind::Text),
        ("in", 2, Kind::Text),
        ("description", 3, Kind::Text),
        ("required", 4, Kind::Flag),
        ("schema", 10, Kind::One(&SCHEMA_OR_REFERENCE)),
    ],
    extensions: 14,
};

static REQUEST_BODY_OR_REFERENCE: Message = Message::Choice(|_| (1, &REQUEST_BODY));

static REQUEST_BODY: Message = Message::Struct {
    fields: &[
        ("description", 1, Kind::Text),
        ("content", 2, Kind::One(&MEDIA_TYPES)),
        ("required", 3, Kind::Flag),
    ],
    extensions: 4,
};

static MEDIA_TYPES: Message = Message::Map { entries: 1, value: &MEDIA_TYPE };

static MEDIA_TYPE: Message =
    Message::Struct { fields: &[("schema", 1, Kind::One(&SCHEMA_OR_REFERENCE))], extensions: 5 };

static RESPONSES: Message = Message::Map { entries: 2, value: &RESPONSE_OR_REFERENCE };

static RESPONSE_OR_REFERENCE: Message = Message::Choice(|_| (1, &RESPONSE));

static RESPONSE: Message = Message::Struct {
    fields: &[("description", 1, Kind::Text), ("content", 3, Kind::One(&MEDIA_TYPES))],
    extensions: 5,
};

static COMPONENTS: Message = Message::Struct {
    fields: &[
        ("schemas", 1, Kind::One(&SCHEMAS_OR_REFERENCES)),
        ("securitySchemes", 7, Kind::One(&SECURITY_SCHEMES)),
    ],
    extensions: 10,
};

static SECURITY_SCHEMES: Message = Message::Map { entries: 1, value: &SECURITY_SCHEME_OR_REFERENCE };

static SECURITY_SCHEME_OR_REFERENCE: Message = Message::Choice(|_| (1, &SECURITY_SCHEME));

static SECURITY_SCHEME: Message = Message::Struct {
    fields: &[
        ("type", 1, Kind::Text),
        ("description", 2, Kind::Text),
        ("name", 3, Kind::Text),
        ("in", 4, Kind::Text),
    ],
    extensions: 9,
};

static SCHEMAS_OR_REFERENCES: Message = Message::Map { entries: 1, value: &SCHEMA_OR_REFERENCE };

static SCHEMA_OR_REFERENCE: Message =
    Message::Choice(|value| if value.get("$ref").is_some() { (2, &REFERENCE) } else { (1, &SCHEMA) });

static SCHEMA: Message = Message::Struct {
    fields: &[
        ("nullable", 1, Kind::Flag),
        ("example", 7, Kind::Yaml),
        ("title", 9, Kind::Text),
        ("multipleOf", 10, Kind::Number),
        ("maximum", 11, Kind::Number),
        ("exclusiveMaximum", 12, Kind::Flag),
        ("minimum", 13, Kind::Number),
        ("exclusiveMinimum", 14, Kind::Flag),
        ("maxLength", 15, Kind::Integer),
        ("minLength", 16, Kind::Integer),
        ("pattern", 17, Kind::Text),
        ("maxItems", 18, Kind::Integer),
        ("minItems", 19, Kind::Integer),
        ("uniqueItems", 20, Kind::Flag),
        ("maxProperties", 21, Kind::Integer),
        ("minProperties", 22, Kind::Integer),
        ("required", 23, Kind::Texts),
        ("enum", 24, Kind::Yamls),
        ("type", 25, Kind::Text),
        ("allOf", 26, Kind::Many(&SCHEMA_OR_REFERENCE)),
        ("oneOf", 27, Kind::Many(&SCHEMA_OR_REFERENCE)),
        ("anyOf", 28, Kind::Many(&SCHEMA_OR_REFERENCE)),
        ("not", 29, Kind::One(&SCHEMA)),
        ("items", 30, Kind::Wrapped(&SCHEMA_OR_REFERENCE)),
        ("properties", 31, Kind::One(&SCHEMAS_OR_REFERENCES)),
        ("additionalProperties", 32, Kind::FlagOr(&SCHEMA_OR_REFERENCE)),
        ("default", 33, Kind::Plain),
        ("description", 34, Kind::Text),
        ("format", 35, Kind::Text),
    ],
    extensions: 36,
};
