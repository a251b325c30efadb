//! A server, the loops under test, and a fake kubelet.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use base::clock::Clock;
use base::tasks::TaskGroup;
use client::{Client, ListOptions, Object, Patch, delete_options};
use controllers::LOOPS;
use objects::batch::v1::Job;
use objects::core::v1::{Node, Pod, ServiceAccount};
use runtime::{Harness, Row};
use serde_json::{Value, json};
use testkit::{Server, eventually};

pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct World {
    pub server: Server,
    pub client: Client,
    pub clock: Clock,
    loops: Option<TaskGroup>,
    names: Vec<&'static str>,
}

impl World {
    /// A server with these loops running.
    pub async fn start(names: &[&'static str]) -> Result<Self> {
        let server = Server::start().await?;
        let client = Client::connect(&server.kubeconfig, "test")?;
        let mut world = Self { server, client, clock: Clock::system(), loops: None, names: names.to_vec() };
        // Pods need a service account; the loop that creates this one is not under test.
        let account = json!({ "metadata": { "name": "default" } });
        world.create::<ServiceAccount>(account).await?;
        world.start_loops()?;
        Ok(world)
    }

    pub fn start_loops(&mut self) -> Result<()> {
        let tasks = TaskGroup::new();
        let harness = Harness::new(
            "kube-controller-manager",
            self.client.clone(),
            Arc::new(self.client.clone()),
            self.clock.clone(),
            &tasks,
        );
        for name in &self.names {
            harness.start(row(name))?;
        }
        self.loops = Some(tasks);
        Ok(())
    }

    /// Kills the loops and restarts them with empty caches.
    pub async fn restart_loops(&mut self) -> Result<()> {
        self.stop_loops().await?;
        self.start_loops()
    }

    pub async fn stop_loops(&mut self) -> Result<()> {
        if let Some(tasks) = self.loops.take() {
            tasks.abort();
            tasks.drain(PATIENCE).await.ok();
        }
        Ok(())
    }

    pub async fn end(mut self) -> Result<()> {
        self.stop_loops().await?;
        self.server.stop().await
    }

    pub async fn create<K: Object>(&self, object: Value) -> Result<K> {
        let object: K = objects::from_value(&object)?;
        let namespace = object.metadata().namespace.clone().unwrap_or_else(|| "default".to_owned());
        self.client.create(&namespace, &object).await.context("failed to create object")
    }

    pub async fn create_in_cluster<K: Object>(&self, object: Value) -> Result<K> {
        let object: K = objects::from_value(&object)?;
        self.client.create("", &object).await.context("failed to create object")
    }

    pub async fn get<K: Object>(&self, name: &str) -> K {
        self.client.get("default", name).await.expect("an object that is there")
    }

    pub async fn pods(&self) -> Vec<Pod> {
        let list = self.client.list::<Pod>("default", &ListOptions::default()).await.expect("pods");
        list.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect()
    }

    pub async fn pod_names(&self) -> Vec<String> {
        self.pods().await.into_iter().filter_map(|pod| pod.metadata.name).collect()
    }

    /// Waits for a number of pods that are not terminating.
    pub async fn wait_for_pods(&self, count: usize) -> Vec<Pod> {
        eventually(
            &format!("{count} pods"),
            PATIENCE,
            async || self.pod_names().await,
            |names| names.len() == count,
        )
        .await;
        self.pods().await
    }

    /// Simulates the kubelet: the pod reaches a phase.
    pub async fn phase(&self, pod: &str, phase: &str, code: i32) -> Result<()> {
        let ready = if phase == "Running" { "True" } else { "False" };
        let now = self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let mut status = json!({
            "phase": phase,
            "conditions": [{ "type": "Ready", "status": ready, "lastTransitionTime": now }],
        });
        if phase != "Running" {
            status["containerStatuses"] = json!([{
                "name": "main", "image": "i", "imageID": "i", "ready": false, "restartCount": 0,
                "state": { "terminated": { "exitCode": code, "finishedAt": now } },
            }]);
        }
        let patch = Patch::Strategic(json!({ "status": status }));
        self.client.patch::<Pod>("default", pod, Some("status"), &patch).await?;
        Ok(())
    }

    /// Simulates the job loop: the job is complete.
    pub async fn complete_job(&self, job: &str) -> Result<()> {
        let now = self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let condition =
            |kind: &str| json!({ "type": kind, "status": "True", "reason": "R", "lastTransitionTime": now });
        let status = json!({ "status": {
            "startTime": now, "completionTime": now, "succeeded": 1, "uncountedTerminatedPods": {},
            "conditions": [condition("SuccessCriteriaMet"), condition("Complete")],
        } });
        self.client.patch::<Job>("default", job, Some("status"), &Patch::Merge(status)).await?;
        Ok(())
    }

    /// Simulates the kubelet: a deleted pod has terminated.
    pub async fn finish_deletion(&self) -> Result<()> {
        let list = self.client.list::<Pod>("default", &ListOptions::default()).await?;
        for pod in list.items.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()) {
            let mut options = delete_options(pod.metadata.uid.as_deref(), None);
            options.grace_period_seconds = Some(0);
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            match self.client.delete::<Pod>("default", name, &options).await {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    pub async fn node(&self, name: &str) -> Result<Node> {
        self.create_in_cluster(
            json!({ "metadata": { "name": name, "labels": { "kubernetes.io/os": "linux" } } }),
        )
        .await
    }

    pub async fn patch<K: Object>(&self, name: &str, patch: Value) -> Result<K> {
        Ok(self.client.patch("default", name, None, &Patch::Merge(patch)).await?)
    }
}

fn row(name: &str) -> &'static Row {
    LOOPS.iter().find(|row| row.descriptor.name == name).expect("a loop of this name")
}

/// A template with one container and these labels.
pub fn template(app: &str) -> Value {
    json!({
        "metadata": { "labels": { "app": app } },
        "spec": { "containers": [{ "name": "main", "image": "image:1" }], "terminationGracePeriodSeconds": 0 },
    })
}
