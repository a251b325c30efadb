//! Checks of the restricted level: current hardening practice.

use super::baseline::{added_capabilities, seccomp_finding, seccomp_setters};
use super::checks::Subject;
use super::finding::{Finding, Setters, containers, plural, quoted};
use api::value::{Fields, texts};
use std::collections::BTreeSet;

const VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

pub fn privilege_escalation(pod: Subject<'_>) -> Option<Finding> {
    let may = pod
        .containers()
        .filter(|(_, context, _)| context.opt_flag("allowPrivilegeEscalation") != Some(false))
        .map(|(name, ..)| name);
    let names: Vec<&str> = may.collect();
    (!names.is_empty()).then(|| {
        let detail =
            format!("{} must set securityContext.allowPrivilegeEscalation=false", containers(&names));
        Finding::new("allowPrivilegeEscalation != false", detail)
    })
}

pub fn privilege_escalation_1_25(pod: Subject<'_>) -> Option<Finding> {
    if pod.on_windows() { None } else { privilege_escalation(pod) }
}

pub fn capabilities(pod: Subject<'_>) -> Option<Finding> {
    let keeps = pod.containers().filter(|(_, context, _)| {
        !texts(context.field("capabilities").items("drop")).any(|capability| capability == "ALL")
    });
    let keepers: Vec<&str> = keeps.map(|(name, ..)| name).collect();
    let (adders, added) = added_capabilities(pod, &["NET_BIND_SERVICE"]);
    let mut details = Vec::new();
    if !keepers.is_empty() {
        details
            .push(format!(r#"{} must set securityContext.capabilities.drop=["ALL"]"#, containers(&keepers)));
    }
    if !adders.is_empty() {
        details.push(format!(
            "{} must not include {} in securityContext.capabilities.add",
            containers(&adders),
            quoted(&added)
        ));
    }
    (!details.is_empty()).then(|| Finding::new("unrestricted capabilities", details.join("; ")))
}

pub fn capabilities_1_25(pod: Subject<'_>) -> Option<Finding> {
    if pod.on_windows() { None } else { capabilities(pod) }
}

pub fn volumes(pod: Subject<'_>) -> Option<Finding> {
    let mut names = Vec::new();
    let mut kinds = BTreeSet::new();
    for volume in pod.spec.items("volumes") {
        if VOLUMES.iter().any(|kind| volume.has(kind)) {
            continue;
        }
        names.push(volume.text("name"));
        let mut sources = volume.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
        kinds.insert(sources.find(|key| *key != "name").unwrap_or("unknown"));
    }
    (!names.is_empty()).then(|| {
        let detail = format!(
            "{} {} {} {} {}",
            plural("volume", "volumes", names.len()),
            quoted(&names),
            plural("uses", "use", names.len()),
            plural("restricted volume type", "restricted volume types", kinds.len()),
            quoted(&kinds)
        );
        Finding::new("restricted volume types", detail)
    })
}

pub fn run_as_non_root(pod: Subject<'_>) -> Option<Finding> {
    const REASON: &str = "runAsNonRoot != true";
    let of_pod = pod.security().opt_flag("runAsNonRoot");
    let mut found = Setters { pod: of_pod == Some(false), ..Setters::default() };
    let mut silent = Vec::new();
    for (name, context, _) in pod.containers() {
        match context.opt_flag("runAsNonRoot") {
            Some(false) => found.containers.push(name),
            None if of_pod != Some(true) => silent.push(name),
            _ => {}
        }
    }
    if found.any() {
        let detail = format!("{} must not set securityContext.runAsNonRoot=false", found.names());
        return Some(Finding::new(REASON, detail));
    }
    (!silent.is_empty()).then(|| {
        let detail = format!("pod or {} must set securityContext.runAsNonRoot=true", containers(&silent));
        Finding::new(REASON, detail)
    })
}

pub fn run_as_non_root_1_35(pod: Subject<'_>) -> Option<Finding> {
    if pod.has_own_users() { None } else { run_as_non_root(pod) }
}

pub fn run_as_user(pod: Subject<'_>) -> Option<Finding> {
    let found = Setters {
        pod: pod.security().opt_int("runAsUser") == Some(0),
        containers: pod
            .containers()
            .filter(|(_, context, _)| context.opt_int("runAsUser") == Some(0))
            .map(|(name, ..)| name)
            .collect(),
        ..Setters::default()
    };
    found.any().then(|| Finding::new("runAsUser=0", format!("{} must not set runAsUser=0", found.names())))
}

pub fn run_as_user_1_35(pod: Subject<'_>) -> Option<Finding> {
    if pod.has_own_users() { None } else { run_as_user(pod) }
}

pub fn seccomp_profile(pod: Subject<'_>) -> Option<Finding> {
    let found = seccomp_setters(pod);
    if found.any() {
        return Some(seccomp_finding(&found));
    }
    if pod.security().has("seccompProfile") {
        return None;
    }
    let silent: Vec<&str> = pod
        .containers()
        .filter(|(_, context, _)| !context.has("seccompProfile"))
        .map(|(name, ..)| name)
        .collect();
    (!silent.is_empty()).then(|| {
        let detail = format!(
            r#"pod or {} must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost""#,
            containers(&silent)
        );
        Finding::new("seccompProfile", detail)
    })
}

pub fn seccomp_profile_1_25(pod: Subject<'_>) -> Option<Finding> {
    if pod.on_windows() { None } else { seccomp_profile(pod) }
}
