//! Value parsers of kube-apiserver's etcd flags.

use cluster::EtcdOverride;

/// Cleans `--etcd-prefix` as Kubernetes does: one slash before each part and none at the end.
pub fn parse_prefix(text: &str) -> Result<String, String> {
    let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return Err("must not contain ..".to_owned());
    }
    Ok(parts.iter().flat_map(|part| ["/", part]).collect())
}

/// `--etcd-servers-overrides`: `group/resource#servers`, servers separated by semicolons.
pub fn parse_override(text: &str) -> Result<EtcdOverride, String> {
    const INVALID: &str =
        "must be of format: group/resource#servers, where servers are URLs, semicolon separated";
    let (name, servers) = text.split_once('#').ok_or(INVALID)?;
    let (group, resource) = name.split_once('/').ok_or(INVALID)?;
    let endpoints: Vec<String> = servers.split(';').map(str::to_owned).collect();
    let is_wrong = resource.is_empty() || resource.contains('/') || servers.contains('#');
    if is_wrong || endpoints.iter().any(String::is_empty) {
        return Err(INVALID.to_owned());
    }
    let known = api::resources::RESOURCES.iter().any(|row| row.group == group && row.resource == resource);
    if !known {
        return Err(format!("{name:?} is not a resource of this server"));
    }
    Ok(EtcdOverride { group: group.to_owned(), resource: resource.to_owned(), endpoints })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes_flags::tests::configured;
    use cluster::StoreConfig;

    #[test]
    fn etcd_prefix_is_normalized() {
        for (text, want) in
            [("/registry", "/registry"), ("a/b/", "/a/b"), ("//x//.//y", "/x/y"), ("/", ""), ("", "")]
        {
            assert_eq!(parse_prefix(text).as_deref(), Ok(want), "{text}");
        }
        assert!(parse_prefix("/a/../b").is_err());
    }

    #[test]
    fn etcd_servers_overrides_are_parsed() {
        let servers = "--etcd-servers=http://127.0.0.1:2379";
        let flag =
            "--etcd-servers-overrides=/events#http://e1:2379;http://e2:2379,apps/deployments#http://e3:2379";
        let config = configured(&[servers, "--etcd-prefix=other", flag]).expect("accepted");
        let StoreConfig::Etcd(etcd) = config.store else { panic!("another store") };
        assert_eq!(etcd.prefix, "/other");
        let of = |group: &str, resource: &str, endpoints: &[&str]| EtcdOverride {
            group: group.to_owned(),
            resource: resource.to_owned(),
            endpoints: endpoints.iter().map(|one| (*one).to_owned()).collect(),
        };
        let want = [
            of("", "events", &["http://e1:2379", "http://e2:2379"]),
            of("apps", "deployments", &["http://e3:2379"]),
        ];
        assert_eq!(etcd.overrides, want);
        for (value, want) in [
            ("events#http://e", "must be of format"),
            ("/events", "must be of format"),
            ("/events#", "must be of format"),
            ("/events#a#b", "must be of format"),
            ("/events#http://a;;", "must be of format"),
            ("/event#http://a", "is not a resource"),
        ] {
            let error =
                configured(&[servers, &format!("--etcd-servers-overrides={value}")]).expect_err(value);
            assert!(error.contains(want), "{value}: {error}");
        }
        assert!(configured(&["--etcd-prefix=x"]).is_err(), "there is no etcd");
    }
}
