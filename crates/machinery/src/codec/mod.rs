//! JSON, YAML, CBOR and protobuf to and from dynamic values.
