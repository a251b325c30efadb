//! Resources and objects named on a command line: `pods`, `deploy/web`, `pods a b`, `all`.

use client::{Discovery, ResourceInfo};
use machinery::field::show_str;
use serde_json::Value;

use crate::arguments::Matches;
use crate::error::{CliError, fail};
use crate::manifest::Manifest;
use crate::session::{Request, Session};

/// An object, or a collection if it has no name.
#[derive(Clone, Debug)]
pub struct Target {
    pub resource: ResourceInfo,
    /// Empty for the objects of the cluster and for all namespaces.
    pub ns: String,
    pub name: String,
}

impl Target {
    pub fn path(&self) -> String {
        self.resource.key.path(&self.ns, &self.name, None)
    }

    pub fn subresource(&self, name: &str) -> String {
        self.resource.key.path(&self.ns, &self.name, Some(name))
    }

    /// `deployment.apps/web`.
    pub fn title(&self) -> String {
        format!("{}/{}", kind_group(&self.resource), self.name)
    }
}

/// `deployment.apps`, `pod`.
pub fn kind_group(resource: &ResourceInfo) -> String {
    let kind = resource.kind.to_lowercase();
    if resource.key.group.is_empty() { kind } else { format!("{kind}.{}", resource.key.group) }
}

/// Size of a list's pages.
pub const PAGE: &str = "500";

/// Selection of objects on a command line.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pub operands: Vec<String>,
    pub selector: String,
    pub field_selector: String,
    pub everywhere: bool,
    /// `--all`: a type alone names all its objects.
    pub all: bool,
    /// A type alone names all its objects without `--all`, as for get.
    pub types_alone: bool,
}

impl Selection {
    /// The selection of a verb that has these flags.
    pub fn read(matches: &Matches) -> Self {
        Self {
            operands: matches.operands.clone(),
            selector: matches.text("selector").to_owned(),
            field_selector: matches.text("field-selector").to_owned(),
            everywhere: matches.on("all-namespaces"),
            all: matches.on("all"),
            types_alone: false,
        }
    }
}

/// The message about a selection without anything.
const NOTHING: &str = "You must provide one or more resources by argument or filename.
Example resource specifications include:
   '-f rsrc.yaml'
   '--filename=rsrc.json'
   '<resource> <name>'
   '<resource>'";

impl Session {
    /// The targets of a selection, in its order.
    pub async fn targets(&mut self, selection: &Selection) -> Result<Vec<Target>, CliError> {
        let operands = &selection.operands;
        if operands.is_empty() {
            return fail(NOTHING);
        }
        let has_selector = !selection.selector.is_empty() || !selection.field_selector.is_empty();
        let ns = if selection.everywhere { String::new() } else { self.namespace()? };
        let discovery = self.discovery().await?;
        if operands.iter().any(|operand| operand.contains('/')) {
            let pairs = pairs(operands)?;
            if has_selector {
                return fail("name cannot be provided when a selector is specified");
            }
            if selection.all {
                return fail(
                    "selectors and the all flag cannot be used when passing resource/name arguments",
                );
            }
            let mut targets = Vec::new();
            for (kind, name) in pairs {
                let resource = lookup(&discovery, kind)?;
                targets.push(self.named(resource, &ns, name, selection)?);
            }
            return Ok(targets);
        }
        let mut resources = Vec::new();
        for operand in operands[0].split(',') {
            resources.extend(expand(&discovery, operand)?);
        }
        let names = &operands[1..];
        if names.is_empty() {
            if !has_selector && !selection.all && !selection.types_alone {
                return fail("resource(s) were provided, but no name was specified");
            }
            let target = |resource: ResourceInfo| {
                let ns = if resource.key.namespaced { ns.clone() } else { String::new() };
                Target { resource, ns, name: String::new() }
            };
            return Ok(resources.into_iter().map(target).collect());
        }
        if has_selector {
            return fail("name cannot be provided when a selector is specified");
        }
        let mut targets = Vec::new();
        for resource in resources {
            for name in names {
                targets.push(self.named(resource.clone(), &ns, name, selection)?);
            }
        }
        Ok(targets)
    }

    fn named(
        &self,
        resource: ResourceInfo,
        ns: &str,
        name: &str,
        selection: &Selection,
    ) -> Result<Target, CliError> {
        if resource.key.namespaced && selection.everywhere {
            return fail("a resource cannot be retrieved by name across all namespaces");
        }
        let ns = if resource.key.namespaced { ns.to_owned() } else { String::new() };
        Ok(Target { resource, ns, name: name.to_owned() })
    }

    /// Objects of a selection, with the resource of each. Collections are listed page by page.
    pub async fn objects(&mut self, selection: &Selection) -> Result<Vec<(Target, Value)>, CliError> {
        let mut found = Vec::new();
        for target in self.targets(selection).await? {
            found.extend(self.objects_of(&target, selection).await?);
        }
        Ok(found)
    }

    /// Objects of the manifests, or of the selection without manifests.
    pub async fn objects_of_manifests(
        &mut self,
        manifests: &[Manifest],
        selection: &Selection,
    ) -> Result<Vec<(Target, Value)>, CliError> {
        if manifests.is_empty() {
            return self.objects(selection).await;
        }
        let mut found = Vec::new();
        for manifest in manifests {
            let target = self.target_of(&manifest.object, &manifest.source).await?;
            let object = self.read(&target.path()).await?;
            found.push((target, object));
        }
        Ok(found)
    }

    /// The objects of one target.
    pub async fn objects_of(
        &mut self,
        target: &Target,
        selection: &Selection,
    ) -> Result<Vec<(Target, Value)>, CliError> {
        if !target.name.is_empty() {
            return Ok(vec![(target.clone(), self.read(&target.path()).await?)]);
        }
        let mut found = Vec::new();
        let mut token = String::new();
        loop {
            let request = list_request(target, selection, &token);
            let sent = self.send(&request).await;
            let mut list = sent.map_err(|error| list_error(error, target, selection))?;
            token = list["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
            let (api_version, kind) = (target.resource.key.api_version(), target.resource.kind.clone());
            let Value::Array(items) = list["items"].take() else { return Ok(found) };
            for mut item in items {
                item["apiVersion"] = api_version.clone().into();
                item["kind"] = kind.clone().into();
                let text = |key: &str| item["metadata"][key].as_str().unwrap_or_default().to_owned();
                let own =
                    Target { resource: target.resource.clone(), ns: text("namespace"), name: text("name") };
                found.push((own, item));
            }
            if token.is_empty() {
                return Ok(found);
            }
        }
    }

    /// The resource of an object in a manifest.
    pub async fn resource_of(&mut self, object: &Value, source: &str) -> Result<ResourceInfo, CliError> {
        let text = |key: &str| object[key].as_str().unwrap_or_default();
        let (api_version, kind) = (text("apiVersion").to_owned(), text("kind").to_owned());
        let discovery = self.discovery().await?;
        if let Some(resource) = discovery.find(&api_version, &kind) {
            return Ok(resource.clone());
        }
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let ns = object["metadata"]["namespace"].as_str().unwrap_or_default();
        fail(format!(
            "resource mapping not found for name: {} namespace: {} from {}: no matches for kind {} in version {}\nensure CRDs are installed first",
            show_str(name),
            show_str(ns),
            show_str(source),
            show_str(&kind),
            show_str(&api_version),
        ))
    }

    /// The object of a manifest: its own namespace, or the command's.
    pub async fn target_of(&mut self, object: &Value, source: &str) -> Result<Target, CliError> {
        let resource = self.resource_of(object, source).await?;
        let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
        let (own, name) = (text("namespace"), text("name"));
        let ns = match (resource.key.namespaced, own.is_empty()) {
            (false, _) => String::new(),
            (true, true) => self.namespace()?,
            (true, false) => own,
        };
        if let Some(required) = self.globals.overrides.namespace.clone().filter(|_| resource.key.namespaced)
            && required != ns
        {
            return fail(format!(
                "the namespace from the provided object {} does not match the namespace {}. You must pass '--namespace={ns}' to perform this operation.",
                show_str(&ns),
                show_str(&required),
            ));
        }
        Ok(Target { resource, ns, name })
    }

    /// The resource that a word such as `deploy` names.
    pub async fn resource(&mut self, operand: &str) -> Result<ResourceInfo, CliError> {
        let discovery = self.discovery().await?;
        lookup(&discovery, operand)
    }
}

/// The request for a page of a collection.
pub fn list_request(target: &Target, selection: &Selection, token: &str) -> Request {
    Request::get(target.path())
        .query("labelSelector", &selection.selector)
        .query("fieldSelector", &selection.field_selector)
        .query("limit", PAGE)
        .query("continue", token)
}

/// The error of a list, with the selectors that may be its reason.
pub fn list_error(error: CliError, target: &Target, selection: &Selection) -> CliError {
    let CliError::Client { error: client::ClientError::Status { status, .. }, .. } = &error else {
        return error;
    };
    if !target.name.is_empty() || !matches!(status.reason.as_deref(), Some("BadRequest" | "NotFound")) {
        return error;
    }
    let key = &target.resource.key;
    let resource = show_str(&format!("{}/{}, Resource={}", key.group, key.version, key.resource));
    let (labels, fields) = (&selection.selector, &selection.field_selector);
    let step = if labels.is_empty() && fields.is_empty() {
        format!("Unable to list {resource}")
    } else {
        format!(
            "Unable to find {resource} that match label selector {}, field selector {}",
            show_str(labels),
            show_str(fields)
        )
    };
    error.during(step)
}

fn pairs(operands: &[String]) -> Result<Vec<(&str, &str)>, CliError> {
    let mut pairs = Vec::new();
    for operand in operands {
        let parts: Vec<&str> = operand.split('/').collect();
        match parts.as_slice() {
            [kind, name] if !kind.is_empty() && !name.is_empty() && !kind.contains(',') => {
                pairs.push((*kind, *name))
            }
            [_] => {
                return fail(
                    "there is no need to specify a resource type as a separate argument when passing arguments in resource/name form (e.g. 'kubectl get resource/<resource_name>' instead of 'kubectl get resource resource/<resource_name>'",
                );
            }
            [_, _] => return fail("arguments in resource/name form must have a single resource and name"),
            _ => return fail("arguments in resource/name form may not have more than one slash"),
        }
    }
    Ok(pairs)
}

/// The resources of a word: those of a category such as `all`, or one.
fn expand(discovery: &Discovery, operand: &str) -> Result<Vec<ResourceInfo>, CliError> {
    let in_category = |info: &&ResourceInfo| info.categories.iter().any(|category| category == operand);
    let members: Vec<ResourceInfo> = discovery.preferred.iter().filter(in_category).cloned().collect();
    if members.is_empty() { Ok(vec![lookup(discovery, operand)?]) } else { Ok(members) }
}

/// Finds a resource by `name`, `name.group` or `name.version.group`, where name is plural, singular, short or a kind.
pub fn lookup(discovery: &Discovery, operand: &str) -> Result<ResourceInfo, CliError> {
    let lower = operand.to_lowercase();
    let parts: Vec<&str> = lower.splitn(3, '.').collect();
    let found = match parts.as_slice() {
        [name] => by_name(&discovery.preferred, name, |_| true),
        [name, rest @ ..] => {
            let group = rest.join(".");
            let in_version = rest.split_first().and_then(|(version, group)| {
                let group = group.join(".");
                by_name(&discovery.all, name, |info| info.key.version == *version && info.key.group == group)
            });
            let of_group = |info: &ResourceInfo| info.key.group == group;
            let of_prefix = |info: &ResourceInfo| info.key.group.starts_with(&group);
            in_version
                .or_else(|| by_name(&discovery.preferred, name, of_group))
                .or_else(|| by_name(&discovery.preferred, name, of_prefix))
        }
        [] => None,
    };
    match found {
        Some(info) => Ok(info.clone()),
        None => fail(format!(
            "the server doesn't have a resource type {}",
            show_str(operand.split('.').next().unwrap_or(operand))
        )),
    }
}

fn by_name<'a>(
    resources: &'a [ResourceInfo],
    name: &str,
    fits: impl Fn(&ResourceInfo) -> bool,
) -> Option<&'a ResourceInfo> {
    let find =
        |is_it: &dyn Fn(&ResourceInfo) -> bool| resources.iter().find(|info| fits(info) && is_it(info));
    find(&|info| info.key.resource == name)
        .or_else(|| find(&|info| info.singular == name))
        .or_else(|| find(&|info| info.short_names.iter().any(|short| short == name)))
        .or_else(|| find(&|info| info.kind.eq_ignore_ascii_case(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::ResourceKey;

    fn discovery() -> Discovery {
        let rows = [
            ("", "v1", "pods", "Pod", "po", true),
            ("", "v1", "events", "Event", "ev", true),
            ("events.k8s.io", "v1", "events", "Event", "ev", true),
            ("apps", "v1", "deployments", "Deployment", "deploy", true),
        ];
        let info =
            |&(group, version, resource, kind, short, namespaced): &(&str, &str, &str, &str, &str, bool)| {
                ResourceInfo {
                    key: ResourceKey {
                        group: group.to_owned(),
                        version: version.to_owned(),
                        resource: resource.to_owned(),
                        namespaced,
                    },
                    kind: kind.to_owned(),
                    verbs: Vec::new(),
                    singular: kind.to_lowercase(),
                    short_names: vec![short.to_owned()],
                    categories: if kind == "Event" { Vec::new() } else { vec!["all".to_owned()] },
                    subresources: Vec::new(),
                }
            };
        let all: Vec<ResourceInfo> = rows.iter().map(info).collect();
        Discovery { preferred: all.clone(), all, ..Discovery::default() }
    }

    #[test]
    fn operands_name_resources_in_all_forms() {
        let discovery = discovery();
        let group = |operand: &str| lookup(&discovery, operand).map(|info| info.key.qualified());
        for operand in
            ["deploy", "Deployment", "deployments", "deployments.apps", "deployment.v1.apps", "deploy.app"]
        {
            assert_eq!(group(operand).expect("known"), "deployments.apps", "{operand}");
        }
        assert_eq!(group("ev").expect("known"), "events");
        assert_eq!(group("events.events.k8s.io").expect("known"), "events.events.k8s.io");
        let message = group("nope.x").expect_err("unknown").to_text();
        assert_eq!(message, "error: the server doesn't have a resource type \"nope\"");
        assert_eq!(expand(&discovery, "all").expect("known").len(), 2);
    }

    #[test]
    fn slashes_are_checked() {
        let check = |operands: &[&str]| {
            let operands: Vec<String> = operands.iter().map(|operand| (*operand).to_owned()).collect();
            pairs(&operands).map(|pairs| pairs.len()).map_err(|error| error.to_text())
        };
        assert_eq!(check(&["a/b", "c/d"]), Ok(2));
        assert!(check(&["a/b", "c"]).expect_err("refused").starts_with("error: there is no need"));
        assert!(check(&["a/b/c"]).expect_err("refused").ends_with("more than one slash"));
        assert!(check(&["a/"]).expect_err("refused").ends_with("a single resource and name"));
    }
}
