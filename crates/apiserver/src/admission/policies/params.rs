//! The params of a binding: objects that expressions look at besides the one that is written.

use super::policy::{Binding, ParamKind};
use crate::registry::store_error;
use api::value::Fields;
use machinery::selector::label::LabelSelector;
use machinery::status::Result;
use machinery::{Map, Value, meta};

/// One evaluation per element; without params there is one without. The inner error is a mistake in the configuration.
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
    let given = reference.text("namespace");
    let place = match (served.namespaced(), given) {
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
        (true, given) => given,
    };
    let name = reference.text("name");
    let found: Vec<Value> = if name.is_empty() {
        let Ok(selector) = LabelSelector::from_object(Some(reference.field("selector"))) else {
            return Ok(Err("one of name or selector must be provided".to_owned()));
        };
        let cache = &served.storage.cache;
        let scope = served.scope_key(place);
        cache.ready_for(&scope).await.map_err(|e| store_error(&e))?;
        let empty = Map::new();
        let all = cache.list(&scope, None, 0, 0, |_| true).entries;
        let all = served.converted(all.iter().map(|entry| entry.value()).collect()).await?;
        let all = all.into_iter().map(|object| served.present(object));
        all.filter(|object| selector.matches(meta::labels(object).unwrap_or(&empty))).collect()
    } else {
        let key = served.key(place, name);
        served.storage.cache.ready_for(&key).await.map_err(|e| store_error(&e))?;
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
