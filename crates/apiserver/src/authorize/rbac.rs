//! The RBAC authorizer: roles and bindings from the watch caches.

use super::policy::{Policy, RoleRef, Source};
use super::rules::Rule;
use super::{Attributes, Authorizer, Decision, ResolvedRules};
use crate::registry::Storage;
use crate::registry::feed::{self, Feed, FeedUpdate};
use crate::user::UserInfo;
use futures_util::future::BoxFuture;
use machinery::status::Result;
use parking_lot::{RwLock, RwLockReadGuard};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

const SOURCES: [Source; 4] =
    [Source::ClusterRoles, Source::ClusterRoleBindings, Source::Roles, Source::RoleBindings];

pub struct Rbac {
    storages: [Arc<Storage>; 4],
    state: RwLock<State>,
}

struct State {
    policy: Policy,
    /// In the order of [`SOURCES`].
    feeds: [Feed; 4],
}

impl State {
    fn stale(&self) -> bool {
        self.feeds.iter().any(Feed::stale)
    }

    fn refresh(&mut self) {
        for (source, feed) in SOURCES.into_iter().zip(&mut self.feeds) {
            if !feed.stale() {
                continue;
            }
            let update = feed.take();
            let root = &feed.storage().cache.root;
            let changes = match update {
                FeedUpdate::Changes(changes) => changes,
                FeedUpdate::Snapshot(entries) => {
                    self.policy.clear(source);
                    entries.into_iter().map(|entry| (entry, false)).collect()
                }
            };
            for (entry, gone) in changes {
                let Some(key) = entry.key.strip_prefix(root.as_str()) else { continue };
                match gone {
                    true => self.policy.remove(source, key),
                    false => self.policy.put(source, key, &entry.bytes),
                }
            }
        }
    }
}

impl Rbac {
    /// `storages` are those of cluster roles, cluster role bindings, roles and role bindings.
    pub fn new(storages: [Arc<Storage>; 4]) -> Self {
        let feeds = storages.clone().map(Feed::new);
        Self { storages, state: RwLock::new(State { policy: Policy::default(), feeds }) }
    }

    /// Fails if roles or bindings cannot be read: then every request is denied.
    async fn readable(&self) -> Result<()> {
        for storage in &self.storages {
            feed::ready(storage).await?;
        }
        Ok(())
    }

    /// The current policy.
    fn current(&self) -> RwLockReadGuard<'_, State> {
        let state = self.state.read();
        if !state.stale() {
            return state;
        }
        drop(state);
        self.state.write().refresh();
        self.state.read()
    }

    /// Rules of every role the user is bound to, each binding once, in order.
    pub async fn rules_for(&self, user: &UserInfo, namespace: &str) -> Result<ResolvedRules> {
        self.readable().await?;
        let state = self.current();
        let mut bindings: BTreeMap<(bool, &str), Result<&[Rule], String>> = BTreeMap::new();
        state.policy.visit(user, namespace, |binding, _, rules| {
            bindings.insert((binding.contains('/'), binding), rules);
            ControlFlow::<()>::Continue(())
        });
        let mut found = ResolvedRules::default();
        for outcome in bindings.into_values() {
            match outcome {
                Ok(rules) => found.rules.extend_from_slice(rules),
                Err(why) => found.errors.push(why),
            }
        }
        found.errors.dedup();
        Ok(found)
    }

    /// Rules of the role that a binding in `namespace` refers to, if it exists.
    pub async fn role(&self, role: &RoleRef, namespace: &str) -> Result<Result<Vec<Rule>, String>> {
        self.readable().await?;
        Ok(self.current().policy.role(role, namespace).map(<[Rule]>::to_vec))
    }

    async fn decide(&self, user: &UserInfo, attributes: &Attributes<'_>) -> Result<Decision> {
        self.readable().await?;
        let state = self.current();
        let mut errors = Vec::new();
        let allowed = state.policy.visit(user, attributes.namespace, |_, reason, rules| match rules {
            Ok(rules) if rules.iter().any(|rule| rule.allows(attributes)) => {
                ControlFlow::Break(reason.clone())
            }
            Ok(_) => ControlFlow::Continue(()),
            Err(why) => {
                if !errors.contains(&why) {
                    errors.push(why);
                }
                ControlFlow::Continue(())
            }
        });
        Ok(match (allowed, errors.as_slice()) {
            (Some(reason), _) => Decision::Allowed(reason),
            (None, []) => Decision::NoOpinion(String::new()),
            (None, errors) => Decision::NoOpinion(format!("RBAC: {}", aggregate(errors))),
        })
    }
}

/// A single error unchanged, several in brackets.
pub fn aggregate(errors: &[String]) -> String {
    match errors {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

impl Authorizer for Rbac {
    fn label(&self) -> (&'static str, &str) {
        ("RBAC", "rbac")
    }

    fn authorize<'a>(
        &'a self,
        user: &'a UserInfo,
        attributes: &'a Attributes<'a>,
    ) -> BoxFuture<'a, Result<Decision>> {
        Box::pin(self.decide(user, attributes))
    }

    fn rules<'a>(&'a self, user: &'a UserInfo, namespace: &'a str) -> BoxFuture<'a, Result<ResolvedRules>> {
        Box::pin(self.rules_for(user, namespace))
    }
}
