//! The paths listed at `/` besides those of the API groups.

/// A health check and the probes it belongs to.
#[derive(Clone, Copy, Debug)]
pub struct HealthCheck {
    pub name: &'static str,
    /// Part of `/healthz` and `/livez`.
    pub liveness: bool,
    /// Part of `/readyz`.
    pub readiness: bool,
}

const fn both(name: &'static str) -> HealthCheck {
    HealthCheck { name, liveness: true, readiness: true }
}

const fn liveness(name: &'static str) -> HealthCheck {
    HealthCheck { name, liveness: true, readiness: false }
}

const fn readiness(name: &'static str) -> HealthCheck {
    HealthCheck { name, liveness: false, readiness: true }
}

/// Every health check, in the order of verbose responses.
pub const CHECKS: &[HealthCheck] = &[
    both("ping"),
    both("log"),
    liveness("loopback-serving-certificate"),
    both("etcd"),
    readiness("etcd-readiness"),
    readiness("informer-sync"),
    both("poststarthook/start-apiserver-admission-initializer"),
    both("poststarthook/generic-apiserver-start-informers"),
    both("poststarthook/priority-and-fairness-config-consumer"),
    both("poststarthook/priority-and-fairness-filter"),
    both("poststarthook/storage-object-count-tracker-hook"),
    both("poststarthook/start-apiextensions-informers"),
    both("poststarthook/start-apiextensions-controllers"),
    both("poststarthook/crd-informer-synced"),
    both("poststarthook/start-system-namespaces-controller"),
    both("poststarthook/peer-endpoint-reconciler-controller"),
    both("poststarthook/start-cluster-authentication-info-controller"),
    both("poststarthook/start-kube-apiserver-identity-lease-controller"),
    both("poststarthook/start-kube-apiserver-identity-lease-garbage-collector"),
    both("poststarthook/storage-readiness"),
    both("poststarthook/start-legacy-token-tracking-controller"),
    both("poststarthook/start-service-ip-repair-controllers"),
    both("poststarthook/rbac/bootstrap-roles"),
    both("poststarthook/scheduling/bootstrap-system-priority-classes"),
    both("poststarthook/priority-and-fairness-config-producer"),
    both("poststarthook/bootstrap-controller"),
    both("poststarthook/start-kubernetes-service-cidr-controller"),
    both("poststarthook/aggregator-reload-proxy-client-cert"),
    both("poststarthook/start-kube-aggregator-informers"),
    both("poststarthook/apiservice-status-local-available-controller"),
    both("poststarthook/apiservice-status-remote-available-controller"),
    both("poststarthook/apiservice-registration-controller"),
    both("poststarthook/apiservice-discovery-controller"),
    both("poststarthook/kube-apiserver-autoregistration"),
    both("autoregister-completion"),
    both("poststarthook/apiservice-openapi-controller"),
    both("poststarthook/apiservice-openapiv3-controller"),
    readiness("shutdown"),
];

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
    for (root, belongs) in [
        ("/healthz", (|check| check.liveness) as fn(&HealthCheck) -> bool),
        ("/livez", |check| check.liveness),
        ("/readyz", |check| check.readiness),
    ] {
        paths.push(root.to_owned());
        paths.extend(
            CHECKS.iter().filter(|check| belongs(check)).map(|check| format!("{root}/{}", check.name)),
        );
    }
    paths
}
