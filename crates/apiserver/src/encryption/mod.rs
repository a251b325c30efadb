//! Encryption at rest of selected resources.
//!
//! [`Encrypted`] is a layer between the API server and its store. Writes use the first provider of the resource's
//! rule, reads the one that wrote the value; everything above sees plain objects. The stored form is Kubernetes' own:
//! `k8s:enc:<provider>:v1:<key>:` and the ciphertext, bound to the object's key in the store.

mod aes_cbc;
mod aes_gcm;
mod aes_gcm_derived;
mod config;
mod key_file;
mod kms;
mod provider;
mod rules;
mod secretbox;
mod store;
#[cfg(test)]
mod tests;

pub use config::EncryptionError;
pub use key_file::{add_key, ensure as ensure_key_file};
pub use rules::Rules;
pub use store::Encrypted;
