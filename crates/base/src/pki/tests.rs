//! Tests of the cluster's certificates.

use std::os::unix::fs::PermissionsExt;

use jiff::ToSpan;

use super::*;

fn names() -> ServingNames {
    let mut names = ServingNames::of_the_api_server("cluster.local");
    names.ips.insert("127.0.0.1".parse().expect("an address"));
    names
}

fn now() -> Timestamp {
    Timestamp::now()
}

fn open(directory: &Path) -> Pki {
    Pki::open(directory, &names(), now()).expect("opens")
}

#[test]
fn created_once_and_reloaded() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("deep/pki");
    let first = open(&path);
    let second = open(&path);
    assert_eq!(first.server_authority.certificate, second.server_authority.certificate);
    assert_eq!(first.leaves().serving.chain, second.leaves().serving.chain);
    assert_eq!(first.leaves().admin.key_pem(), second.leaves().admin.key_pem());
    for entry in fs::read_dir(&path).expect("lists") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("a name");
        let mode = entry.metadata().expect("metadata").permissions().mode() & 0o777;
        let want = if name.ends_with(".crt") || name.ends_with(".pub") { 0o644 } else { 0o600 };
        assert_eq!(mode, want, "{name}");
    }
    assert_eq!(
        fs::read_dir(dir.path().join("deep")).expect("lists").count(),
        1,
        "no temporary directory left"
    );
}

#[test]
fn administrator_is_in_system_masters() {
    let dir = tempfile::tempdir().expect("a directory");
    let leaves = open(&dir.path().join("pki")).leaves();
    let (_, leaf) = x509_parser::parse_x509_certificate(&leaves.admin.chain[0]).expect("parses");
    assert_eq!(leaf.subject().to_string(), "O=system:masters, CN=admin");
    assert!(leaves.serving.covers(&names()));
}

#[test]
fn leaf_is_renewed_with_a_third_of_its_lifetime_left() {
    let dir = tempfile::tempdir().expect("a directory");
    let pki = open(&dir.path().join("pki"));
    let before = pki.leaves().serving.chain;
    let in_hours = |hours: i64| now().checked_add(hours.hours()).expect("a time");
    assert!(pki.renew(&names(), in_hours(24 * 240)).expect("looks").is_empty());
    let renewed = pki.renew(&names(), in_hours(24 * 250)).expect("renews");
    assert_eq!(renewed, ["apiserver.pem", "admin.pem", "front-proxy-client.pem"]);
    assert_ne!(pki.leaves().serving.chain, before);
}

#[test]
fn leaf_that_begins_in_the_future_is_reissued() {
    let dir = tempfile::tempdir().expect("a directory");
    let ahead = |duration: jiff::Span| now().checked_add(duration).expect("a time");
    let slightly = Pki::open(&dir.path().join("one"), &names(), ahead(2.minutes())).expect("opens");
    assert!(slightly.renew(&names(), now()).expect("looks").is_empty());
    let pki = Pki::open(&dir.path().join("two"), &names(), ahead(48.hours())).expect("opens");
    let renewed = pki.renew(&names(), now()).expect("renews");
    assert_eq!(renewed, ["apiserver.pem", "admin.pem", "front-proxy-client.pem"]);
    let chain = pki.leaves().admin.chain;
    let (_, leaf) = x509_parser::parse_x509_certificate(&chain[0]).expect("parses");
    assert!(leaf.validity().not_before.timestamp() <= now().as_second());
}

#[test]
fn serving_certificate_is_reissued_when_names_change() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pki");
    drop(open(&path));
    let mut more = names();
    more.ips.insert("192.0.2.1".parse().expect("an address"));
    let pki = Pki::open(&path, &more, now()).expect("opens");
    assert!(pki.leaves().serving.covers(&more));
}

#[test]
fn damaged_file_is_named_in_the_error() {
    let cases: [(&str, &str, &str); 4] = [
        ("server-ca.crt", "garbage", "server-ca.crt is not a usable certificate"),
        ("client-ca.key", "garbage", "client-ca.key is not a usable key"),
        ("apiserver.pem", "garbage", "apiserver.pem is not a usable certificate with key"),
        ("front-proxy-ca.key", "", "front-proxy-ca.key is missing"),
    ];
    for (file, content, want) in cases {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pki");
        drop(open(&path));
        if content.is_empty() {
            fs::remove_file(path.join(file)).expect("removes");
        } else {
            fs::write(path.join(file), content).expect("writes");
        }
        let error = Pki::open(&path, &names(), now()).expect_err("damaged").to_string();
        assert!(error.contains(want), "{error}");
    }
}

#[test]
fn key_of_another_authority_is_rejected() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pki");
    drop(open(&path));
    fs::copy(path.join("server-ca.key"), path.join("client-ca.key")).expect("copies");
    let error = Pki::open(&path, &names(), now()).expect_err("damaged").to_string();
    assert!(error.contains("does not belong to its key"), "{error}");
}

#[test]
fn missing_leaf_is_reissued() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pki");
    drop(open(&path));
    fs::remove_file(path.join("admin.pem")).expect("removes");
    open(&path);
    assert!(path.join("admin.pem").exists());
}

#[test]
fn service_account_key_is_reused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pki");
    let first = open(&path).service_account_key().expect("makes one");
    let second = open(&path).service_account_key().expect("finds it");
    assert_eq!(first.public_pem, second.public_pem);
    assert_eq!(first.private_pem, second.private_pem);
}
