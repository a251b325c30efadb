//! The event recorder: publishes what a loop did through events.k8s.io. Repeated occurrences increase the count of
//! the first event's series instead of creating another event. Recording never blocks; when the queue is full, events
//! are dropped.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use base::clock::{Clock, deadline_after};
use base::tasks::TaskGroup;
use client::{Client, ClientError, Object, Patch};
use objects::core::v1::ObjectReference;
use objects::events::v1::Event;
use objects::meta::v1::{MicroTime, ObjectMeta};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Capacity of the write queue.
const BACKLOG: usize = 1000;
/// Maximum number of tracked series.
const SERIES: usize = 4096;
/// Idle time after which a series has ended: Kubernetes' value.
const END_OF_SERIES: Duration = Duration::from_secs(6 * 60);
/// Interval between writes of the count of an active series.
const WRITE_COUNT: Duration = Duration::from_secs(60);
const LONGEST_NOTE: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    Normal,
    Warning,
}

impl EventType {
    fn name(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// An event to record.
#[derive(Clone, Debug)]
pub struct Occurrence {
    pub regarding: ObjectReference,
    pub related: Option<ObjectReference>,
    pub kind: EventType,
    pub reason: String,
    pub action: String,
    pub note: String,
}

/// Object reference in the form that events use.
#[must_use]
pub fn reference<K: Object>(object: &K) -> ObjectReference {
    let meta = object.metadata();
    ObjectReference {
        api_version: Some(K::API_VERSION.to_owned()),
        kind: Some(K::KIND.to_owned()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

/// Records events of one component. Clones share the recorder.
///
/// ```no_run
/// use base::clock::Clock;
/// use base::tasks::TaskGroup;
/// use objects::core::v1::Pod;
/// use runtime::Recorder;
///
/// # fn record(client: client::Client, clock: Clock, tasks: &TaskGroup, pod: &Pod) {
/// let recorder = Recorder::new(client, "example-controller", clock, tasks);
/// recorder.warning(pod, "FailedMount", "the volume does not exist");
/// # }
/// ```
#[derive(Clone)]
pub struct Recorder {
    sender: mpsc::Sender<Occurrence>,
}

impl Recorder {
    /// A recorder that writes in `tasks`.
    #[must_use]
    pub fn new(client: Client, component: &str, clock: Clock, tasks: &TaskGroup) -> Self {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        let writer = Writer {
            client,
            component: component.into(),
            instance: format!("{component}-{}", host()),
            clock,
            series: HashMap::new(),
            serial: 0,
            due: None,
            purge: deadline_after(WRITE_COUNT),
        };
        let (group, receiver) = (tasks.clone(), Arc::new(tokio::sync::Mutex::new(receiver)));
        tasks.supervise_while(format!("events {component}"), move || {
            // The series of a writer that panicked are lost: their next event starts a new series.
            let (writer, group, receiver) = (writer.clone(), group.clone(), Arc::clone(&receiver));
            async move {
                let mut receiver = receiver.lock().await;
                group.until_stopped(writer.run(&mut receiver)).await;
                ControlFlow::Break(())
            }
        });
        Self { sender }
    }

    pub fn normal<K: Object>(&self, object: &K, reason: &str, note: impl Into<String>) {
        self.event(object, EventType::Normal, reason, note);
    }

    pub fn warning<K: Object>(&self, object: &K, reason: &str, note: impl Into<String>) {
        self.event(object, EventType::Warning, reason, note);
    }

    fn event<K: Object>(&self, object: &K, kind: EventType, reason: &str, note: impl Into<String>) {
        self.record(Occurrence {
            regarding: reference(object),
            related: None,
            kind,
            reason: reason.to_owned(),
            action: reason.to_owned(),
            note: note.into(),
        });
    }

    pub fn record(&self, occurrence: Occurrence) {
        if self.sender.try_send(occurrence).is_err() {
            tracing::debug!("event dropped: queue full or stopping");
        }
    }
}

fn host() -> String {
    base::addresses::hostname().unwrap_or_else(|| "localhost".to_owned())
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SeriesKey {
    regarding: (Option<String>, Option<String>, Option<String>, Option<String>),
    related: Option<String>,
    kind: EventType,
    reason: String,
    action: String,
    note: String,
}

#[derive(Clone)]
struct Series {
    namespace: String,
    name: String,
    count: i32,
    /// Count that the API server has stored.
    written: i32,
    last: MicroTime,
    last_seen: Instant,
    last_written: Instant,
}

impl Series {
    /// Time at which the count must be written.
    fn due(&self) -> Instant {
        self.last_written.checked_add(WRITE_COUNT).unwrap_or(self.last_written)
    }
}

#[derive(Clone)]
struct Writer {
    client: Client,
    component: Arc<str>,
    instance: String,
    clock: Clock,
    series: HashMap<SeriesKey, Series>,
    serial: u32,
    /// Time of the next write of a count.
    due: Option<Instant>,
    /// Time of the next removal of ended series.
    purge: Instant,
}

impl Writer {
    async fn run(mut self, receiver: &mut mpsc::Receiver<Occurrence>) {
        loop {
            let occurrence = match self.due {
                Some(due) => tokio::select! {
                    occurrence = receiver.recv() => occurrence,
                    () = tokio::time::sleep_until(due) => {
                        self.write_counts().await;
                        continue;
                    }
                },
                None => receiver.recv().await,
            };
            let Some(occurrence) = occurrence else { return };
            if let Err(error) = self.record(occurrence).await {
                tracing::debug!(component = %self.component, %error, "failed to create event");
            }
        }
    }

    async fn record(&mut self, mut occurrence: Occurrence) -> Result<(), ClientError> {
        truncate(&mut occurrence.note);
        let now = Instant::now();
        if now >= self.purge {
            self.purge = deadline_after(WRITE_COUNT);
            self.series.retain(|_, series| {
                now.duration_since(series.last_seen) < END_OF_SERIES || series.count > series.written
            });
        }
        let key = SeriesKey::of(&occurrence);
        let stamp = MicroTime(self.clock.now());
        if let Some(series) = self.series.get_mut(&key) {
            series.count = series.count.saturating_add(1);
            (series.last, series.last_seen) = (stamp, now);
            // The second occurrence is written immediately, later ones at intervals.
            if series.count > 2 {
                let due = series.due();
                self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
                return Ok(());
            }
            return self.write_count(&key).await;
        }
        let namespace = occurrence.regarding.namespace.clone().filter(|ns| !ns.is_empty());
        let namespace = namespace.unwrap_or_else(|| "default".to_owned());
        let event = self.event(&occurrence, &namespace, &stamp);
        let name = event.metadata.name.clone().unwrap_or_default();
        self.client.create(&namespace, &event).await?;
        if self.series.len() < SERIES {
            let series = Series {
                namespace,
                name,
                count: 1,
                written: 1,
                last: stamp,
                last_seen: now,
                last_written: now,
            };
            self.series.insert(key, series);
        }
        Ok(())
    }

    fn event(&mut self, occurrence: &Occurrence, namespace: &str, stamp: &MicroTime) -> Event {
        self.serial = self.serial.wrapping_add(1);
        let nanos = stamp.0.as_nanosecond();
        let regarding = occurrence.regarding.name.as_deref().unwrap_or("unnamed");
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{regarding}.{:x}", nanos + i128::from(self.serial))),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            event_time: Some(stamp.clone()),
            reporting_controller: Some(self.component.to_string()),
            reporting_instance: Some(self.instance.clone()),
            action: Some(occurrence.action.clone()),
            reason: Some(occurrence.reason.clone()),
            regarding: Some(occurrence.regarding.clone()),
            related: occurrence.related.clone(),
            note: Some(occurrence.note.clone()),
            type_: Some(occurrence.kind.name().to_owned()),
            ..Event::default()
        }
    }

    async fn write_counts(&mut self) {
        let now = Instant::now();
        let due = |series: &Series| series.count > series.written && now >= series.due();
        let keys: Vec<SeriesKey> =
            self.series.iter().filter(|(_, series)| due(series)).map(|(key, _)| key.clone()).collect();
        for key in keys {
            if let Err(error) = self.write_count(&key).await {
                tracing::debug!(component = %self.component, %error, "failed to update event series");
            }
        }
        let unwritten = self.series.values().filter(|series| series.count > series.written);
        self.due = unwritten.map(Series::due).min();
    }

    async fn write_count(&mut self, key: &SeriesKey) -> Result<(), ClientError> {
        let Some(series) = self.series.get_mut(key) else { return Ok(()) };
        series.last_written = Instant::now();
        series.written = series.count;
        let patch = Patch::Merge(json!({
            "series": {"count": series.count, "lastObservedTime": series.last}
        }));
        match self.client.patch::<Event>(&series.namespace, &series.name, None, &patch).await {
            Ok(_) => Ok(()),
            Err(error) => {
                // The event has expired or its namespace is deleted: the next occurrence creates a new one.
                self.series.remove(key);
                if error.is_not_found() { Ok(()) } else { Err(error) }
            }
        }
    }
}

impl SeriesKey {
    fn of(occurrence: &Occurrence) -> Self {
        let Occurrence { regarding, related, kind, reason, action, note } = occurrence;
        Self {
            regarding: (
                regarding.kind.clone(),
                regarding.namespace.clone(),
                regarding.name.clone(),
                regarding.uid.clone(),
            ),
            related: related.as_ref().and_then(|related| related.uid.clone()),
            kind: *kind,
            reason: reason.clone(),
            action: action.clone(),
            note: note.clone(),
        }
    }
}

fn truncate(note: &mut String) {
    if note.len() > LONGEST_NOTE {
        let end = (0..=LONGEST_NOTE).rev().find(|at| note.is_char_boundary(*at)).unwrap_or(0);
        note.truncate(end);
    }
}
