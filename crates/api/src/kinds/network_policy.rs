//! NetworkPolicy.

use crate::validation::checks::{invalid_each, legacy_cidr, one_of, port_number};
use crate::validation::label_selector::validate_label_selector;
use crate::value::{Fields, texts};
use crate::{Kind, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};
use serde_json::json;

pub static KIND: Kind = Kind {
    default,
    validate: |policy| validate(policy, &Allowed::default()),
    validate_update: |new, old| validate(new, &Allowed::by(old)),
    warnings: |new, _| warnings(new),
    counts_generation: true,
    table: &crate::tables::networking::NETWORK_POLICY,
    ..Kind::new("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", Scope::Namespaced)
};

fn default(policy: &mut Value) {
    let spec = policy.child_mut("spec");
    for direction in ["ingress", "egress"] {
        for rule in spec.items_mut(direction) {
            for port in rule.items_mut("ports") {
                port.default_to("protocol", "TCP");
            }
        }
    }
    if spec.items("policyTypes").is_empty() {
        let types =
            if spec.items("egress").is_empty() { json!(["Ingress"]) } else { json!(["Ingress", "Egress"]) };
        spec.set("policyTypes", types);
    }
}

/// Rules of a direction and the name of their peers.
const DIRECTIONS: [(&str, &str); 2] = [("ingress", "from"), ("egress", "to")];

/// Invalid values that an update may retain.
#[derive(Default)]
struct Allowed<'a> {
    cidrs: Vec<&'a str>,
    bad_label_values: bool,
}

impl<'a> Allowed<'a> {
    fn by(old: &'a Value) -> Self {
        let spec = old.field("spec");
        let selector = spec.field("podSelector");
        let bad_label_values = !validate_label_selector(selector, false, &Path::ROOT).is_empty();
        let cidrs = blocks(spec).flat_map(|(_, _, _, block)| {
            std::iter::once(block.text("cidr")).chain(texts(block.items("except")))
        });
        Self { cidrs: cidrs.collect(), bad_label_values }
    }
}

/// Every address block with its direction, rule and peer.
fn blocks(spec: &Value) -> impl Iterator<Item = ((&'static str, &'static str), usize, usize, &Value)> {
    DIRECTIONS.into_iter().flat_map(move |(direction, peers)| {
        spec.items(direction).iter().enumerate().flat_map(move |(i, rule)| {
            let each = rule.items(peers).iter().enumerate();
            let blocks = each.filter(|(_, peer)| peer.has("ipBlock"));
            blocks.map(move |(j, peer)| ((direction, peers), i, j, peer.field("ipBlock")))
        })
    })
}

fn validate(policy: &Value, allowed: &Allowed<'_>) -> ErrorList {
    let spec = policy.field("spec");
    let path = Path::new("spec");
    let selector_path = path.child("podSelector");
    let mut errors =
        validate_label_selector(spec.field("podSelector"), allowed.bad_label_values, &selector_path);
    for (direction, peers) in DIRECTIONS {
        let rules_path = path.child(direction);
        for (i, rule) in spec.items(direction).iter().enumerate() {
            let path = rules_path.index(i);
            let ports_path = path.child("ports");
            for (i, port) in rule.items("ports").iter().enumerate() {
                errors.extend(validate_port(port, &ports_path.index(i)));
            }
            let peers_path = path.child(peers);
            for (i, peer) in rule.items(peers).iter().enumerate() {
                errors.extend(validate_peer(peer, allowed, &peers_path.index(i)));
            }
        }
    }
    let types = spec.items("policyTypes");
    let types_path = path.child("policyTypes");
    if types.len() > 2 {
        let detail = "may not specify more than two policyTypes";
        errors.push(FieldError::invalid(&types_path, spec.field("policyTypes"), detail));
        return errors;
    }
    for (i, kind) in texts(types).enumerate() {
        errors.extend(one_of(&types_path.index(i), kind, &["Ingress", "Egress"]));
    }
    errors
}

fn validate_port(port: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    if let Some(protocol) = port.opt_text("protocol") {
        errors.extend(one_of(&path.child("protocol"), protocol, &["TCP", "UDP", "SCTP"]));
    }
    let port_path = path.child("port");
    let end_path = path.child("endPort");
    let end = port.opt_int("endPort");
    let reject = |shown: i64, detail: &str| FieldError::invalid_shown(&end_path, shown.to_string(), detail);
    match port.field("port") {
        Value::Null => {
            errors.extend(end.map(|end| reject(end, "may not be specified when `port` is not specified")));
        }
        Value::String(name) => {
            errors.extend(end.map(|end| reject(end, "may not be specified when `port` is non-numeric")));
            errors.extend(invalid_each(&port_path, name, names::port_name(name)));
        }
        number => {
            let number = number.as_i64().unwrap_or(0);
            errors.extend(port_number(&port_path, number));
            if let Some(end) = end {
                if end < number {
                    errors.push(reject(number, "must be greater than or equal to `port`"));
                }
                errors.extend(port_number(&end_path, end));
            }
        }
    }
    errors
}

fn validate_peer(peer: &Value, allowed: &Allowed<'_>, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let mut kinds = 0;
    for field in ["podSelector", "namespaceSelector"] {
        if peer.has(field) {
            kinds += 1;
            let selector = peer.field(field);
            errors.extend(validate_label_selector(selector, allowed.bad_label_values, &path.child(field)));
        }
    }
    let block = peer.field("ipBlock");
    if !block.is_null() {
        kinds += 1;
        errors.extend(validate_block(block, allowed, &path.child("ipBlock")));
    }
    if kinds == 0 {
        errors.push(FieldError::required(path, "must specify a peer"));
    } else if kinds > 1 && !block.is_null() {
        errors.push(FieldError::forbidden(path, "may not specify both ipBlock and another peer"));
    }
    errors
}

fn validate_block(block: &Value, allowed: &Allowed<'_>, path: &Path<'_>) -> ErrorList {
    let text = block.text("cidr");
    let cidr_path = path.child("cidr");
    if text.is_empty() {
        return vec![FieldError::required(&cidr_path, "")];
    }
    let mut errors = legacy_cidr(&cidr_path, text, &allowed.cidrs);
    let Some(cidr) = names::parse_cidr_sloppy(text) else {
        return errors;
    };
    let except_path = path.child("except");
    for (i, text) in texts(block.items("except")).enumerate() {
        let path = except_path.index(i);
        errors.extend(legacy_cidr(&path, text, &allowed.cidrs));
        if let Some(except) = names::parse_cidr_sloppy(text)
            && (!cidr.contains(&except.network()) || cidr.prefix_len() >= except.prefix_len())
        {
            errors.push(FieldError::invalid_str(&path, text, "must be a strict subset of `cidr`"));
        }
    }
    errors
}

fn warnings(policy: &Value) -> Vec<String> {
    let spec = policy.field("spec");
    let path = Path::new("spec");
    let mut warnings = Vec::new();
    for ((direction, peers), i, j, block) in blocks(spec) {
        let path = path.child(direction);
        let path = path.index(i);
        let path = path.child(peers);
        let path = path.index(j);
        let path = path.child("ipBlock");
        warnings.extend(names::warnings_for_cidr(&path.child("cidr"), block.text("cidr")));
        let except_path = path.child("except");
        for (k, except) in texts(block.items("except")).enumerate() {
            warnings.extend(names::warnings_for_cidr(&except_path.index(k), except));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(spec: Value) -> Vec<String> {
        let mut policy = json!({"spec": spec});
        default(&mut policy);
        validate(&policy, &Allowed::default()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn peers_and_ports_are_validated() {
        let from = |peer: Value| json!({"ingress": [{"from": [peer]}]});
        let port = |port: Value| json!({"ingress": [{"ports": [port]}]});
        let cases = [
            (from(json!({"podSelector": {}, "namespaceSelector": {}})), vec![]),
            (from(json!({})), vec!["spec.ingress[0].from[0]: Required value: must specify a peer"]),
            (
                from(json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}})),
                vec![
                    r#"spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: "10.0.0.0/8": must be a strict subset of `cidr`"#,
                ],
            ),
            (port(json!({"port": 80, "endPort": 90})), vec![]),
            (
                port(json!({"port": 80, "endPort": 70})),
                vec![
                    "spec.ingress[0].ports[0].endPort: Invalid value: 80: must be greater than or equal to `port`",
                ],
            ),
            (
                port(json!({"port": "http", "endPort": 70})),
                vec![
                    "spec.ingress[0].ports[0].endPort: Invalid value: 70: may not be specified when `port` is non-numeric",
                ],
            ),
        ];
        for (spec, want) in cases {
            assert_eq!(messages(spec), want);
        }
    }

    #[test]
    fn update_tolerates_old_cidrs() {
        let policy = json!({"spec": {"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.1/8"}}]}]}});
        assert_eq!(validate(&policy, &Allowed::default()).len(), 1);
        assert!(validate(&policy, &Allowed::by(&policy)).is_empty());
        assert_eq!(warnings(&policy).len(), 1);
    }
}
