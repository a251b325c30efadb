//! Network API objects: create, read, list, patch, replace, update status, delete and delete collection.

use super::cluster::{Cluster, until};

type Pods<'a> = &'a [(String, String)];

/// A kind with kubectl's name, writable status, and an example.
struct ResourceKind {
    name: &'static str,
    status: Option<&'static str>,
    manifest: fn(usize) -> String,
}

const KINDS: [ResourceKind; 7] = [
    ResourceKind {
        name: "services",
        status: Some(r#"{"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.1"}]}}}"#),
        manifest: |number| {
            format!(
                "apiVersion: v1\nkind: Service\nmetadata: {{name: described-{number}, labels: {{described: \"true\"}}}}\nspec: {{type: LoadBalancer, loadBalancerClass: example.org/nobody, ports: [{{port: 80}}]}}"
            )
        },
    },
    ResourceKind {
        name: "endpoints",
        status: None,
        manifest: |number| {
            format!(
                "apiVersion: v1\nkind: Endpoints\nmetadata: {{name: described-{number}, labels: {{described: \"true\"}}}}\nsubsets: [{{addresses: [{{ip: 203.0.113.2}}], ports: [{{port: 80}}]}}]"
            )
        },
    },
    ResourceKind {
        name: "endpointslices",
        status: None,
        manifest: |number| {
            format!(
                "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: described-{number}, labels: {{described: \"true\"}}}}\naddressType: IPv4\nendpoints: [{{addresses: [203.0.113.3]}}]"
            )
        },
    },
    ResourceKind {
        name: "ingresses",
        status: Some(r#"{"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.4"}]}}}"#),
        manifest: |number| {
            format!(
                "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: described-{number}, labels: {{described: \"true\"}}}}\nspec: {{defaultBackend: {{service: {{name: web, port: {{number: 80}}}}}}}}"
            )
        },
    },
    ResourceKind {
        name: "ingressclasses",
        status: None,
        manifest: |number| {
            format!(
                "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {{name: described-{number}, labels: {{described: \"true\"}}}}\nspec: {{controller: example.org/nobody}}"
            )
        },
    },
    ResourceKind {
        name: "ipaddresses",
        status: None,
        manifest: |number| {
            format!(
                "apiVersion: networking.k8s.io/v1\nkind: IPAddress\nmetadata: {{name: 203.0.113.{}, labels: {{described: \"true\"}}}}\nspec: {{parentRef: {{group: example.org, resource: things, name: thing}}}}",
                number + 10
            )
        },
    },
    ResourceKind {
        name: "servicecidrs",
        status: Some(
            r#"{"status":{"conditions":[{"type":"Described","status":"True","reason":"Test","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}"#,
        ),
        manifest: |number| {
            format!(
                "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {{name: described-{number}, labels: {{described: \"true\"}}}}\nspec: {{cidrs: [198.51.{number}.0/24]}}"
            )
        },
    },
];

pub fn run(cluster: &Cluster, _: Pods<'_>) {
    for kind in &KINDS {
        lifecycle(cluster, kind);
    }
}

fn listed(cluster: &Cluster, kind: &ResourceKind) -> Result<Vec<String>, String> {
    let text = cluster.try_kubectl(&["get", kind.name, "-A", "-l", "described=true", "-o", "name"])?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn lifecycle(cluster: &Cluster, kind: &ResourceKind) {
    let manifests: Vec<String> = (0..3).map(kind.manifest).collect();
    cluster.apply(&manifests.join("\n---\n"));
    let names = listed(cluster, kind).expect("a list");
    // Endpoints are mirrored to slices with the same labels.
    assert!(names.len() >= 3, "{}: {names:?}", kind.name);
    let name = names[0].as_str();
    let read = |field: &str| cluster.kubectl(&["get", name, "-o", &format!("jsonpath={field}")]);
    let uid = read("{.metadata.uid}");
    cluster.kubectl(&[
        "patch",
        name,
        "--type=merge",
        "-p",
        r#"{"metadata":{"annotations":{"patched":"yes"}}}"#,
    ]);
    assert_eq!(read("{.metadata.annotations.patched}"), "yes", "{}", kind.name);
    cluster.kubectl(&["annotate", name, "patched=again", "--overwrite"]);
    assert_eq!(read("{.metadata.annotations.patched}"), "again", "{}", kind.name);
    if let Some(status) = kind.status {
        cluster.kubectl(&["patch", name, "--subresource=status", "--type=merge", "-p", status]);
        let written = read("{.status}");
        assert!(written.contains("203.0.113.") || written.contains("Described"), "{}: {written}", kind.name);
    }
    assert_eq!(read("{.metadata.uid}"), uid, "{}: it is the same one", kind.name);
    cluster.kubectl(&["delete", name, "--wait=false"]);
    until(&format!("{name} is deleted"), || {
        let left = listed(cluster, kind)?;
        if left.iter().any(|one| one == name) { Err(format!("{left:?}")) } else { Ok(()) }
    });
    cluster.kubectl(&["delete", kind.name, "-l", "described=true", "--wait=false"]);
    until(&format!("all {} are deleted", kind.name), || {
        let left = listed(cluster, kind)?;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
}
