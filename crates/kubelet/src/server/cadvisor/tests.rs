use std::fs;
use std::path::Path;

use cri::v1::{ContainerAttributes, CpuUsage, FilesystemIdentifier, FilesystemUsage};
use cri::v1::{ContainerStats, ImageSpec, PodSandboxMetadata, UInt64Value};

use super::*;

fn put(root: &Path, file: &str, text: &str) {
    let path = root.join(file);
    fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
    fs::write(path, text).expect("a file");
}

fn container(id: &str, name: &str) -> Container {
    let labels = [
        (labels::CONTAINER_NAME, name),
        (labels::POD_NAME, "web"),
        (labels::POD_NAMESPACE, "prod"),
        (labels::POD_UID, "u-1"),
    ];
    let image =
        ImageSpec { image: "sha256:1".into(), user_specified_image: "web:1".into(), ..ImageSpec::default() };
    Container {
        id: id.to_owned(),
        image: Some(image),
        labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        ..Container::default()
    }
}

fn sandbox(id: &str) -> PodSandbox {
    let metadata = PodSandboxMetadata {
        name: "web".into(),
        uid: "u-1".into(),
        namespace: "prod".into(),
        ..PodSandboxMetadata::default()
    };
    PodSandbox { id: id.to_owned(), metadata: Some(metadata), ..PodSandbox::default() }
}

fn rows(samples: &[Sample]) -> String {
    let mut page = Page::default();
    table::write(&mut page, samples, jiff::Timestamp::UNIX_EPOCH, false);
    page.text().to_owned()
}

#[test]
fn cgroups_of_machine_class_pod_and_container_have_rows() {
    let dir = tempfile::tempdir().expect("a directory");
    let pod = "kubepods/burstable/podu-1";
    put(dir.path(), &format!("{pod}/cpu.stat"), "usage_usec 3000000\n");
    put(dir.path(), &format!("{pod}/c1/cpu.stat"), "usage_usec 1500000\nnr_periods 9\nnr_throttled 2\n");
    put(dir.path(), &format!("{pod}/c1/cpu.max"), "50000 100000\n");
    put(dir.path(), &format!("{pod}/c1/cpu.weight"), "39\n");
    put(dir.path(), &format!("{pod}/c1/memory.max"), "max\n");
    put(dir.path(), &format!("{pod}/c1/memory.events"), "oom_kill 3\n");
    put(dir.path(), &format!("{pod}/c1/io.stat"), "0:0 rbytes=7 wbytes=8 rios=1 wios=2\n");
    put(dir.path(), &format!("{pod}/c1/nested/cpu.stat"), "usage_usec 1\n");
    put(dir.path(), &format!("{pod}/stranger/cpu.stat"), "usage_usec 1\n");
    let hierarchy = Hierarchy::V2(dir.path().into());
    let known = Known::new(&[container("c1", "app")], &[sandbox("s1")]);
    let text = rows(&read(&known, &[], Some(&hierarchy), "/kubepods"));
    let of_container =
        "id=\"/kubepods/burstable/podu-1/c1\",image=\"web:1\",name=\"c1\",namespace=\"prod\",pod=\"web\"}";
    for row in [
        format!("container_cpu_usage_seconds_total{{container=\"app\",cpu=\"total\",{of_container} 1.5\n"),
        format!("container_cpu_cfs_throttled_periods_total{{container=\"app\",{of_container} 2\n"),
        format!("container_spec_cpu_quota{{container=\"app\",{of_container} 50000\n"),
        format!("container_spec_memory_limit_bytes{{container=\"app\",{of_container} 0\n"),
        format!("container_oom_events_total{{container=\"app\",{of_container} 3\n"),
        format!("container_fs_writes_bytes_total{{container=\"app\",device=\"\",{of_container} 8\n"),
    ] {
        assert!(text.contains(&row), "{row} in {text}");
    }
    let cpu =
        |labels: &str| format!("container_cpu_usage_seconds_total{{container=\"\",cpu=\"total\",{labels}}} ");
    let of_pod = cpu("id=\"/kubepods/burstable/podu-1\",image=\"\",name=\"\",namespace=\"prod\",pod=\"web\"");
    assert!(text.contains(&format!("{of_pod}3\n")), "{text}");
    assert!(text.contains(&cpu("id=\"/\",image=\"\",name=\"\",namespace=\"\",pod=\"\"")), "{text}");
    let class = "container_memory_working_set_bytes{container=\"\",id=\"/kubepods/burstable\"";
    assert!(text.contains(class), "{text}");
    assert!(!text.contains("nested") && !text.contains("stranger"), "cgroups that containers made: {text}");
    // Without quota there are no periods.
    assert_eq!(text.matches("container_cpu_cfs_periods_total{").count(), 1, "{text}");
}

#[test]
fn container_without_cgroup_has_values_of_the_runtime() {
    let attributes = ContainerAttributes {
        id: "c1".into(),
        labels: container("c1", "app").labels,
        ..ContainerAttributes::default()
    };
    let stats = ContainerStats {
        attributes: Some(attributes),
        cpu: Some(CpuUsage {
            usage_core_nano_seconds: Some(UInt64Value { value: 2_500_000_000 }),
            ..CpuUsage::default()
        }),
        writable_layer: Some(FilesystemUsage {
            fs_id: Some(FilesystemIdentifier { mountpoint: "/nowhere".into() }),
            used_bytes: Some(UInt64Value { value: 77 }),
            ..FilesystemUsage::default()
        }),
        ..ContainerStats::default()
    };
    let known = Known::new(&[container("c1", "app")], &[sandbox("s1")]);
    let samples = read(&known, &[stats], None, "/kubepods");
    assert!(lacks_network(&known, &samples));
    let text = rows(&samples);
    let labels = "id=\"c1\",image=\"web:1\",name=\"c1\",namespace=\"prod\",pod=\"web\"}";
    let row = format!("container_cpu_usage_seconds_total{{container=\"app\",cpu=\"total\",{labels} 2.5\n");
    assert!(text.contains(&row), "{text}");
    assert!(text.contains("container_fs_usage_bytes{container=\"app\",device="), "{text}");
    assert!(!text.contains("container_memory_cache"), "runtimes do not report it: {text}");
}

#[test]
fn traffic_of_the_runtime_is_used_for_pods_without_processes() {
    use cri::v1::{LinuxPodSandboxStats, NetworkInterfaceUsage, NetworkUsage, PodSandboxAttributes};
    let interface = NetworkInterfaceUsage {
        name: "eth0".into(),
        rx_bytes: Some(UInt64Value { value: 5 }),
        ..NetworkInterfaceUsage::default()
    };
    let network = NetworkUsage { default_interface: Some(interface), ..NetworkUsage::default() };
    let stats = PodSandboxStats {
        attributes: Some(PodSandboxAttributes {
            id: "s1".into(),
            metadata: sandbox("s1").metadata,
            ..PodSandboxAttributes::default()
        }),
        linux: Some(LinuxPodSandboxStats { network: Some(network), ..LinuxPodSandboxStats::default() }),
        ..PodSandboxStats::default()
    };
    let known = Known::new(&[], &[sandbox("s1")]);
    let mut samples = Vec::new();
    add_network(&mut samples, std::slice::from_ref(&stats));
    add_network(&mut samples, &[stats]);
    assert!(!lacks_network(&known, &samples));
    let text = rows(&samples);
    assert_eq!(text.matches("container_network_receive_bytes_total{").count(), 1, "{text}");
    assert!(text.contains("interface=\"eth0\",name=\"s1\",namespace=\"prod\",pod=\"web\"} 5\n"), "{text}");
    assert!(!text.contains("container_memory_rss"), "{text}");
}

#[test]
fn error_of_the_runtime_is_reported() {
    let page = |has_failed| {
        let mut page = Page::default();
        table::write(&mut page, &[], jiff::Timestamp::UNIX_EPOCH, has_failed);
        page.text().to_owned()
    };
    assert!(page(true).contains("container_scrape_error 1\n"));
    assert!(page(false).contains("container_scrape_error 0\n"));
}
