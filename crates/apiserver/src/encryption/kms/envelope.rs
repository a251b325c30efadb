//! The messages of the KMS API v2 and the stored form of a value encrypted with it.

use prost::Message;
use std::collections::HashMap;

/// Derivation of a value's key from its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceType {
    /// The source is a seed: HKDF-SHA256 of it and the first 32 bytes of the data yields the key.
    Seed = 1,
}

/// A stored value, after its prefix.
#[derive(Clone, PartialEq, Message)]
pub struct EncryptedObject {
    #[prost(bytes = "vec", tag = "1")]
    pub encrypted_data: Vec<u8>,
    #[prost(string, tag = "2")]
    pub key_id: String,
    #[prost(bytes = "vec", tag = "3")]
    pub encrypted_dek_source: Vec<u8>,
    #[prost(map = "string, bytes", tag = "4")]
    pub annotations: HashMap<String, Vec<u8>>,
    #[prost(int32, tag = "5")]
    pub encrypted_dek_source_type: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct StatusRequest {}

#[derive(Clone, PartialEq, Message)]
pub struct StatusResponse {
    #[prost(string, tag = "1")]
    pub version: String,
    #[prost(string, tag = "2")]
    pub healthz: String,
    #[prost(string, tag = "3")]
    pub key_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct DecryptRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub key_id: String,
    #[prost(map = "string, bytes", tag = "4")]
    pub annotations: HashMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DecryptResponse {
    #[prost(bytes = "vec", tag = "1")]
    pub plaintext: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct EncryptRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub plaintext: Vec<u8>,
    #[prost(string, tag = "2")]
    pub uid: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct EncryptResponse {
    #[prost(bytes = "vec", tag = "1")]
    pub ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    pub key_id: String,
    #[prost(map = "string, bytes", tag = "3")]
    pub annotations: HashMap<String, Vec<u8>>,
}
