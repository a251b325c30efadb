//! The service account loop. Watches namespaces and service accounts; creates service accounts.
//!
//! Invariant: every namespace that is not terminating has the service account `default`.

use async_trait::async_trait;
use objects::core::v1::{Namespace, ServiceAccount};
use runtime::{Action, Cache, Change, Context, Descriptor, Key, Loop, LoopError};

use crate::shared::namespaces;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "serviceaccount-controller",
    resource: "namespaces",
    identity: "system:serviceaccount:kube-system:service-account-controller",
    workers: 1,
};

const NAME: &str = "default";

struct ServiceAccounts {
    namespaces: Cache<Namespace>,
    accounts: Cache<ServiceAccount>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let namespaces = ctx.watch_self::<Namespace>();
    let accounts = ctx.watch::<ServiceAccount>(|change| match change {
        Change::Deleted(account) if account.metadata.name.as_deref() == Some(NAME) => {
            vec![Key::new("", account.metadata.namespace.as_deref().unwrap_or_default())]
        }
        _ => Vec::new(),
    });
    Box::new(ServiceAccounts { namespaces, accounts })
}

#[async_trait]
impl Loop for ServiceAccounts {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let namespace = self.namespaces.get_key(key);
        let there = self.accounts.get(&key.name, NAME).is_some();
        let Some(account) = plan(namespace.as_deref(), there) else { return Ok(Action::Done) };
        match ctx.client.create(&key.name, &account).await {
            Ok(_) => {}
            Err(error)
                if error.is_already_exists() || error.is_not_found() || error.is_namespace_terminating() => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Action::Done)
    }
}

/// Account to create, if it is missing.
fn plan(namespace: Option<&Namespace>, there: bool) -> Option<ServiceAccount> {
    if there || !namespace.is_some_and(namespaces::is_active) {
        return None;
    }
    let mut account = ServiceAccount::default();
    account.metadata.name = Some(NAME.to_owned());
    Some(account)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::{meta, time};

    #[test]
    fn terminating_namespace_gets_no_account() {
        let alive = Namespace { metadata: meta("a"), ..Namespace::default() };
        let mut going = alive.clone();
        going.metadata.deletion_timestamp = Some(time(1));
        assert!(plan(Some(&alive), false).is_some());
        assert!(plan(Some(&alive), true).is_none());
        assert!(plan(Some(&going), false).is_none());
        assert!(plan(None, false).is_none());
    }
}
