//! Non-resource routes: discovery, version, service account issuer.

use super::resource_routes::{group_title, tag, title};
use super::route::*;
use std::sync::Arc;

fn get(
    id: String,
    text: &str,
    tag: String,
    answer: Content,
    encodings: &'static [&'static str],
) -> Operation {
    Operation {
        method: "get",
        id,
        text: text.to_owned(),
        tag,
        action: "",
        kind: None,
        consumes: encodings,
        produces: encodings,
        parameters: Vec::new(),
        body: None,
        answer,
        codes: OK,
    }
}

fn meta(kind: &str) -> Content {
    Content::Type(Arc::from(format!("io.k8s.apimachinery.pkg.apis.meta.v1.{kind}")))
}

/// The paths with a separate document besides groups and versions: the document's name and its route.
pub fn all() -> Vec<(&'static str, String, Operation)> {
    let versions = "get available API versions";
    let issuer = "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'";
    let keys = "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)";
    let mut configuration = get(
        "getServiceAccountIssuerOpenIDConfiguration".to_owned(),
        issuer,
        "WellKnown".to_owned(),
        Content::Text,
        JSON,
    );
    configuration.consumes = &[];
    let mut key_set =
        get("getServiceAccountIssuerOpenIDKeyset".to_owned(), keys, "openid".to_owned(), Content::Text, &[]);
    key_set.produces = &["application/jwk-set+json"];
    let code_version = get(
        "getCodeVersion".to_owned(),
        "get the version information for this server",
        "version".to_owned(),
        Content::Type(Arc::from("io.k8s.apimachinery.pkg.version.Info")),
        JSON,
    );
    vec![
        (".well-known/openid-configuration", "/.well-known/openid-configuration/".to_owned(), configuration),
        (
            "api",
            "/api/".to_owned(),
            get("getCoreAPIVersions".to_owned(), versions, "core".to_owned(), meta("APIVersions"), ENCODINGS),
        ),
        (
            "apis",
            "/apis/".to_owned(),
            get("getAPIVersions".to_owned(), versions, "apis".to_owned(), meta("APIGroupList"), ENCODINGS),
        ),
        ("openid/v1/jwks", "/openid/v1/jwks/".to_owned(), key_set),
        ("version", "/version/".to_owned(), code_version),
    ]
}

/// `/apis/{group}/`.
pub fn group(name: &str) -> (String, Operation) {
    let title = group_title(name);
    let operation = get(
        format!("get{title}APIGroup"),
        "get information of a group",
        tag(&title),
        meta("APIGroup"),
        ENCODINGS,
    );
    (format!("/apis/{name}/"), operation)
}

/// `/api/v1/` and `/apis/{group}/{version}/`.
pub fn resources(group: &str, version: &str) -> (String, Operation) {
    let operation = get(
        format!("get{}APIResources", title(group, version)),
        "get available resources",
        format!("{}_{version}", tag(&group_title(group))),
        meta("APIResourceList"),
        ENCODINGS,
    );
    let path =
        if group.is_empty() { format!("/api/{version}/") } else { format!("/apis/{group}/{version}/") };
    (path, operation)
}
