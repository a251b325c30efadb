//! Conversions between the contract's types and etcd's messages.

use std::sync::Arc;

use bytes::Bytes;

use super::rpc;
use crate::contract::{Event, Expect, KeyValue, Op, Outcome, Revision, Txn};
use crate::error::{Result, StoreError};

fn malformed(what: &str) -> StoreError {
    StoreError::Refused { reason: format!("malformed response of etcd: {what}").into() }
}

fn key(bytes: Vec<u8>) -> Result<Arc<str>> {
    String::from_utf8(bytes).map(Arc::from).map_err(|_| malformed("a key is not UTF-8"))
}

pub(super) fn key_value(kv: rpc::KeyValue) -> Result<KeyValue> {
    Ok(KeyValue {
        key: key(kv.key)?,
        value: Bytes::from(kv.value),
        create_revision: kv.create_revision as Revision,
        mod_revision: kv.mod_revision as Revision,
        version: kv.version as u64,
    })
}

pub(super) fn event(event: rpc::Event) -> Result<Event> {
    let prev = event.prev_kv.map(key_value).transpose()?;
    let kv = event.kv.ok_or_else(|| malformed("event without a key"))?;
    if event.r#type == rpc::EventEventType::Delete as i32 {
        return Ok(Event::Delete { revision: kv.mod_revision as Revision, key: key(kv.key)?, prev });
    }
    Ok(Event::Put { kv: key_value(kv)?, prev })
}

pub(super) fn txn_request(txn: &Txn) -> rpc::TxnRequest {
    let key = txn.key.as_bytes();
    let revision = match txn.expect {
        Expect::Any => None,
        // A key that does not exist has modification revision 0.
        Expect::Absent => Some(0),
        Expect::Revision(revision) => Some(revision as i64),
    };
    let compare = revision.map(|revision| rpc::Compare {
        result: rpc::CompareCompareResult::Equal as i32,
        target: rpc::CompareCompareTarget::Mod as i32,
        key: key.into(),
        range_end: Vec::new(),
        target_union: Some(rpc::CompareTargetUnion::ModRevision(revision)),
    });
    let change = match &txn.op {
        Op::Put { value, lease } => rpc::RequestOpRequest::RequestPut(rpc::PutRequest {
            key: key.into(),
            value: value.to_vec(),
            lease: lease.map_or(0, |lease| lease.0),
            prev_kv: true,
            ..Default::default()
        }),
        Op::Delete => rpc::RequestOpRequest::RequestDeleteRange(rpc::DeleteRangeRequest {
            key: key.into(),
            range_end: Vec::new(),
            prev_kv: true,
        }),
    };
    let read =
        rpc::RequestOpRequest::RequestRange(rpc::RangeRequest { key: key.into(), ..Default::default() });
    let op = |request| vec![rpc::RequestOp { request: Some(request) }];
    rpc::TxnRequest { compare: compare.into_iter().collect(), success: op(change), failure: op(read) }
}

pub(super) fn txn_outcome(response: rpc::TxnResponse) -> Result<Outcome> {
    use rpc::ResponseOpResponse::{ResponseDeleteRange, ResponsePut, ResponseRange};
    let revision = response.header.map_or(0, |header| header.revision as Revision);
    let answer = response.responses.into_iter().next().and_then(|op| op.response);
    let kv = match answer {
        Some(ResponsePut(put)) => put.prev_kv,
        Some(ResponseDeleteRange(deleted)) => deleted.prev_kvs.into_iter().next(),
        Some(ResponseRange(range)) => range.kvs.into_iter().next(),
        _ => return Err(malformed("empty transaction response")),
    };
    let kv = kv.map(key_value).transpose()?;
    Ok(if response.succeeded {
        Outcome::Committed { revision, prev: kv }
    } else {
        Outcome::Conflict { current: kv, revision }
    })
}
