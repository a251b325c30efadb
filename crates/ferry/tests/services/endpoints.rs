//! Endpoints: of changing pods, in several manual slices, mirrored, and of many services concurrently.

use super::cluster::{Cluster, IMAGE, ask, until};

type Pods<'a> = &'a [(String, String)];

fn addresses_of(cluster: &Cluster, service: &str) -> Result<Vec<String>, String> {
    let label = format!("kubernetes.io/service-name={service}");
    let template = "jsonpath={.items[*].endpoints[*].addresses[0]}";
    let text = cluster.try_kubectl(&["get", "endpointslices", "-l", &label, "-o", template])?;
    let mut found: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    found.sort_unstable();
    Ok(found)
}

fn has_addresses(cluster: &Cluster, service: &str, wanted: &[&str]) {
    let mut wanted: Vec<&str> = wanted.to_vec();
    wanted.sort_unstable();
    until(&format!("{service} has the endpoints {wanted:?}"), || {
        let found = addresses_of(cluster, service)?;
        if found == wanted { Ok(()) } else { Err(format!("{found:?}")) }
    });
}

fn address_of(cluster: &Cluster, pod: &str) -> String {
    cluster.kubectl(&["get", "pod", pod, "-o", "jsonpath={.status.podIP}"])
}

fn cluster_ip(cluster: &Cluster, service: &str) -> String {
    cluster.kubectl(&["get", "service", service, "-o", "jsonpath={.spec.clusterIP}"])
}

fn one(name: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: following, one: {name}}}}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{{name: main, image: "{IMAGE}"}}]
"#
    )
}

/// A service without pods has an empty list, which follows added and removed pods, and is deleted with the service.
pub fn follow_pods(cluster: &Cluster, _: Pods<'_>) {
    cluster.apply(
        r#"
apiVersion: v1
kind: Service
metadata: {name: following}
spec: {selector: {app: following}, ports: [{port: 80, targetPort: 8080}]}
"#,
    );
    let label = "kubernetes.io/service-name=following";
    let listed = |what: &[&str]| cluster.try_kubectl(&[&["get", "-o", "name"], what].concat());
    until("a list without endpoints", || {
        let (slices, endpoints) =
            (listed(&["endpointslices", "-l", label])?, listed(&["endpoints", "following"])?);
        if slices.is_empty() || endpoints.is_empty() { Err(format!("{slices} {endpoints}")) } else { Ok(()) }
    });
    has_addresses(cluster, "following", &[]);
    cluster.apply(&one("following-1"));
    cluster.wait_for_pods("following", 1);
    let first = address_of(cluster, "following-1");
    has_addresses(cluster, "following", &[&first]);
    cluster.apply(&one("following-2"));
    cluster.wait_for_pods("following", 2);
    let second = address_of(cluster, "following-2");
    has_addresses(cluster, "following", &[&first, &second]);
    until("the older kind has both, too", || {
        let template = "jsonpath={.subsets[*].addresses[*].ip}";
        let text = cluster.try_kubectl(&["get", "endpoints", "following", "-o", template])?;
        if text.contains(&first) && text.contains(&second) { Ok(()) } else { Err(text) }
    });
    cluster.kubectl(&["delete", "pod", "following-1"]);
    has_addresses(cluster, "following", &[&second]);
    cluster.kubectl(&["delete", "pod", "following-2"]);
    has_addresses(cluster, "following", &[]);
    cluster.kubectl(&["delete", "service", "following"]);
    until("the lists are deleted with the service", || {
        let left = [
            listed(&["endpointslices", "-l", label])?,
            listed(&["endpoints", "--ignore-not-found", "following"])?,
        ];
        if left.iter().all(String::is_empty) { Ok(()) } else { Err(format!("{left:?}")) }
    });
}

fn slice(name: &str, service: &str, port_name: &str, port: u16, ip: &str) -> String {
    format!(
        r#"
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}, labels: {{kubernetes.io/service-name: {service}, endpointslice.kubernetes.io/managed-by: a-person}}}}
addressType: IPv4
ports: [{{name: "{port_name}", port: {port}, protocol: TCP}}]
endpoints: [{{addresses: ["{ip}"]}}]
"#
    )
}

/// Manual endpoints in two slices: two addresses of one port, and two ports of one address.
pub fn in_several_slices(cluster: &Cluster, pods: Pods<'_>) {
    let ips: Vec<String> = pods.iter().map(|(pod, _)| address_of(cluster, pod)).collect();
    cluster.apply(&format!(
        "{}{}{}{}{}",
        r#"
apiVersion: v1
kind: Service
metadata: {name: two-addresses}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: two-ports}
spec: {ports: [{name: one, port: 80}, {name: two, port: 81}]}
"#,
        slice("two-addresses-1", "two-addresses", "http", 8080, &ips[0]),
        slice("two-addresses-2", "two-addresses", "http", 8080, &ips[1]),
        slice("two-ports-1", "two-ports", "one", 8080, &ips[0]),
        slice("two-ports-2", "two-ports", "two", 8080, &ips[1]),
    ));
    let to = format!("{}:80", cluster_ip(cluster, "two-addresses"));
    until("both addresses answer", || {
        let seen: std::collections::BTreeSet<String> = (0..30).filter_map(|_| ask(&to).ok()).collect();
        let wanted = [&pods[0].0, &pods[1].0];
        if seen.len() == 2 && wanted.iter().all(|pod| seen.contains(*pod)) {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        }
    });
    let ip = cluster_ip(cluster, "two-ports");
    for (port, (pod, _)) in [80, 81].into_iter().zip(pods) {
        until(&format!("port {port} leads to {pod}"), || {
            let answer = ask(&format!("{ip}:{port}"))?;
            if answer == *pod { Ok(()) } else { Err(answer) }
        });
    }
    cluster.kubectl(&["delete", "service", "two-addresses", "two-ports"]);
    cluster.kubectl(&["delete", "endpointslices", "-l", "endpointslice.kubernetes.io/managed-by=a-person"]);
}

/// Manual Endpoints objects are mirrored to slices on creation, update and deletion.
pub fn are_mirrored(cluster: &Cluster, pods: Pods<'_>) {
    let endpoints = |ip: &str| {
        format!(
            r#"
apiVersion: v1
kind: Service
metadata: {{name: mirrored}}
spec: {{ports: [{{port: 80, targetPort: 8080}}]}}
---
apiVersion: v1
kind: Endpoints
metadata: {{name: mirrored}}
subsets: [{{addresses: [{{ip: {ip}}}], ports: [{{port: 8080}}]}}]
"#
        )
    };
    for (pod, _) in &pods[..2] {
        let ip = address_of(cluster, pod);
        cluster.apply(&endpoints(&ip));
        has_addresses(cluster, "mirrored", &[&ip]);
        let to = format!("{}:80", cluster_ip(cluster, "mirrored"));
        until(&format!("the service leads to {pod}"), || {
            let answer = ask(&to)?;
            if answer == *pod { Ok(()) } else { Err(answer) }
        });
    }
    cluster.kubectl(&["delete", "endpoints", "mirrored"]);
    has_addresses(cluster, "mirrored", &[]);
    cluster.kubectl(&["delete", "service", "mirrored"]);
}

/// Many services for the same pods all get their endpoints; latency is measured elsewhere.
pub fn of_many_services(cluster: &Cluster, pods: Pods<'_>) {
    const COUNT: usize = 30;
    let service = |number: usize| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: many-{number}, labels: {{many: \"true\"}}}}\nspec: {{selector: {{app: \
             web}}, ports: [{{port: 80, targetPort: 8080}}]}}\n"
        )
    };
    cluster.apply(&(0..COUNT).map(service).collect::<String>());
    until("every service has every pod", || {
        let template = "jsonpath={range .items[*]}{.metadata.labels.kubernetes\\.io/service-name} {.endpoints[*].addresses[0]}{\"\\n\"}{end}";
        let text = cluster.try_kubectl(&["get", "endpointslices", "-o", template])?;
        let full =
            |line: &&str| line.starts_with("many-") && line.split_whitespace().count() == pods.len() + 1;
        let count = text.lines().filter(full).count();
        if count == COUNT { Ok(()) } else { Err(format!("{count} of {COUNT}")) }
    });
    cluster.kubectl(&["delete", "services", "-l", "many=true"]);
}
