//! Pods and nodes as far as metrics need them. Caches of these take a fraction of the memory of whole objects.

use crate::adapter::ScrapeTarget;
use machinery::quantity::Quantity;
use objects::core::v1::{Node, Pod, Service};
use objects::meta::v1::{ObjectMeta, Time};
use objects::{Codec, Metadata, NamespaceResourceScope, Object, Resource, Shared};
use serde::Deserialize;
use serde_json::{Error, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Labels by name. A sorted slice takes a fraction of a map of few entries.
pub type RecordLabels = Box<[(Box<str>, Box<str>)]>;

/// A pod.
#[derive(Clone, Debug, Default)]
pub struct PodRecord {
    /// Name, namespace, uid and resource version only.
    pub metadata: ObjectMeta,
    pub labels: RecordLabels,
    pub node: String,
    pub ip: String,
    /// Its phase is `Running`.
    pub is_running: bool,
    /// The place of its own metrics, if annotations name one.
    pub scrape: Option<Box<ScrapeTarget>>,
    pub containers: Box<[ContainerRecord]>,
    /// Names of further containers that may run: init containers that are no sidecars, ephemeral containers.
    pub other_containers: Box<[Box<str>]>,
    /// Names of volumes.
    pub volumes: Box<[Box<str>]>,
}

/// Returns the pod of a namespace and name if it is bound to the node whose kubelet reports it. A kubelet that reports
/// other pods, pods that do not exist, or containers and volumes that a pod does not have, costs no memory for them.
pub type BoundPod<'a> = &'a (dyn Fn(&str, &str) -> Option<Arc<PodRecord>> + Sync);

impl PodRecord {
    /// Reports whether the pod has a container of this name, of any kind.
    pub fn has_container(&self, name: &str) -> bool {
        self.containers.iter().any(|container| *container.name == *name)
            || self.other_containers.iter().any(|other| **other == *name)
    }
}

/// A container of a pod, sidecars included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerRecord {
    pub name: Box<str>,
    /// Requests and limits; zero if there are none.
    pub requests: Amount,
    pub limits: Amount,
    pub image: Box<str>,
    pub restarts: u32,
}

/// CPU in thousandths of a core, memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub cpu: u64,
    pub memory: u64,
}

/// A node.
#[derive(Clone, Debug, Default)]
pub struct NodeRecord {
    /// Name, uid and resource version only.
    pub metadata: ObjectMeta,
    pub labels: RecordLabels,
    /// Types and addresses.
    pub addresses: Vec<(String, String)>,
    /// Port of the kubelet; zero if its status has none.
    pub kubelet_port: u16,
    pub capacity: Amount,
    pub allocatable: Amount,
}

/// A service.
#[derive(Clone, Debug, Default)]
pub struct ServiceRecord {
    /// Name, namespace, uid and resource version only.
    pub metadata: ObjectMeta,
    /// Labels of its pods; no pods if empty.
    pub selector: RecordLabels,
}

impl ServiceRecord {
    pub fn selects(&self, labels: &RecordLabels) -> bool {
        !self.selector.is_empty() && self.selector.iter().all(|wanted| labels.contains(wanted))
    }
}

#[derive(Deserialize)]
struct WireService<'a> {
    #[serde(borrow, default)]
    metadata: Option<WireMeta<'a>>,
    #[serde(borrow, default)]
    spec: Option<WireServiceSpec<'a>>,
}

#[derive(Deserialize)]
struct WireServiceSpec<'a> {
    #[serde(borrow, default)]
    selector: Option<WireLabels<'a>>,
}

/// Labels as they are on the wire.
type WireLabels<'a> = BTreeMap<Cow<'a, str>, Cow<'a, str>>;

#[derive(Deserialize)]
struct WirePod<'a> {
    #[serde(borrow, default)]
    metadata: Option<WireMeta<'a>>,
    #[serde(borrow, default)]
    spec: Option<WirePodSpec<'a>>,
    #[serde(borrow, default)]
    status: Option<WirePodStatus<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireMeta<'a> {
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    namespace: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    uid: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    resource_version: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    labels: Option<WireLabels<'a>>,
    #[serde(borrow, default)]
    annotations: Option<WireLabels<'a>>,
    #[serde(borrow, default)]
    deletion_timestamp: Option<Cow<'a, str>>,
}

fn labels_of(wire: Option<&WireMeta<'_>>) -> RecordLabels {
    slice_of(wire.and_then(|wire| wire.labels.as_ref()))
}

fn slice_of(labels: Option<&WireLabels<'_>>) -> RecordLabels {
    let labels = labels.into_iter().flatten();
    labels.map(|(name, value)| ((&**name).into(), (&**value).into())).collect()
}

fn metadata_of(wire: Option<WireMeta<'_>>) -> ObjectMeta {
    let Some(wire) = wire else { return ObjectMeta::default() };
    ObjectMeta {
        name: wire.name.map(Cow::into_owned),
        namespace: wire.namespace.map(Cow::into_owned),
        uid: wire.uid.map(Cow::into_owned),
        resource_version: wire.resource_version.map(Cow::into_owned),
        deletion_timestamp: wire.deletion_timestamp.and_then(|text| text.parse().ok()).map(Time),
        ..ObjectMeta::default()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WirePodSpec<'a> {
    #[serde(borrow, default)]
    node_name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    containers: Option<Vec<WireContainer<'a>>>,
    #[serde(borrow, default)]
    init_containers: Option<Vec<WireContainer<'a>>>,
    #[serde(borrow, default)]
    ephemeral_containers: Option<Vec<WireNamed<'a>>>,
    #[serde(borrow, default)]
    volumes: Option<Vec<WireNamed<'a>>>,
}

#[derive(Deserialize)]
struct WireNamed<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireContainer<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    image: Cow<'a, str>,
    #[serde(borrow, default)]
    restart_policy: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    resources: Option<WireResources<'a>>,
}

#[derive(Default, Deserialize)]
struct WireResources<'a> {
    #[serde(borrow, default)]
    requests: Option<BTreeMap<Cow<'a, str>, Value>>,
    #[serde(borrow, default)]
    limits: Option<BTreeMap<Cow<'a, str>, Value>>,
}

#[derive(Deserialize)]
struct WirePodStatus<'a> {
    #[serde(borrow, default)]
    phase: Option<Cow<'a, str>>,
    #[serde(borrow, default, rename = "podIP")]
    pod_ip: Option<Cow<'a, str>>,
    #[serde(borrow, default, rename = "containerStatuses")]
    container_statuses: Option<Vec<WireContainerStatus<'a>>>,
    #[serde(borrow, default, rename = "initContainerStatuses")]
    init_container_statuses: Option<Vec<WireContainerStatus<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireContainerStatus<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(default)]
    restart_count: i64,
}

fn amount(resources: Option<&BTreeMap<Cow<'_, str>, Value>>) -> Amount {
    let of = |name: &str| {
        let text = match resources.and_then(|resources| resources.get(name)) {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => return None,
        };
        Quantity::parse(&text).ok()
    };
    Amount {
        cpu: of("cpu").map_or(0, |cpu| u64::try_from(cpu.milli_value()).unwrap_or(0)),
        memory: of("memory").map_or(0, |memory| u64::try_from(memory.value()).unwrap_or(0)),
    }
}

impl From<WireContainer<'_>> for ContainerRecord {
    fn from(wire: WireContainer<'_>) -> Self {
        let resources = wire.resources.unwrap_or_default();
        Self {
            name: (&*wire.name).into(),
            requests: amount(resources.requests.as_ref()),
            limits: amount(resources.limits.as_ref()),
            image: (&*wire.image).into(),
            restarts: 0,
        }
    }
}

#[derive(Deserialize)]
struct WireNode<'a> {
    #[serde(borrow, default)]
    metadata: Option<WireMeta<'a>>,
    #[serde(borrow, default)]
    status: Option<WireNodeStatus<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireNodeStatus<'a> {
    #[serde(borrow, default)]
    addresses: Option<Vec<WireAddress<'a>>>,
    #[serde(default)]
    daemon_endpoints: Option<WireEndpoints>,
    #[serde(borrow, default)]
    capacity: Option<BTreeMap<Cow<'a, str>, Value>>,
    #[serde(borrow, default)]
    allocatable: Option<BTreeMap<Cow<'a, str>, Value>>,
}

#[derive(Deserialize)]
struct WireAddress<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    address: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireEndpoints {
    #[serde(default)]
    kubelet_endpoint: Option<WireEndpoint>,
}

#[derive(Deserialize)]
struct WireEndpoint {
    #[serde(default, rename = "Port")]
    port: i64,
}

impl Codec for PodRecord {
    fn decode(json: &[u8]) -> Result<Self, Error> {
        let WirePod { metadata, spec, status } = serde_json::from_slice(json)?;
        let annotations = metadata.as_ref().and_then(|metadata| metadata.annotations.as_ref());
        let scrape = annotations.and_then(|all| ScrapeTarget::of(|name| all.get(name).map(|text| &**text)));
        let (mut node, mut containers) = (None, Vec::<ContainerRecord>::new());
        let (mut other_containers, mut volumes) = (Vec::<Box<str>>::new(), Vec::<Box<str>>::new());
        if let Some(spec) = spec {
            node = spec.node_name;
            let is_sidecar = |one: &WireContainer<'_>| one.restart_policy.as_deref() == Some("Always");
            let init = spec.init_containers.into_iter().flatten();
            let (sidecars, others): (Vec<_>, Vec<_>) = init.partition(is_sidecar);
            let own = sidecars.into_iter().chain(spec.containers.into_iter().flatten());
            containers = own.map(ContainerRecord::from).collect();
            let others = others.iter().map(|one| (&*one.name).into());
            let ephemeral = spec.ephemeral_containers.into_iter().flatten();
            other_containers = others.chain(ephemeral.map(|one| (&*one.name).into())).collect();
            volumes = spec.volumes.into_iter().flatten().map(|one| (&*one.name).into()).collect();
        }
        let (mut phase, mut ip) = (None, None);
        if let Some(status) = status {
            (phase, ip) = (status.phase, status.pod_ip);
            let statuses = status.container_statuses.into_iter().chain(status.init_container_statuses);
            for status in statuses.flatten() {
                if let Some(own) = containers.iter_mut().find(|own| *own.name == *status.name) {
                    own.restarts = u32::try_from(status.restart_count).unwrap_or(0);
                }
            }
        }
        Ok(Self {
            labels: labels_of(metadata.as_ref()),
            metadata: metadata_of(metadata),
            node: node.map(Cow::into_owned).unwrap_or_default(),
            ip: ip.map(Cow::into_owned).unwrap_or_default(),
            is_running: phase.as_deref() == Some("Running"),
            scrape: scrape.map(Box::new),
            containers: containers.into(),
            other_containers: other_containers.into(),
            volumes: volumes.into(),
        })
    }

    /// A record is not the object that it was decoded from, so it has no encoding but its name.
    fn encode(&self) -> Result<Vec<u8>, Error> {
        encode_names(&self.metadata)
    }
}

impl Codec for NodeRecord {
    fn decode(json: &[u8]) -> Result<Self, Error> {
        let WireNode { metadata, status } = serde_json::from_slice(json)?;
        let (mut addresses, mut endpoints) = (None, None);
        let (mut capacity, mut allocatable) = (Amount::default(), Amount::default());
        if let Some(status) = status {
            capacity = amount(status.capacity.as_ref());
            allocatable = amount(status.allocatable.as_ref());
            (addresses, endpoints) = (status.addresses, status.daemon_endpoints);
        }
        let addresses = addresses.unwrap_or_default().into_iter();
        let port =
            endpoints.and_then(|endpoints| endpoints.kubelet_endpoint).map_or(0, |kubelet| kubelet.port);
        Ok(Self {
            labels: labels_of(metadata.as_ref()),
            metadata: metadata_of(metadata),
            addresses: addresses.map(|one| (one.kind.into_owned(), one.address.into_owned())).collect(),
            kubelet_port: u16::try_from(port).unwrap_or(0),
            capacity,
            allocatable,
        })
    }

    fn encode(&self) -> Result<Vec<u8>, Error> {
        encode_names(&self.metadata)
    }
}

impl Codec for ServiceRecord {
    fn decode(json: &[u8]) -> Result<Self, Error> {
        let WireService { metadata, spec } = serde_json::from_slice(json)?;
        let selector = slice_of(spec.as_ref().and_then(|spec| spec.selector.as_ref()));
        Ok(Self { metadata: metadata_of(metadata), selector })
    }

    fn encode(&self) -> Result<Vec<u8>, Error> {
        encode_names(&self.metadata)
    }
}

fn encode_names(metadata: &ObjectMeta) -> Result<Vec<u8>, Error> {
    let value: Value =
        serde_json::json!({"metadata": {"name": metadata.name, "namespace": metadata.namespace}});
    serde_json::to_vec(&value)
}

macro_rules! record_of {
    ($record:ty, $kind:ty, $scope:ty) => {
        impl Resource for $record {
            const API_VERSION: &'static str = <$kind as Resource>::API_VERSION;
            const GROUP: &'static str = <$kind as Resource>::GROUP;
            const KIND: &'static str = <$kind as Resource>::KIND;
            const VERSION: &'static str = <$kind as Resource>::VERSION;
            const URL_PATH_SEGMENT: &'static str = <$kind as Resource>::URL_PATH_SEGMENT;
            type Scope = $scope;
        }

        impl Metadata for $record {
            type Ty = ObjectMeta;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }

        impl Object for $record {
            fn decode_shared(json: &[u8]) -> Result<Shared, Error> {
                Ok(Arc::new(Self::decode(json)?))
            }
        }
    };
}

record_of!(PodRecord, Pod, NamespaceResourceScope);
record_of!(ServiceRecord, Service, NamespaceResourceScope);
record_of!(NodeRecord, Node, <Node as Resource>::Scope);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_keeps_labels_and_node() {
        let pod =
            br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"n","labels":{"k":"v"},
            "annotations":{"x":"y","prometheus.io/scrape":"true"},"managedFields":[{"manager":"m"}]},
            "spec":{"nodeName":"w","containers":[{"name":"c","resources":{"requests":{"cpu":"1500m","memory":"1Ki"}}}],
            "initContainers":[{"name":"once"},{"name":"side","restartPolicy":"Always"}],
            "ephemeralContainers":[{"name":"debug"}],"volumes":[{"name":"data","emptyDir":{}}]},
            "status":{"phase":"Running","podIP":"10.0.0.7","containerStatuses":[{"name":"c","restartCount":3}]}}"#;
        let pod = PodRecord::decode(pod).expect("decodes");
        assert_eq!((pod.metadata.name.as_deref(), pod.node.as_str()), (Some("a"), "w"));
        assert_eq!(*pod.labels, [("k".into(), "v".into())]);
        assert_eq!(pod.metadata.annotations, None);
        assert_eq!(
            (pod.ip.as_str(), pod.is_running, pod.scrape.as_ref().map(|target| target.port)),
            ("10.0.0.7", true, Some(80))
        );
        let names: Vec<&str> = pod.containers.iter().map(|container| &*container.name).collect();
        assert_eq!(names, ["side", "c"]);
        assert!(["side", "c", "once", "debug"].iter().all(|name| pod.has_container(name)));
        assert!(!pod.has_container("data") && *pod.volumes == ["data".into()]);
        assert_eq!(pod.containers[1].requests, Amount { cpu: 1500, memory: 1024 });
        assert_eq!((pod.containers[0].restarts, pod.containers[1].restarts), (0, 3));
        assert!(PodRecord::decode(b"{}").is_ok() && PodRecord::decode(b"{").is_err());
    }

    #[test]
    fn service_selects_pods_with_all_its_labels() {
        let service = br#"{"metadata":{"name":"s"},"spec":{"selector":{"app":"web","tier":"front"}}}"#;
        let service = ServiceRecord::decode(service).expect("decodes");
        let labels = |all: &[(&str, &str)]| -> RecordLabels {
            all.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
        };
        assert!(service.selects(&labels(&[("app", "web"), ("tier", "front"), ("x", "y")])));
        assert!(!service.selects(&labels(&[("app", "web")])));
        let without = ServiceRecord::decode(br#"{"metadata":{"name":"s"},"spec":{}}"#).expect("decodes");
        assert!(!without.selects(&labels(&[("app", "web")])));
    }

    #[test]
    fn node_keeps_addresses_and_port() {
        let node =
            br#"{"metadata":{"name":"w"},"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.1"}],
            "daemonEndpoints":{"kubeletEndpoint":{"Port":10250}},"capacity":{"cpu":"4","pods":"110"},
            "allocatable":{"cpu":"3900m","memory":"1Gi"}}}"#;
        let node = NodeRecord::decode(node).expect("decodes");
        assert_eq!((node.capacity.cpu, node.allocatable), (4000, Amount { cpu: 3900, memory: 1 << 30 }));
        assert_eq!((node.kubelet_port, node.addresses[0].1.as_str()), (10250, "10.0.0.1"));
        let node =
            br#"{"metadata":{"name":"w"},"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":-1}}}}"#;
        assert_eq!(NodeRecord::decode(node).expect("decodes").kubelet_port, 0);
    }
}
