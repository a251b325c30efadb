//! Encryption at rest: stored data, key rotation, missing keys.

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use store::Store;
use testkit::{Server, eventually};

const PLAIN: &str = "correct-horse-battery-staple";

fn secret(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"},
        "data": {"password": STANDARD.encode(PLAIN)},
    })
}

/// True if any file below a directory contains these bytes.
fn contains(directory: &Path, needle: &[u8]) -> Result<bool> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let found = match entry.file_type()?.is_dir() {
            true => contains(&entry.path(), needle)?,
            false => std::fs::read(entry.path())?.windows(needle.len()).any(|window| window == needle),
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn create(server: &Server, path: &str, object: &Value) -> Result<()> {
    let reply = server.admin.post(path, object).await?;
    anyhow::ensure!(reply.status == StatusCode::CREATED, "{}", reply.body);
    Ok(())
}

async fn password(server: &Server, name: &str) -> Result<Value> {
    let reply = server.admin.get(&format!("/api/v1/namespaces/default/secrets/{name}")).await?;
    Ok(reply.body["data"]["password"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_stored_encrypted() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let store = directory.path().join("store");
    let server = Server::start_in(directory.path()).await?;
    create(&server, "/api/v1/namespaces/default/secrets", &secret("s")).await?;
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "default"},
        "data": {"not-secret": "for-everybody-to-see"},
    });
    create(&server, "/api/v1/namespaces/default/configmaps", &map).await?;
    assert_eq!(password(&server, "s").await?, STANDARD.encode(PLAIN));
    server.stop().await?;
    assert!(contains(&store, b"for-everybody-to-see")?, "the test reads the right directory");
    assert!(!contains(&store, PLAIN.as_bytes())? && !contains(&store, STANDARD.encode(PLAIN).as_bytes())?);
    assert!(contains(&store, b"k8s:enc:aesgcmderived:v1:key1:")?);
    let key = cluster::default_encryption_file(directory.path());
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&key)?.permissions());
    assert_eq!(mode & 0o777, 0o600);

    // The next start reads them, and watches show new writes.
    let server = Server::start_in(directory.path()).await?;
    assert_eq!(password(&server, "s").await?, STANDARD.encode(PLAIN));
    server.stop().await?;

    // Without its key nothing is served, and nothing is lost.
    let saved = std::fs::read(&key)?;
    std::fs::remove_file(&key)?;
    let error = Server::start_in(directory.path()).await.err().context("no start without the key")?;
    let text = format!("{error:#}");
    assert!(text.contains("encryption.yaml") && text.contains("/registry/core/secrets/default/s"), "{text}");
    let wrong = String::from_utf8(saved.clone())?;
    let line = wrong.lines().find(|line| line.contains("secret:")).context("a key")?.to_owned();
    let other = format!("{}secret: {}", &line[..line.find("secret:").unwrap_or(0)], STANDARD.encode([9; 32]));
    std::fs::write(&key, wrong.replace(&line, &other))?;
    let server = Server::start_in(directory.path()).await?;
    let reply = server.admin.get("/api/v1/namespaces/default/secrets/s").await?;
    assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR);
    let message = reply.body["message"].as_str().unwrap_or("").to_owned();
    assert!(message.contains("unable to transform key \"/registry/core/secrets/default/s\""), "{message}");
    let reply = server.admin.get("/api/v1/namespaces/default/configmaps/m").await?;
    assert_eq!(reply.status, StatusCode::OK, "other resources are served");
    server.stop().await?;
    std::fs::write(&key, saved)?;
    let server = Server::start_in(directory.path()).await?;
    assert_eq!(password(&server, "s").await?, STANDARD.encode(PLAIN));
    server.stop().await
}

/// An unreadable value fails requests that need it, and no others.
#[tokio::test(flavor = "multi_thread")]
async fn one_unreadable_secret_does_not_hide_the_others() -> Result<()> {
    const BROKEN: &str = "/registry/core/secrets/default/broken";
    let directory = tempfile::tempdir()?;
    let server = Server::start_in(directory.path()).await?;
    let (here, elsewhere) = ("/api/v1/namespaces/default/secrets", "/api/v1/namespaces/kube-system/secrets");
    for name in ["a", "broken", "broken-not"] {
        create(&server, here, &secret(name)).await?;
    }
    server.stop().await?;
    let raw = || store::Embedded::open(store::EmbeddedOptions::new(directory.path().join("store")));
    let replace = async |value: bytes::Bytes| -> Result<bytes::Bytes> {
        let raw = raw()?;
        let (found, _) = raw.get(BROKEN).await?;
        let found = found.context("it exists")?;
        let op = store::Op::Put { value, lease: None };
        let expect = store::Expect::Revision(found.mod_revision);
        raw.txn(store::Txn { key: BROKEN.into(), expect, op }).await?;
        raw.close().await;
        Ok(found.value)
    };
    let good = replace(bytes::Bytes::from_static(b"k8s:enc:aesgcmderived:v1:key1:rubbish")).await?;

    let server = Server::start_in(directory.path()).await?;
    assert_eq!(password(&server, "a").await?, STANDARD.encode(PLAIN));
    assert_eq!(password(&server, "broken-not").await?, STANDARD.encode(PLAIN));
    create(&server, here, &secret("new")).await?;
    assert_eq!(server.admin.delete(&format!("{here}/new")).await?.status, StatusCode::OK);
    let one = format!("{here}/broken");
    for (path, status) in [
        (one.as_str(), StatusCode::INTERNAL_SERVER_ERROR),
        (here, StatusCode::INTERNAL_SERVER_ERROR),
        ("/api/v1/secrets", StatusCode::INTERNAL_SERVER_ERROR),
        (elsewhere, StatusCode::OK),
    ] {
        let reply = server.admin.get(path).await?;
        assert_eq!(reply.status, status, "{path}: {}", reply.body);
        let message = reply.body["message"].as_str().unwrap_or("").to_owned();
        assert!(status == StatusCode::OK || message.contains(BROKEN), "{path}: {message}");
    }
    server.stop().await?;

    // Objects are served again once they are readable.
    replace(good).await?;
    let server = Server::start_in(directory.path()).await?;
    assert_eq!(password(&server, "broken").await?, STANDARD.encode(PLAIN));
    assert_eq!(server.admin.get("/api/v1/secrets").await?.status, StatusCode::OK);
    server.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn encryption_keys_rotate_at_run_time() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let server = Server::start_in(directory.path()).await?;
    for name in ["a", "b", "c"] {
        create(&server, "/api/v1/namespaces/default/secrets", &secret(name)).await?;
    }
    let file = cluster::default_encryption_file(directory.path());
    assert_eq!(cluster::add_key(&file)?, "key2");
    // The writing key is visible only on disk; a new secret shows when it is in use.
    let store = directory.path().join("store");
    let mut probe = 0;
    let written = async || {
        probe += 1;
        create(&server, "/api/v1/namespaces/default/secrets", &secret(&format!("p-{probe}"))).await.ok()?;
        contains(&store, b"k8s:enc:aesgcmderived:v1:key2:").ok()
    };
    eventually("key2 writes", Duration::from_secs(20), written, |seen| *seen == Some(true)).await;
    assert_eq!(password(&server, "a").await?, STANDARD.encode(PLAIN), "the old key still reads");

    let before = server.admin.get("/api/v1/namespaces/default/secrets/a").await?.body;
    let done = cluster::reencrypt(&server.kubeconfig, &["secrets".to_owned()]).await?;
    assert_eq!((done[0].objects, done[0].overtaken), (3 + probe, 0));
    let after = server.admin.get("/api/v1/namespaces/default/secrets/a").await?.body;
    assert_ne!(before["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"], "it was written");
    assert_eq!(before["data"], after["data"]);
    // Objects that already have the right form are not rewritten.
    cluster::reencrypt(&server.kubeconfig, &["secrets".to_owned()]).await?;
    let again = server.admin.get("/api/v1/namespaces/default/secrets/a").await?.body;
    assert_eq!(again["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"]);
    server.stop().await?;

    // The old key is no longer needed.
    let text = std::fs::read_to_string(&file)?;
    let lines: Vec<&str> = text.lines().collect();
    let at = lines
        .iter()
        .position(|line| line.trim_start().trim_start_matches("- ") == "name: key1")
        .context("key1")?;
    let kept: Vec<&str> = lines
        .iter()
        .enumerate()
        .filter(|(index, _)| *index != at && *index != at + 1)
        .map(|(_, line)| *line)
        .collect();
    std::fs::write(&file, kept.join("\n"))?;
    assert!(!std::fs::read_to_string(&file)?.contains("key1"));
    let server = Server::start_in(directory.path()).await?;
    assert_eq!(password(&server, "a").await?, STANDARD.encode(PLAIN));
    server.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_encryption_config_is_used() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("encryption-config.yaml");
    let key = STANDARD.encode([5; 32]);
    std::fs::write(
        &file,
        format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
             - resources: [configmaps]\n  providers:\n  - secretbox: {{keys: [{{name: box, secret: '{key}'}}]}}\n\
             - resources: ['*.']\n  providers:\n  - aescbc: {{keys: [{{name: chain, secret: '{key}'}}]}}\n"
        ),
    )?;
    let server = Server::start_with(|config| config.encryption.file = Some(file.clone())).await?;
    create(&server, "/api/v1/namespaces/default/secrets", &secret("s")).await?;
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "default"},
        "data": {"k": PLAIN},
    });
    create(&server, "/api/v1/namespaces/default/configmaps", &map).await?;
    let store = server.data_dir().join("store");
    for (mark, there) in [
        (&b"k8s:enc:secretbox:v1:box:"[..], true),
        (b"k8s:enc:aescbc:v1:chain:", true),
        (b"k8s:enc:aesgcm:", false),
        (PLAIN.as_bytes(), false),
    ] {
        assert_eq!(contains(&store, mark)?, there, "{}", String::from_utf8_lossy(mark));
    }
    assert_eq!(password(&server, "s").await?, STANDARD.encode(PLAIN));
    assert!(!cluster::default_encryption_file(server.data_dir()).exists(), "no key of its own is needed");
    server.stop().await
}
