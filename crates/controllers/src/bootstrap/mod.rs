//! Bootstrap tokens: one loop signs the public cluster information with them, one deletes expired tokens.

pub mod signer;
pub mod token_cleaner;

use jiff::Timestamp;
use objects::core::v1::Secret;

const NAMESPACE: &str = "kube-system";
const TYPE: &str = "bootstrap.kubernetes.io/token";

fn field<'a>(secret: &'a Secret, key: &str) -> Option<&'a str> {
    std::str::from_utf8(&secret.data.as_ref()?.get(key)?.0).ok()
}

fn is_token(secret: &Secret) -> bool {
    secret.type_.as_deref() == Some(TYPE)
}

/// Expiry of the token; an invalid time counts as past.
fn expiration(secret: &Secret) -> Option<Timestamp> {
    let text = field(secret, "expiration").filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or(Timestamp::UNIX_EPOCH))
}

#[cfg(test)]
fn token(id: &str, fields: &[(&str, &str)]) -> Secret {
    use objects::ByteString;
    let given = fields.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())));
    let basic = [("token-id", id), ("token-secret", "0123456789abcdef"), ("usage-bootstrap-signing", "true")];
    let basic = basic.into_iter().map(|(key, value)| (key.to_owned(), ByteString(value.as_bytes().to_vec())));
    Secret {
        metadata: crate::shared::fixture::meta(&format!("bootstrap-token-{id}")),
        type_: Some(TYPE.to_owned()),
        data: Some(basic.chain(given).collect()),
        ..Secret::default()
    }
}
