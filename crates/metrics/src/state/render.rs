//! Lists objects and renders the page. Scrapes at the same time, or shortly after another, share one page.

use super::config::StateMetricsConfig;
use super::family::{Family, Kind};
use super::items::{Items, ItemsError};
use super::kinds::KINDS;
use super::object::decode;
use super::page::{Compressor, Page, Text};
use super::series::{NextSchedule, Series, Settings, identity};
use super::telemetry::Telemetry;
use base::tasks::TaskGroup;
use client::{Client, ClientError, RawRequest};
use http_body_util::BodyExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Age up to which a page is served again.
const FRESH: Duration = Duration::from_secs(1);
/// Time for the list of one kind.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Objects that are rendered before other tasks of the thread run.
const BATCH: usize = 64;

#[derive(Debug, thiserror::Error)]
pub(super) enum ListError {
    #[error("failed to list")]
    Request(#[from] ClientError),
    #[error("failed to read the list")]
    Body(#[source] client::TransportError),
    #[error("failed to split the list")]
    Items(#[from] ItemsError),
    #[error("failed to decode an object")]
    Decode(#[from] serde_json::Error),
    #[error("the list took more than {LIST_TIMEOUT:?}")]
    Timeout,
}

/// Renders the state of the objects of a cluster.
pub struct StateMetrics {
    config: StateMetricsConfig,
    client: Client,
    next_schedule: NextSchedule,
    telemetry: Telemetry,
    /// The last page, while it is fresh. Locked while a page is rendered.
    last: Mutex<Option<(Instant, Arc<Page>)>>,
    tasks: TaskGroup,
}

impl StateMetrics {
    pub fn new(
        config: StateMetricsConfig,
        client: Client,
        next_schedule: NextSchedule,
        tasks: &TaskGroup,
    ) -> Arc<Self> {
        let (telemetry, last) = (Telemetry::default(), Mutex::default());
        Arc::new(Self { config, client, next_schedule, telemetry, last, tasks: tasks.clone() })
    }

    /// The page: the last one while it is fresh, or a new one.
    pub(super) async fn page(self: &Arc<Self>) -> Arc<Page> {
        let mut last = self.last.lock().await;
        if let Some((at, page)) = &*last
            && at.elapsed() < FRESH
        {
            return Arc::clone(page);
        }
        let page = Arc::new(self.render().await);
        *last = Some((Instant::now(), Arc::clone(&page)));
        let component = Arc::clone(self);
        self.tasks.spawn(async move {
            tokio::time::sleep(FRESH).await;
            component.last.lock().await.take_if(|(at, _)| at.elapsed() >= FRESH);
        });
        page
    }

    /// Reports whether a health path of the API server succeeds.
    pub(super) async fn api_server_is(&self, path: &str) -> bool {
        let request = RawRequest { accept: "*/*".to_owned(), ..RawRequest::get(path) };
        self.client.raw_stream(&request).await.is_ok()
    }

    async fn render(&self) -> Page {
        let mut compressor = Compressor::default();
        let mut page = Text::default();
        for (at, kind) in KINDS.iter().enumerate().filter(|(_, kind)| self.config.serves(kind.resource)) {
            let mut section = Section::new(kind, &self.config, self.next_schedule);
            let listed = tokio::time::timeout(LIST_TIMEOUT, self.list(kind, &mut section, &mut compressor));
            let outcome = listed.await.unwrap_or(Err(ListError::Timeout));
            self.telemetry.listed(at, outcome.is_ok());
            match outcome {
                Ok(()) => section.append_to(&mut page, &mut compressor),
                // Half a list would look like deleted objects.
                Err(error) => {
                    let error = base::errors::chain(&error);
                    tracing::warn!(
                        resource = kind.resource,
                        error,
                        "failed to list objects for state metrics"
                    );
                }
            }
        }
        self.telemetry.render(&mut page.rest, &|kind| self.config.serves(kind.resource));
        page.finish(&mut compressor)
    }

    /// Lists a kind, in each of the chosen namespaces.
    async fn list(
        &self,
        kind: &Kind,
        section: &mut Section<'_>,
        compressor: &mut Compressor,
    ) -> Result<(), ListError> {
        let chosen = Some(&self.config.namespaces).filter(|chosen| kind.is_namespaced && !chosen.is_empty());
        let everywhere = [String::new()];
        for namespace in chosen.map_or(&everywhere[..], Vec::as_slice) {
            // Any cached state will do; the watch cache streams it without pages.
            let target = format!("{}?resourceVersion=0", kind.collection(namespace));
            let request = RawRequest::get(target);
            let mut body = self.client.raw_stream(&request).await?.into_body();
            let mut items = Items::default();
            let mut rendered = 0;
            while let Some(frame) = body.frame().await {
                let Ok(piece) = frame.map_err(ListError::Body)?.into_data() else { continue };
                items.read::<ListError>(&piece, &mut |item| {
                    rendered += 1;
                    section.add(item, compressor)
                })?;
                if rendered >= BATCH {
                    rendered = 0;
                    tokio::task::yield_now().await;
                }
            }
            items.finish()?;
        }
        Ok(())
    }
}

/// The families of one kind in the making.
pub(super) struct Section<'a> {
    kind: &'a Kind,
    settings: Settings<'a>,
    families: Vec<(&'a Family, Text)>,
    is_empty: bool,
}

impl<'a> Section<'a> {
    pub fn new(kind: &'a Kind, config: &'a StateMetricsConfig, next_schedule: NextSchedule) -> Self {
        let settings = Settings {
            labels: config.labels.of(kind.resource),
            annotations: config.annotations.of(kind.resource),
            next_schedule,
        };
        let chosen = kind.families.iter().filter(|one| config.families.accepts(one.name, one.is_opt_in));
        Self { kind, settings, families: chosen.map(|one| (one, Text::default())).collect(), is_empty: true }
    }

    /// Renders an object.
    pub(super) fn add(&mut self, json: &[u8], compressor: &mut Compressor) -> Result<(), ListError> {
        let object = decode(json)?;
        let identity = identity(self.kind, &object);
        for (family, text) in &mut self.families {
            let (name, settings) = (family.name, &self.settings);
            family.render(&object, &mut Series { out: &mut text.rest, name, identity: &identity, settings });
            text.settle(compressor);
        }
        self.is_empty = false;
        Ok(())
    }

    /// Appends the families with their headers. A kind without objects has none.
    pub fn append_to(self, page: &mut Text, compressor: &mut Compressor) {
        for (family, text) in self.families.into_iter().filter(|_| !self.is_empty) {
            page.rest.push_str(&family.header());
            page.append(text, compressor);
        }
    }
}
