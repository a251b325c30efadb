//! Claims on node ports: one store key each, created before the service is stored, so that several servers on one
//! store cannot allocate the same port. The in-memory state only avoids futile attempts.

use super::{ORPHAN_AGE, SERVICES};
use crate::registry::{OrStatus, Registry};
use api::allocation::service;
use base::clock::Clock;
use jiff::Timestamp;
use machinery::status::{Result, Status};
use machinery::{Value, meta};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use store::{Expect, KeyValue, Op, Outcome, RangeRequest, Txn, prefix_end};

const ROOT: &str = "/registry/ranges/servicenodeports/";

/// Owner of a port.
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

/// Result of a claim.
enum ClaimOutcome {
    Claimed,
    /// The port has a claim already.
    Found(KeyValue),
    /// The claim to be replaced was released meanwhile.
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
    /// Claims ports; if one has another owner, returns it and claims none.
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
        // An orphaned claim is replaced by compare-and-swap.
        for _ in 0..2 {
            match self.put_claim(owner, port, expect).await? {
                ClaimOutcome::Claimed => return Ok(true),
                ClaimOutcome::Found(found) if self.is_orphan_claim(port, &found).await? => {
                    expect = Expect::Revision(found.mod_revision);
                }
                ClaimOutcome::Found(_) | ClaimOutcome::Gone => return Ok(false),
            }
        }
        Ok(false)
    }

    async fn put_claim(&self, owner: &Owner, port: i64, expect: Expect) -> Result<ClaimOutcome> {
        let claim = Claim { owner: owner.clone(), at: Clock::system().now() };
        let value = serde_json::to_vec(&claim).map_err(|error| Status::internal(error.to_string()))?;
        let op = Op::Put { value: value.into(), lease: None };
        match self.store.txn(Txn { key: key(port), expect, op }).await.or_status()? {
            Outcome::Committed { .. } => Ok(ClaimOutcome::Claimed),
            Outcome::Conflict { current: None, .. } => Ok(ClaimOutcome::Gone),
            Outcome::Conflict { current: Some(found), .. } => Ok(ClaimOutcome::Found(found)),
        }
    }

    /// Reports whether the service of a claim is missing or has other ports. The service of a recent claim may still
    /// be written.
    async fn is_orphan_claim(&self, port: i64, found: &KeyValue) -> Result<bool> {
        let Some(claim) = read(found) else { return Ok(true) };
        if Clock::system().now().duration_since(claim.at) < ORPHAN_AGE {
            return Ok(false);
        }
        let service = self.find(SERVICES, &claim.owner.namespace, &claim.owner.name).await?;
        Ok(service.is_none_or(|service| !service::holdings(&service).ports.contains(&port)))
    }

    /// Releases ports of the owner.
    pub(super) async fn unclaim_ports(&self, owner: &Owner, ports: &[i64]) {
        for port in ports {
            if let Err(error) = self.unclaim_port(owner, *port).await {
                tracing::warn!(port, error = %error, "failed to delete node port claim without a service");
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

    /// Creates missing claims of services and deletes orphaned ones.
    pub(super) async fn repair_claims(&self, owners: &HashMap<i64, &Value>) -> Result<()> {
        let request =
            RangeRequest { start: ROOT.to_owned(), end: prefix_end(ROOT), ..RangeRequest::default() };
        let found = self.store.range(request).await.or_status()?;
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
            if matches!(self.put_claim(&owner, *port, expect).await?, ClaimOutcome::Claimed) {
                tracing::info!(
                    port,
                    namespace = owner.namespace,
                    name = owner.name,
                    "claimed node port of service"
                );
            }
        }
        for (port, claim) in &claims {
            if !owners.contains_key(port) && self.is_orphan_claim(*port, claim).await? {
                let expect = Expect::Revision(claim.mod_revision);
                let gone = self.store.txn(Txn { key: key(*port), expect, op: Op::Delete }).await;
                gone.or_status()?;
                tracing::warn!(port, "deleted node port claim without a service");
            }
        }
        Ok(())
    }
}
