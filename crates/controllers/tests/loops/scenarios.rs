//! What every smaller loop is documented to do, as a table of steps: what somebody does, and what must come of it.
//!
//! The table is gone through twice. Once with all loops inside the server, each with its own rights. Once with two
//! managers at a time, each with caches that know nothing of what the other writes, while one of the two is killed and
//! started anew all the time.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use base::clock::Clock;
use base::tasks::TaskGroup;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cluster::Components;
use serde_json::{Value, json};
use testkit::{Server, eventually};

use crate::steps::{CORE, PATIENCE, Scenario, create, delete, gone, is, merge, none, run, some};

const LOOPS: &str =
    "*,bootstrap-signer-controller,token-cleaner-controller,storage-version-migrator-controller";
const PODS_OF_CLUSTER: &str = "10.200.0.0/16";

fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({"metadata": {"name": name, "labels": {"app": name}}, "spec": {
        "containers": [{"name": "c", "image": "image:1"}], "terminationGracePeriodSeconds": 0,
    }});
    for (key, value) in spec.as_object().into_iter().flatten() {
        pod["spec"][key] = value.clone();
    }
    pod
}

fn claim(name: &str, class: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": class,
        "resources": {"requests": {"storage": "1Gi"}},
    }})
}

fn volume(name: &str, class: &str, source: Value) -> Value {
    let mut volume = json!({"metadata": {"name": name}, "spec": {
        "capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": class,
    }});
    for (key, value) in source.as_object().into_iter().flatten() {
        volume["spec"][key] = value.clone();
    }
    volume
}

/// A request for a certificate, in the form the API has it.
pub fn signing_request(user: &str, organization: &str, signer: &str) -> Result<Value> {
    let key = rcgen::KeyPair::generate()?;
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
    params.distinguished_name.push(rcgen::DnType::CommonName, user);
    let text = params.serialize_request(&key)?.pem()?;
    Ok(json!({"metadata": {"name": user.replace(':', "-")}, "spec": {
        "request": STANDARD.encode(text), "signerName": signer,
        "usages": ["digital signature", "client auth"],
    }}))
}

const VOLUMES: &str = "/api/v1/persistentvolumes";
const NODES: &str = "/api/v1/nodes";
const CSRS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";
const CLASSES: &str = "/apis/storage.k8s.io/v1/volumeattributesclasses";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";

/// An autoscaler of the deployment `web`.
fn autoscaler(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"maxReplicas": 4,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "metrics": [{"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": 50}}}]}})
}

fn scenarios() -> Result<Vec<Scenario>> {
    let at = |ns: &str, rest: &str| format!("{CORE}/{ns}/{rest}");
    let mut all = vec![
        Scenario {
            name: "quota",
            steps: vec![
                create(
                    &at("quota", "resourcequotas"),
                    json!({"metadata": {"name": "q"},
                    "spec": {"hard": {"pods": "3", "configmaps": "10"}}}),
                ),
                is(&at("quota", "resourcequotas/q"), "/status/used/pods", json!("0")),
                create(&at("quota", "pods"), pod("a", json!({}))),
                create(&at("quota", "pods"), pod("b", json!({}))),
                is(&at("quota", "resourcequotas/q"), "/status/used/pods", json!("2")),
                delete(&at("quota", "pods/a")),
                is(&at("quota", "resourcequotas/q"), "/status/used/pods", json!("1")),
                // The one that holds the cluster's authority is in every namespace.
                is(&at("quota", "resourcequotas/q"), "/status/used/configmaps", json!("1")),
            ],
        },
        Scenario {
            name: "volumes",
            steps: vec![
                create(VOLUMES, volume("disk", "manual", json!({"hostPath": {"path": "/tmp/x"}}))),
                is(&format!("{VOLUMES}/disk"), "/status/phase", json!("Available")),
                create(&at("volumes", "persistentvolumeclaims"), claim("data", "manual")),
                is(&at("volumes", "persistentvolumeclaims/data"), "/status/phase", json!("Bound")),
                is(&format!("{VOLUMES}/disk"), "/spec/claimRef/name", json!("data")),
                is(&format!("{VOLUMES}/disk"), "/status/phase", json!("Bound")),
                // In use, neither goes.
                create(NODES, json!({"metadata": {"name": "volume-node"}})),
                create(
                    &at("volumes", "pods"),
                    pod(
                        "user",
                        json!({"nodeName": "volume-node", "volumes": [
                    {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}),
                    ),
                ),
                delete(&at("volumes", "persistentvolumeclaims/data")),
                delete(&format!("{VOLUMES}/disk")),
                some(&at("volumes", "persistentvolumeclaims/data"), "/metadata/deletionTimestamp"),
                some(&format!("{VOLUMES}/disk"), "/metadata/deletionTimestamp"),
                delete(&at("volumes", "pods/user")),
                gone(&at("volumes", "persistentvolumeclaims/data")),
                gone(&format!("{VOLUMES}/disk")),
            ],
        },
        Scenario {
            name: "classes",
            steps: vec![
                create(
                    CLASSES,
                    json!({"metadata": {"name": "fast"}, "driverName": "disks.example.com",
                    "parameters": {"iops": "100"}}),
                ),
                is(
                    &format!("{CLASSES}/fast"),
                    "/metadata/finalizers/0",
                    json!("kubernetes.io/vac-protection"),
                ),
                create(
                    &at("classes", "persistentvolumeclaims"),
                    json!({"metadata": {"name": "data"}, "spec": {
                    "accessModes": ["ReadWriteOnce"], "storageClassName": "none", "volumeAttributesClassName": "fast",
                    "resources": {"requests": {"storage": "1Gi"}}}}),
                ),
                is(
                    &at("classes", "persistentvolumeclaims/data"),
                    "/spec/volumeAttributesClassName",
                    json!("fast"),
                ),
                // In use, it does not go.
                delete(&format!("{CLASSES}/fast")),
                some(&format!("{CLASSES}/fast"), "/metadata/deletionTimestamp"),
                delete(&at("classes", "persistentvolumeclaims/data")),
                gone(&format!("{CLASSES}/fast")),
            ],
        },
        Scenario {
            name: "ephemeral",
            steps: vec![
                create(
                    &at("ephemeral", "pods"),
                    pod(
                        "p",
                        json!({"volumes": [{"name": "scratch", "ephemeral":
                    {"volumeClaimTemplate": {"spec": claim("x", "none")["spec"]}}}]}),
                    ),
                ),
                is(
                    &at("ephemeral", "persistentvolumeclaims/p-scratch"),
                    "/metadata/ownerReferences/0/name",
                    json!("p"),
                ),
                delete(&at("ephemeral", "pods/p")),
                gone(&at("ephemeral", "persistentvolumeclaims/p-scratch")),
            ],
        },
        Scenario {
            name: "attach",
            steps: vec![
                create(
                    "/apis/storage.k8s.io/v1/csidrivers",
                    json!({"metadata": {"name": "disks.example.com"},
                    "spec": {"attachRequired": true}}),
                ),
                create(NODES, json!({"metadata": {"name": "attach-node"}})),
                create(
                    VOLUMES,
                    volume(
                        "remote",
                        "remote",
                        json!({
                    "csi": {"driver": "disks.example.com", "volumeHandle": "h1"}}),
                    ),
                ),
                create(&at("attach", "persistentvolumeclaims"), claim("data", "remote")),
                is(&at("attach", "persistentvolumeclaims/data"), "/status/phase", json!("Bound")),
                create(
                    &at("attach", "pods"),
                    pod(
                        "p",
                        json!({"nodeName": "attach-node", "volumes": [
                    {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}),
                    ),
                ),
                is(
                    "/apis/storage.k8s.io/v1/volumeattachments",
                    "/items/0/spec/nodeName",
                    json!("attach-node"),
                ),
                is(
                    "/apis/storage.k8s.io/v1/volumeattachments",
                    "/items/0/spec/source/persistentVolumeName",
                    json!("remote"),
                ),
                delete(&at("attach", "pods/p")),
                none("/apis/storage.k8s.io/v1/volumeattachments", "/items/0"),
            ],
        },
        Scenario {
            name: "autoscaling",
            steps: vec![
                create(
                    "/apis/apps/v1/namespaces/autoscaling/deployments",
                    json!({"metadata": {"name": "web"}, "spec": {
                    "replicas": 1, "selector": {"matchLabels": {"app": "web"}},
                    "template": {"metadata": {"labels": {"app": "web"}}, "spec": pod("x", json!({}))["spec"]}}}),
                ),
                create(
                    "/apis/autoscaling/v2/namespaces/autoscaling/horizontalpodautoscalers",
                    json!({
                    "metadata": {"name": "web"}, "spec": {"minReplicas": 2, "maxReplicas": 4,
                    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                    "metrics": [{"type": "Resource", "resource": {"name": "cpu",
                        "target": {"type": "Utilization", "averageUtilization": 50}}}]}}),
                ),
                is("/apis/apps/v1/namespaces/autoscaling/deployments/web", "/spec/replicas", json!(2)),
                merge(
                    "/apis/apps/v1/namespaces/autoscaling/deployments/web",
                    json!({"spec": {"replicas": 9}}),
                ),
                is("/apis/apps/v1/namespaces/autoscaling/deployments/web", "/spec/replicas", json!(4)),
            ],
        },
        Scenario {
            name: "ambiguous",
            steps: vec![
                create(
                    "/apis/apps/v1/namespaces/ambiguous/deployments",
                    json!({"metadata": {"name": "web"}, "spec": {
                    "replicas": 2, "selector": {"matchLabels": {"app": "web"}},
                    "template": {"metadata": {"labels": {"app": "web"}}, "spec": pod("x", json!({}))["spec"]}}}),
                ),
                some(&at("ambiguous", "pods"), "/items/1"),
                create("/apis/autoscaling/v2/namespaces/ambiguous/horizontalpodautoscalers", autoscaler("a")),
                is(
                    "/apis/autoscaling/v2/namespaces/ambiguous/horizontalpodautoscalers/a",
                    "/status/conditions/1/reason",
                    json!("FailedGetResourceMetric"),
                ),
                create("/apis/autoscaling/v2/namespaces/ambiguous/horizontalpodautoscalers", autoscaler("b")),
                is(
                    "/apis/autoscaling/v2/namespaces/ambiguous/horizontalpodautoscalers/b",
                    "/status/conditions/1/reason",
                    json!("AmbiguousSelector"),
                ),
                is(
                    "/apis/autoscaling/v2/namespaces/ambiguous/horizontalpodautoscalers/b",
                    "/status/conditions/1/message",
                    json!(
                        "pods by selector app=web are controlled by multiple HPAs: [ambiguous/a ambiguous/b]"
                    ),
                ),
            ],
        },
        Scenario {
            name: "claims",
            steps: vec![
                create(
                    "/apis/resource.k8s.io/v1/namespaces/claims/resourceclaimtemplates",
                    json!({
                    "metadata": {"name": "gpu"}, "spec": {"spec": {"devices": {"requests": [
                        {"name": "r", "exactly": {"deviceClassName": "gpu.example.com"}}]}}}}),
                ),
                create(
                    &at("claims", "pods"),
                    pod(
                        "p",
                        json!({"resourceClaims": [
                    {"name": "gpu", "resourceClaimTemplateName": "gpu"}]}),
                    ),
                ),
                some(&at("claims", "pods/p"), "/status/resourceClaimStatuses/0/resourceClaimName"),
                is(
                    "/apis/resource.k8s.io/v1/namespaces/claims/resourceclaims",
                    "/items/0/metadata/ownerReferences/0/name",
                    json!("p"),
                ),
                delete(&at("claims", "pods/p")),
                none("/apis/resource.k8s.io/v1/namespaces/claims/resourceclaims", "/items/0"),
            ],
        },
        Scenario {
            name: "mirroring",
            steps: vec![
                create(
                    &at("mirroring", "services"),
                    json!({"metadata": {"name": "outside"}, "spec": {"ports": [{"port": 80}]}}),
                ),
                create(
                    &at("mirroring", "endpoints"),
                    json!({"metadata": {"name": "outside"}, "subsets": [
                    {"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 8080}]}]}),
                ),
                is(
                    "/apis/discovery.k8s.io/v1/namespaces/mirroring/endpointslices",
                    "/items/0/endpoints/0/addresses/0",
                    json!("192.0.2.1"),
                ),
                merge(
                    &at("mirroring", "endpoints/outside"),
                    json!({"subsets": [
                    {"addresses": [{"ip": "192.0.2.2"}], "ports": [{"port": 8080}]}]}),
                ),
                is(
                    "/apis/discovery.k8s.io/v1/namespaces/mirroring/endpointslices",
                    "/items/0/endpoints/0/addresses/0",
                    json!("192.0.2.2"),
                ),
                delete(&at("mirroring", "endpoints/outside")),
                none("/apis/discovery.k8s.io/v1/namespaces/mirroring/endpointslices", "/items/0"),
            ],
        },
        Scenario {
            name: "addresses",
            steps: vec![
                create(NODES, json!({"metadata": {"name": "address-node"}})),
                some(&format!("{NODES}/address-node"), "/spec/podCIDR"),
                is(
                    &format!("{NODES}/address-node"),
                    "/metadata/annotations/node.alpha.kubernetes.io~1ttl",
                    json!("0"),
                ),
                create(CIDRS, json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.97.0.0/24"]}})),
                is(&format!("{CIDRS}/more"), "/status/conditions/0/status", json!("True")),
                delete(&format!("{CIDRS}/more")),
                gone(&format!("{CIDRS}/more")),
            ],
        },
        Scenario {
            name: "accounts",
            steps: vec![
                some(&at("accounts", "serviceaccounts/default"), "/metadata/uid"),
                some(&at("accounts", "configmaps/kube-root-ca.crt"), "/data/ca.crt"),
                delete(&at("accounts", "configmaps/kube-root-ca.crt")),
                some(&at("accounts", "configmaps/kube-root-ca.crt"), "/data/ca.crt"),
                create(&at("accounts", "serviceaccounts"), json!({"metadata": {"name": "robot"}})),
                create(
                    &at("accounts", "secrets"),
                    json!({"metadata": {"name": "token", "annotations":
                    {"kubernetes.io/service-account.name": "robot"}}, "type": "kubernetes.io/service-account-token"}),
                ),
                some(&at("accounts", "secrets/token"), "/data/token"),
                delete(&at("accounts", "serviceaccounts/robot")),
                gone(&at("accounts", "secrets/token")),
            ],
        },
        Scenario {
            name: "bootstrap",
            steps: vec![
                create(
                    &at("kube-public", "configmaps"),
                    json!({"metadata": {"name": "cluster-info"}, "data": {"kubeconfig": "k"}}),
                ),
                create(
                    &at("kube-system", "secrets"),
                    json!({"metadata": {"name": "bootstrap-token-abcdef"},
                    "type": "bootstrap.kubernetes.io/token", "stringData": {"token-id": "abcdef",
                    "token-secret": "0123456789abcdef", "usage-bootstrap-signing": "true"}}),
                ),
                some(&at("kube-public", "configmaps/cluster-info"), "/data/jws-kubeconfig-abcdef"),
                create(
                    &at("kube-system", "secrets"),
                    json!({"metadata": {"name": "bootstrap-token-fedcba"},
                    "type": "bootstrap.kubernetes.io/token", "stringData": {"token-id": "fedcba",
                    "token-secret": "0123456789abcdef", "expiration": "2020-01-01T00:00:00Z"}}),
                ),
                gone(&at("kube-system", "secrets/bootstrap-token-fedcba")),
                delete(&at("kube-system", "secrets/bootstrap-token-abcdef")),
                none(&at("kube-public", "configmaps/cluster-info"), "/data/jws-kubeconfig-abcdef"),
            ],
        },
        Scenario {
            name: "policies",
            steps: vec![
                create(
                    POLICIES,
                    json!({"metadata": {"name": "p"}, "spec": {
                    "matchConstraints": {"resourceRules": [{"apiGroups": ["apps"], "apiVersions": ["v1"],
                        "operations": ["CREATE"], "resources": ["deployments"]}]},
                    "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
                    "variables": [{"name": "limits", "expression":
                        "object.spec.template.spec.containers.map(c, c.resources.limits)"}],
                    "validations": [
                        {"expression": "object.spec.replicas > '1'",
                            "messageExpression": "'wants more, got ' + object.spec.replicas"},
                        {"expression": "object.spec.replicas < int(params.data.most)"},
                        {"expression": "object.metadata.namespace == params.metadata.namespace && params.spec"},
                        {"expression": "variables.limits.all(l, quantity(l.cpu).isLessThan(quantity('1')))"}]}}),
                ),
                is(
                    &format!("{POLICIES}/p"),
                    "/status",
                    json!({"observedGeneration": 1, "typeChecking": {"expressionWarnings": [
                    {"fieldRef": "spec.validations[0].expression", "warning":
                        "apps/v1, Kind=Deployment: ERROR: <input>:1:22: found no matching overload for '_>_' applied \
                        to '(int, string)'\n | object.spec.replicas > '1'\n | .....................^\n"},
                    {"fieldRef": "spec.validations[0].messageExpression", "warning":
                        "apps/v1, Kind=Deployment: ERROR: <input>:1:20: found no matching overload for '_+_' applied \
                        to '(string, int)'\n | 'wants more, got ' + object.spec.replicas\n | ...................^\n"},
                    {"fieldRef": "spec.validations[2].expression", "warning":
                        "apps/v1, Kind=Deployment: ERROR: <input>:1:65: undefined field 'spec'\n | \
                        object.metadata.namespace == params.metadata.namespace && params.spec\n | \
                        ................................................................^\n"}]}}),
                ),
                merge(&format!("{POLICIES}/p"), json!({"spec": {"validations": [{"expression": "true"}]}})),
                is(&format!("{POLICIES}/p"), "/status/observedGeneration", json!(2)),
                none(&format!("{POLICIES}/p"), "/status/typeChecking/expressionWarnings"),
                // Nobody has such things.
                merge(
                    &format!("{POLICIES}/p"),
                    json!({"spec": {"validations": [{"expression": "object.nosuch == 1"}],
                    "matchConstraints": {"resourceRules": [{"apiGroups": ["example.com"], "apiVersions": ["v1"],
                        "operations": ["CREATE"], "resources": ["things"]}]}}}),
                ),
                is(&format!("{POLICIES}/p"), "/status/observedGeneration", json!(3)),
                none(&format!("{POLICIES}/p"), "/status/typeChecking/expressionWarnings"),
            ],
        },
        Scenario {
            name: "expansion",
            steps: vec![
                create(
                    "/apis/storage.k8s.io/v1/storageclasses",
                    json!({"metadata": {"name": "grows"}, "provisioner": "nobody.example.com", "allowVolumeExpansion": true}),
                ),
                create(VOLUMES, volume("grows", "grows", json!({"hostPath": {"path": "/nowhere"}}))),
                create(&at("expansion", "persistentvolumeclaims"), claim("c", "grows")),
                is(&at("expansion", "persistentvolumeclaims/c"), "/status/phase", json!("Bound")),
                merge(
                    &at("expansion", "persistentvolumeclaims/c"),
                    json!({"spec": {"resources": {"requests": {"storage": "3Gi"}}}}),
                ),
                some(&at("expansion", "events?fieldSelector=reason=ExternalExpanding"), "/items/0/message"),
            ],
        },
        Scenario {
            name: "out-of-service",
            steps: vec![
                create(
                    NODES,
                    json!({"metadata": {"name": "broken"}, "spec": {"taints": [
                    {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]}}),
                ),
                create(
                    &at("out-of-service", "pods"),
                    pod(
                        "p",
                        json!({"nodeName": "broken", "terminationGracePeriodSeconds": 3600,
                        "tolerations": [{"operator": "Exists"}]}),
                    ),
                ),
                // Nobody is there to end it.
                delete(&at("out-of-service", "pods/p")),
                gone(&at("out-of-service", "pods/p")),
            ],
        },
    ];
    let node =
        signing_request("system:node:n1", "system:nodes", "kubernetes.io/kube-apiserver-client-kubelet")?;
    let by_hand = signing_request("jane", "team", "kubernetes.io/kube-apiserver-client")?;
    let approval =
        json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Test"}]}});
    all.push(Scenario {
        name: "certificates",
        steps: vec![
            // Administrators may ask for nodes' certificates; that is approved without further ado.
            create(CSRS, node),
            is(&format!("{CSRS}/system-node-n1"), "/status/conditions/0/type", json!("Approved")),
            some(&format!("{CSRS}/system-node-n1"), "/status/certificate"),
            create(CSRS, by_hand),
            merge(&format!("{CSRS}/jane/approval"), approval),
            some(&format!("{CSRS}/jane"), "/status/certificate"),
        ],
    });
    Ok(all)
}

async fn run_all(server: &Server) -> Result<()> {
    let running = scenarios()?.into_iter().map(async |scenario| {
        let name = scenario.name;
        let client = server.client_as("admin", Some("system:masters")).map_err(|error| error.to_string())?;
        run(&client, scenario).await.map_err(|why| format!("{name}: {why}"))
    });
    let outcomes = futures_util::future::join_all(running).await;
    let failures: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

fn loops() -> Vec<String> {
    LOOPS.split(',').map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_loop_does_its_work_with_its_own_rights() -> Result<()> {
    let server = Server::start_with(|config| {
        config.components.controllers = loops();
        config.components.cluster_cidrs = vec![PODS_OF_CLUSTER.to_owned()];
    })
    .await?;
    run_all(&server).await?;
    server.stop().await
}

/// A manager in tasks of its own.
fn manager(components: &Components, kubeconfig: &Path) -> TaskGroup {
    let tasks = TaskGroup::new();
    let (components, kubeconfig, group) = (components.clone(), kubeconfig.to_owned(), tasks.clone());
    tokio::spawn(async move {
        cluster::run_alone(&components, &kubeconfig, &Clock::system(), &group).await.expect("loops that run");
    });
    tasks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loops_that_are_killed_and_disturbed_get_there_too() -> Result<()> {
    let server = Server::start().await?;
    let pki = server.data_dir().join("pki");
    let key = pki.join("service-account.key");
    let there = async || key.exists();
    eventually("a key of service accounts", PATIENCE, there, |there| *there).await;
    let read = |name: &str| std::fs::read_to_string(pki.join(name));
    let authority = read("server-ca.crt")?;
    let mut components = Components {
        controllers: loops(),
        cluster_cidrs: vec![PODS_OF_CLUSTER.to_owned()],
        signing: Some((read("client-ca.crt")?, read("client-ca.key")?)),
        legacy_tokens: Some(cluster::legacy_tokens(&key, authority.clone())?),
        ..Components::default()
    };
    components.settings.root_ca = Some(authority);
    let steady = manager(&components, &server.kubeconfig);
    let disturbance = {
        let kubeconfig = server.kubeconfig.clone();
        tokio::spawn(async move {
            loop {
                let other = manager(&components, &kubeconfig);
                tokio::time::sleep(Duration::from_millis(1500)).await;
                other.abort();
            }
        })
    };
    let outcome = run_all(&server).await;
    disturbance.abort();
    steady.abort();
    outcome?;
    server.stop().await
}
