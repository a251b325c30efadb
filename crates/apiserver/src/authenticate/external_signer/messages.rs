//! The messages of `externaljwt` v1.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct SignJwtRequest {
    #[prost(string, tag = "1")]
    pub claims: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct SignJwtResponse {
    #[prost(string, tag = "1")]
    pub header: String,
    #[prost(string, tag = "2")]
    pub signature: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct FetchKeysRequest {}

#[derive(Clone, PartialEq, Message)]
pub struct FetchKeysResponse {
    #[prost(message, repeated, tag = "1")]
    pub keys: Vec<Key>,
    #[prost(message, optional, tag = "2")]
    pub data_timestamp: Option<DataTimestamp>,
    #[prost(int64, tag = "3")]
    pub refresh_hint_seconds: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Key {
    #[prost(string, tag = "1")]
    pub key_id: String,
    #[prost(bytes = "vec", tag = "2")]
    pub key: Vec<u8>,
    #[prost(bool, tag = "3")]
    pub exclude_from_oidc_discovery: bool,
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, PartialEq, Message)]
pub struct DataTimestamp {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

impl DataTimestamp {
    /// Reports whether it is between the years 1 and 9999.
    pub fn is_valid(&self) -> bool {
        (-62_135_596_800..=253_402_300_799).contains(&self.seconds)
            && (0..1_000_000_000).contains(&self.nanos)
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct MetadataRequest {}

#[derive(Clone, PartialEq, Message)]
pub struct MetadataResponse {
    #[prost(int64, tag = "1")]
    pub max_token_expiration_seconds: i64,
}
