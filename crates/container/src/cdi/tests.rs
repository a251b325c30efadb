use super::spec::ContainerEdits;
use super::*;

fn write(directory: &Path, name: &str, text: &str) {
    std::fs::create_dir_all(directory).expect("a directory");
    std::fs::write(directory.join(name), text).expect("a file");
}

fn resolved(directories: &[PathBuf], names: &[&str]) -> Result<Vec<ContainerEdits>, String> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let edits = edits_of(directories, &names).map_err(|error| error.to_string())?;
    Ok(edits.into_iter().map(|(_, edits)| edits).collect())
}

#[test]
fn devices_resolve_by_qualified_name() {
    let base = tempfile::tempdir().expect("a directory");
    let directories = [base.path().join("etc"), base.path().join("run"), base.path().join("missing")];
    write(
        &directories[0],
        "gpu.yaml",
        "cdiVersion: 0.5.0\nkind: vendor.com/gpu\ncontainerEdits: {env: [ALL=1]}\ndevices:\n\
         - {name: a, containerEdits: {env: [A=etc]}}\n- {name: b, containerEdits: {env: [B=etc]}}\n",
    );
    write(
        &directories[1],
        "gpu.json",
        r#"{"cdiVersion": "1.0.0", "kind": "vendor.com/gpu", "devices": [{"name": "a", "containerEdits": {"env": ["A=run"]}}]}"#,
    );
    let env = |names: &[&str]| {
        let edits = resolved(&directories, names)?;
        Ok::<_, String>(edits.into_iter().flat_map(|edits| edits.env).collect::<Vec<_>>())
    };
    assert_eq!(env(&["vendor.com/gpu=a"]).expect("found"), ["A=run"], "the later directory takes precedence");
    assert_eq!(env(&["vendor.com/gpu=b"]).expect("found"), ["ALL=1", "B=etc"]);
    assert_eq!(env(&[]).expect("nothing"), [""; 0]);
    let error = env(&["vendor.com/gpu=b", "vendor.com/gpu=c", "x"]).expect_err("unknown");
    assert_eq!(error, "unresolvable CDI devices vendor.com/gpu=c, x");
    write(
        &directories[1],
        "other.json",
        r#"{"cdiVersion": "1.0.0", "kind": "vendor.com/gpu", "devices": [{"name": "a"}]}"#,
    );
    assert!(env(&["vendor.com/gpu=a"]).is_err(), "two specs of one directory define it");
}

#[test]
fn invalid_specs_define_no_devices() {
    for (text, reason) in [
        ("cdiVersion: 9.0.0\nkind: a/b\ndevices: [{name: x}]", "unsupported CDI version"),
        ("cdiVersion: 1.0.0\nkind: ab\ndevices: [{name: x}]", "invalid kind"),
        ("cdiVersion: 1.0.0\nkind: a/b\ndevices: [{name: x}, {name: x}]", "multiple definitions"),
        ("cdiVersion: 1.0.0\nkind: a/b\ndevices: [{name: '../x'}]", "invalid device name"),
        ("cdiVersion: 1.0.0\nkind: a/b\nfuture: 1\ndevices: [{name: x}]", "unknown field"),
        ("{{", "invalid specs"),
    ] {
        let base = tempfile::tempdir().expect("a directory");
        write(base.path(), "x.yaml", text);
        let error = resolved(&[base.path().to_owned()], &["a/b=x"]).expect_err("nothing");
        assert!(error.contains(reason), "{text}: {error}");
    }
}

fn applied(edits: &str) -> Result<crate::shim::spec::Spec, String> {
    let mut spec: crate::shim::spec::Spec = serde_json::from_value(serde_json::json!({
        "process": {"arguments": ["sh"], "environment": [["A", "old"], ["B", "old"]], "directory": "/",
            "user": {"name": "0", "group": null, "supplemental": [], "strict": false},
            "capabilities": 0, "ambient": 0, "no_new_privileges": false, "seccomp": "default", "terminal": false},
        "root": {"store": "/", "layers": [], "read_only": false},
        "mounts": [{"target": "/data", "source": {"bind": "/"}, "read_only": false}],
        "namespaces": {"network": null, "ipc": null, "uts": null, "pid": "new"},
        "cgroup": "/x", "resources": sys::cgroups::Resources::default(), "devices": [], "privileged": false,
        "masked_paths": [], "read_only_paths": [], "out_of_memory_score": 0, "log": null, "stdin": false,
        "stdin_once": false,
    }))
    .expect("a spec");
    let edits: ContainerEdits = serde_json::from_str(edits).map_err(|error| error.to_string())?;
    apply(&mut spec, "v/c=d", &edits).map_err(|error| error.to_string())?;
    Ok(spec)
}

#[test]
fn edits_change_the_spec_of_a_container() {
    let spec = applied(
        r#"{"env": ["A=new", "C=x=y"], "additionalGids": [0, 44],
            "deviceNodes": [{"path": "/dev/x", "hostPath": "/dev/null", "permissions": "r", "uid": 5, "fileMode": 384}],
            "mounts": [{"hostPath": "/usr", "containerPath": "/data/sub", "options": ["ro", "rbind"]},
                {"hostPath": "/", "containerPath": "/top", "options": []}],
            "hooks": [{"hookName": "createContainer", "path": "/bin/true", "args": ["true"], "env": ["K=v"], "timeout": 5}]}"#,
    )
    .expect("applies");
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(spec.process.environment, [pair("B", "old"), pair("A", "new"), pair("C", "x=y")]);
    assert_eq!(spec.process.user.supplemental, [44]);
    let device = &spec.devices[0];
    assert_eq!((device.host.to_str(), device.target.to_str()), (Some("/dev/null"), Some("/dev/x")));
    assert_eq!(
        (device.permissions.as_str(), device.attributes.uid, device.attributes.mode),
        ("r", Some(5), Some(0o600))
    );
    let targets: Vec<_> = spec.mounts.iter().map(|mount| mount.target.display().to_string()).collect();
    assert_eq!(targets, ["/data", "/top", "/data/sub"]);
    assert!(spec.mounts[2].read_only);
    assert_eq!((spec.hooks[0].seconds, spec.hooks[0].environment[0].clone()), (5, pair("K", "v")));
}

#[test]
fn unsupported_edits_are_rejected() {
    for (edits, reason) in [
        (
            r#"{"hooks": [{"hookName": "poststop", "path": "/bin/true"}]}"#,
            "hook \"poststop\" is not supported",
        ),
        (r#"{"hooks": [{"hookName": "createContainer", "path": "true"}]}"#, "is not absolute"),
        (r#"{"intelRdt": {"closID": "a"}}"#, "intelRdt"),
        (r#"{"netDevices": [{"hostInterfaceName": "a"}]}"#, "netDevices"),
        (r#"{"deviceNodes": [{"path": "/dev/does-not-exist"}]}"#, "failed to stat device"),
        (
            r#"{"deviceNodes": [{"path": "/dev/null", "type": "c", "major": 8, "minor": 0}]}"#,
            "not the specified device",
        ),
        (r#"{"deviceNodes": [{"path": "/dev/null", "type": "b"}]}"#, "not the specified device"),
        (r#"{"deviceNodes": [{"path": "/dev/null", "permissions": "x"}]}"#, "invalid permissions"),
        (r#"{"deviceNodes": [{"path": "/etc/passwd"}]}"#, "not the specified device"),
        (r#"{"mounts": [{"hostPath": "/proc", "containerPath": "/p", "type": "proc"}]}"#, "mount type"),
        (r#"{"mounts": [{"hostPath": "/missing-here", "containerPath": "/p"}]}"#, "failed to resolve"),
        (r#"{"env": ["novalue"]}"#, "invalid variable"),
    ] {
        let error = applied(edits).expect_err("rejected");
        assert!(error.contains(reason), "{edits}: {error}");
    }
}
