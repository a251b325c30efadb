//! The representation that a request accepts.

use http::HeaderMap;
use http::header::ACCEPT;
use machinery::status::{Result, Status};

/// A representation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The object itself.
    Object,
    /// A table of a version of `meta.k8s.io`.
    Table { version: &'static str },
}

/// The first representation in `Accept` that can be written.
pub fn accepted(headers: &HeaderMap) -> Result<Form> {
    let texts: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    if texts.is_empty() {
        return Ok(Form::Object);
    }
    let clauses = texts.iter().flat_map(|text| text.split(','));
    let form = clauses.filter_map(form_of).next();
    form.ok_or_else(|| {
        Status::not_acceptable("only the following media types are accepted: application/json")
    })
}

fn form_of(clause: &str) -> Option<Form> {
    let mut parts = clause.split(';').map(str::trim);
    if !matches!(parts.next()?, "application/json" | "application/*" | "*/*" | "") {
        return None;
    }
    let (mut kind, mut version, mut group) = ("", "", "");
    for (key, value) in parts.filter_map(|part| part.split_once('=')) {
        match key.trim() {
            "as" => kind = value.trim(),
            "v" => version = value.trim(),
            "g" => group = value.trim(),
            _ => {}
        }
    }
    match (kind, group, version) {
        ("", ..) => Some(Form::Object),
        ("Table", "meta.k8s.io", "v1") => Some(Form::Table { version: "meta.k8s.io/v1" }),
        ("Table", "meta.k8s.io", "v1beta1") => Some(Form::Table { version: "meta.k8s.io/v1beta1" }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn first_known_representation_is_chosen() {
        let form = |accept: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            accepted(&headers).map_err(|status| status.code)
        };
        let table = Form::Table { version: "meta.k8s.io/v1" };
        assert_eq!(form("application/json;as=Table;v=v1;g=meta.k8s.io,application/json"), Ok(table));
        assert_eq!(form("application/vnd.kubernetes.protobuf, */*"), Ok(Form::Object));
        assert_eq!(form("application/json;as=Other;v=v1;g=meta.k8s.io,application/json"), Ok(Form::Object));
        assert_eq!(form("text/html"), Err(406));
        assert_eq!(accepted(&HeaderMap::new()), Ok(Form::Object));
    }
}
