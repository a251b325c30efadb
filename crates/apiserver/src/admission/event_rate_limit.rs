//! EventRateLimit: limits the rate of event writes per server, namespace, user, or source and object. Off by default,
//! and without effect unless it is configured.

use super::{Attributes, Operation, Plugin};
use crate::registry::Registry;
use api::value::Fields;
use async_trait::async_trait;
use machinery::Value;
use machinery::status::{Result, Status};
use parking_lot::Mutex;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use tokio::time::Instant;

const GROUP: &str = "eventratelimit.admission.k8s.io";
const DEFAULT_CACHE_SIZE: usize = 4096;

pub struct EventRateLimit;

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
enum LimitType {
    Server,
    Namespace,
    User,
    SourceAndObject,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Limit {
    r#type: LimitType,
    #[serde(default)]
    qps: i32,
    #[serde(default)]
    burst: i32,
    #[serde(default)]
    cache_size: i32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Configuration {
    #[serde(default)]
    limits: Vec<Limit>,
}

/// Reads the configuration of the plugin.
pub fn read(text: &[u8]) -> Result<Vec<Limit>, String> {
    let found: Configuration = crate::configuration::parse(text, GROUP, &["v1alpha1"], "Configuration")?;
    if found.limits.is_empty() {
        return Err(NO_LIMITS.to_owned());
    }
    for (index, limit) in found.limits.iter().enumerate() {
        let invalid = |field: &str, value: i32, detail: &str| {
            Err(format!("limits[{index}].{field}: Invalid value: {value}: {detail}"))
        };
        if limit.burst <= 0 {
            return invalid("burst", limit.burst, "must be positive");
        }
        if limit.qps <= 0 {
            return invalid("qps", limit.qps, "must be positive");
        }
        if limit.r#type != LimitType::Server && limit.cache_size < 0 {
            return invalid("cacheSize", limit.cache_size, "must not be negative");
        }
    }
    Ok(found.limits)
}

pub const NO_LIMITS: &str = "limits: Invalid value: null: must not be empty";

/// Digest of a key: users choose the length of keys, but must not choose the memory of a bucket.
type Key = [u8; 32];

/// Token buckets by key, in an LRU cache.
pub struct Enforcer {
    limit: Limit,
    buckets: Mutex<Buckets>,
}

#[derive(Default)]
struct Buckets {
    by_key: HashMap<Key, Bucket>,
    /// Keys by sequence number of their last use.
    by_use: BTreeMap<u64, Key>,
    uses: u64,
}

struct Bucket {
    tokens: f64,
    filled: Instant,
    last_use: u64,
}

impl Enforcer {
    pub fn new(limit: Limit) -> Self {
        Self { limit, buckets: Mutex::default() }
    }

    fn capacity(&self) -> usize {
        match (self.limit.r#type, usize::try_from(self.limit.cache_size)) {
            (LimitType::Server, _) => 1,
            (_, Ok(size)) if size > 0 => size,
            _ => DEFAULT_CACHE_SIZE,
        }
    }

    /// Takes a token from the key's bucket; `false` if it is empty.
    fn accept(&self, key: &str, now: Instant) -> bool {
        let (qps, burst) = (f64::from(self.limit.qps), f64::from(self.limit.burst));
        let key: Key = Sha256::digest(key).into();
        let mut buckets = self.buckets.lock();
        let buckets = &mut *buckets;
        buckets.uses += 1;
        let this_use = buckets.uses;
        if !buckets.by_key.contains_key(&key)
            && buckets.by_key.len() >= self.capacity()
            && let Some((_, oldest)) = buckets.by_use.pop_first()
        {
            buckets.by_key.remove(&oldest);
        }
        let new = || Bucket { tokens: burst, filled: now, last_use: 0 };
        let bucket = buckets.by_key.entry(key).or_insert_with(new);
        buckets.by_use.remove(&bucket.last_use);
        buckets.by_use.insert(this_use, key);
        bucket.last_use = this_use;
        let passed = now.saturating_duration_since(bucket.filled).as_secs_f64();
        bucket.tokens = (bucket.tokens + passed * qps).min(burst);
        bucket.filled = now;
        let enough = bucket.tokens >= 1.0;
        if enough {
            bucket.tokens -= 1.0;
        }
        enough
    }

    fn key(&self, attributes: &Attributes<'_>, event: &Value) -> String {
        match self.limit.r#type {
            LimitType::Server => String::new(),
            LimitType::Namespace => attributes.context.namespace.to_owned(),
            LimitType::User => attributes.context.user.name.clone(),
            LimitType::SourceAndObject => source_and_object(event),
        }
    }
}

fn source_and_object(event: &Value) -> String {
    let source = event.field("source");
    let object = event.field("involvedObject");
    let of_object = ["kind", "namespace", "name", "uid", "apiVersion"].map(|field| object.text(field));
    [source.text("component"), source.text("host")].into_iter().chain(of_object).collect()
}

#[async_trait]
impl Plugin for EventRateLimit {
    fn name(&self) -> &'static str {
        "EventRateLimit"
    }

    fn is_default(&self) -> bool {
        false
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        matches!(attributes.operation, Operation::Create | Operation::Update)
            && attributes.is("", "events")
            && !attributes.context.dry_run
    }

    async fn validate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        _old: Option<&Value>,
    ) -> Result<()> {
        let Some(event) = object else { return Ok(()) };
        let now = Instant::now();
        let mut refusals = Vec::new();
        for enforcer in &registry.admission.event_limits {
            let key = enforcer.key(attributes, event);
            if !enforcer.accept(&key, now) {
                refusals.push(format!("limit reached on type {:?} for key {key}", enforcer.limit.r#type));
            }
        }
        let why = match &refusals[..] {
            [] => return Ok(()),
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        Err(Status::new(429, "TooManyRequests", format!("Too many requests: {why}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::test_cluster::Cluster;
    use crate::admission::{Admission, AdmissionConfig};
    use serde_json::json;
    use std::time::Duration;

    fn limits(text: &str) -> Result<Vec<Limit>, String> {
        read(
            format!(r#"{{"apiVersion": "{GROUP}/v1alpha1", "kind": "Configuration", "limits": {text}}}"#)
                .as_bytes(),
        )
    }

    fn enforcer(text: &str) -> Enforcer {
        Enforcer::new(limits(text).expect("valid").remove(0))
    }

    #[test]
    fn bucket_refills_with_time() {
        let enforcer = enforcer(r#"[{"type": "Server", "qps": 2, "burst": 3}]"#);
        let start = Instant::now();
        let taken = |at: Instant| (0..5).filter(|_| enforcer.accept("", at)).count();
        assert_eq!(taken(start), 3);
        assert_eq!(taken(start + Duration::from_secs(1)), 2);
        assert_eq!(taken(start + Duration::from_secs(100)), 3);
    }

    #[test]
    fn buckets_are_per_key_and_evict_least_recently_used() {
        let enforcer = enforcer(r#"[{"type": "User", "qps": 1, "burst": 1, "cacheSize": 2}]"#);
        let now = Instant::now();
        assert!(enforcer.accept("a", now));
        assert!(enforcer.accept("b", now));
        assert!(!enforcer.accept("a", now));
        // The third key evicts b, which was used before a.
        assert!(enforcer.accept("c", now));
        assert!(!enforcer.accept("a", now));
        assert!(enforcer.accept("b", now));
        assert_eq!(enforcer.buckets.lock().by_key.len(), 2);
        assert_eq!(enforcer.buckets.lock().by_use.len(), 2);
    }

    #[test]
    fn long_keys_use_bounded_memory() {
        let enforcer = enforcer(r#"[{"type": "SourceAndObject", "qps": 1, "burst": 1, "cacheSize": 100}]"#);
        let now = Instant::now();
        let long = "x".repeat(64 << 10);
        for number in 0..2_000 {
            assert!(enforcer.accept(&format!("{number}{long}"), now));
        }
        let buckets = enforcer.buckets.lock();
        assert_eq!((buckets.by_key.len(), buckets.by_use.len()), (100, 100));
        assert!(buckets.by_key.capacity() < 1_000);
        assert_eq!(size_of::<Key>(), 32);
    }

    /// A cluster with event rate limits.
    fn limited_cluster(limits: &str) -> Cluster {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("admission.yaml");
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: EventRateLimit\n  \
             configuration:\n    apiVersion: {GROUP}/v1alpha1\n    kind: Configuration\n    limits: {limits}\n"
        );
        std::fs::write(&path, text).expect("written");
        let config = AdmissionConfig {
            enable: vec!["EventRateLimit".to_owned()],
            file: Some(path),
            ..AdmissionConfig::default()
        };
        Cluster::with_admission(Admission::new(&config).expect("usable"))
    }

    fn event(namespace: &str, name: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": namespace}, "reason": "r", "message": "m", "type": "Normal",
            "source": {"component": "c"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": namespace}})
    }

    #[tokio::test]
    async fn events_beyond_limits_are_rejected() {
        let cluster = limited_cluster(
            "[{type: Namespace, qps: 1, burst: 3}, {type: User, qps: 1, burst: 2}, {type: SourceAndObject, qps: 1, burst: 4}]",
        );
        let events = ("", "v1", "events");
        for namespace in ["n", "m"] {
            let object = json!({"metadata": {"name": namespace}});
            cluster.create(("", "v1", "namespaces"), object).await.expect("created");
        }
        for name in ["a", "b"] {
            cluster.try_create(events, event("n", name)).await.expect("within the limits");
        }
        // The third is within the namespace's limit only, the fourth within none.
        let third = cluster.try_create(events, event("n", "c")).await.expect_err("refused");
        assert_eq!((third.code, third.reason), (429, "TooManyRequests"));
        assert_eq!(third.message, "Too many requests: limit reached on type User for key alice");
        let fourth = cluster.try_create(events, event("n", "c")).await.expect_err("refused");
        assert_eq!(
            fourth.message,
            "Too many requests: [limit reached on type Namespace for key n, limit reached on type User for key alice]"
        );
        // Another user in another namespace has limits of its own.
        cluster.create(events, event("m", "a")).await.expect("within the limits");
        // Other kinds are not limited.
        cluster.config_map("n", "a", json!({})).await.expect("no event");
    }

    #[test]
    fn plugin_is_off_unless_enabled_and_needs_limits() {
        assert!(Admission::default().plugins.iter().all(|plugin| plugin.name() != "EventRateLimit"));
        let config =
            AdmissionConfig { enable: vec!["EventRateLimit".to_owned()], ..AdmissionConfig::default() };
        let error = Admission::new(&config).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(NO_LIMITS), "{error}");
    }

    #[test]
    fn configuration_is_validated() {
        for (text, want) in [
            ("[]", NO_LIMITS),
            (r#"[{"type": "Server", "qps": 1}]"#, "limits[0].burst: Invalid value: 0: must be positive"),
            (
                r#"[{"type": "User", "qps": -1, "burst": 1}]"#,
                "limits[0].qps: Invalid value: -1: must be positive",
            ),
            (
                r#"[{"type": "User", "qps": 1, "burst": 1, "cacheSize": -1}]"#,
                "limits[0].cacheSize: Invalid value: -1: must not be negative",
            ),
        ] {
            assert_eq!(limits(text).expect_err(text), want);
        }
        assert!(limits(r#"[{"type": "Cluster", "qps": 1, "burst": 1}]"#).is_err());
    }
}
