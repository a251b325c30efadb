//! The job loop.

use anyhow::Result;
use objects::batch::v1::{Job, JobStatus};
use objects::core::v1::Pod;
use serde_json::{Value, json};
use testkit::eventually;

use crate::world::{PATIENCE, World, template};

const LOOP: &[&str] = &["job-controller"];

fn job(name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut template = template(name);
    template["metadata"] = json!({});
    template["spec"]["restartPolicy"] = json!("Never");
    let mut job = json!({ "metadata": { "name": name }, "spec": { "template": template } });
    change(&mut job["spec"]);
    job
}

async fn status(world: &World, name: &str) -> JobStatus {
    world.get::<Job>(name).await.status.unwrap_or_default()
}

fn conditions(status: &JobStatus) -> Vec<String> {
    let held = status.conditions.iter().flatten().filter(|condition| condition.status == "True");
    held.map(|condition| condition.type_.clone()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_completes_and_counts_each_pod_once() -> Result<()> {
    let mut world = World::start(LOOP).await?;
    world
        .create::<Job>(job("work", |spec| {
            spec["completions"] = json!(3);
            spec["parallelism"] = json!(2);
        }))
        .await?;
    let pods = world.wait_for_pods(2).await;
    assert!(pods.iter().all(|pod| {
        pod.metadata
            .finalizers
            .as_ref()
            .is_some_and(|all| all.contains(&"batch.kubernetes.io/job-tracking".to_owned()))
    }));
    eventually("two active", PATIENCE, async || status(&world, "work").await, |s| s.active == Some(2)).await;
    // The loop is down while a pod finishes, and another is deleted manually.
    world.stop_loops().await?;
    world.phase(pods[0].metadata.name.as_deref().unwrap_or_default(), "Succeeded", 0).await?;
    world.start_loops()?;
    eventually("one counted", PATIENCE, async || status(&world, "work").await, |s| s.succeeded == Some(1))
        .await;
    // Repeatedly: every restart sees the same finished pods.
    for done in [2, 3] {
        world.restart_loops().await?;
        let finish = async || {
            for pod in world.pods().await {
                if pod.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Succeeded") {
                    // It may already be deleted.
                    let _ =
                        world.phase(pod.metadata.name.as_deref().unwrap_or_default(), "Succeeded", 0).await;
                }
            }
            status(&world, "work").await
        };
        eventually("another counted", PATIENCE, finish, |status| status.succeeded >= Some(done)).await;
    }
    world.restart_loops().await?;
    let complete = |status: &JobStatus| conditions(status) == ["SuccessCriteriaMet", "Complete"];
    eventually("complete", PATIENCE, async || status(&world, "work").await, complete).await;
    let end = status(&world, "work").await;
    assert_eq!((end.succeeded, end.failed.unwrap_or(0), end.active.unwrap_or(0)), (Some(3), 0, 0));
    assert!(end.completion_time.is_some());
    let left = async || world.pods().await;
    let released =
        |pods: &Vec<Pod>| pods.iter().all(|pod| pod.metadata.finalizers.as_ref().is_none_or(Vec::is_empty));
    eventually("finalizers are removed", PATIENCE, left, released).await;
    assert_eq!(world.pods().await.len(), 3);
    world.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backoff_limit_fails_job_and_orphans_are_released() -> Result<()> {
    let mut world = World::start(LOOP).await?;
    world.create::<Job>(job("bad", |spec| spec["backoffLimit"] = json!(0))).await?;
    let pods = world.wait_for_pods(1).await;
    world.phase(pods[0].metadata.name.as_deref().unwrap_or_default(), "Failed", 1).await?;
    let failed = |status: &JobStatus| conditions(status) == ["FailureTarget", "Failed"];
    eventually("failed", PATIENCE, async || status(&world, "bad").await, failed).await;
    assert_eq!(status(&world, "bad").await.failed, Some(1));

    // A job deleted while the loop is down leaves pods whose finalizer must be removed.
    world.create::<Job>(job("lost", |_| {})).await?;
    world.wait_for_pods(2).await;
    world.stop_loops().await?;
    world
        .client
        .delete::<Job>("default", "lost", &client::delete_options(None, Some(client::Propagation::Orphan)))
        .await?;
    let patch = client::Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let _ = world.client.patch::<Job>("default", "lost", None, &patch).await;
    world.start_loops()?;
    let tracked = async || {
        let pods = world.pods().await;
        pods.into_iter()
            .filter(|pod| pod.metadata.finalizers.as_ref().is_some_and(|all| !all.is_empty()))
            .count()
    };
    eventually("orphans lose their finalizer", PATIENCE, tracked, |count| *count == 0).await;
    world.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn indexed_jobs_suspend_resume_and_shrink() -> Result<()> {
    let world = World::start(LOOP).await?;
    world
        .create::<Job>(job("indexed", |spec| {
            spec["completionMode"] = json!("Indexed");
            spec["completions"] = json!(3);
            spec["parallelism"] = json!(3);
        }))
        .await?;
    let index = |pod: &Pod| {
        pod.metadata.annotations.as_ref().map(|all| all["batch.kubernetes.io/job-completion-index"].clone())
    };
    let pods = world.wait_for_pods(3).await;
    let mut indexes: Vec<_> = pods.iter().filter_map(&index).collect();
    indexes.sort();
    assert_eq!(indexes, ["0", "1", "2"]);
    let first = pods.iter().find(|pod| index(pod).as_deref() == Some("0")).expect("index 0");
    world.phase(first.metadata.name.as_deref().unwrap_or_default(), "Succeeded", 0).await?;
    let done = |status: &JobStatus| status.completed_indexes.as_deref() == Some("0");
    eventually("index 0 is done", PATIENCE, async || status(&world, "indexed").await, done).await;

    world.patch::<Job>("indexed", json!({ "spec": { "suspend": true } })).await?;
    let suspended =
        |status: &JobStatus| status.active.unwrap_or(0) == 0 && conditions(status) == ["Suspended"];
    eventually("suspended", PATIENCE, async || status(&world, "indexed").await, suspended).await;
    world.finish_deletion().await?;
    world.patch::<Job>("indexed", json!({ "spec": { "suspend": false } })).await?;
    let resumed = |status: &JobStatus| status.active == Some(2) && conditions(status).is_empty();
    eventually("resumed", PATIENCE, async || status(&world, "indexed").await, resumed).await;
    assert_eq!(status(&world, "indexed").await.completed_indexes.as_deref(), Some("0"));

    // Elastic: completions and parallelism are lowered together, and the pod of the index above is deleted.
    world.patch::<Job>("indexed", json!({ "spec": { "completions": 2, "parallelism": 2 } })).await?;
    eventually("one active", PATIENCE, async || status(&world, "indexed").await, |s| s.active == Some(1))
        .await;
    let running: Vec<_> =
        world.pods().await.into_iter().filter(|pod| index(pod).as_deref() == Some("1")).collect();
    world.phase(running[0].metadata.name.as_deref().unwrap_or_default(), "Succeeded", 0).await?;
    let complete = |status: &JobStatus| conditions(status).contains(&"Complete".to_owned());
    world.finish_deletion().await?;
    eventually("complete", PATIENCE, async || status(&world, "indexed").await, complete).await;
    assert_eq!(status(&world, "indexed").await.completed_indexes.as_deref(), Some("0,1"));
    world.end().await
}

/// Active pods of a job by index; pods of jobs without indexes have none.
async fn pods_of(world: &World, job: &str) -> Vec<(String, String)> {
    let of =
        |pod: &Pod, labels: fn(&Pod) -> Option<&std::collections::BTreeMap<String, String>>, key: &str| {
            labels(pod).and_then(|all| all.get(key)).cloned().unwrap_or_default()
        };
    let pods = world.pods().await.into_iter();
    let mine = pods.filter(|pod| {
        of(pod, |pod| pod.metadata.labels.as_ref(), "batch.kubernetes.io/job-name") == job
            && pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Pending")
    });
    let index = "batch.kubernetes.io/job-completion-index";
    let mut found: Vec<_> = mine
        .map(|pod| {
            let name = pod.metadata.name.clone().unwrap_or_default();
            (of(&pod, |pod| pod.metadata.annotations.as_ref(), index), name)
        })
        .collect();
    found.sort();
    found
}

fn reasons(status: &JobStatus) -> Vec<String> {
    let held = status.conditions.iter().flatten().filter(|condition| condition.status == "True");
    held.map(|condition| format!("{} {}", condition.type_, condition.reason.as_deref().unwrap_or_default()))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_decide_which_failures_and_successes_count() -> Result<()> {
    let mut world = World::start(LOOP).await?;
    let rules = json!({ "rules": [
        { "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] },
        { "action": "FailJob", "onExitCodes": { "containerName": "main", "operator": "In", "values": [42] } },
    ] });
    world
        .create::<Job>(job("strict", |spec| {
            spec["backoffLimit"] = json!(0);
            spec["podFailurePolicy"] = rules;
        }))
        .await?;
    let indexed = |spec: &mut Value, completions: i32| {
        spec["completionMode"] = json!("Indexed");
        spec["completions"] = json!(completions);
        spec["parallelism"] = json!(completions);
    };
    world
        .create::<Job>(job("each", |spec| {
            indexed(spec, 2);
            spec["backoffLimitPerIndex"] = json!(0);
        }))
        .await?;
    world
        .create::<Job>(job("leader", |spec| {
            indexed(spec, 3);
            spec["successPolicy"] = json!({ "rules": [{ "succeededIndexes": "0" }] });
        }))
        .await?;
    let count = async |name: &'static str, count: usize| {
        eventually(name, PATIENCE, async || pods_of(&world, name).await, |pods| pods.len() == count).await
    };

    // A disruption does not count: the limit of zero is not exceeded. Exit code 42 fails the job.
    let pods = count("strict", 1).await;
    let disrupted = json!({ "status": { "conditions": [{ "type": "DisruptionTarget", "status": "True" }] } });
    let first = &pods[0].1;
    let patch = client::Patch::Strategic(disrupted);
    world.client.patch::<Pod>("default", first, Some("status"), &patch).await?;
    world.phase(first, "Failed", 1).await?;
    let replaced = async || pods_of(&world, "strict").await;
    let pods =
        eventually("replaced", PATIENCE, replaced, |pods| pods.len() == 1 && pods[0].1 != *first).await;
    world.phase(&pods[0].1, "Failed", 42).await?;
    let failed =
        |status: &JobStatus| reasons(status) == ["FailureTarget PodFailurePolicy", "Failed PodFailurePolicy"];
    eventually("failed", PATIENCE, async || status(&world, "strict").await, failed).await;
    assert_eq!(status(&world, "strict").await.failed, Some(1));

    // One index fails without affecting the other.
    let pods = count("each", 2).await;
    world.phase(&pods[0].1, "Failed", 1).await?;
    let one = |status: &JobStatus| status.failed_indexes.as_deref() == Some("0");
    eventually("index 0 fails", PATIENCE, async || status(&world, "each").await, one).await;
    world.restart_loops().await?;
    world.phase(&pods[1].1, "Succeeded", 0).await?;
    let failed = |status: &JobStatus| {
        reasons(status) == ["FailureTarget FailedIndexes", "Failed FailedIndexes"]
            && status.completed_indexes.as_deref() == Some("1")
    };
    eventually("both are settled", PATIENCE, async || status(&world, "each").await, failed).await;

    // The leader's success suffices; the other pods are deleted.
    let pods =
        eventually("leader", PATIENCE, async || pods_of(&world, "leader").await, |pods| pods.len() == 3)
            .await;
    world.phase(&pods[0].1, "Succeeded", 0).await?;
    let tend = async || {
        world.finish_deletion().await.expect("pods that end");
        status(&world, "leader").await
    };
    let complete = |status: &JobStatus| {
        reasons(status) == ["SuccessCriteriaMet SuccessPolicy", "Complete SuccessPolicy"]
            && status.completed_indexes.as_deref() == Some("0")
    };
    eventually("complete", PATIENCE, tend, complete).await;
    world.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_with_the_longest_active_deadline_leave_the_loop_working() -> Result<()> {
    let world = World::start(LOOP).await?;
    // More than the loop has workers.
    let names: Vec<String> = (0..8).map(|nth| format!("longest-{nth}")).collect();
    for name in &names {
        let longest = job(name, |spec| spec["activeDeadlineSeconds"] = json!(i64::MAX));
        world.create::<Job>(longest).await?;
    }
    for name in &names {
        let active = async || status(&world, name).await.active;
        eventually("a pod of each", PATIENCE, active, |active| *active == Some(1)).await;
    }
    world.create::<Job>(job("usual", |_| {})).await?;
    let active = async || status(&world, "usual").await.active;
    eventually("jobs are still reconciled", PATIENCE, active, |active| *active == Some(1)).await;
    world.end().await
}
