//! Claims on node ports: one key of the store each, made before the service is stored, so that several servers on one
//! store cannot hand out the same port. What servers have in memory only saves them from trying in vain.

use super::allocate::{ORPHAN_AGE, SERVICES};
use super::{Registry, store_error};
use api::allocation::service;
use jiff::Timestamp;
use machinery::status::{Result, Status};
use machinery::{Value, meta};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use store::{Expect, KeyValue, Op, Outcome, RangeRequest, Txn, prefix_end};

const ROOT: &str = "/registry/ranges/servicenodeports/";

/// Who has a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Owner {
    namespace: String,
    name: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Claim {
    #[serde(flatten)]
    owner: Owner,
    at: Timestamp,
}

/// What came of a claim.
enum Put {
    Claimed,
    /// Somebody was there already.
    Found(KeyValue),
    /// What was to be taken over was given back meanwhile.
    Gone,
}

impl Owner {
    pub(super) fn of(service: &Value) -> Self {
        Self { namespace: meta::namespace(service).to_owned(), name: meta::name(service).to_owned() }
    }
}

fn key(port: i64) -> Arc<str> {
    format!("{ROOT}{port}").into()
}

fn read(found: &KeyValue) -> Option<Claim> {
    serde_json::from_slice(&found.value).ok()
}

impl Registry {
    /// Claims ports; gives one that is somebody else's, if one is, and then claims none.
    pub(super) async fn claim_ports(&self, owner: &Owner, ports: &[i64]) -> Result<Option<i64>> {
        let ports: BTreeSet<i64> = ports.iter().copied().collect();
        let mut claimed = Vec::new();
        for port in ports {
            let outcome = self.claim_port(owner, port).await;
            if !matches!(outcome, Ok(true)) {
                self.unclaim_ports(owner, &claimed).await;
                return outcome.map(|_| Some(port));
            }
            claimed.push(port);
        }
        Ok(None)
    }

    async fn claim_port(&self, owner: &Owner, port: i64) -> Result<bool> {
        let mut expect = Expect::Absent;
        // What nobody holds any more is taken over, by one of those who try.
        for _ in 0..2 {
            match self.put_claim(owner, port, expect).await? {
                Put::Claimed => return Ok(true),
                Put::Found(found) if self.is_orphan_claim(port, &found).await? => {
                    expect = Expect::Revision(found.mod_revision);
                }
                Put::Found(_) | Put::Gone => return Ok(false),
            }
        }
        Ok(false)
    }

    async fn put_claim(&self, owner: &Owner, port: i64, expect: Expect) -> Result<Put> {
        let claim = Claim { owner: owner.clone(), at: Timestamp::now() };
        let value = serde_json::to_vec(&claim).map_err(|error| Status::internal(error.to_string()))?;
        let op = Op::Put { value: value.into(), lease: None };
        match self.store.txn(Txn { key: key(port), expect, op }).await.map_err(|e| store_error(&e))? {
            Outcome::Committed { .. } => Ok(Put::Claimed),
            Outcome::Conflict { current: None, .. } => Ok(Put::Gone),
            Outcome::Conflict { current: Some(found), .. } => Ok(Put::Found(found)),
        }
    }

    /// Whether the service of a claim is gone, or has other ports. A young one may be on its way.
    async fn is_orphan_claim(&self, port: i64, found: &KeyValue) -> Result<bool> {
        let Some(claim) = read(found) else { return Ok(true) };
        if Timestamp::now().duration_since(claim.at) < ORPHAN_AGE {
            return Ok(false);
        }
        let service = self.find(SERVICES, &claim.owner.namespace, &claim.owner.name).await?;
        Ok(service.is_none_or(|service| !service::holdings(&service).ports.contains(&port)))
    }

    /// Gives back ports that are the owner's.
    pub(super) async fn unclaim_ports(&self, owner: &Owner, ports: &[i64]) {
        for port in ports {
            if let Err(error) = self.unclaim_port(owner, *port).await {
                tracing::warn!(port, error = %error, "a claim on a node port without a service stays behind");
            }
        }
    }

    async fn unclaim_port(&self, owner: &Owner, port: i64) -> Result<(), store::StoreError> {
        let (found, _) = self.store.get(&key(port)).await?;
        let Some(found) = found.filter(|found| read(found).is_some_and(|claim| claim.owner == *owner)) else {
            return Ok(());
        };
        let expect = Expect::Revision(found.mod_revision);
        self.store.txn(Txn { key: key(port), expect, op: Op::Delete }).await.map(drop)
    }

    /// At start: every port of a service is claimed by it, and nothing is claimed for nobody.
    pub(super) async fn repair_claims(&self, owners: &HashMap<i64, &Value>) -> Result<()> {
        let request =
            RangeRequest { start: ROOT.to_owned(), end: prefix_end(ROOT), ..RangeRequest::default() };
        let found = self.store.range(request).await.map_err(|e| store_error(&e))?;
        let port_of = |found: &KeyValue| found.key.strip_prefix(ROOT)?.parse::<i64>().ok();
        let claims: HashMap<i64, &KeyValue> =
            found.kvs.iter().filter_map(|found| Some((port_of(found)?, found))).collect();
        for (port, service) in owners {
            let owner = Owner::of(service);
            let present = claims.get(port);
            if present.and_then(|found| read(found)).is_some_and(|claim| claim.owner == owner) {
                continue;
            }
            let expect = present.map_or(Expect::Absent, |found| Expect::Revision(found.mod_revision));
            if matches!(self.put_claim(&owner, *port, expect).await?, Put::Claimed) {
                tracing::info!(
                    port,
                    namespace = owner.namespace,
                    name = owner.name,
                    "a node port is claimed"
                );
            }
        }
        for (port, claim) in &claims {
            if !owners.contains_key(port) && self.is_orphan_claim(*port, claim).await? {
                let expect = Expect::Revision(claim.mod_revision);
                let gone = self.store.txn(Txn { key: key(*port), expect, op: Op::Delete }).await;
                gone.map_err(|e| store_error(&e))?;
                tracing::warn!(port, "a claim on a node port without a service is removed");
            }
        }
        Ok(())
    }
}
