//! `--controllers`: selection of loops.

use runtime::Row;

/// Unknown name in `--controllers`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown controller {0:?}")]
pub struct UnknownController(pub String);

/// Kubernetes' aliases of its controllers, other than the name without `-controller`.
const ALIASES: &[(&str, &str)] = &[
    ("attachdetach", "persistentvolume-attach-detach-controller"),
    ("bootstrapsigner", "bootstrap-signer-controller"),
    ("csrapproving", "certificatesigningrequest-approving-controller"),
    ("csrcleaner", "certificatesigningrequest-cleaner-controller"),
    ("csrsigning", "certificatesigningrequest-signing-controller"),
    ("endpoint", "endpoints-controller"),
    ("endpointslicemirroring", "endpointslice-mirroring-controller"),
    ("garbagecollector", "garbage-collector-controller"),
    ("horizontalpodautoscaling", "horizontal-pod-autoscaler-controller"),
    ("legacy-service-account-token-cleaner", "legacy-serviceaccount-token-cleaner-controller"),
    ("nodeipam", "node-ipam-controller"),
    ("nodelifecycle", "node-lifecycle-controller"),
    ("podgc", "pod-garbage-collector-controller"),
    ("pv-protection", "persistentvolume-protection-controller"),
    ("pvc-protection", "persistentvolumeclaim-protection-controller"),
    ("resource-claim-controller", "resourceclaim-controller"),
    ("root-ca-cert-publisher", "root-ca-certificate-publisher-controller"),
    ("svm", "storage-version-migrator-controller"),
    ("tokencleaner", "token-cleaner-controller"),
];

/// Controllers of Kubernetes v1.36 without counterpart, and their aliases.
const ABSENT: &[&str] = &[
    "cloud-node-lifecycle",
    "cloud-node-lifecycle-controller",
    "kube-apiserver-serving-clustertrustbundle-publisher-controller",
    "node-route-controller",
    "podcertificaterequest-cleaner-controller",
    "podgroup-protection-controller",
    "resourcepoolstatusrequest-controller",
    "route",
    "selinux-warning-controller",
    "service",
    "service-lb-controller",
    "storage-version-gc",
    "storageversion-garbage-collector-controller",
];

/// Named controllers that exist in Kubernetes only.
pub fn without_effect(patterns: &[String]) -> Vec<&str> {
    patterns.iter().map(String::as_str).filter(|name| ABSENT.contains(name)).collect()
}

/// Rows that `patterns` select: `*` is all that run by default, a name enables that loop, `-` and a name disables it.
/// Kubernetes' aliases are accepted too.
pub fn selected<'a>(rows: &'a [Row], patterns: &[String]) -> Result<Vec<&'a Row>, UnknownController> {
    for pattern in patterns.iter().filter(|pattern| *pattern != "*") {
        let name = pattern.strip_prefix('-').unwrap_or(pattern);
        if !ABSENT.contains(&name) && !rows.iter().any(|row| is_called(row, name)) {
            return Err(UnknownController(name.to_owned()));
        }
    }
    let is_wanted = |row: &&Row| {
        for pattern in patterns {
            match pattern.strip_prefix('-') {
                Some(name) if is_called(row, name) => return false,
                None if is_called(row, pattern) => return true,
                _ => {}
            }
        }
        row.by_default && patterns.iter().any(|pattern| pattern == "*")
    };
    Ok(rows.iter().filter(is_wanted).collect())
}

fn is_called(row: &Row, name: &str) -> bool {
    let own = row.descriptor.name;
    own == name || own.strip_suffix("-controller") == Some(name) || ALIASES.contains(&(name, own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use runtime::{Action, Context, Descriptor, Key, Loop, LoopError};

    struct Idle;

    #[async_trait]
    impl Loop for Idle {
        async fn reconcile(&self, _: &Key, _: &Context) -> Result<Action, LoopError> {
            Ok(Action::Done)
        }
    }

    const fn described(name: &'static str) -> Descriptor {
        Descriptor { name, resource: "", identity: "", workers: 1 }
    }

    const DESCRIPTORS: [Descriptor; 3] = [described("a-controller"), described("b"), described("optional")];

    /// All names and aliases of cmd/kube-controller-manager.
    const KUBERNETES: &str = "attachdetach bootstrap-signer-controller bootstrapsigner certificatesigningrequest-approving-controller certificatesigningrequest-cleaner-controller certificatesigningrequest-signing-controller cloud-node-lifecycle cloud-node-lifecycle-controller clusterrole-aggregation clusterrole-aggregation-controller cronjob cronjob-controller csrapproving csrcleaner csrsigning daemonset daemonset-controller deployment deployment-controller device-taint-eviction-controller disruption disruption-controller endpoint endpoints-controller endpointslice endpointslice-controller endpointslice-mirroring-controller endpointslicemirroring ephemeral-volume ephemeral-volume-controller garbage-collector-controller garbagecollector horizontal-pod-autoscaler-controller horizontalpodautoscaling job job-controller kube-apiserver-serving-clustertrustbundle-publisher-controller legacy-service-account-token-cleaner legacy-serviceaccount-token-cleaner-controller namespace namespace-controller node-ipam-controller node-lifecycle-controller node-route-controller nodeipam nodelifecycle persistentvolume-attach-detach-controller persistentvolume-binder persistentvolume-binder-controller persistentvolume-expander persistentvolume-expander-controller persistentvolume-protection-controller persistentvolumeclaim-protection-controller pod-garbage-collector-controller podcertificaterequest-cleaner-controller podgc podgroup-protection-controller pv-protection pvc-protection replicaset replicaset-controller replicationcontroller replicationcontroller-controller resource-claim-controller resourceclaim-controller resourcepoolstatusrequest-controller resourcequota resourcequota-controller root-ca-cert-publisher root-ca-certificate-publisher-controller route selinux-warning-controller service service-cidr-controller service-lb-controller serviceaccount serviceaccount-controller serviceaccount-token serviceaccount-token-controller statefulset statefulset-controller storage-version-gc storage-version-migrator-controller storageversion-garbage-collector-controller svm taint-eviction-controller token-cleaner-controller tokencleaner ttl ttl-after-finished ttl-after-finished-controller ttl-controller validatingadmissionpolicy-status-controller volumeattributesclass-protection-controller";

    #[test]
    fn names_and_aliases_of_kubernetes_are_known() {
        for name in KUBERNETES.split(' ') {
            let chosen = selected(crate::LOOPS, &[name.to_owned()]).expect(name);
            let patterns = [name.to_owned()];
            let absent = without_effect(&patterns);
            assert_eq!(chosen.len() + absent.len(), 1, "{name}");
        }
        for (alias, name) in ALIASES {
            assert!(crate::LOOPS.iter().any(|row| row.descriptor.name == *name), "{alias}: no {name}");
        }
        // The manifest of kubeadm.
        let kubeadm = ["*", "bootstrapsigner", "tokencleaner"].map(str::to_owned);
        let names: Vec<&str> =
            selected(crate::LOOPS, &kubeadm).expect("known").iter().map(|row| row.descriptor.name).collect();
        for name in ["bootstrap-signer-controller", "token-cleaner-controller", "deployment-controller"] {
            assert!(names.contains(&name), "{name}");
        }
    }

    #[test]
    fn patterns_select_loops() {
        let row = |at: usize, by_default| Row {
            descriptor: &DESCRIPTORS[at],
            build: |_: &Context| Box::new(Idle) as Box<dyn Loop>,
            by_default,
        };
        let rows = [row(0, true), row(1, true), row(2, false)];
        let cases: [(&[&str], &[&str]); 5] = [
            (&["*"], &["a-controller", "b"]),
            (&["*", "-a"], &["b"]),
            (&["b", "optional"], &["b", "optional"]),
            (&["*", "optional"], &["a-controller", "b", "optional"]),
            (&[], &[]),
        ];
        for (patterns, want) in cases {
            let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
            let chosen = selected(&rows, &patterns).expect("known");
            let names: Vec<&str> = chosen.iter().map(|row| row.descriptor.name).collect();
            assert_eq!(names, want, "{patterns:?}");
        }
        let unknown = selected(&rows, &["-nobody".to_owned()]).err();
        assert_eq!(unknown, Some(UnknownController("nobody".to_owned())));
    }
}
