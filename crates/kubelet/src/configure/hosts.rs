//! Host name of a pod and its `/etc/hosts`.

use objects::core::v1::{HostAlias, Pod, PodSpec};

/// Maximum length of a Linux host name.
const MAX_HOSTNAME: usize = 63;

/// Returns the short host name, and the domain if the pod has one.
#[must_use]
pub fn hostname_and_domain(pod: &Pod, cluster_domain: &str) -> (String, String) {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    if let Some(name) = spec.hostname_override.as_deref().filter(|name| !name.is_empty()) {
        return (name.to_owned(), String::new());
    }
    let set = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let name = set(&spec.hostname).unwrap_or_else(|| truncated(pod.metadata.name.as_deref().unwrap_or("")));
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
    let domain = set(&spec.subdomain)
        .map(|subdomain| format!("{subdomain}.{namespace}.svc.{cluster_domain}"))
        .unwrap_or_default();
    (name, domain)
}

/// Host name passed to the kernel: the short name, or the FQDN with `setHostnameAsFQDN`.
#[must_use]
pub fn kernel_hostname(pod: &Pod, cluster_domain: &str) -> String {
    let (name, domain) = hostname_and_domain(pod, cluster_domain);
    let full = pod.spec.as_ref().and_then(|spec| spec.set_hostname_as_fqdn).unwrap_or(false);
    if full && !domain.is_empty() { format!("{name}.{domain}") } else { name }
}

fn truncated(name: &str) -> String {
    let end = name.char_indices().nth(MAX_HOSTNAME).map_or(name.len(), |(at, _)| at);
    name[..end].trim_end_matches(['-', '.']).to_owned()
}

/// Hosts file of a pod with its own network namespace.
#[must_use]
pub fn own_network(ips: &[String], name: &str, domain: &str, aliases: &[HostAlias]) -> String {
    let mut out = String::from(
        "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n",
    );
    for ip in ips {
        if domain.is_empty() {
            out.push_str(&format!("{ip}\t{name}\n"));
        } else {
            out.push_str(&format!("{ip}\t{name}.{domain}\t{name}\n"));
        }
    }
    append_aliases(&mut out, aliases);
    out
}

/// Hosts file of a pod in the host network.
#[must_use]
pub fn host_network(of_node: &str, aliases: &[HostAlias]) -> String {
    let mut out = format!("# Kubernetes-managed hosts file (host network).\n{of_node}");
    append_aliases(&mut out, aliases);
    out
}

fn append_aliases(out: &mut String, aliases: &[HostAlias]) {
    if aliases.is_empty() {
        return;
    }
    out.push_str("\n# Entries added by HostAliases.\n");
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        out.push_str(&format!("{}\t{names}\n", alias.ip));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostname_and_fqdn_of_pods() {
        let pod = |name: &str, hostname: Option<&str>, subdomain: Option<&str>, full| {
            let mut pod = Pod::default();
            pod.metadata.name = Some(name.to_owned());
            pod.metadata.namespace = Some("ns".to_owned());
            pod.spec = Some(PodSpec {
                hostname: hostname.map(str::to_owned),
                subdomain: subdomain.map(str::to_owned),
                set_hostname_as_fqdn: Some(full),
                ..PodSpec::default()
            });
            pod
        };
        let long = format!("{}-b", "a".repeat(62));
        for (pod, want) in [
            (pod("web-1", None, None, false), "web-1"),
            (pod("web-1", Some("h"), Some("sub"), false), "h"),
            (pod("web-1", Some("h"), Some("sub"), true), "h.sub.ns.svc.cluster.local"),
            (pod(&long, None, None, false), &"a".repeat(62)),
        ] {
            assert_eq!(kernel_hostname(&pod, "cluster.local"), want);
        }
    }

    #[test]
    fn hosts_file_content() {
        let alias =
            HostAlias { ip: "1.2.3.4".to_owned(), hostnames: Some(vec!["foo".to_owned(), "bar".to_owned()]) };
        let text = own_network(&["10.0.0.1".to_owned()], "h", "d", std::slice::from_ref(&alias));
        assert!(
            text.ends_with("10.0.0.1\th.d\th\n\n# Entries added by HostAliases.\n1.2.3.4\tfoo\tbar\n"),
            "{text}"
        );
        assert!(host_network("x\n", &[]).ends_with("(host network).\nx\n"));
    }
}
