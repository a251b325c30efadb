//! The paths that `/` lists besides those of the API groups.

/// Health checks that `/healthz`, `/livez` and `/readyz` have in common.
pub const CHECKS: &[&str] = &[
    "autoregister-completion",
    "etcd",
    "log",
    "ping",
    "poststarthook/aggregator-reload-proxy-client-cert",
    "poststarthook/apiservice-discovery-controller",
    "poststarthook/apiservice-openapi-controller",
    "poststarthook/apiservice-openapiv3-controller",
    "poststarthook/apiservice-registration-controller",
    "poststarthook/apiservice-status-local-available-controller",
    "poststarthook/apiservice-status-remote-available-controller",
    "poststarthook/bootstrap-controller",
    "poststarthook/crd-informer-synced",
    "poststarthook/generic-apiserver-start-informers",
    "poststarthook/kube-apiserver-autoregistration",
    "poststarthook/peer-endpoint-reconciler-controller",
    "poststarthook/priority-and-fairness-config-consumer",
    "poststarthook/priority-and-fairness-config-producer",
    "poststarthook/priority-and-fairness-filter",
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
    "poststarthook/start-apiextensions-controllers",
    "poststarthook/start-apiextensions-informers",
    "poststarthook/start-apiserver-admission-initializer",
    "poststarthook/start-cluster-authentication-info-controller",
    "poststarthook/start-kube-aggregator-informers",
    "poststarthook/start-kube-apiserver-identity-lease-controller",
    "poststarthook/start-kube-apiserver-identity-lease-garbage-collector",
    "poststarthook/start-kubernetes-service-cidr-controller",
    "poststarthook/start-legacy-token-tracking-controller",
    "poststarthook/start-service-ip-repair-controllers",
    "poststarthook/start-system-namespaces-controller",
    "poststarthook/storage-object-count-tracker-hook",
    "poststarthook/storage-readiness",
];

/// Checks of `/healthz` and `/livez` only.
pub const LIVENESS_CHECKS: &[&str] = &["loopback-serving-certificate"];

/// Checks of `/readyz` only.
pub const READINESS_CHECKS: &[&str] = &["etcd-readiness", "informer-sync", "shutdown"];

const OTHERS: &[&str] = &[
    "/.well-known/openid-configuration",
    "/api",
    "/api/v1",
    "/apis",
    "/apis/",
    "/flagz",
    "/metrics",
    "/metrics/slis",
    "/openapi/v2",
    "/openapi/v3",
    "/openapi/v3/",
    "/openid/v1/jwks",
    "/statusz",
    "/version",
];

/// Every path of the listing that does not come from a group.
pub fn fixed() -> Vec<String> {
    let mut paths: Vec<String> = OTHERS.iter().map(|path| (*path).to_owned()).collect();
    for (root, own) in
        [("/healthz", LIVENESS_CHECKS), ("/livez", LIVENESS_CHECKS), ("/readyz", READINESS_CHECKS)]
    {
        paths.push(root.to_owned());
        paths.extend(CHECKS.iter().chain(own).map(|check| format!("{root}/{check}")));
    }
    paths
}
