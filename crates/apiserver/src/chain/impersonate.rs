//! Impersonation: the `Impersonate-*` headers and the permissions they need.
//!
//! There are several modes. The constrained ones need a permission for the impersonated user (`impersonate:MODE`) and
//! one for the verb of the request (`impersonate-on:MODE:VERB`); the legacy one (`impersonate`) only the first. Modes
//! are tried in order, the last successful one first; a denial is that of the first mode that applies.

use crate::authorize::{Attributes, Authorization, MASTERS};
use crate::context::Context;
use crate::user::UserInfo;
use machinery::names;
use machinery::status::{Result, Status};
use parking_lot::Mutex;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;

const AUTHENTICATION: &str = "authentication.k8s.io";
/// Prefix of all impersonation headers.
const PREFIX: &str = "impersonate-";
const EXTRA: &str = "impersonate-extra-";
/// From this many values on, one permission for all of them is checked first.
const MANY: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// A service account's pod impersonates the node it runs on.
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    UserInfo,
    Legacy,
}

const MODES: [Mode; 5] =
    [Mode::AssociatedNode, Mode::ArbitraryNode, Mode::ServiceAccount, Mode::UserInfo, Mode::Legacy];

/// Mode of each user's last successful impersonation. Most users always use the same mode, so it is tried first and
/// its denial is the one returned.
#[derive(Default)]
pub struct LastModes {
    by_user: Mutex<HashMap<u64, usize>>,
    hasher: RandomState,
}

impl LastModes {
    /// Users to remember; when full, the table is cleared.
    const MOST: usize = 10_000;

    fn of(&self, user: &str) -> Option<usize> {
        self.by_user.lock().get(&self.hasher.hash_one(user)).copied()
    }

    fn remember(&self, user: &str, mode: usize) {
        let mut by_user = self.by_user.lock();
        if by_user.len() >= Self::MOST {
            by_user.clear();
        }
        by_user.insert(self.hasher.hash_one(user), mode);
    }
}

/// Returns the impersonated user; `None` without impersonation headers.
pub async fn impersonate(
    context: &Context,
    authorization: &Authorization,
    last_modes: &LastModes,
) -> Result<Option<UserInfo>> {
    let Some(wanted) = wanted(context)? else { return Ok(None) };
    // system:masters needs no permission, and the legacy mode adds nothing to the requested user.
    let first = if context.user.is_in(MASTERS) { 4 } else { 0 };
    let last = last_modes.of(&context.user.name).filter(|last| *last >= first);
    let others = (first..MODES.len()).filter(|index| Some(*index) != last);
    let mut refusal = None;
    for index in last.into_iter().chain(others) {
        let mode = &MODES[index];
        if !mode.applies(&wanted, &context.user) {
            continue;
        }
        let attempt = Attempt { mode: *mode, requester: &context.user, authorization };
        match attempt.check(&wanted, context).await {
            Ok(user) => {
                if last != Some(index) {
                    last_modes.remember(&context.user.name, index);
                }
                return Ok(Some(user));
            }
            Err(status) => drop(refusal.get_or_insert(status)),
        }
    }
    Err(refusal.unwrap_or_else(|| Status::internal("no impersonation mode applies")))
}

/// User requested by the headers, unchecked.
fn wanted(context: &Context) -> Result<Option<UserInfo>> {
    let headers = &context.headers;
    if !headers.keys().any(|name| name.as_str().starts_with(PREFIX)) {
        return Ok(None);
    }
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("").to_owned();
    let groups = headers.get_all("impersonate-group").iter();
    let mut user = UserInfo {
        name: text("impersonate-user"),
        uid: text("impersonate-uid"),
        groups: groups.filter_map(|v| v.to_str().ok()).map(str::to_owned).collect(),
        extra: BTreeMap::new(),
    };
    for (name, value) in headers {
        if let (Some(key), Ok(value)) = (name.as_str().strip_prefix(EXTRA), value.to_str()) {
            let key = percent_encoding::percent_decode_str(key).decode_utf8_lossy().into_owned();
            user.extra.entry(key).or_default().push(value.to_owned());
        }
    }
    if !user.name.is_empty() {
        return Ok(Some(user));
    }
    if user.uid.is_empty() && user.groups.is_empty() && user.extra.is_empty() {
        return Ok(None);
    }
    Err(Status::bad_request(format!("requested {} without impersonating a user name", printed(&user))))
}

/// User in the notation of Kubernetes' message.
fn printed(user: &UserInfo) -> String {
    let list = |values: &[String]| {
        let values: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
        format!("[]string{{{}}}", values.join(", "))
    };
    let groups = if user.groups.is_empty() { "[]string(nil)".to_owned() } else { list(&user.groups) };
    let extra = if user.extra.is_empty() {
        "map[string][]string(nil)".to_owned()
    } else {
        let pairs: Vec<String> =
            user.extra.iter().map(|(key, values)| format!("{key:?}:{}", list(values))).collect();
        format!("map[string][]string{{{}}}", pairs.join(", "))
    };
    format!("&user.DefaultInfo{{Name:\"\", UID:{:?}, Groups:{groups}, Extra:{extra}}}", user.uid)
}

fn node_name(user: &str) -> Option<&str> {
    let name = user.strip_prefix("system:node:")?;
    names::dns_subdomain(name, false).is_empty().then_some(name)
}

fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let valid = names::dns_label(namespace, false).is_empty() && names::dns_subdomain(name, false).is_empty();
    valid.then_some((namespace, name))
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::AssociatedNode => "associated-node",
            Self::ArbitraryNode => "arbitrary-node",
            Self::ServiceAccount => "serviceaccount",
            Self::UserInfo => "user-info",
            Self::Legacy => "",
        }
    }

    fn applies(self, wanted: &UserInfo, requester: &UserInfo) -> bool {
        let name_only = wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty();
        let node = node_name(&wanted.name);
        let account = service_account(&wanted.name).is_some();
        match self {
            Self::AssociatedNode => {
                let own = requester.extra.get("authentication.kubernetes.io/node-name");
                let own = own.filter(|values| values.len() == 1).and_then(|values| values.first());
                name_only
                    && service_account(&requester.name).is_some()
                    && node.is_some_and(|node| own.is_some_and(|own| own == node))
            }
            Self::ArbitraryNode => name_only && node.is_some(),
            Self::ServiceAccount => name_only && account,
            Self::UserInfo => node.is_none() && !account,
            Self::Legacy => true,
        }
    }
}

/// Permission checks of one mode.
struct Attempt<'a> {
    mode: Mode,
    requester: &'a UserInfo,
    authorization: &'a Authorization,
}

impl Attempt<'_> {
    fn constrained(&self) -> bool {
        self.mode != Mode::Legacy
    }

    async fn check(&self, wanted: &UserInfo, context: &Context) -> Result<UserInfo> {
        if self.constrained() {
            let request = Attributes::of(context);
            let verb = format!("impersonate-on:{}:{}", self.mode.name(), request.verb);
            self.allowed(&Attributes { verb: &verb, ..request }).await?;
        }
        let verb = match self.mode {
            Mode::Legacy => "impersonate".to_owned(),
            mode => format!("impersonate:{}", mode.name()),
        };
        let mut user = wanted.clone();
        self.name(&verb, &mut user).await?;
        let base = Attributes {
            verb: &verb,
            is_resource: true,
            group: AUTHENTICATION,
            version: "v1",
            ..Attributes::default()
        };
        if !wanted.uid.is_empty() {
            self.allowed(&Attributes { resource: "uids", name: &wanted.uid, ..base }).await?;
        }
        let group = if self.constrained() { AUTHENTICATION } else { "" };
        self.groups(&Attributes { group, resource: "groups", ..base }, &wanted.groups).await?;
        self.extra(&Attributes { resource: "userextras", ..base }, &wanted.extra).await?;
        let has = |group: &str| user.groups.iter().any(|g| g == group);
        let more = match user.name == "system:anonymous" {
            true => Some("system:unauthenticated"),
            false if has("system:unauthenticated") => None,
            false => Some("system:authenticated"),
        };
        if let Some(more) = more.filter(|more| !has(more)) {
            user.groups.push(more.to_owned());
        }
        Ok(user)
    }

    async fn allowed(&self, attributes: &Attributes<'_>) -> Result<()> {
        self.authorization.check(self.requester, attributes).await
    }

    /// Checks the permission for the user name; adds the groups that the name implies.
    async fn name(&self, verb: &str, user: &mut UserInfo) -> Result<()> {
        let mut attributes = Attributes {
            verb,
            is_resource: true,
            group: if self.constrained() { AUTHENTICATION } else { "" },
            version: "v1",
            resource: "users",
            name: &user.name,
            ..Attributes::default()
        };
        if let Some(node) = node_name(&user.name).filter(|_| self.constrained()) {
            attributes.resource = "nodes";
            // The associated-node permission is granted for all nodes or none.
            attributes.name = if self.mode == Mode::AssociatedNode { "*" } else { node };
            user.groups = vec!["system:nodes".to_owned()];
        }
        if let Some((namespace, name)) = service_account(&user.name) {
            attributes.resource = "serviceaccounts";
            attributes.namespace = namespace;
            attributes.name = name;
            if user.groups.is_empty() {
                user.groups =
                    vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
            }
        }
        self.allowed(&attributes).await
    }

    async fn groups(&self, attributes: &Attributes<'_>, groups: &[String]) -> Result<()> {
        if self.constrained() {
            for (group, why) in [
                ("", "impersonating the empty string group is not allowed"),
                (MASTERS, "impersonating the system:masters group is not allowed"),
            ] {
                if groups.iter().any(|g| g == group) {
                    return Err(Attributes { name: group, ..*attributes }.forbidden(self.requester, why));
                }
            }
            let all = Attributes { name: "*", ..*attributes };
            if groups.len() >= MANY && self.authorization.allows(self.requester, &all).await? {
                return Ok(());
            }
        }
        for group in groups {
            self.allowed(&Attributes { name: group, ..*attributes }).await?;
        }
        Ok(())
    }

    async fn extra(&self, attributes: &Attributes<'_>, extra: &BTreeMap<String, Vec<String>>) -> Result<()> {
        if self.constrained() {
            for (key, values) in extra {
                let why = if key.is_empty() {
                    "impersonating the empty string key in extra is not allowed".to_owned()
                } else if *key != key.to_lowercase() {
                    format!("impersonating a non-lowercase key in extra is not allowed: {key:?}")
                } else if values.iter().any(String::is_empty) {
                    "impersonating the empty string value in extra is not allowed".to_owned()
                } else {
                    continue;
                };
                return Err(attributes.forbidden(self.requester, &why));
            }
            let count: usize = extra.values().map(Vec::len).sum();
            let all = Attributes { subresource: "*", name: "*", ..*attributes };
            if count >= MANY && self.authorization.allows(self.requester, &all).await? {
                return Ok(());
            }
        }
        for (key, values) in extra {
            for value in values {
                self.allowed(&Attributes { subresource: key, name: value, ..*attributes }).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::LastModes;

    #[test]
    fn last_mode_is_remembered_within_bounds() {
        let modes = LastModes::default();
        modes.remember("a", 4);
        modes.remember("a", 3);
        assert_eq!((modes.of("a"), modes.of("b")), (Some(3), None));
        for user in 0..LastModes::MOST {
            modes.remember(&user.to_string(), 0);
        }
        assert!(modes.by_user.lock().len() <= LastModes::MOST);
    }
}
