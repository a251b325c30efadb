use super::aes_cbc::AesCbc;
use super::aes_gcm::AesGcm;
use super::aes_gcm_derived::AesGcmDerived;
use super::provider::{Cipher, Failure, Identity, Keys, Provider};
use super::rules::{Rule, Rules};
use super::secretbox::Secretbox;
use super::store::Encrypted;
use bytes::Bytes;
use std::sync::Arc;
use store::{Embedded, EmbeddedOptions, Expect, Op, Outcome, RangeRequest, Store, StoreError, Txn};

const STORAGE_KEY: &str = "/registry/core/secrets/n/s";

fn round_trip<C: Cipher>(bytes: &[usize]) {
    for bytes in bytes {
        let cipher = C::new(&vec![7; *bytes]).expect("a key");
        for plain in [&b""[..], b"x", b"sixteen bytes !!", &[0; 1000]] {
            let mut sealed = Vec::new();
            cipher.encrypt(STORAGE_KEY, plain, &mut sealed).expect("sealed");
            assert_eq!(cipher.decrypt(STORAGE_KEY, &sealed).expect("opened"), plain);
            let mut again = Vec::new();
            cipher.encrypt(STORAGE_KEY, plain, &mut again).expect("sealed");
            assert_ne!(sealed, again, "never the same twice");
        }
        for rubbish in [&b""[..], b"short", &[1; 64]] {
            assert!(cipher.decrypt(STORAGE_KEY, rubbish).is_err());
        }
    }
    assert!(C::new(&[7; 5]).is_none());
}

#[test]
fn ciphers_round_trip_with_every_key_length() {
    round_trip::<AesGcm>(AesGcm::KEY_BYTES);
    round_trip::<AesGcmDerived>(AesGcmDerived::KEY_BYTES);
    round_trip::<AesCbc>(AesCbc::KEY_BYTES);
    round_trip::<Secretbox>(Secretbox::KEY_BYTES);
}

fn notices_changes_and_moves<C: Cipher>() {
    let cipher = C::new(&[7; 32]).expect("a key");
    let mut sealed = Vec::new();
    cipher.encrypt(STORAGE_KEY, b"secret", &mut sealed).expect("sealed");
    assert!(cipher.decrypt("/registry/core/secrets/n/other", &sealed).is_err());
    for at in 0..sealed.len() {
        sealed[at] ^= 1;
        assert!(cipher.decrypt(STORAGE_KEY, &sealed).is_err(), "{at}");
        sealed[at] ^= 1;
    }
}

#[test]
fn gcm_rejects_modified_and_moved_values() {
    notices_changes_and_moves::<AesGcm>();
    notices_changes_and_moves::<AesGcmDerived>();
}

#[test]
fn derived_keys_differ_between_values_and_old_values_stay_readable() {
    let cipher = AesGcmDerived::new(&[7; 32]).expect("a key");
    let seal = || {
        let mut sealed = Vec::new();
        cipher.encrypt(STORAGE_KEY, b"secret", &mut sealed).expect("sealed");
        sealed
    };
    let (one, two) = (seal(), seal());
    assert_ne!(one[..32], two[..32]);
    let mixed = [&one[..32], &two[32..]].concat();
    assert!(cipher.decrypt(STORAGE_KEY, &mixed).is_err(), "the key of another value");
    assert!(
        AesGcm::new(&[7; 32]).expect("a key").decrypt(STORAGE_KEY, &one[32..]).is_err(),
        "the configured key itself"
    );
    // A cluster whose file first has the former default, and later the derived one in front of it.
    let old = keys(&[("key1", 7)]);
    let stored = old.seal(STORAGE_KEY, b"old").expect("sealed");
    let new: Arc<dyn Provider> = Arc::new(Keys::new(vec![("key2".to_owned(), cipher)]));
    let rules = rules(vec![new, old]);
    let rule = rules.of(STORAGE_KEY).expect("a rule");
    let opened = rule.open(STORAGE_KEY, &stored).ok().expect("opened");
    assert_eq!((opened.plain.as_slice(), opened.stale), (&b"old"[..], true));
}

/// Start of the example in NaCl's documentation.
#[test]
fn secretbox_matches_nacl_test_vector() {
    let key = hex::decode("1b27556473e985d462cd51197a9a46c76009549eac6474f206c4ee0844f68389").expect("hex");
    let nonce = hex::decode("69696ee955b62b73cd62bda875fc73d68219e0036b7a0b37").expect("hex");
    let plain = hex::decode(
        "be075fc53c81f2d5cf141316ebeb0c7b5228c52a4c62cbd44b66849b64244ffce5ecbaaf33bd751a1ac728d45e6c61296cdc3c01233561f41db66cce314adb310e3be8250c46f06dceea3a7fa1348057e2f6556ad6b1318a024a838f21af1fde048977eb48f59ffd4924ca1c60902e52f0a089bc76897040e082f937763848645e0705",
    )
    .expect("hex");
    let sealed = hex::decode(
        "f3ffc7703f9400e52a7dfb4b3d3305d98e993b9f48681273c29650ba32fc76ce48332ea7164d96a4476fb8c531a1186ac0dfc17c98dce87b4da7f011ec48c97271d2c20f9b928fe2270d6fb863d51738b48eeee314a7cc8ab932164548e526ae90224368517acfeabd6bb3732bc0e9da99832b61ca01b6de56244a9e88d5f9b37973f622a43d14a6599b1f654cb45a74e355a5",
    )
    .expect("hex");
    let cipher = Secretbox::new(&key).expect("a key");
    assert_eq!(cipher.decrypt(STORAGE_KEY, &[nonce, sealed].concat()).expect("opened"), plain);
}

fn keys(names: &[(&str, u8)]) -> Arc<dyn Provider> {
    let cipher = |byte: u8| AesGcm::new(&[byte; 32]).expect("a key");
    Arc::new(Keys::new(names.iter().map(|(name, byte)| ((*name).to_owned(), cipher(*byte))).collect()))
}

fn rules(providers: Vec<Arc<dyn Provider>>) -> Rules {
    Rules::new(vec![Rule::new(&["secrets".to_owned()], providers)])
}

#[test]
fn first_key_encrypts_and_all_keys_decrypt() {
    let (old, new) = (keys(&[("one", 1)]), keys(&[("two", 2), ("one", 1)]));
    let sealed = old.seal(STORAGE_KEY, b"secret").expect("sealed");
    assert!(sealed.starts_with(b"k8s:enc:aesgcm:v1:one:"));
    let rest = sealed.strip_prefix(new.prefix()).expect("the same prefix");
    let opened = new.open(STORAGE_KEY, rest).expect("opened");
    assert_eq!((opened.plain.as_slice(), opened.stale), (&b"secret"[..], true));
    let other = keys(&[("two", 2)]);
    let Err(Failure::Failed(why)) = other.open(STORAGE_KEY, rest) else {
        panic!("another key cannot read it")
    };
    assert!(why.contains("no matching key was found") && why.contains("\"one\""), "{why}");
    // Two entries of the same kind: the second decrypts what the first cannot.
    let rules = rules(vec![other, old]);
    let rule = rules.of(STORAGE_KEY).expect("a rule");
    assert!(rule.open(STORAGE_KEY, &sealed).is_ok_and(|opened| opened.stale));
}

fn put(value: &'static str, expect: Expect) -> Txn {
    Txn {
        key: STORAGE_KEY.into(),
        expect,
        op: Op::Put { value: Bytes::from_static(value.as_bytes()), lease: None },
    }
}

#[tokio::test]
async fn encrypted_store_round_trips_and_hides_secrets() {
    let directory = tempfile::tempdir().expect("a directory");
    let inner: Arc<dyn Store> =
        Arc::new(Embedded::open(EmbeddedOptions::new(directory.path().join("store"))).expect("a store"));
    inner.txn(put("{\"old\":1}", Expect::Absent)).await.expect("written");
    let store = Encrypted::new(inner.clone(), rules(vec![keys(&[("one", 1)]), Arc::new(Identity)]));
    let (found, _) = store.get(STORAGE_KEY).await.expect("read");
    assert_eq!(found.expect("there").value, "{\"old\":1}", "existing plain values are readable");
    assert!(store.outdated(STORAGE_KEY).await.expect("read"));
    store.txn(put("{\"new\":1}", Expect::Any)).await.expect("written");
    assert!(!store.outdated(STORAGE_KEY).await.expect("read"));
    let (raw, _) = inner.get(STORAGE_KEY).await.expect("read");
    assert!(raw.expect("there").value.starts_with(b"k8s:enc:aesgcm:v1:one:"));
    let Outcome::Conflict { current, .. } = store.txn(put("{}", Expect::Absent)).await.expect("answered")
    else {
        panic!("it is there");
    };
    assert_eq!(current.expect("the current value").value, "{\"new\":1}");

    store.replace(rules(vec![keys(&[("two", 2)])]));
    let request = RangeRequest {
        start: STORAGE_KEY.to_owned(),
        end: store::prefix_end(STORAGE_KEY),
        ..RangeRequest::default()
    };
    let error = store.range(request).await.expect_err("the key was removed");
    assert!(matches!(&error, StoreError::Unreadable { key, .. } if &**key == STORAGE_KEY), "{error}");
    assert!(error.to_string().contains("unable to transform key \"/registry/core/secrets/n/s\""), "{error}");
    store.replace(Rules::default());
    assert!(store.get(STORAGE_KEY).await.is_err(), "ciphertext is never served as an object");
    store.replace(rules(vec![keys(&[("two", 2), ("one", 1)])]));
    assert_eq!(
        store.get(STORAGE_KEY).await.expect("read").0.expect("there").value,
        "{\"new\":1}",
        "nothing is lost"
    );
    store.close().await;
}
