//! DNS configuration of a pod: the content of its `resolv.conf`.

use cri::v1::DNSConfig;
use objects::core::v1::Pod;

/// Resolver configuration of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostDns {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

/// DNS service of the cluster.
#[derive(Clone, Debug, Default)]
pub struct ClusterDns {
    pub servers: Vec<String>,
    pub domain: String,
}

/// Limits of `resolv.conf`.
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARACTERS: usize = 2048;

/// Parses a `resolv.conf`.
#[must_use]
pub fn parse(text: &str) -> HostDns {
    let mut host = HostDns::default();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or("").split_whitespace();
        match words.next() {
            Some("nameserver") => host.servers.extend(words.next().map(str::to_owned)),
            Some("search") => {
                host.searches = words.map(|word| word.trim_end_matches('.').to_owned()).collect();
                host.searches.retain(|search| !search.is_empty());
            }
            Some("options") => host.options = words.map(str::to_owned).collect(),
            _ => {}
        }
    }
    host
}

/// DNS configuration that the runtime writes for a pod.
#[must_use]
pub fn config(pod: &Pod, host: &HostDns, cluster: &ClusterDns) -> DNSConfig {
    let spec = pod.spec.as_ref();
    let policy = spec.and_then(|spec| spec.dns_policy.as_deref()).unwrap_or("ClusterFirst");
    let host_network = spec.and_then(|spec| spec.host_network).unwrap_or(false);
    let cluster_first = match policy {
        "ClusterFirstWithHostNet" => true,
        "ClusterFirst" => !host_network,
        _ => false,
    } && !cluster.servers.is_empty();
    let mut dns = if policy == "None" {
        DNSConfig::default()
    } else if cluster_first {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let domain = &cluster.domain;
        let own = [format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.clone()];
        let searches = own.into_iter().chain(host.searches.iter().cloned()).collect();
        DNSConfig {
            servers: cluster.servers.clone(),
            searches: unique(searches),
            options: vec!["ndots:5".to_owned()],
        }
    } else {
        DNSConfig {
            servers: host.servers.clone(),
            searches: host.searches.clone(),
            options: host.options.clone(),
        }
    };
    if let Some(extra) = spec.and_then(|spec| spec.dns_config.as_ref()) {
        dns.servers.extend(extra.nameservers.iter().flatten().cloned());
        dns.servers = unique(dns.servers);
        dns.searches.extend(extra.searches.iter().flatten().cloned());
        dns.searches = unique(dns.searches);
        for option in extra.options.iter().flatten() {
            let name = option.name.clone().unwrap_or_default();
            dns.options.retain(|old| old.split(':').next() != Some(name.as_str()));
            let value = option.value.as_deref().filter(|value| !value.is_empty());
            dns.options.push(value.map_or_else(|| name.clone(), |value| format!("{name}:{value}")));
        }
    }
    dns.servers.truncate(MAX_SERVERS);
    dns.searches.truncate(MAX_SEARCHES);
    while dns.searches.iter().map(|search| search.len() + 1).sum::<usize>() > MAX_SEARCH_CHARACTERS + 1 {
        dns.searches.pop();
    }
    dns
}

fn unique(list: Vec<String>) -> Vec<String> {
    let mut out: Vec<String> = Vec::with_capacity(list.len());
    for item in list {
        if !out.contains(&item) {
            out.push(item);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use objects::core::v1::{PodDNSConfig, PodDNSConfigOption, PodSpec};

    fn pod(policy: &str, host_network: bool, extra: Option<PodDNSConfig>) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("ns".to_owned());
        pod.spec = Some(PodSpec {
            dns_policy: Some(policy.to_owned()),
            host_network: Some(host_network),
            dns_config: extra,
            ..PodSpec::default()
        });
        pod
    }

    #[test]
    fn dns_policies_build_resolv_conf() {
        let host = parse("# x\nnameserver 192.0.2.53\nsearch corp.example. b\noptions timeout:1\n");
        let cluster =
            ClusterDns { servers: vec!["10.0.0.10".to_owned()], domain: "cluster.local".to_owned() };
        let dns = config(&pod("ClusterFirst", false, None), &host, &cluster);
        assert_eq!(dns.servers, ["10.0.0.10"]);
        assert_eq!(
            dns.searches,
            ["ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp.example", "b"]
        );
        assert_eq!(dns.options, ["ndots:5"]);
        for (policy, host_network) in [("Default", false), ("ClusterFirst", true)] {
            let dns = config(&pod(policy, host_network, None), &host, &cluster);
            assert_eq!((dns.servers, dns.options), (host.servers.clone(), host.options.clone()), "{policy}");
        }
        let dns = config(&pod("ClusterFirstWithHostNet", true, None), &host, &cluster);
        assert_eq!(dns.servers, ["10.0.0.10"]);
        let extra = PodDNSConfig {
            nameservers: Some(vec!["1.2.3.4".to_owned()]),
            searches: Some(vec!["s".to_owned()]),
            options: Some(vec![PodDNSConfigOption {
                name: Some("ndots".to_owned()),
                value: Some("2".to_owned()),
            }]),
        };
        let dns = config(&pod("None", false, Some(extra.clone())), &host, &cluster);
        assert_eq!(
            (dns.servers, dns.searches, dns.options),
            (vec!["1.2.3.4".to_owned()], vec!["s".to_owned()], vec!["ndots:2".to_owned()])
        );
        let dns = config(&pod("ClusterFirst", false, Some(extra)), &host, &cluster);
        assert_eq!(dns.options, ["ndots:2"]);
        assert_eq!(dns.servers, ["10.0.0.10", "1.2.3.4"]);
    }
}
