//! The messages of a version 2 document.

use super::{Kind, Message};

pub static DOCUMENT: Message = Message::Struct {
    fields: &[
        ("swagger", 1, Kind::Text),
        ("info", 2, Kind::One(&INFO)),
        ("schemes", 5, Kind::Texts),
        ("consumes", 6, Kind::Texts),
        ("produces", 7, Kind::Texts),
        ("paths", 8, Kind::One(&PATHS)),
        ("definitions", 9, Kind::One(&SCHEMAS)),
        ("parameters", 10, Kind::One(&PARAMETERS)),
        ("security", 12, Kind::Many(&SECURITY_REQUIREMENT)),
        ("securityDefinitions", 13, Kind::One(&SECURITY_DEFINITIONS)),
    ],
    extensions: 16,
};

static INFO: Message = Message::Struct {
    fields: &[("title", 1, Kind::Text), ("version", 2, Kind::Text), ("description", 3, Kind::Text)],
    extensions: 7,
};

static PATHS: Message = Message::Map { entries: 2, value: &PATH_ITEM };

static PATH_ITEM: Message = Message::Struct {
    fields: &[
        ("$ref", 1, Kind::Text),
        ("get", 2, Kind::One(&OPERATION)),
        ("put", 3, Kind::One(&OPERATION)),
        ("post", 4, Kind::One(&OPERATION)),
        ("delete", 5, Kind::One(&OPERATION)),
        ("options", 6, Kind::One(&OPERATION)),
        ("head", 7, Kind::One(&OPERATION)),
        ("patch", 8, Kind::One(&OPERATION)),
        ("parameters", 9, Kind::Many(&PARAMETERS_ITEM)),
    ],
    extensions: 10,
};

static OPERATION: Message = Message::Struct {
    fields: &[
        ("tags", 1, Kind::Texts),
        ("summary", 2, Kind::Text),
        ("description", 3, Kind::Text),
        ("operationId", 5, Kind::Text),
        ("produces", 6, Kind::Texts),
        ("consumes", 7, Kind::Texts),
        ("parameters", 8, Kind::Many(&PARAMETERS_ITEM)),
        ("responses", 9, Kind::One(&RESPONSES)),
        ("schemes", 10, Kind::Texts),
        ("deprecated", 11, Kind::Flag),
    ],
    extensions: 13,
};

static PARAMETERS: Message = Message::Map { entries: 1, value: &PARAMETER };

static PARAMETERS_ITEM: Message =
    Message::Choice(|value| if value.get("$ref").is_some() { (2, &REFERENCE) } else { (1, &PARAMETER) });

static REFERENCE: Message =
    Message::Struct { fields: &[("$ref", 1, Kind::Text), ("description", 2, Kind::Text)], extensions: 0 };

static PARAMETER: Message =
    Message::Choice(|value| if value["in"] == "body" { (1, &BODY_PARAMETER) } else { (2, &OTHER_PARAMETER) });

static BODY_PARAMETER: Message = Message::Struct {
    fields: &[
        ("description", 1, Kind::Text),
        ("name", 2, Kind::Text),
        ("in", 3, Kind::Text),
        ("required", 4, Kind::Flag),
        ("schema", 5, Kind::One(&SCHEMA)),
    ],
    extensions: 6,
};

static OTHER_PARAMETER: Message =
    Message::Choice(|value| if value["in"] == "path" { (4, &PATH_PARAMETER) } else { (3, &QUERY_PARAMETER) });

static PATH_PARAMETER: Message = Message::Struct {
    fields: &[
        ("required", 1, Kind::Flag),
        ("in", 2, Kind::Text),
        ("description", 3, Kind::Text),
        ("name", 4, Kind::Text),
        ("type", 5, Kind::Text),
        ("format", 6, Kind::Text),
        ("uniqueItems", 19, Kind::Flag),
    ],
    extensions: 22,
};

static QUERY_PARAMETER: Message = Message::Struct {
    fields: &[
        ("required", 1, Kind::Flag),
        ("in", 2, Kind::Text),
        ("description", 3, Kind::Text),
        ("name", 4, Kind::Text),
        ("type", 6, Kind::Text),
        ("format", 7, Kind::Text),
        ("uniqueItems", 20, Kind::Flag),
    ],
    extensions: 23,
};

static RESPONSES: Message = Message::Map { entries: 1, value: &RESPONSE_VALUE };

static RESPONSE_VALUE: Message = Message::Choice(|_| (1, &RESPONSE));

static RESPONSE: Message = Message::Struct {
    fields: &[("description", 1, Kind::Text), ("schema", 2, Kind::One(&SCHEMA_ITEM))],
    extensions: 5,
};

static SCHEMA_ITEM: Message = Message::Choice(|_| (1, &SCHEMA));

static SCHEMAS: Message = Message::Map { entries: 1, value: &SCHEMA };

static SCHEMA: Message = Message::Struct {
    fields: &[
        ("$ref", 1, Kind::Text),
        ("format", 2, Kind::Text),
        ("title", 3, Kind::Text),
        ("description", 4, Kind::Text),
        ("default", 5, Kind::Yaml),
        ("multipleOf", 6, Kind::Number),
        ("maximum", 7, Kind::Number),
        ("exclusiveMaximum", 8, Kind::Flag),
        ("minimum", 9, Kind::Number),
        ("exclusiveMinimum", 10, Kind::Flag),
        ("maxLength", 11, Kind::Integer),
        ("minLength", 12, Kind::Integer),
        ("pattern", 13, Kind::Text),
        ("maxItems", 14, Kind::Integer),
        ("minItems", 15, Kind::Integer),
        ("uniqueItems", 16, Kind::Flag),
        ("maxProperties", 17, Kind::Integer),
        ("minProperties", 18, Kind::Integer),
        ("required", 19, Kind::Texts),
        ("enum", 20, Kind::Yamls),
        ("additionalProperties", 21, Kind::FlagOr(&SCHEMA)),
        ("type", 22, Kind::WrappedTexts),
        ("items", 23, Kind::Wrapped(&SCHEMA)),
        ("allOf", 24, Kind::Many(&SCHEMA)),
        ("properties", 25, Kind::One(&SCHEMAS)),
        ("example", 30, Kind::Yaml),
    ],
    extensions: 31,
};

static SECURITY_REQUIREMENT: Message = Message::Map { entries: 1, value: &Message::Texts };

static SECURITY_DEFINITIONS: Message = Message::Map { entries: 1, value: &SECURITY_DEFINITION };

static SECURITY_DEFINITION: Message = Message::Choice(|_| (2, &API_KEY));

static API_KEY: Message = Message::Struct {
    fields: &[
        ("type", 1, Kind::Text),
        ("name", 2, Kind::Text),
        ("in", 3, Kind::Text),
        ("description", 4, Kind::Text),
    ],
    extensions: 5,
};
