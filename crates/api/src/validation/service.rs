//! Validation of Services. Cluster IPs are in [`super::service_addresses`].

use super::checks::{
    PROTOCOLS, dns_label, dns_subdomain, endpoint_ip, legacy_cidr, legacy_ip, one_of, port_number,
    port_number_or_name, qualified_name, required_one_of,
};
use super::service_addresses;
use crate::value::{Fields, texts};
use machinery::field::{ErrorList, FieldError, Path, show_str};
use machinery::{Value, meta, names};

const TOPOLOGY_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
const ONLY_FOR_BALANCERS: &str = "may only be used when `type` is 'LoadBalancer'";
const MAX_AFFINITY_SECONDS: i64 = 86400;

pub fn service_type(service: &Value) -> &str {
    service.field("spec").text("type")
}

pub fn ports(service: &Value) -> &[Value] {
    service.field("spec").items("ports")
}

/// True if a service of this spec can receive traffic from outside the cluster.
pub fn externally_accessible(spec: &Value) -> bool {
    match spec.text("type") {
        "LoadBalancer" | "NodePort" => true,
        "ClusterIP" => !spec.items("externalIPs").is_empty(),
        _ => false,
    }
}

pub fn is_externally_accessible(service: &Value) -> bool {
    externally_accessible(service.field("spec"))
}

/// True if load balancers check nodes for endpoints of this service on a health check node port.
pub fn needs_health_check(service: &Value) -> bool {
    let spec = service.field("spec");
    spec.text("type") == "LoadBalancer" && spec.text("externalTrafficPolicy") == "Local"
}

/// True for headless services: `clusterIPs: ["None"]`.
pub fn is_headless(service: &Value) -> bool {
    matches!(service.field("spec").items("clusterIPs"), [only] if only == "None")
}

/// Validates a service; on update, `old` is the stored one.
pub fn validate(service: &Value, old: Option<&Value>) -> ErrorList {
    let spec = service.field("spec");
    let path = Path::new("spec");
    let mut errors = topology_annotations(service);
    errors.extend(by_type(service, &path));
    errors.extend(port_list(service, &path));
    if let Some(selector) = spec.entries("selector") {
        errors.extend(names::validate_labels(selector, &path.child("selector")));
    }
    errors.extend(session_affinity(spec, &path));
    errors.extend(service_addresses::validate(service, old));
    errors.extend(external_ips(spec, old, &path));
    const TYPES: &[&str] = &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    errors.extend(required_one_of(&path.child("type"), spec.text("type"), TYPES));
    errors.extend(port_numbers(spec, &path));
    errors.extend(source_ranges(service, old, &path));
    errors.extend(balancer_fields(spec, &path));
    errors.extend(balancer_class(spec, None, &path));
    errors.extend(traffic_policies(service, &path));
    errors
}

/// Validates immutable fields, then the new service itself.
pub fn validate_update(service: &Value, old: &Value) -> ErrorList {
    let path = Path::new("spec");
    let mut errors = service_addresses::validate_cluster_ips_change(service, old);
    errors.extend(service_addresses::validate_families_change(service, old));
    errors.extend(balancer_class(service.field("spec"), Some(old.field("spec")), &path));
    let port = |service: &Value| service.field("spec").int("healthCheckNodePort");
    if needs_health_check(old) && needs_health_check(service) && port(old) != port(service) {
        errors.push(FieldError::forbidden(&path.child("healthCheckNodePort"), "field is immutable"));
    }
    errors.extend(validate(service, Some(old)));
    errors
}

/// Status reported by load-balancer controllers.
pub fn validate_status_update(service: &Value, old: &Value) -> ErrorList {
    let status_path = Path::new("status");
    let balancer_path = status_path.child("loadBalancer");
    let path = balancer_path.child("ingress");
    let points = service.at("status.loadBalancer").items("ingress");
    if service_type(service) != "LoadBalancer" && !points.is_empty() {
        return vec![FieldError::forbidden(&path, "may only be used when `spec.type` is 'LoadBalancer'")];
    }
    let known: Vec<&str> =
        old.at("status.loadBalancer").items("ingress").iter().map(|p| p.text("ip")).collect();
    let mut errors = Vec::new();
    for (i, point) in points.iter().enumerate() {
        let path = path.index(i);
        let ip = point.text("ip");
        let mode_path = path.child("ipMode");
        if !ip.is_empty() {
            errors.extend(legacy_ip(&path.child("ip"), ip, &known));
        }
        match point.opt_text("ipMode") {
            None if !ip.is_empty() => {
                errors.push(FieldError::required(&mode_path, "must be specified when `ip` is set"));
            }
            None => {}
            Some(_) if ip.is_empty() => {
                errors.push(FieldError::forbidden(&mode_path, "may not be specified when `ip` is not set"));
            }
            Some(mode) => errors.extend(one_of(&mode_path, mode, &["Proxy", "VIP"])),
        }
        errors.extend(balancer_hostname(point, &path));
    }
    errors
}

/// DNS name of a load balancer's ingress point, for services and ingresses.
pub fn balancer_hostname(point: &Value, path: &Path<'_>) -> ErrorList {
    let hostname = point.text("hostname");
    if hostname.is_empty() {
        return Vec::new();
    }
    let path = path.child("hostname");
    let mut errors = dns_subdomain(&path, hostname);
    if names::parse_ip_sloppy(hostname).is_some() {
        errors.push(FieldError::invalid_str(&path, hostname, "must be a DNS name, not an IP address"));
    }
    errors
}

fn topology_annotations(service: &Value) -> ErrorList {
    let hints = meta::annotation(service, TOPOLOGY_HINTS);
    let mode = meta::annotation(service, TOPOLOGY_MODE);
    match (hints, mode) {
        (Some(hints), Some(mode)) if hints != mode => {
            let metadata = Path::new("metadata");
            let annotations = metadata.child("annotations");
            let detail = format!("must match annotations[{TOPOLOGY_HINTS}] when both are specified");
            vec![FieldError::invalid_str(&annotations.key(TOPOLOGY_MODE), mode, detail)]
        }
        _ => Vec::new(),
    }
}

fn by_type(service: &Value, path: &Path<'_>) -> ErrorList {
    let spec = service.field("spec");
    let kind = spec.text("type");
    let headless = is_headless(service);
    let mut errors = Vec::new();
    if spec.items("ports").is_empty() && !headless && kind != "ExternalName" {
        errors.push(FieldError::required(&path.child("ports"), ""));
    }
    match kind {
        "LoadBalancer" | "NodePort" if headless => {
            let detail = format!("may not be set to 'None' for {kind} services");
            let ips = path.child("clusterIPs");
            errors.push(FieldError::invalid_str(&ips.index(0), "None", detail));
        }
        "ExternalName" => {
            let forbidden = "may not be set for ExternalName services";
            for field in ["clusterIPs", "ipFamilies"] {
                if !spec.items(field).is_empty() {
                    errors.push(FieldError::forbidden(&path.child(field), forbidden));
                }
            }
            if spec.has("ipFamilyPolicy") {
                errors.push(FieldError::forbidden(&path.child("ipFamilyPolicy"), forbidden));
            }
            let name_path = path.child("externalName");
            let name = spec.text("externalName");
            match name.strip_suffix('.').unwrap_or(name) {
                "" => errors.push(FieldError::required(&name_path, "")),
                name => errors.extend(dns_subdomain(&name_path, name)),
            }
        }
        _ => {}
    }
    errors
}

fn port_list(service: &Value, path: &Path<'_>) -> ErrorList {
    let ports = ports(service);
    let ports_path = path.child("ports");
    let mut errors = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for (i, port) in ports.iter().enumerate() {
        let path = ports_path.index(i);
        let name = port.text("name");
        let name_path = path.child("name");
        if !name.is_empty() {
            errors.extend(dns_label(&name_path, name));
            if seen.contains(&name) {
                errors.push(FieldError::duplicate(&name_path, &name.into()));
            } else {
                seen.push(name);
            }
        } else if ports.len() > 1 {
            errors.push(FieldError::required(&name_path, ""));
        }
        errors.extend(port_number(&path.child("port"), port.int("port")));
        errors.extend(required_one_of(&path.child("protocol"), port.text("protocol"), PROTOCOLS));
        errors.extend(port_number_or_name(&path.child("targetPort"), port.field("targetPort")));
        if let Some(protocol) = port.opt_text("appProtocol") {
            errors.extend(qualified_name(&path.child("appProtocol"), protocol));
        }
    }
    errors
}

fn session_affinity(spec: &Value, path: &Path<'_>) -> ErrorList {
    let affinity = spec.text("sessionAffinity");
    let mut errors = required_one_of(&path.child("sessionAffinity"), affinity, &["ClientIP", "None"]);
    let config = spec.field("sessionAffinityConfig");
    let config_path = path.child("sessionAffinityConfig");
    match affinity {
        "ClientIP" => {
            let client_path = config_path.child("clientIP");
            let seconds_path = client_path.child("timeoutSeconds");
            let needed = "when session affinity type is ClientIP";
            let client = config.field("clientIP");
            match client.opt_int("timeoutSeconds") {
                _ if config.is_null() => errors.push(FieldError::required(&config_path, needed)),
                _ if client.is_null() => errors.push(FieldError::required(&client_path, needed)),
                None => errors.push(FieldError::required(&seconds_path, needed)),
                Some(seconds) if seconds <= 0 || seconds > MAX_AFFINITY_SECONDS => {
                    let detail = format!("must be greater than 0 and less than {MAX_AFFINITY_SECONDS}");
                    errors.push(FieldError::invalid_shown(&seconds_path, seconds.to_string(), detail));
                }
                Some(_) => {}
            }
        }
        "None" if !config.is_null() => {
            let detail = "must not be set when session affinity is None";
            errors.push(FieldError::forbidden(&config_path, detail));
        }
        _ => {}
    }
    errors
}

fn external_ips(spec: &Value, old: Option<&Value>, path: &Path<'_>) -> ErrorList {
    let path = path.child("externalIPs");
    let known: Vec<&str> =
        old.map(|old| texts(old.field("spec").items("externalIPs")).collect()).unwrap_or_default();
    let mut errors = Vec::new();
    for (i, ip) in texts(spec.items("externalIPs")).enumerate() {
        let path = path.index(i);
        let problems = legacy_ip(&path, ip, &known);
        errors.extend(if problems.is_empty() { endpoint_ip(&path, ip) } else { problems });
    }
    errors
}

/// Rejects node ports of types without them, and duplicate ports of one protocol.
fn port_numbers(spec: &Value, path: &Path<'_>) -> ErrorList {
    let ports = spec.items("ports");
    let path = path.child("ports");
    let mut errors = Vec::new();
    if spec.text("type") == "ClusterIP" {
        for (i, _) in ports.iter().enumerate().filter(|(_, port)| port.int("nodePort") != 0) {
            let path = path.index(i);
            let detail = "may not be used when `type` is 'ClusterIP'";
            errors.push(FieldError::forbidden(&path.child("nodePort"), detail));
        }
    }
    let repeats = |field: &str, i: usize| {
        let key = (ports[i].text("protocol"), ports[i].int(field));
        ports[..i].iter().any(|port| (port.text("protocol"), port.int(field)) == key)
    };
    for (i, port) in ports.iter().enumerate() {
        if port.int("nodePort") != 0 && repeats("nodePort", i) {
            let path = path.index(i);
            errors.push(FieldError::duplicate(&path.child("nodePort"), port.field("nodePort")));
        }
    }
    for (i, port) in ports.iter().enumerate().filter(|(i, _)| repeats("port", *i)) {
        // The shown value is a port in which only the key is set, under Go's field names.
        let mut error = FieldError::duplicate(&path.index(i), &Value::Null);
        error.value = Some(format!(
            r#"{{"Name":"","Protocol":{},"AppProtocol":null,"Port":{},"TargetPort":0,"NodePort":0}}"#,
            show_str(port.text("protocol")),
            port.int("port"),
        ));
        errors.push(error);
    }
    errors
}

fn source_ranges(service: &Value, old: Option<&Value>, path: &Path<'_>) -> ErrorList {
    let spec = service.field("spec");
    let ranges = spec.items("loadBalancerSourceRanges");
    let mut errors = Vec::new();
    let balanced = spec.text("type") == "LoadBalancer";
    if !ranges.is_empty() {
        // Kubernetes reports this field with a capital L.
        let path = path.child("LoadBalancerSourceRanges");
        if !balanced {
            errors.push(FieldError::forbidden(&path, ONLY_FOR_BALANCERS));
        }
        let known: Vec<&str> = old
            .map(|old| texts(old.field("spec").items("loadBalancerSourceRanges")).map(str::trim).collect())
            .unwrap_or_default();
        for (i, range) in texts(ranges).enumerate() {
            errors.extend(legacy_cidr(&path.index(i), range.trim(), &known));
        }
    } else if let Some(value) = meta::annotation(service, SOURCE_RANGES) {
        let metadata = Path::new("metadata");
        let annotations = metadata.child("annotations");
        let path = annotations.key(SOURCE_RANGES);
        if !balanced {
            errors.push(FieldError::forbidden(&path, ONLY_FOR_BALANCERS));
        }
        let unchanged = old.is_some_and(|old| meta::annotation(old, SOURCE_RANGES).unwrap_or("") == value);
        if !unchanged && !value.trim().is_empty() {
            for range in value.trim().split(',') {
                errors.extend(legacy_cidr(&path, range.trim(), &[]));
            }
        }
    }
    errors
}

fn balancer_fields(spec: &Value, path: &Path<'_>) -> ErrorList {
    const FIELD: &str = "allocateLoadBalancerNodePorts";
    match (spec.text("type") == "LoadBalancer", spec.has(FIELD)) {
        (false, true) => vec![FieldError::forbidden(&path.child(FIELD), ONLY_FOR_BALANCERS)],
        (true, false) => vec![FieldError::required(&Path::new(FIELD), "")],
        _ => Vec::new(),
    }
}

fn balancer_class(spec: &Value, old: Option<&Value>, path: &Path<'_>) -> ErrorList {
    let path = path.child("loadBalancerClass");
    let class = spec.field("loadBalancerClass");
    let balanced = |spec: &Value| spec.text("type") == "LoadBalancer";
    let mut errors = Vec::new();
    if let Some(old) = old
        && balanced(old)
        && balanced(spec)
        && old.field("loadBalancerClass") != class
    {
        errors.push(FieldError::invalid(&path, class, "may not change once set"));
    }
    match class.as_str() {
        Some(class) if balanced(spec) => errors.extend(qualified_name(&path, class)),
        Some(_) => errors.push(FieldError::forbidden(&path, ONLY_FOR_BALANCERS)),
        None => {}
    }
    errors
}

fn traffic_policies(service: &Value, path: &Path<'_>) -> ErrorList {
    let spec = service.field("spec");
    let mut errors = Vec::new();
    const POLICIES: &[&str] = &["Cluster", "Local"];

    let external_path = path.child("externalTrafficPolicy");
    let external = spec.text("externalTrafficPolicy");
    if externally_accessible(spec) {
        errors.extend(required_one_of(&external_path, external, POLICIES));
    } else if !external.is_empty() {
        let detail = "may only be set for externally-accessible services";
        errors.push(FieldError::invalid_str(&external_path, external, detail));
    }

    let health_path = path.child("healthCheckNodePort");
    let health_port = spec.int("healthCheckNodePort");
    match (needs_health_check(service), health_port) {
        (false, 0) => {}
        (false, port) => {
            let detail =
                "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            errors.push(FieldError::invalid_shown(&health_path, port.to_string(), detail));
        }
        (true, 0) => errors.push(FieldError::required(&health_path, "")),
        (true, port) => errors.extend(port_number(&health_path, port)),
    }

    let internal_path = path.child("internalTrafficPolicy");
    match spec.opt_text("internalTrafficPolicy") {
        Some(policy) => errors.extend(one_of(&internal_path, policy, POLICIES)),
        None if matches!(spec.text("type"), "NodePort" | "LoadBalancer" | "ClusterIP") => {
            errors.push(FieldError::required(&internal_path, ""));
        }
        None => {}
    }

    if let Some(distribution) = spec.opt_text("trafficDistribution") {
        let supported = &["PreferClose", "PreferSameZone", "PreferSameNode"];
        errors.extend(one_of(&path.child("trafficDistribution"), distribution, supported));
    }
    errors
}

/// Warnings about addresses in the status of a service or an ingress.
pub fn balancer_warnings(object: &Value) -> Vec<String> {
    let path = Path::new("status");
    let path = path.child("loadBalancer");
    let path = path.child("ingress");
    let points = object.at("status.loadBalancer").items("ingress").iter().enumerate();
    let points = points.filter(|(_, point)| !point.text("ip").is_empty());
    points.flat_map(|(i, point)| names::warnings_for_ip(&path.index(i), point.text("ip"))).collect()
}

/// `Warning`s of a write: deprecated and ignored fields, unusual addresses.
pub fn warnings(service: &Value) -> Vec<String> {
    let spec = service.field("spec");
    let path = Path::new("spec");
    let mut warnings = Vec::new();
    if meta::annotation(service, TOPOLOGY_HINTS).is_some() {
        warnings
            .push(format!("annotation {TOPOLOGY_HINTS} is deprecated, please use {TOPOLOGY_MODE} instead"));
    }
    let cluster_ip = spec.text("clusterIP");
    let lists = |field: &str| {
        let path = path.child(field);
        let each = texts(spec.items(field)).enumerate();
        each.flat_map(|(i, ip)| names::warnings_for_ip(&path.index(i), ip)).collect::<Vec<_>>()
    };
    if !matches!(cluster_ip, "" | "None") {
        warnings.extend(lists("clusterIPs"));
    }
    let external_ips = !spec.items("externalIPs").is_empty();
    let kind = spec.text("type");
    let headless = kind == "ClusterIP" && cluster_ip == "None";
    if headless {
        let ignored = [
            (!spec.text("loadBalancerIP").is_empty(), "loadBalancerIP"),
            (external_ips, "externalIPs"),
            (spec.text("sessionAffinity") != "None", "SessionAffinity"),
        ];
        let ignored = ignored.iter().filter(|(set, _)| *set);
        warnings.extend(ignored.map(|(_, field)| format!("spec.{field} is ignored for headless services")));
    }
    warnings.extend(lists("externalIPs"));
    if external_ips && !headless && kind != "ExternalName" {
        let text = "spec.externalIPs is deprecated and may no longer be implemented in some clusters";
        warnings.push(text.to_owned());
    }
    let balancer_ip = spec.text("loadBalancerIP");
    if !balancer_ip.is_empty() {
        warnings.extend(names::warnings_for_ip(&path.child("loadBalancerIP"), balancer_ip));
    }
    let ranges_path = path.child("loadBalancerSourceRanges");
    for (i, range) in texts(spec.items("loadBalancerSourceRanges")).enumerate() {
        warnings.extend(names::warnings_for_cidr(&ranges_path.index(i), range));
    }
    if kind == "ExternalName" && external_ips {
        warnings.push(r#"spec.externalIPs is ignored when spec.type is "ExternalName""#.to_owned());
    }
    if kind != "ExternalName" && !spec.text("externalName").is_empty() {
        warnings.push(r#"spec.externalName is ignored when spec.type is not "ExternalName""#.to_owned());
    }
    if spec.text("trafficDistribution") == "PreferClose" {
        let text = r#"spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone""#;
        warnings.push(text.to_owned());
    }
    warnings
}
