//! `kubectl expose`: a service for the pods of a workload.

use serde_json::{Value, json};

use crate::arguments::{Flag, Matches, option};
use crate::error::{CliError, fail};
use crate::flags::{DRY_RUN, FIELD_MANAGER, FILES, OUTPUT, SELECTOR};
use crate::manifest;
use crate::resource::Selection;
use crate::session::Session;
use crate::verbs::Verb;
use crate::writes::Writes;

pub const VERB: Verb = Verb::new(
    "expose",
    "Take a replication controller, service, deployment or pod and expose it as a new Kubernetes service",
    "(-f FILENAME | TYPE NAME) [--port=port] [--protocol=TCP|UDP|SCTP] [--target-port=number-or-name] [--name=name] [--type=type]",
    &[FLAGS, FILES, SELECTOR, OUTPUT, DRY_RUN, FIELD_MANAGER],
    |session, matches| Box::pin(run(session, matches)),
);

const FLAGS: &[Flag] = &[
    option(
        "cluster-ip",
        "ClusterIP to be assigned to the service. Set to 'None' to create a headless service.",
    ),
    option("external-ip", "Additional external IP address to accept for the service."),
    option("labels", "Labels to apply to the service created by this call."),
    option("name", "The name for the newly created object."),
    option("port", "The port that the service should serve on."),
    option("protocol", "The network protocol for the service to be created. Default is 'TCP'."),
    option(
        "session-affinity",
        "If non-empty, set the session affinity for the service to this; legal values: 'None', 'ClientIP'",
    ),
    option(
        "target-port",
        "Name or number for the port on the container that the service should direct traffic to.",
    ),
    option("type", "Type for this service: ClusterIP, NodePort, LoadBalancer, or ExternalName."),
];

async fn run(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    let manifests = manifest::load(matches, &session.io)?;
    // The selector is that of the service.
    let selection = Selection { selector: String::new(), ..Selection::read(matches) };
    let objects = session.objects_of_manifests(&manifests, &selection).await?;
    let mut writes = Writes::read(matches, "kubectl-expose")?;
    for (target, object) in objects {
        let kind = target.resource.kind.as_str();
        if !matches!(kind, "ReplicationController" | "Service" | "Deployment" | "Pod" | "ReplicaSet") {
            let shown = if target.resource.key.group.is_empty() {
                kind.to_owned()
            } else {
                format!("{kind}.{}", target.resource.key.group)
            };
            return fail(format!("cannot expose a {shown}"));
        }
        let service = service(matches, kind, &object, &target.ns)?;
        let service_target = session.target_of(&service, "").await?;
        let created = writes.create(session, &service_target, service).await?;
        writes.report(session, &created, "exposed")?;
    }
    Ok(())
}

fn service(matches: &Matches, kind: &str, object: &Value, ns: &str) -> Result<Value, CliError> {
    let name = match matches.text("name") {
        "" => object["metadata"]["name"].as_str().unwrap_or_default(),
        name => name,
    };
    let selector = match (matches.text("selector"), kind) {
        ("", "Pod") => object["metadata"]["labels"].clone(),
        ("", "Service" | "ReplicationController") => object["spec"]["selector"].clone(),
        ("", _) => object["spec"]["selector"]["matchLabels"].clone(),
        (text, _) => pairs(text)?,
    };
    if !selector.is_object() {
        return fail(
            "couldn't retrieve selectors via --selector flag or introspection: the object has no selector",
        );
    }
    let protocol = match matches.text("protocol") {
        "" => "TCP",
        protocol => protocol,
    };
    let target_of = |port: u16| match matches.text("target-port") {
        "" => json!(port),
        text => text.parse::<u16>().map_or_else(|_| json!(text), |number| json!(number)),
    };
    let mut ports: Vec<u16> = Vec::new();
    match matches.text("port") {
        "" => ports.extend(known_ports(kind, object)),
        text => {
            for part in text.split(',') {
                let Ok(port) = part.parse() else {
                    return fail(format!(
                        "strconv.Atoi: parsing {}: invalid syntax",
                        machinery::field::show_str(part)
                    ));
                };
                ports.push(port);
            }
        }
    }
    if ports.is_empty() {
        return fail(
            "couldn't find port via --port flag or introspection\nSee 'kubectl expose -h' for help and examples",
        );
    }
    let many = ports.len() > 1;
    let entries: Vec<Value> = ports
        .iter()
        .enumerate()
        .map(|(index, port)| {
            let mut entry = json!({"port": port, "protocol": protocol, "targetPort": target_of(*port)});
            if many {
                entry["name"] = json!(format!("port-{}", index + 1));
            }
            entry
        })
        .collect();
    let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": ns},
        "spec": {"selector": selector, "ports": entries}, "status": {"loadBalancer": {}}});
    let labels = match matches.text("labels") {
        "" => object["metadata"]["labels"].clone(),
        text => pairs(text)?,
    };
    if labels.is_object() {
        service["metadata"]["labels"] = labels;
    }
    for (flag, key) in
        [("type", "type"), ("cluster-ip", "clusterIP"), ("session-affinity", "sessionAffinity")]
    {
        if let Some(value) = matches.explicit(flag) {
            service["spec"][key] = json!(value);
        }
    }
    if let Some(address) = matches.explicit("external-ip") {
        service["spec"]["externalIPs"] = json!([address]);
    }
    Ok(service)
}

/// The ports that an object declares.
fn known_ports(kind: &str, object: &Value) -> Vec<u16> {
    let port = |value: &Value| value.as_u64().and_then(|port| u16::try_from(port).ok());
    if kind == "Service" {
        return object["spec"]["ports"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|entry| port(&entry["port"]))
            .collect();
    }
    let spec = if kind == "Pod" { &object["spec"] } else { &object["spec"]["template"]["spec"] };
    let containers = spec["containers"].as_array().into_iter().flatten();
    let declared = containers.flat_map(|container| container["ports"].as_array().into_iter().flatten());
    declared.filter_map(|entry| port(&entry["containerPort"])).collect()
}

fn pairs(text: &str) -> Result<Value, CliError> {
    let mut found = json!({});
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let Some((key, value)) = part.split_once('=') else {
            return fail(format!("unexpected label spec: {part}"));
        };
        found[key] = json!(value);
    }
    Ok(found)
}
