//! Registry credentials from image pull secrets.

use std::collections::BTreeMap;

use base64::Engine as _;
use cri::v1::AuthConfig;
use objects::core::v1::Secret;
use serde::Deserialize;

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize, Default)]
struct Entry {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    auth: String,
    #[serde(default, rename = "identitytoken")]
    identity_token: String,
}

/// Registry and repository of an image name; the default registry is Docker Hub.
fn location(image: &str) -> String {
    let name = image.split('@').next().unwrap_or(image);
    let (first, rest) = name.split_once('/').unwrap_or(("", name));
    if first.contains('.') || first.contains(':') || first == "localhost" {
        format!("{first}/{rest}")
    } else {
        format!("docker.io/{}", name.trim_start_matches("docker.io/"))
    }
}

/// Normalizes a credential key: strips scheme and version.
fn normalized_key(key: &str) -> String {
    let key = key.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
    let key = key.trim_end_matches("/v1").trim_end_matches("/v2").trim_end_matches('/');
    if key == "index.docker.io" { "docker.io".to_owned() } else { key.to_owned() }
}

/// Credentials for an image, most specific first.
#[must_use]
pub fn for_image(image: &str, secrets: &[Secret]) -> Vec<AuthConfig> {
    let location = location(image);
    let mut found: Vec<(usize, AuthConfig)> = Vec::new();
    for secret in secrets {
        let data =
            |key: &str| secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.as_slice());
        let entries = if let Some(text) = data(".dockerconfigjson") {
            serde_json::from_slice::<DockerConfig>(text).map(|config| config.auths).unwrap_or_default()
        } else if let Some(text) = data(".dockercfg") {
            serde_json::from_slice(text).unwrap_or_default()
        } else {
            continue;
        };
        for (key, entry) in entries {
            let normalized_key = normalized_key(&key);
            let matches = location == normalized_key
                || location.strip_prefix(&normalized_key).is_some_and(|rest| rest.starts_with('/'))
                || wildcard(&normalized_key, &location);
            if matches {
                found.push((normalized_key.len(), auth(&normalized_key, entry)));
            }
        }
    }
    found.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    found.into_iter().map(|(_, auth)| auth).collect()
}

/// Matches globs; `*.example.com` stands for one label.
fn wildcard(normalized_key: &str, location: &str) -> bool {
    let host = location.split('/').next().unwrap_or("");
    let (mut wanted, mut actual) = (normalized_key.split('.'), host.split('.'));
    normalized_key.contains('*')
        && loop {
            match (wanted.next(), actual.next()) {
                (None, None) => break true,
                (Some("*"), Some(_)) => {}
                (Some(a), Some(b)) if a == b => {}
                _ => break false,
            }
        }
}

fn auth(server: &str, entry: Entry) -> AuthConfig {
    let decoded = base64::engine::general_purpose::STANDARD.decode(&entry.auth).ok();
    let decoded = decoded.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
    let (user, password) = decoded.split_once(':').unwrap_or(("", ""));
    let or = |own: String, other: &str| if own.is_empty() { other.to_owned() } else { own };
    AuthConfig {
        username: or(entry.username, user),
        password: or(entry.password, password),
        identity_token: entry.identity_token,
        server_address: server.to_owned(),
        ..AuthConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use objects::ByteString;

    fn secret(text: &str) -> Secret {
        let data = BTreeMap::from([(".dockerconfigjson".to_owned(), ByteString(text.as_bytes().to_vec()))]);
        Secret { data: Some(data), ..Secret::default() }
    }

    #[test]
    fn most_specific_credential_comes_first() {
        let text = r#"{"auths":{
            "https://index.docker.io/v1/":{"auth":"aHViOnB3"},
            "reg.example.com":{"username":"a","password":"b"},
            "reg.example.com/team":{"username":"t","password":"b"},
            "*.wild.org":{"username":"w","password":"b"}}}"#;
        let users = |image: &str| -> Vec<String> {
            for_image(image, &[secret(text)]).into_iter().map(|auth| auth.username).collect()
        };
        assert_eq!(users("busybox"), ["hub"]);
        assert_eq!(users("reg.example.com/team/app:1"), ["t", "a"]);
        assert_eq!(users("reg.example.com/other"), ["a"]);
        assert_eq!(users("x.wild.org/app"), ["w"]);
        assert!(users("quay.example/app").is_empty());
        assert!(for_image("busybox", &[secret("not json")]).is_empty());
    }
}
