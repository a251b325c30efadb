//! Name resolution of a pod: policy, configuration, host aliases, host name.

use crate::pod_spec::checks::{dns_subdomain, invalid_texts};
use crate::value::{Fields, texts};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARACTERS: usize = 2048;

pub fn validate_dns_config(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let config = spec.field("dnsConfig");
    let path = path.child("dnsConfig");
    let nameservers = config.items("nameservers");
    if spec.text("dnsPolicy") == "None" {
        if config.is_null() {
            let detail = "must provide `dnsConfig` when `dnsPolicy` is None";
            errors.push(FieldError::required(&path, detail));
            return;
        }
        if nameservers.is_empty() {
            let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.push(FieldError::required(&path.child("nameservers"), detail));
            return;
        }
    }
    if config.is_null() {
        return;
    }
    let servers_path = path.child("nameservers");
    if nameservers.len() > MAX_NAMESERVERS {
        let detail = format!("must not have more than {MAX_NAMESERVERS} nameservers");
        errors.push(FieldError::invalid(&servers_path, config.field("nameservers"), detail));
    }
    for (index, server) in texts(nameservers).enumerate() {
        errors.extend(names::valid_ip_legacy(&servers_path.index(index), server, true, &[]));
    }
    validate_searches(config, &path.child("searches"), errors);
    let options_path = path.child("options");
    for (index, option) in config.items("options").iter().enumerate() {
        if option.text("name").is_empty() {
            errors.push(FieldError::required(&options_path.index(index), "must not be empty"));
        }
    }
}

fn validate_searches(config: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let searches = config.items("searches");
    if searches.is_empty() {
        return;
    }
    if searches.len() > MAX_SEARCHES {
        let detail = format!("must not have more than {MAX_SEARCHES} search paths");
        errors.push(FieldError::invalid(path, config.field("searches"), detail));
    }
    let characters = texts(searches).map(str::len).sum::<usize>() + searches.len() - 1;
    if characters > MAX_SEARCH_CHARACTERS {
        let detail = format!(
            "must not have more than {MAX_SEARCH_CHARACTERS} characters (including spaces) in the search list"
        );
        errors.push(FieldError::invalid(path, config.field("searches"), detail));
    }
    for (index, search) in texts(searches).enumerate() {
        if search != "." {
            let search = search.strip_suffix('.').unwrap_or(search);
            let problems = names::dns_subdomain_with_underscore(search);
            invalid_texts(problems, search, &path.index(index), errors);
        }
    }
}

pub fn validate_host_aliases(aliases: &[Value], path: &Path<'_>, errors: &mut ErrorList) {
    for (index, alias) in aliases.iter().enumerate() {
        let path = path.index(index);
        errors.extend(names::valid_ip_legacy(&path.child("ip"), alias.text("ip"), true, &[]));
        let hostnames = path.child("hostnames");
        for (index, name) in texts(alias.items("hostnames")).enumerate() {
            dns_subdomain(name, &hostnames.index(index), errors);
        }
    }
}

pub fn validate_hostname_override(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let Some(name) = spec.opt_text("hostnameOverride") else { return };
    let path = path.child("hostnameOverride");
    if spec.flag("setHostnameAsFQDN") {
        errors.push(FieldError::forbidden(&path, "may not be specified when setHostnameAsFQDN is true"));
    }
    if spec.flag("hostNetwork") {
        errors.push(FieldError::forbidden(&path, "may not be specified when hostNetwork is true"));
    }
    if name.len() > 64 {
        errors.push(FieldError::too_long(&path, 64));
    }
    dns_subdomain(name, &path, errors);
}
