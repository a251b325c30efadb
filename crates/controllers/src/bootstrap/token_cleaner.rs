//! The token cleaner. Watches bootstrap tokens; deletes each when it expires.

use async_trait::async_trait;
use client::delete_options;
use objects::core::v1::Secret;
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};

use super::{NAMESPACE, expiration, is_token};
use crate::requeue;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "token-cleaner-controller",
    resource: "secrets",
    identity: "system:serviceaccount:kube-system:token-cleaner",
    workers: 1,
};

struct Cleaner {
    secrets: Cache<Secret>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let secrets = ctx.watch::<Secret>(|change| {
        let secret = change.object();
        let ours = secret.metadata.namespace.as_deref() == Some(NAMESPACE) && is_token(secret);
        if ours && expiration(secret).is_some() { vec![Key::of(&**secret)] } else { Vec::new() }
    });
    Box::new(Cleaner { secrets })
}

#[async_trait]
impl Loop for Cleaner {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(secret) = self.secrets.get_key(key) else { return Ok(Action::Done) };
        let Some(end) = expiration(&secret) else { return Ok(Action::Done) };
        let left = end.duration_since(ctx.clock.now());
        if left.is_positive() {
            return Ok(requeue(Some(left)));
        }
        let options = delete_options(secret.metadata.uid.as_deref(), None);
        match ctx.client.delete::<Secret>(&key.namespace, &key.name, &options).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(Action::Done),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::token;
    use super::*;
    use crate::shared::fixture::at;

    #[test]
    fn invalid_expiration_counts_as_past() {
        assert_eq!(expiration(&token("a", &[])), None);
        assert_eq!(expiration(&token("a", &[("expiration", "1970-01-01T00:00:05Z")])), Some(at(5)));
        assert_eq!(expiration(&token("a", &[("expiration", "soon")])), Some(at(0)));
    }
}
