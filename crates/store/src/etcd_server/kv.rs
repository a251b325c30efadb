//! Ranges, writes and transactions.
//!
//! The store compares and swaps one key at a time. A transaction that compares and writes one key is therefore
//! evaluated on a read of that key and committed under the condition that the key has not changed since; other
//! transactions are rejected.

use std::sync::Arc;

use bytes::Bytes;
use tonic::Status;

use super::failure::failure;
use super::{Server, header, signed};
use crate::contract::{Expect, KeyValue, LeaseId, Op, Outcome, RangeRequest, Revision, Txn};
use crate::etcd::rpc;
use rpc::RequestOpRequest::{RequestDeleteRange, RequestPut, RequestRange, RequestTxn};
use rpc::ResponseOpResponse::{ResponseDeleteRange, ResponsePut, ResponseRange};

/// The end of a range that covers all keys from its start on.
const TO_THE_END: &[u8] = &[0];

/// The store's largest key, as the end of a range.
fn last_key() -> String {
    char::MAX.to_string().repeat(64)
}

pub(super) fn text(bytes: Vec<u8>) -> Result<String, Status> {
    String::from_utf8(bytes).map_err(|_| Status::invalid_argument("ferry supports UTF-8 keys only"))
}

fn key(bytes: Vec<u8>) -> Result<Arc<str>, Status> {
    if bytes.is_empty() {
        return Err(Status::invalid_argument("etcdserver: key is not provided"));
    }
    text(bytes).map(Arc::from)
}

pub(super) fn key_value(kv: &KeyValue, keys_only: bool) -> rpc::KeyValue {
    rpc::KeyValue {
        key: kv.key.as_bytes().to_vec(),
        create_revision: signed(kv.create_revision),
        mod_revision: signed(kv.mod_revision),
        version: signed(kv.version),
        value: if keys_only { Vec::new() } else { kv.value.to_vec() },
        // The store does not report which lease a key has; API servers do not read it.
        lease: 0,
    }
}

/// The write of a transaction.
struct Write {
    key: Arc<str>,
    op: Op,
    prev_kv: bool,
}

impl Write {
    fn put(request: rpc::PutRequest) -> Result<Self, Status> {
        if request.ignore_value || request.ignore_lease {
            return Err(Status::unimplemented("ferry does not support ignore_value and ignore_lease"));
        }
        let lease = (request.lease != 0).then_some(LeaseId(request.lease));
        let op = Op::Put { value: Bytes::from(request.value), lease };
        Ok(Self { key: key(request.key)?, op, prev_kv: request.prev_kv })
    }

    fn delete(request: rpc::DeleteRangeRequest) -> Result<Self, Status> {
        if !request.range_end.is_empty() {
            return Err(Status::unimplemented("ferry deletes one key at a time"));
        }
        Ok(Self { key: key(request.key)?, op: Op::Delete, prev_kv: request.prev_kv })
    }

    /// The answer to this write, which replaced `prev` at `revision`.
    fn answer(&self, prev: Option<&KeyValue>, revision: Revision) -> rpc::ResponseOp {
        let shown = prev.filter(|_| self.prev_kv).map(|kv| key_value(kv, false));
        let response = match self.op {
            Op::Put { .. } => ResponsePut(rpc::PutResponse { header: header(revision), prev_kv: shown }),
            Op::Delete => ResponseDeleteRange(rpc::DeleteRangeResponse {
                header: header(revision),
                deleted: i64::from(prev.is_some()),
                prev_kvs: shown.into_iter().collect(),
            }),
        };
        rpc::ResponseOp { response: Some(response) }
    }
}

impl Server {
    pub(super) async fn range(&self, request: rpc::RangeRequest) -> Result<rpc::RangeResponse, Status> {
        if request.sort_order != 0 && request.sort_target != 0 {
            return Err(Status::unimplemented("ferry sorts ranges by key only"));
        }
        if [
            request.min_mod_revision,
            request.max_mod_revision,
            request.min_create_revision,
            request.max_create_revision,
        ] != [0; 4]
        {
            return Err(Status::unimplemented("ferry does not filter ranges by revision"));
        }
        if request.sort_order == rpc::RangeRequestSortOrder::Descend as i32 {
            return Err(Status::unimplemented("ferry sorts ranges in ascending order only"));
        }
        let revision = Revision::try_from(request.revision).ok().filter(|revision| *revision > 0);
        let (start, end) = bounds(request.key, request.range_end)?;
        let limit = match (request.count_only, usize::try_from(request.limit)) {
            (true, _) => 1,
            (false, limit) => limit.unwrap_or(0),
        };
        let found = self.store.range(RangeRequest { start, end, limit, revision }).await;
        let found = found.map_err(|error| failure(&error))?;
        let kvs = match request.count_only {
            true => Vec::new(),
            false => found.kvs.iter().map(|kv| key_value(kv, request.keys_only)).collect(),
        };
        let more = found.more && !request.count_only;
        Ok(rpc::RangeResponse { header: header(found.revision), kvs, more, count: signed(found.count) })
    }

    pub(super) async fn put(&self, request: rpc::PutRequest) -> Result<rpc::PutResponse, Status> {
        let answer = self.write(Write::put(request)?).await?;
        match answer.response {
            Some(ResponsePut(put)) => Ok(put),
            _ => Err(Status::internal("unexpected outcome of a put")),
        }
    }

    pub(super) async fn delete_range(
        &self,
        request: rpc::DeleteRangeRequest,
    ) -> Result<rpc::DeleteRangeResponse, Status> {
        let answer = self.write(Write::delete(request)?).await?;
        match answer.response {
            Some(ResponseDeleteRange(deleted)) => Ok(deleted),
            _ => Err(Status::internal("unexpected outcome of a delete")),
        }
    }

    async fn write(&self, write: Write) -> Result<rpc::ResponseOp, Status> {
        let txn = Txn { key: Arc::clone(&write.key), expect: Expect::Any, op: write.op.clone() };
        match self.store.txn(txn).await.map_err(|error| failure(&error))? {
            Outcome::Committed { revision, prev } => Ok(write.answer(prev.as_ref(), revision)),
            Outcome::Conflict { .. } => Err(Status::internal("a write without a condition conflicted")),
        }
    }

    pub(super) async fn compact(
        &self,
        request: rpc::CompactionRequest,
    ) -> Result<rpc::CompactionResponse, Status> {
        let revision = Revision::try_from(request.revision).unwrap_or(0);
        if revision > self.store.revision() {
            return Err(Status::out_of_range("etcdserver: mvcc: required revision is a future revision"));
        }
        let compacted = self.store.compacted().await.map_err(|error| failure(&error))?;
        if revision <= compacted && revision > 0 && compacted > 1 {
            return Err(Status::out_of_range("etcdserver: mvcc: required revision has been compacted"));
        }
        self.store.compact(revision).await.map_err(|error| failure(&error))?;
        Ok(rpc::CompactionResponse { header: header(self.store.revision()) })
    }

    pub(super) async fn txn(&self, request: rpc::TxnRequest) -> Result<rpc::TxnResponse, Status> {
        let subject = subject(&request)?;
        loop {
            let (current, seen) = self.store.get(&subject).await.map_err(|error| failure(&error))?;
            let mut succeeded = true;
            for compare in &request.compare {
                succeeded &= holds(compare, current.as_ref())?;
            }
            let branch = if succeeded { &request.success } else { &request.failure };
            let answered = self.run(branch, &subject, current.as_ref(), seen).await?;
            if let Some((revision, responses)) = answered {
                return Ok(rpc::TxnResponse { header: header(revision), succeeded, responses });
            }
            // The key changed between the read and the write: evaluate the comparisons again.
        }
    }

    /// Carries out one branch of a transaction; `None` if the key has changed since it was read.
    async fn run(
        &self,
        branch: &[rpc::RequestOp],
        subject: &Arc<str>,
        current: Option<&KeyValue>,
        seen: Revision,
    ) -> Result<Option<(Revision, Vec<rpc::ResponseOp>)>, Status> {
        let [op] = branch else {
            return match branch {
                [] => Ok(Some((seen, Vec::new()))),
                _ => Err(Status::unimplemented("ferry supports one operation per transaction")),
            };
        };
        let write = match op.request.clone() {
            Some(RequestRange(range)) if range.range_end.is_empty() && range.key == subject.as_bytes() => {
                let kvs: Vec<_> = current.map(|kv| key_value(kv, range.keys_only)).into_iter().collect();
                let count = signed(kvs.len() as u64);
                let range = rpc::RangeResponse { header: header(seen), kvs, more: false, count };
                return Ok(Some((seen, vec![rpc::ResponseOp { response: Some(ResponseRange(range)) }])));
            }
            Some(RequestPut(put)) => Write::put(put)?,
            Some(RequestDeleteRange(delete)) => Write::delete(delete)?,
            _ => return Err(one_key()),
        };
        let expect = current.map_or(Expect::Absent, |kv| Expect::Revision(kv.mod_revision));
        let txn = Txn { key: Arc::clone(subject), expect, op: write.op.clone() };
        match self.store.txn(txn).await.map_err(|error| failure(&error))? {
            Outcome::Committed { revision, prev } => {
                Ok(Some((revision, vec![write.answer(prev.as_ref(), revision)])))
            }
            Outcome::Conflict { .. } => Ok(None),
        }
    }
}

fn one_key() -> Status {
    Status::unimplemented("ferry serves transactions that compare and write one key")
}

/// The one key that a transaction compares and writes.
fn subject(request: &rpc::TxnRequest) -> Result<Arc<str>, Status> {
    let compared = request.compare.iter().map(|compare| (&compare.key, &compare.range_end));
    let ops = request.success.iter().chain(&request.failure);
    let written = ops.filter_map(|op| match op.request.as_ref()? {
        RequestRange(range) => Some((&range.key, &range.range_end)),
        RequestPut(put) => Some((&put.key, &NO_END)),
        RequestDeleteRange(delete) => Some((&delete.key, &delete.range_end)),
        RequestTxn(_) => None,
    });
    let mut keys = compared.chain(written);
    let Some((first, end)) = keys.next() else { return Err(one_key()) };
    if !end.is_empty() || keys.any(|(key, end)| key != first || !end.is_empty()) {
        return Err(one_key());
    }
    key(first.clone())
}

static NO_END: Vec<u8> = Vec::new();

/// Evaluates a comparison; a key that does not exist has revisions and version 0.
fn holds(compare: &rpc::Compare, current: Option<&KeyValue>) -> Result<bool, Status> {
    use std::cmp::Ordering;
    let number = |of: fn(&KeyValue) -> u64| current.map_or(0, |kv| signed(of(kv)));
    let ordering = match &compare.target_union {
        Some(rpc::CompareTargetUnion::Version(want)) => number(|kv| kv.version).cmp(want),
        Some(rpc::CompareTargetUnion::CreateRevision(want)) => number(|kv| kv.create_revision).cmp(want),
        Some(rpc::CompareTargetUnion::ModRevision(want)) => number(|kv| kv.mod_revision).cmp(want),
        // A comparison with the value of a missing key fails, whatever the expected result.
        Some(rpc::CompareTargetUnion::Value(want)) => match current {
            Some(kv) => kv.value.as_ref().cmp(want.as_slice()),
            None => return Ok(false),
        },
        Some(rpc::CompareTargetUnion::Lease(_)) | None => {
            return Err(Status::unimplemented("ferry does not compare leases"));
        }
    };
    match rpc::CompareCompareResult::try_from(compare.result) {
        Ok(rpc::CompareCompareResult::Equal) => Ok(ordering == Ordering::Equal),
        Ok(rpc::CompareCompareResult::Greater) => Ok(ordering == Ordering::Greater),
        Ok(rpc::CompareCompareResult::Less) => Ok(ordering == Ordering::Less),
        Ok(rpc::CompareCompareResult::NotEqual) => Ok(ordering != Ordering::Equal),
        Err(_) => Err(Status::invalid_argument("unknown comparison")),
    }
}

/// First key and end of a range in etcd's form: no end is one key, an end of `\0` all keys from the first one on.
fn bounds(start: Vec<u8>, end: Vec<u8>) -> Result<(String, String), Status> {
    if start.is_empty() {
        return Err(Status::invalid_argument("etcdserver: key is not provided"));
    }
    let start = if start == TO_THE_END { String::new() } else { text(start)? };
    let end = match end.as_slice() {
        [] => format!("{start}\0"),
        TO_THE_END => last_key(),
        _ => text(end)?,
    };
    Ok((start, end))
}
