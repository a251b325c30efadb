//! CDI devices of containers.

use cri::v1::*;

use crate::Node;

/// HOOK is replaced with the script of the hook.
const SPEC: &str = r#"
cdiVersion: 0.6.0
kind: vendor.com/thing
containerEdits:
  env: [VENDOR=yes]
devices:
- name: one
  containerEdits:
    env: [THING=one]
    deviceNodes: [{path: /dev/thing, hostPath: /dev/null, permissions: rw}]
    mounts: [{hostPath: MOUNT, containerPath: /opt/vendor, options: [ro, rbind]}]
    additionalGids: [4242]
    hooks: [{hookName: createContainer, path: /bin/busybox, args: [sh, -c, 'HOOK'], env: [WHO=hook]}]
- name: failing
  containerEdits:
    hooks: [{hookName: createContainer, path: /bin/busybox, args: [sh, -c, 'echo broken; exit 3']}]
- name: hanging
  containerEdits:
    hooks: [{hookName: createContainer, path: /bin/busybox, args: [sleep, "1000"], timeout: 1}]
"#;

/// Writes a file into the container's root, found through the state on standard input as vendors' hooks do.
const HOOK: &str = r#"b=$(busybox sed "s/.*\"bundle\":\"\([^\"]*\)\".*/\1/"); r=$(busybox sed "s/.*\"path\":\"\([^\"]*\)\".*/\1/" $b/config.json); echo $WHO > $r/hooked"#;

pub async fn cdi_devices_are_added(node: Node) {
    let directory = node.root.join("cdi");
    std::fs::create_dir_all(directory.join("files")).expect("a directory");
    std::fs::write(directory.join("files/lib"), "library\n").expect("a file");
    let text = SPEC.replace("HOOK", &HOOK.replace('\'', "''"));
    let text = text.replace("MOUNT", &directory.join("files").display().to_string());
    std::fs::write(directory.join("vendor.yaml"), text).expect("a file");
    let with = |name: &str, device: &str| {
        let mut config = node.container(name, &["sleep", "1000"]);
        config.cdi_devices = vec![CDIDevice { name: device.to_owned() }];
        config
    };

    let (_, id) = node.run("cdi", with("main", "vendor.com/thing=one")).await;
    let script = "echo $VENDOR $THING; cat /opt/vendor/lib /hooked; echo x > /dev/thing && echo written; id -G; \
                  touch /opt/vendor/new 2>/dev/null || echo protected";
    let (code, out, error) = node.exec(&id, &["sh", "-c", script]).await;
    assert_eq!((code, error.as_str()), (0, ""), "{out}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[..4], ["yes one", "library", "hook", "written"], "{out}");
    assert!(lines[4].split(' ').any(|group| group == "4242"), "{out}");
    assert_eq!(lines[5], "protected");

    let error = node.refused("missing", with("main", "vendor.com/thing=two")).await;
    assert!(
        error.contains("CDI device injection failed: unresolvable CDI devices vendor.com/thing=two"),
        "{error}"
    );

    for (device, reason) in [("failing", "broken"), ("hanging", "no end within 1 seconds")] {
        let pod_config = node.pod(device);
        let pod = node.run_pod(&pod_config).await;
        let container = with("main", &format!("vendor.com/thing={device}"));
        let id = node.create(&pod, &pod_config, container).await;
        let start = StartContainerRequest { container_id: id };
        let error = node.cri.clone().runtime.start_container(start).await.expect_err("the hook fails");
        assert!(error.message().contains(reason), "{error}");
    }
}
