//! Ingress.

use super::ingress_class::validate_reference;
use crate::validation::checks::{dns_label, dns_subdomain, invalid_each, legacy_ip, one_of, port_number};
use crate::validation::service::{balancer_hostname, balancer_warnings};
use crate::value::{Fields, texts};
use crate::{Kind, MetadataCheck, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, meta, names};
use serde_json::json;

pub static KIND: Kind = Kind {
    prepare_create: |ingress| ingress.set("status", json!({"loadBalancer": {}})),
    prepare_update: crate::kind::keep_status,
    validate: |ingress| {
        let mut errors = validate_spec(ingress.field("spec"), None);
        errors.extend(class_annotation(ingress));
        errors
    },
    validate_update: |new, old| validate_spec(new.field("spec"), Some(old.field("spec"))),
    validate_status_update,
    warnings,
    status_warnings: balancer_warnings,
    counts_generation: true,
    metadata_on_update: &[MetadataCheck::Update, MetadataCheck::New],
    storage_path: "ingress",
    table: &crate::tables::networking::INGRESS,
    ..Kind::new("networking.k8s.io", "v1", "Ingress", "ingresses", Scope::Namespaced)
};

const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

fn class_annotation(ingress: &Value) -> Option<FieldError> {
    let class = ingress.field("spec").opt_text("ingressClassName")?;
    let annotation = meta::annotation(ingress, CLASS_ANNOTATION).filter(|annotation| *annotation != class)?;
    let path = Path::new("annotations");
    let detail = "must match `ingressClassName` when both are specified";
    Some(FieldError::invalid_str(&path.child(CLASS_ANNOTATION), annotation, detail))
}

fn validate_spec(spec: &Value, old: Option<&Value>) -> ErrorList {
    let path = Path::new("spec");
    let backend = spec.field("defaultBackend");
    let rules = spec.items("rules");
    let mut errors = Vec::new();
    if rules.is_empty() && backend.is_null() {
        let detail = "either `defaultBackend` or `rules` must be specified";
        errors.push(FieldError::invalid(&path, spec.field("rules"), detail));
    }
    if !backend.is_null() {
        errors.extend(validate_backend(backend, &path.child("defaultBackend")));
    }
    let rules_path = path.child("rules");
    let keeps_bad_wildcard_rules = old.is_some_and(has_bad_wildcard_rule);
    for (i, rule) in rules.iter().enumerate() {
        errors.extend(validate_rule(rule, keeps_bad_wildcard_rules, &rules_path.index(i)));
    }
    let keeps_bad_secrets = old.is_some_and(|old| {
        old.items("tls").iter().any(|tls| !secret_name(tls.text("secretName")).is_empty())
    });
    let tls_path = path.child("tls");
    for (i, tls) in spec.items("tls").iter().enumerate() {
        let path = tls_path.index(i);
        let hosts_path = path.child("hosts");
        for (i, host) in texts(tls.items("hosts")).enumerate() {
            errors.extend(validate_host(host, &hosts_path.index(i)));
        }
        if !keeps_bad_secrets {
            let name = tls.text("secretName");
            errors.extend(invalid_each(&path.child("secretName"), name, secret_name(name)));
        }
    }
    if let Some(class) = spec.opt_text("ingressClassName") {
        errors.extend(dns_subdomain(&path.child("ingressClassName"), class));
    }
    errors
}

fn secret_name(name: &str) -> Vec<String> {
    if name.is_empty() { Vec::new() } else { names::dns_subdomain(name, false) }
}

fn validate_host(host: &str, path: &Path<'_>) -> ErrorList {
    if host.contains('*') {
        return invalid_each(path, host, names::wildcard_dns_subdomain(host));
    }
    dns_subdomain(path, host)
}

fn has_bad_wildcard_rule(spec: &Value) -> bool {
    let wild = spec.items("rules").iter().filter(|rule| rule.text("host").contains('*'));
    wild.into_iter().any(|rule| !validate_paths(rule, &Path::ROOT).is_empty())
}

fn validate_rule(rule: &Value, keeps_bad_wildcard_rules: bool, path: &Path<'_>) -> ErrorList {
    let host = rule.text("host");
    let mut errors = Vec::new();
    if !host.is_empty() {
        let path = path.child("host");
        if names::parse_ip_sloppy(host).is_some() {
            errors.push(FieldError::invalid_str(&path, host, "must be a DNS name, not an IP address"));
        }
        errors.extend(validate_host(host, &path));
    }
    if !host.contains('*') || !keeps_bad_wildcard_rules {
        errors.extend(validate_paths(rule, path));
    }
    errors
}

fn validate_paths(rule: &Value, path: &Path<'_>) -> ErrorList {
    let http = rule.field("http");
    if http.is_null() {
        return Vec::new();
    }
    let http_path = path.child("http");
    let paths_path = http_path.child("paths");
    let paths = http.items("paths");
    if paths.is_empty() {
        return vec![FieldError::required(&paths_path, "")];
    }
    let each = paths.iter().enumerate();
    each.flat_map(|(i, entry)| validate_path(entry, &paths_path.index(i))).collect()
}

fn validate_path(entry: &Value, path: &Path<'_>) -> ErrorList {
    let kind_path = path.child("pathType");
    let Some(kind) = entry.opt_text("pathType") else {
        return vec![FieldError::required(&kind_path, "pathType must be specified")];
    };
    let text_path = path.child("path");
    let text = entry.text("path");
    let reject = |detail: String| FieldError::invalid_str(&text_path, text, detail);
    let mut errors = Vec::new();
    let literal = matches!(kind, "Exact" | "Prefix");
    if literal || kind == "ImplementationSpecific" {
        if !text.starts_with('/') && (literal || !text.is_empty()) {
            errors.push(reject("must be an absolute path".to_owned()));
        }
    } else {
        errors.extend(one_of(&kind_path, kind, &["Exact", "ImplementationSpecific", "Prefix"]));
    }
    if literal {
        let sequences = ["//", "/./", "/../", "%2f", "%2F"].into_iter().filter(|part| text.contains(part));
        errors.extend(sequences.map(|part| reject(format!("must not contain '{part}'"))));
        let endings = ["/..", "/."].into_iter().filter(|part| text.ends_with(part));
        errors.extend(endings.map(|part| reject(format!("cannot end with '{part}'"))));
    }
    errors.extend(validate_backend(entry.field("backend"), &path.child("backend")));
    errors
}

fn validate_backend(backend: &Value, path: &Path<'_>) -> ErrorList {
    let (resource, service) = (backend.field("resource"), backend.field("service"));
    let reject = |detail: &str| vec![FieldError::invalid_str(path, "", detail)];
    match (resource.is_null(), service.is_null()) {
        (false, false) => reject("cannot set both resource and service backends"),
        (false, true) => validate_reference(resource, &path.child("resource")),
        (true, true) => reject("resource or service backend is required"),
        (true, false) => {
            let service_path = path.child("service");
            let name_path = service_path.child("name");
            let mut errors = match service.text("name") {
                "" => vec![FieldError::required(&name_path, "")],
                name => dns_label(&name_path, name),
            };
            let port = service.field("port");
            let port_path = service_path.child("port");
            errors.extend(match (port.text("name"), port.int("number")) {
                ("", 0) => vec![FieldError::required(path, "port name or number is required")],
                ("", number) => port_number(&port_path.child("number"), number),
                (name, 0) => invalid_each(&port_path.child("name"), name, names::port_name(name)),
                _ => reject("cannot set both port name & port number"),
            });
            errors
        }
    }
}

fn validate_status_update(new: &Value, old: &Value) -> ErrorList {
    let points = |ingress: &'_ Value| ingress.at("status.loadBalancer").field("ingress").clone();
    let (new, old) = (points(new), points(old));
    let known: Vec<&str> = old.as_array().into_iter().flatten().map(|point| point.text("ip")).collect();
    let path = Path::new("status");
    let path = path.child("loadBalancer");
    let path = path.child("ingress");
    let mut errors = Vec::new();
    for (i, point) in new.as_array().into_iter().flatten().enumerate() {
        let path = path.index(i);
        let ip = point.text("ip");
        if !ip.is_empty() {
            errors.extend(legacy_ip(&path.child("ip"), ip, &known));
        }
        errors.extend(balancer_hostname(point, &path));
    }
    errors
}

fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    let deprecated =
        meta::annotation(new, CLASS_ANNOTATION).is_some() && !new.field("spec").has("ingressClassName");
    if old.is_some() || !deprecated {
        return Vec::new();
    }
    vec![format!("annotation {CLASS_ANNOTATION:?} is deprecated, please use 'spec.ingressClassName' instead")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noncanonical_load_balancer_address_returns_warning() {
        let ingress = json!({"status": {"loadBalancer": {"ingress": [
            {"hostname": "h"}, {"ip": "1.2.3.4"}, {"ip": "01.2.3.4"}, {"ip": "fd00:0::1"},
        ]}}});
        assert_eq!(
            (KIND.status_warnings)(&ingress),
            [
                r#"status.loadBalancer.ingress[2]: non-standard IP address "01.2.3.4" is invalid: use "1.2.3.4""#,
                r#"status.loadBalancer.ingress[3]: IPv6 address "fd00:0::1" should be in RFC 5952 canonical format ("fd00::1")"#,
            ]
        );
    }

    #[test]
    fn paths_and_backends_are_validated() {
        let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
        let path = |kind: &str, path: &str| json!({"pathType": kind, "path": path, "backend": backend});
        let cases = [
            (path("Prefix", "/a"), vec![]),
            (path("ImplementationSpecific", ""), vec![]),
            (path("Exact", "a"), vec![r#"p.path: Invalid value: "a": must be an absolute path"#]),
            (
                path("Prefix", "/a/../b//"),
                vec![
                    r#"p.path: Invalid value: "/a/../b//": must not contain '//'"#,
                    r#"p.path: Invalid value: "/a/../b//": must not contain '/../'"#,
                ],
            ),
            (
                path("X", "/"),
                vec![
                    r#"p.pathType: Unsupported value: "X": supported values: "Exact", "ImplementationSpecific", "Prefix""#,
                ],
            ),
            (json!({"path": "/"}), vec!["p.pathType: Required value: pathType must be specified"]),
            (
                json!({"path": "/", "pathType": "Exact"}),
                vec![r#"p.backend: Invalid value: "": resource or service backend is required"#],
            ),
        ];
        for (entry, want) in cases {
            let got: Vec<String> =
                validate_path(&entry, &Path::new("p")).iter().map(ToString::to_string).collect();
            assert_eq!(got, want);
        }
    }
}
