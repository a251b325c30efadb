//! Lifecycle from creation to removal.

use std::time::Duration;

use cri::v1::*;
use rustix::process::{Pid, Signal, kill_process};

use crate::{Node, PATIENCE};

pub async fn container_runs_from_creation_to_removal(node: Node) {
    let mut cri = node.cri.clone();
    let version = cri.runtime.version(VersionRequest::default()).await.unwrap().into_inner();
    assert_eq!((version.runtime_name.as_str(), version.runtime_api_version.as_str()), ("ferry", "v1"));
    let images = cri.images.list_images(ListImagesRequest::default()).await.unwrap().into_inner().images;
    assert_eq!(images[0].repo_tags, ["docker.io/library/busybox:test"]);
    assert!(images[0].size > 100_000);

    let config = node.pod("one");
    let pod = node.run_pod(&config).await;
    let status = cri
        .runtime
        .pod_sandbox_status(PodSandboxStatusRequest { pod_sandbox_id: pod.clone(), verbose: false });
    let status = status.await.unwrap().into_inner().status.unwrap();
    assert_eq!(status.state(), PodSandboxState::SandboxReady);
    assert_eq!(status.network.unwrap().ip, "10.222.0.2");

    let mut container =
        node.container("main", &["sh", "-c", "echo out; echo err >&2; env; pwd; exec sleep 1000"]);
    container.envs = vec![KeyValue { key: "ASKED".into(), value: b"yes".to_vec() }];
    let id = node.create(&pod, &config, container.clone()).await;
    assert_eq!(node.status(&id).await.state(), ContainerState::ContainerCreated);
    let again = CreateContainerRequest {
        pod_sandbox_id: pod.clone(),
        config: Some(container),
        sandbox_config: Some(config.clone()),
    };
    assert!(cri.runtime.create_container(again).await.is_err(), "the name is taken");
    node.start_container(&id).await;
    let status = node.status(&id).await;
    assert_eq!(status.state(), ContainerState::ContainerRunning);
    assert!(status.started_at >= status.created_at);
    let lines = [
        "stdout F out",
        "stderr F err",
        "stdout F ASKED=yes",
        "stdout F FROM=image",
        "stdout F HOSTNAME=one",
        "stdout F /tmp",
    ];
    node.until("the log", async || {
        let log = node.log("one", "main");
        let missing: Vec<_> = lines.iter().filter(|line| !log.iter().any(|known| known == *line)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} not in {log:?}")) }
    })
    .await;
    assert_eq!(node.exec(&id, &["cat", "/second/file"]).await, (0, "two".into(), String::new()));
    assert_eq!(node.exec(&id, &["sh", "-c", "echo no >&2; exit 3"]).await, (3, String::new(), "no".into()));
    let missing = ExecSyncRequest { container_id: id.clone(), cmd: vec!["nothing".into()], timeout: 0 };
    let error = cri.runtime.exec_sync(missing).await.unwrap_err();
    assert!(error.message().contains("executable file not found in $PATH"), "{error}");
    let slow =
        ExecSyncRequest { container_id: id.clone(), cmd: vec!["sleep".into(), "100".into()], timeout: 1 };
    assert_eq!(cri.runtime.exec_sync(slow).await.unwrap_err().code(), tonic::Code::DeadlineExceeded);

    let stats =
        cri.runtime.container_stats(ContainerStatsRequest { container_id: id.clone() }).await.unwrap();
    let stats = stats.into_inner().stats.unwrap();
    assert!(stats.cpu.unwrap().usage_core_nano_seconds.unwrap().value > 0);
    assert!(stats.memory.unwrap().working_set_bytes.unwrap().value > 0);

    let stop = StopContainerRequest { container_id: id.clone(), timeout: 0 };
    cri.runtime.stop_container(stop.clone()).await.unwrap();
    let status = node.status(&id).await;
    assert_eq!((status.state(), status.exit_code), (ContainerState::ContainerExited, 137));
    cri.runtime.stop_container(stop).await.expect("stopping twice is fine");
    let remove = RemoveContainerRequest { container_id: id.clone() };
    cri.runtime.remove_container(remove.clone()).await.unwrap();
    cri.runtime.remove_container(remove).await.expect("removing twice is fine");
    let gone = ContainerStatusRequest { container_id: id, verbose: false };
    assert_eq!(cri.runtime.container_status(gone).await.unwrap_err().code(), tonic::Code::NotFound);
    let stop = StopPodSandboxRequest { pod_sandbox_id: pod.clone() };
    cri.runtime.stop_pod_sandbox(stop).await.unwrap();
    let listed =
        cri.runtime.list_pod_sandbox(ListPodSandboxRequest::default()).await.unwrap().into_inner().items;
    assert_eq!(listed[0].state(), PodSandboxState::SandboxNotready);
    cri.runtime.remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id: pod }).await.unwrap();
}

pub async fn exit_codes_and_reasons_are_reported(node: Node) {
    for (name, script, code, reason) in [
        ("fine", "exit 0", 0, "Completed"),
        ("bad", "exit 7", 7, "Error"),
        ("signal", "sh -c 'kill -SEGV $$'; exit $?", 139, "Error"),
    ] {
        let (_, id) = node.run(name, node.container(name, &["sh", "-c", script])).await;
        let status = node.exited(&id).await;
        assert_eq!((status.exit_code, status.reason.as_str()), (code, reason), "{name}");
        assert!(status.finished_at >= status.started_at);
    }
    let config = node.pod("missing");
    let pod = node.run_pod(&config).await;
    let id = node.create(&pod, &config, node.container("missing", &["/no/such/program"])).await;
    let error =
        node.cri.clone().runtime.start_container(StartContainerRequest { container_id: id.clone() }).await;
    let error = error.unwrap_err();
    assert!(error.message().contains("/no/such/program"), "{error}");
    let status = node.status(&id).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"));

    let mut greedy = node
        .container("greedy", &["sh", "-c", "dd if=/dev/zero of=/dev/shm/x bs=1M count=60; tail /dev/zero"]);
    if let Some(linux) = &mut greedy.linux {
        linux.resources =
            Some(LinuxContainerResources { memory_limit_in_bytes: 20 << 20, ..Default::default() });
    }
    let (_, id) = node.run("greedy", greedy).await;
    let status = node.exited(&id).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (137, "OOMKilled"));
}

pub async fn stop_signals_then_kills_after_grace(node: Node) {
    let polite = "trap 'echo bye; exit 5' TERM; echo ready; while true; do sleep 0.1; done";
    let (_, id) = node.run("polite", node.container("polite", &["sh", "-c", polite])).await;
    node.until("readiness", async || {
        let log = node.log("polite", "polite");
        if log.contains(&"stdout F ready".to_owned()) { Ok(()) } else { Err(format!("{log:?}")) }
    })
    .await;
    let stop = StopContainerRequest { container_id: id.clone(), timeout: 20 };
    node.cri.clone().runtime.stop_container(stop).await.unwrap();
    assert_eq!(node.status(&id).await.exit_code, 5);
    assert!(node.log("polite", "polite").contains(&"stdout F bye".to_owned()));

    // The kernel drops unhandled signals to the first process of a pid namespace, such as a shell without a trap.
    let (_, id) = node.run("deaf", node.container("deaf", &["sleep", "1000"])).await;
    let stop = StopContainerRequest { container_id: id.clone(), timeout: 1 };
    node.cri.clone().runtime.stop_container(stop).await.unwrap();
    assert_eq!(node.status(&id).await.exit_code, 137);
}

pub async fn logs_are_reopened(node: Node) {
    let (_, id) = node
        .run("logs", node.container("logs", &["sh", "-c", "while true; do echo tick; sleep 0.05; done"]))
        .await;
    let path = node.root.join("logs/logs/logs.log");
    assert!(path.exists(), "there is a log as soon as the container runs");
    let ticks = async || {
        let log = node.log("logs", "logs");
        if log.len() > 2 { Ok(()) } else { Err(format!("{log:?}")) }
    };
    node.until("lines", ticks).await;
    std::fs::rename(&path, path.with_extension("1")).unwrap();
    let request = ReopenContainerLogRequest { container_id: id };
    node.cri.clone().runtime.reopen_container_log(request).await.unwrap();
    assert!(path.exists());
    node.until("lines in the new file", ticks).await;
}

/// Argument that only the shell of one container has.
const SHORT: &str = "exits-without-a-daemon";

/// Processes of this machine with an argument.
fn processes_with(argument: &str) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let with = entries.filter(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|candidate| candidate == argument.as_bytes())
    });
    with.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)).collect()
}

pub async fn daemon_restart_restores_containers(node: Node) {
    let script = "trap 'exit 4' TERM; echo begin; while true; do sleep 0.1; done";
    let (pod, id) = node.run("stay", node.container("stay", &["sh", "-c", script])).await;
    let script = "trap 'exit 9' TERM; while true; do sleep 0.05; done";
    let (_, short) = node.run("short", node.container("short", &["sh", "-c", script, SHORT])).await;
    let before = node.status(&id).await;
    let tasks = node.daemon.lock().clone();
    let _ = tasks.drain(Duration::from_secs(5)).await;
    // One of them exits while no daemon runs.
    node.until("a container exits", async || match processes_with(SHORT).as_slice() {
        [] => Ok(()),
        running => {
            for process in running {
                let _ = kill_process(*process, Signal::TERM);
            }
            Err(format!("{running:?}"))
        }
    })
    .await;
    *node.daemon.lock() = crate::serve(&node.root).await;
    let after = node.status(&id).await;
    assert_eq!((after.state(), after.started_at), (ContainerState::ContainerRunning, before.started_at));
    assert_eq!(node.exited(&short).await.exit_code, 9);
    assert_eq!(node.exec(&id, &["echo", "still", "here"]).await.1, "still here");
    let status = PodSandboxStatusRequest { pod_sandbox_id: pod, verbose: false };
    let status =
        node.cri.clone().runtime.pod_sandbox_status(status).await.unwrap().into_inner().status.unwrap();
    assert_eq!(status.state(), PodSandboxState::SandboxReady);
    node.restart().await;
    let stop = StopContainerRequest { container_id: id.clone(), timeout: 20 };
    node.cri.clone().runtime.stop_container(stop).await.unwrap();
    assert_eq!(node.exited(&id).await.exit_code, 4);
}

pub async fn shared_pid_namespace_outlives_container(node: Node) {
    let mut config = node.pod("shared");
    let options = NamespaceOption { pid: NamespaceMode::Pod.into(), ..NamespaceOption::default() };
    config.linux.as_mut().unwrap().security_context.as_mut().unwrap().namespace_options =
        Some(options.clone());
    let pod = node.run_pod(&config).await;
    let mut ids = Vec::new();
    for name in ["first", "second"] {
        let mut container = node.container(name, &["sleep", if name == "first" { "1111" } else { "2222" }]);
        container.linux.as_mut().unwrap().security_context.as_mut().unwrap().namespace_options =
            Some(options.clone());
        let id = node.create(&pod, &config, container).await;
        node.start_container(&id).await;
        ids.push(id);
    }
    let seen = node.exec(&ids[0], &["ps"]).await.1;
    assert!(seen.contains("sleep 1111") && seen.contains("sleep 2222"), "{seen}");
    // Children of a container end with it, although the pid namespace lives on.
    node.exec(&ids[0], &["sh", "-c", "sleep 3333 >/dev/null 2>&1 &"]).await;
    let stop = StopContainerRequest { container_id: ids[0].clone(), timeout: 0 };
    node.cri.clone().runtime.stop_container(stop).await.unwrap();
    let seen = node.exec(&ids[1], &["ps"]).await.1;
    assert!(
        !seen.contains("sleep 1111") && !seen.contains("sleep 3333") && seen.contains("sleep 2222"),
        "{seen}"
    );
}

pub async fn events_are_sent_to_subscribers(node: Node) {
    let mut cri = node.cri.clone();
    let mut events = cri.runtime.get_container_events(GetEventsRequest {}).await.unwrap().into_inner();
    let (_, id) = node.run("events", node.container("events", &["true"])).await;
    node.exited(&id).await;
    cri.runtime.remove_container(RemoveContainerRequest { container_id: id.clone() }).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 4 {
        let event = tokio::time::timeout(PATIENCE, events.message()).await.expect("an event");
        let event = event.unwrap().unwrap();
        assert_eq!(event.container_id, id);
        seen.push(event.container_event_type());
    }
    use ContainerEventType::*;
    assert_eq!(
        seen,
        [ContainerCreatedEvent, ContainerStartedEvent, ContainerStoppedEvent, ContainerDeletedEvent]
    );
}

/// The zygote, which is a child of this process and runs no shim task itself.
fn zygote() -> Option<i32> {
    let ours = format!(" {} ", std::process::id());
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    processes.find(|pid| {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let arguments = read("cmdline");
        let mut arguments = arguments.split('\0');
        let title = [arguments.next(), arguments.next(), arguments.next()];
        title == [Some("ferry"), Some("shim"), Some("")] && read("stat").contains(&ours)
    })
}

/// Shims share the zygote's memory, and survive its exit.
pub async fn shims_share_memory_and_survive_zygote(node: Node) {
    let (_, id) = node.run("before", node.container("before", &["sleep", "1000"])).await;
    let started: serde_json::Value = serde_json::from_slice(
        &std::fs::read(node.root.join("state/containers").join(&id).join("started")).unwrap(),
    )
    .unwrap();
    let own = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", started["shim_pid"])).unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("Private_Dirty:")).unwrap().trim().to_owned();
    let kilobytes: u64 = own.trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes < 1024, "a shim has {own} of its own");
    sys::process::kill(zygote().expect("the zygote"), 9).unwrap();
    // The exit may only be detected by the next request.
    node.until("another zygote", async || {
        let config = node.pod("after");
        let request = RunPodSandboxRequest { config: Some(config), runtime_handler: String::new() };
        let made = node.cri.clone().runtime.run_pod_sandbox(request).await;
        made.map(drop).map_err(|status| status.to_string())
    })
    .await;
    assert_eq!(node.exec(&id, &["echo", "still", "here"]).await.1, "still here");
    let stop = StopContainerRequest { container_id: id.clone(), timeout: 0 };
    node.cri.clone().runtime.stop_container(stop).await.unwrap();
    assert_eq!(node.exited(&id).await.exit_code, 137);
}

/// A kubelet that cancels a start for a deleted pod removes the container next: no process may remain.
pub async fn cancelled_start_leaves_no_process(node: Node) {
    let config = node.pod("hasty");
    let pod = node.run_pod(&config).await;
    let mut cri = node.cri.clone();
    let mut all = Vec::new();
    for round in 0..8_u64 {
        let id = node.create(&pod, &config, node.container(&format!("c{round}"), &["sleep", "1000"])).await;
        let starting = cri.runtime.start_container(StartContainerRequest { container_id: id.clone() });
        let _ = tokio::time::timeout(Duration::from_millis(round * 3), starting).await;
        let removal = RemoveContainerRequest { container_id: id.clone() };
        cri.runtime.remove_container(removal).await.unwrap();
        all.push(id);
    }
    node.until("the end of all shims", async || {
        let lives = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).into_owned();
            all.iter().any(|id| line.contains(id.as_str())).then_some(line)
        });
        let lives: Vec<String> = lives.collect();
        if lives.is_empty() { Ok(()) } else { Err(format!("{lives:?}")) }
    })
    .await;
}
