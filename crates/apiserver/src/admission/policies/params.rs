//! Params of a binding: further objects that expressions can read.

use super::policy::{Binding, ParamKind};
use crate::registry::OrStatus;
use api::value::Fields;
use machinery::selector::label::LabelSelector;
use machinery::status::Result;
use machinery::{Map, Value, meta};

/// One evaluation per element, or a single one without params. The inner error is a configuration error.
pub async fn of_binding(
    kind: Option<&ParamKind>,
    binding: &Binding,
    namespace: &str,
) -> Result<Result<Vec<Option<Value>>, String>> {
    let (Some(kind), Some(reference)) = (kind, &binding.param_ref) else {
        return Ok(Ok(vec![None]));
    };
    let Some(served) = &kind.served else {
        return Ok(Err(format!("paramKind kind `{}, Kind={}` not known", kind.api_version, kind.kind)));
    };
    let specified = reference.text("namespace");
    let search_scope = match (served.namespaced(), specified) {
        (false, "") => "",
        (false, _) => {
            let why = "paramRef.namespace must not be provided for a cluster-scoped `paramKind`";
            return Ok(Err(why.to_owned()));
        }
        (true, "") if namespace.is_empty() => {
            let why =
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources";
            return Ok(Err(why.to_owned()));
        }
        (true, "") => namespace,
        (true, specified) => specified,
    };
    let name = reference.text("name");
    let found: Vec<Value> = if name.is_empty() {
        let Ok(selector) = LabelSelector::from_object(Some(reference.field("selector"))) else {
            return Ok(Err("one of name or selector must be provided".to_owned()));
        };
        let cache = &served.storage.cache;
        let scope = served.scope_key(search_scope);
        cache.ready_for(&scope).await.or_status()?;
        let empty = Map::new();
        let all = cache.list(&scope, None, 0, 0, |_| true).entries;
        let all = served.converted(all.iter().map(|entry| entry.value()).collect()).await?;
        let all = all.into_iter().map(|object| served.present(object));
        all.filter(|object| selector.matches(meta::labels(object).unwrap_or(&empty))).collect()
    } else {
        let key = served.key(search_scope, name);
        served.storage.cache.ready_for(&key).await.or_status()?;
        match served.storage.cache.get(&key) {
            Some(entry) => vec![served.presented(entry.value()).await?],
            None => Vec::new(),
        }
    };
    if found.is_empty() && reference.text("parameterNotFoundAction") == "Deny" {
        let why = "no params found for policy binding with `Deny` parameterNotFoundAction";
        return Ok(Err(why.to_owned()));
    }
    Ok(Ok(found.into_iter().map(Some).collect()))
}
