//! Events about pods and the node: `v1` events with repetition counts, as shown by `kubectl describe`.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use base::clock::Clock;
use base::tasks::TaskGroup;
use client::{Client, Patch};
use jiff::Timestamp;
use objects::core::v1::{Event, EventSource, ObjectReference, Pod};
use objects::meta::v1::ObjectMeta;
use tokio::sync::{Mutex, mpsc};

use crate::lifecycle::members::members;
use crate::lifecycle::status::seconds;

/// Capacity of the write queue; further events are dropped.
const BACKLOG: usize = 1000;
/// Number of events remembered for counting.
const CACHE_SIZE: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Normal,
    Warning,
}

#[derive(Debug)]
struct Occurrence {
    regarding: ObjectReference,
    kind: Kind,
    reason: &'static str,
    message: String,
    at: Timestamp,
}

/// Records events in the background. Clones share the queue.
#[derive(Clone)]
pub struct Recorder {
    sender: mpsc::Sender<Occurrence>,
    clock: Clock,
}

/// Reference to a pod or one of its containers.
#[must_use]
pub fn about(pod: &Pod, container: Option<&str>) -> ObjectReference {
    let field_path = container.map(|name| {
        let spec = pod.spec.as_ref();
        let is_in = |list: Option<&Vec<objects::core::v1::Container>>| {
            list.is_some_and(|list| list.iter().any(|container| container.name == name))
        };
        let list = if is_in(spec.and_then(|spec| spec.init_containers.as_ref())) {
            "initContainers"
        } else if spec.is_some_and(|spec| {
            members(spec)
                .iter()
                .any(|member| member.name() == name && member.kind == crate::lifecycle::MemberKind::Ephemeral)
        }) {
            "ephemeralContainers"
        } else {
            "containers"
        };
        format!("spec.{list}{{{name}}}")
    });
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        resource_version: pod.metadata.resource_version.clone(),
        field_path,
    }
}

impl Recorder {
    #[must_use]
    pub fn new(client: Client, node: &str, clock: Clock, tasks: &TaskGroup) -> Self {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        let receiver = Arc::new(Mutex::new(receiver));
        let (node, group) = (node.to_owned(), tasks.clone());
        tasks.supervise_while("kubelet-events", move || {
            let writer = Writer { client: client.clone(), node: node.clone(), known: HashMap::new() };
            let (receiver, group) = (Arc::clone(&receiver), group.clone());
            async move {
                let mut receiver = receiver.lock().await;
                group.until_stopped(writer.run(&mut receiver)).await;
                // Returns when all senders are dropped.
                ControlFlow::Break(())
            }
        });
        Self { sender, clock }
    }

    pub fn pod(&self, pod: &Pod, kind: Kind, reason: &'static str, message: impl Into<String>) {
        self.record(about(pod, None), kind, reason, message.into());
    }

    pub fn container(
        &self,
        pod: &Pod,
        container: &str,
        kind: Kind,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.record(about(pod, Some(container)), kind, reason, message.into());
    }

    pub fn node(&self, name: &str, uid: &str, kind: Kind, reason: &'static str, message: impl Into<String>) {
        let regarding = ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        self.record(regarding, kind, reason, message.into());
    }

    fn record(&self, regarding: ObjectReference, kind: Kind, reason: &'static str, message: String) {
        tracing::debug!(object = ?regarding.name, reason, %message, "event");
        let occurrence = Occurrence { regarding, kind, reason, message, at: self.clock.now() };
        // Dropping an event is preferable to blocking.
        let _ = self.sender.try_send(occurrence);
    }
}

type Similar = (Option<String>, Option<String>, Option<String>, &'static str, String);

struct Writer {
    client: Client,
    node: String,
    /// Name, namespace and count of recorded events.
    known: HashMap<Similar, (Arc<str>, i32)>,
}

impl Writer {
    async fn run(mut self, receiver: &mut mpsc::Receiver<Occurrence>) {
        while let Some(occurrence) = receiver.recv().await {
            if let Err(error) = self.write(occurrence).await {
                tracing::debug!(%error, "failed to write event");
            }
        }
    }

    async fn write(&mut self, occurrence: Occurrence) -> Result<(), client::ClientError> {
        let Occurrence { regarding, kind, reason, message, at } = occurrence;
        let namespace = regarding.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let key: Similar = (
            regarding.uid.clone(),
            regarding.name.clone(),
            regarding.field_path.clone(),
            reason,
            message.clone(),
        );
        if let Some((name, count)) = self.known.get_mut(&key) {
            *count = count.saturating_add(1);
            let patch = serde_json::json!({"count": *count, "lastTimestamp": seconds(at)});
            let name = Arc::clone(name);
            match self.client.patch::<Event>(&namespace, &name, None, &Patch::Merge(patch)).await {
                Err(error) if error.is_not_found() => {}
                outcome => return outcome.map(|_| ()),
            }
        }
        if self.known.len() >= CACHE_SIZE {
            self.known.clear();
        }
        let stem = regarding.name.clone().unwrap_or_default();
        let name = format!("{stem}.{:x}", at.as_nanosecond());
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(namespace.clone()),
                ..ObjectMeta::default()
            },
            involved_object: regarding,
            reason: Some(reason.to_owned()),
            message: Some(message),
            source: Some(EventSource {
                component: Some("kubelet".to_owned()),
                host: Some(self.node.clone()),
            }),
            first_timestamp: Some(seconds(at)),
            last_timestamp: Some(seconds(at)),
            count: Some(1),
            type_: Some(if kind == Kind::Normal { "Normal" } else { "Warning" }.to_owned()),
            reporting_component: Some("kubelet".to_owned()),
            reporting_instance: Some(self.node.clone()),
            ..Event::default()
        };
        self.client.create(&namespace, &event).await?;
        self.known.insert(key, (name.into(), 1));
        Ok(())
    }
}
