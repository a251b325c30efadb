//! The journal: a bounded in-memory record of writes and their causes. It links a user's command with the writes of
//! every control loop that followed. Leases and events are left out: they would displace everything else.

use super::Chain;
use crate::context::Context;
use crate::wire::reply::{self, Reply};
use base::clock::Clock;
use machinery::Value;
use parking_lot::Mutex;
use serde_json::json;
use std::collections::VecDeque;

/// Writes to retain.
const CAPACITY: usize = 20_000;
/// Longest cause that is retained, in bytes.
const LONGEST_CAUSE: usize = 512;
/// Longest causal chain that is returned.
const LONGEST_CHAIN: usize = 32;
const HEADER: http::HeaderName = http::HeaderName::from_static("ferry-cause");
const PATH: &str = "/debug/ferry/journal";

/// Retained writes, oldest first.
#[derive(Debug, Default)]
pub struct Journal {
    writes: Mutex<VecDeque<Write>>,
}

#[derive(Clone, Debug, PartialEq)]
struct Write {
    revision: u64,
    /// Milliseconds since the epoch.
    time: i64,
    user: String,
    verb: &'static str,
    subresource: String,
    /// `deployments.apps/default/web`.
    object: String,
    cause: Option<Cause>,
}

/// Controller that wrote, the object it reconciled, and the revision that triggered it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Cause {
    controller: String,
    object: String,
    revision: u64,
}

impl Cause {
    /// Parses `loop=…; object=…; revision=…`; `None` if the text has another form.
    fn parse(text: &str) -> Option<Self> {
        let mut cause = Self::default();
        if text.len() > LONGEST_CAUSE {
            return None;
        }
        for part in text.split(';') {
            let (key, value) = part.trim().split_once('=')?;
            match key {
                "loop" => cause.controller = value.to_owned(),
                "object" => cause.object = value.to_owned(),
                "revision" => cause.revision = value.parse().unwrap_or(0),
                _ => {}
            }
        }
        (!cause.controller.is_empty()).then_some(cause)
    }
}

impl Write {
    fn to_value(&self) -> Value {
        let time = jiff::Timestamp::from_millisecond(self.time).unwrap_or_default();
        let mut value = json!({
            "revision": self.revision.to_string(),
            "time": format!("{time:.3}"),
            "user": self.user,
            "verb": self.verb,
            "object": self.object,
        });
        if !self.subresource.is_empty() {
            value["subresource"] = json!(self.subresource);
        }
        if let Some(cause) = &self.cause {
            value["cause"] = json!({"loop": cause.controller, "object": cause.object, "revision": cause.revision.to_string()});
        }
        value
    }
}

impl Journal {
    /// Records what a request wrote.
    pub fn record(&self, context: &Context, clock: &Clock) {
        let commits = context.record.take_commits();
        let info = &context.info;
        if commits.is_empty() || matches!(&*info.resource, "leases" | "events") {
            return;
        }
        let cause = context.headers.get(HEADER).and_then(|value| Cause::parse(value.to_str().ok()?));
        let resource = if info.group.is_empty() {
            info.resource.clone()
        } else {
            format!("{}.{}", info.resource, info.group)
        };
        let time = clock.now().as_millisecond();
        let mut writes = self.writes.lock();
        for (key, revision) in commits {
            let name = key.rsplit('/').next().unwrap_or_default();
            let object = if info.namespace.is_empty() || &*info.resource == "namespaces" {
                format!("{resource}/{name}")
            } else {
                format!("{resource}/{}/{name}", info.namespace)
            };
            if writes.len() >= CAPACITY {
                writes.pop_front();
            }
            writes.push_back(Write {
                revision,
                time,
                user: context.user.name.clone(),
                verb: info.verb.as_str(),
                subresource: info.subresource.clone(),
                object,
                cause: cause.clone(),
            });
        }
    }

    /// Writes of an object, or all writes, the latest last.
    fn of(&self, object: &str, limit: usize) -> Vec<Write> {
        let writes = self.writes.lock();
        let mut found: Vec<Write> = writes
            .iter()
            .rev()
            .filter(|write| object.is_empty() || write.object == object)
            .take(limit)
            .cloned()
            .collect();
        found.reverse();
        found
    }

    /// Causal chain of a write: the write itself, then its cause, and so on back to the first.
    fn chain(&self, object: &str, verb: &str) -> Vec<Write> {
        let writes = self.writes.lock();
        let mut chain: Vec<Write> = Vec::new();
        let matches = |write: &&Write| write.object == object && (verb.is_empty() || write.verb == verb);
        let mut next = writes.iter().rev().find(matches);
        while let Some(write) = next {
            chain.push(write.clone());
            if chain.len() >= LONGEST_CHAIN {
                break;
            }
            let Some(cause) = &write.cause else { break };
            let earlier = || writes.iter().rev().filter(|other| other.revision < write.revision);
            // The write that triggered the controller; if it is not retained, the last write of the reconciled
            // object.
            next = earlier()
                .find(|other| other.revision == cause.revision)
                .or_else(|| earlier().find(|other| other.object == cause.object));
        }
        chain
    }
}

impl Chain {
    /// `?object=pods/default/web-1` returns the object's writes; with `&chain=true` the causal chain of the last one,
    /// or of the last one with `&verb=…`.
    pub(super) fn journal(&self, context: &Context) -> Option<Reply> {
        if &*context.path != PATH {
            return None;
        }
        let object = context.query.text("object");
        let writes = if context.query.text("chain") == "true" {
            self.journal.chain(object, context.query.text("verb"))
        } else {
            let limit = context.query.text("limit").parse().unwrap_or(1000);
            self.journal.of(object, limit)
        };
        let writes: Vec<Value> = writes.iter().map(Write::to_value).collect();
        Some(reply::with_type(200, "application/json", json!({"writes": writes}).to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(revision: u64, object: &str, cause: Option<(&str, u64)>) -> Write {
        Write {
            revision,
            time: 0,
            user: "u".to_owned(),
            verb: "update",
            subresource: String::new(),
            object: object.to_owned(),
            cause: cause.map(|(object, revision)| Cause {
                controller: "c".to_owned(),
                object: object.to_owned(),
                revision,
            }),
        }
    }

    #[test]
    fn cause_header_parses_and_malformed_is_ignored() {
        let cause = Cause::parse("loop=c; object=pods/n/a; revision=7").expect("a cause");
        assert_eq!((cause.controller.as_str(), cause.object.as_str(), cause.revision), ("c", "pods/n/a", 7));
        assert_eq!(
            Cause::parse("loop=c; object=x; revision="),
            Some(Cause { revision: 0, object: "x".to_owned(), controller: "c".to_owned() })
        );
        for nonsense in ["", "x", "object=a", &"loop=c;".repeat(500)] {
            assert_eq!(Cause::parse(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn journal_chain_leads_back_to_first_write() {
        let journal = Journal::default();
        journal.writes.lock().extend([
            write(1, "deployments.apps/n/web", None),
            write(2, "replicasets.apps/n/web-1", Some(("deployments.apps/n/web", 1))),
            write(3, "pods/n/other", None),
            // The triggering revision is not retained, so the last write of the reconciled object stands for it.
            write(4, "pods/n/web-1-a", Some(("replicasets.apps/n/web-1", 99))),
        ]);
        let chain: Vec<u64> =
            journal.chain("pods/n/web-1-a", "").iter().map(|write| write.revision).collect();
        assert_eq!(chain, [4, 2, 1]);
        assert!(journal.chain("pods/n/web-1-a", "delete").is_empty());
        assert_eq!(journal.of("", 2).len(), 2);
    }
}
