//! From what CRI asks for to what the shim does.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use cri::v1::{
    ContainerConfig, ContainerEventType, LinuxContainerResources, LinuxContainerSecurityContext,
    MountPropagation, NamespaceMode, PodSandboxConfig, SecurityProfileProfileType, SupplementalGroupsPolicy,
};
use sys::capabilities;
use sys::cgroups::Resources;
use tokio::sync::watch;

use super::containers::config_resources;
use super::records::{self, Container, ContainerMeta, Phase, Sandbox};
use super::signals::stop_signal;
use super::{Doing, Runtime, RuntimeError, new_id, now};
use crate::images::{self, Image, RunConfig};
use crate::shim::spec::{
    Device, Mount, Namespaces, PidNamespace, Process, Propagation, Seccomp, Source, Spec, User,
};

/// Group of containers whose pod names no parent.
const DEFAULT_PARENT: &str = "/ferry";

impl Runtime {
    /// Prepares a container. This blocks.
    pub(super) fn create_container(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        config: ContainerConfig,
        pod: &PodSandboxConfig,
    ) -> Result<Arc<Container>, RuntimeError> {
        let metadata = config.metadata.clone().unwrap_or_default();
        let sandbox_id = sandbox.meta.lock().id.clone();
        let name = format!("{} of {sandbox_id} attempt {}", metadata.name, metadata.attempt);
        let _reserved = self.reserve(format!("container {name}"))?;
        let same = |container: &Arc<Container>| container.config.metadata.as_ref() == Some(&metadata);
        if let Some(there) = self.containers_of(&sandbox_id).iter().find(|container| same(container)) {
            let id = &there.meta.id;
            return Err(RuntimeError::Conflict(format!(
                "failed to reserve container name {name:?}: it is reserved for {id:?}"
            )));
        }
        if !sandbox.ready() {
            return Err(RuntimeError::Conflict(format!("sandbox {sandbox_id} is not ready")));
        }
        let asked = config.image.clone().unwrap_or_default();
        let image = self.images.find(&asked.image);
        let image =
            image.ok_or_else(|| RuntimeError::NotFound(format!("image {:?} not found", asked.image)))?;
        let id = new_id();
        let cgroup = self.cgroup_of(sandbox, &id);
        let log = match (pod.log_directory.as_str(), config.log_path.as_str()) {
            ("", _) | (_, "") => None,
            (directory, name) => Some(Path::new(directory).join(name)),
        };
        let run = &image.config.config;
        let spec = self.spec(sandbox, &config, pod, &image, &id, cgroup.clone(), log.clone())?;
        let meta = ContainerMeta {
            id: id.clone(),
            sandbox: sandbox_id,
            created: now(),
            image_id: image.id.clone(),
            image_ref: image.id.clone(),
            log_path: log.map(|path| path.display().to_string()).unwrap_or_default(),
            stop_signal: stop_signal(&config, run),
            cgroup,
        };
        let parent = self.config.root.join("containers");
        let hidden = parent.join(format!(".{id}"));
        let directory = parent.join(&id);
        let made = (|| {
            for part in ["upper", "work", "rootfs"] {
                std::fs::create_dir_all(hidden.join(part))
                    .doing(|| "make the container's directory".to_owned())?;
            }
            records::write(&hidden.join("spec.json"), &spec)?;
            records::write(&hidden.join("meta.json"), &meta)?;
            records::write_config(&hidden, &config)?;
            std::fs::rename(&hidden, &directory).doing(|| "make the container's directory".to_owned())
        })();
        if let Err(error) = made {
            records::remove_tree(&hidden)?;
            return Err(error);
        }
        let container = Arc::new(Container {
            directory,
            resources: parking_lot::Mutex::new(config_resources(&config)),
            config,
            meta,
            identity: OnceLock::new(),
            phase: watch::Sender::new(Phase::Created),
            changing: tokio::sync::Mutex::default(),
        });
        self.state.write().containers.insert(id, Arc::clone(&container));
        self.emit(&container, ContainerEventType::ContainerCreatedEvent);
        Ok(container)
    }

    fn cgroup_of(&self, sandbox: &Sandbox, id: &str) -> String {
        let parent = sandbox.meta.lock().cgroup_parent.clone();
        let parent = if parent.is_empty() { DEFAULT_PARENT.to_owned() } else { parent };
        format!("{}/{id}", parent.trim_end_matches('/'))
    }

    #[expect(clippy::too_many_arguments, reason = "all of it is input of one description")]
    fn spec(
        &self,
        sandbox: &Sandbox,
        config: &ContainerConfig,
        pod: &PodSandboxConfig,
        image: &Image,
        id: &str,
        cgroup: String,
        log: Option<PathBuf>,
    ) -> Result<Spec, RuntimeError> {
        let linux = config.linux.clone().unwrap_or_default();
        let security = linux.security_context.clone().unwrap_or_default();
        let resources = linux.resources.clone().unwrap_or_default();
        let run = &image.config.config;
        let privileged = security.privileged;
        let mounts = self.mounts(sandbox, config, &security)?;
        let devices = config.devices.iter().map(|device| Device {
            host: device.host_path.clone().into(),
            target: device.container_path.clone().into(),
            permissions: device.permissions.clone(),
        });
        let paths = |paths: &[String]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        Ok(Spec {
            process: process(config, pod, run, &security)?,
            root: image.root(&self.images, security.readonly_rootfs),
            mounts,
            namespaces: self.container_namespaces(sandbox, &security)?,
            cgroup,
            out_of_memory_score: resources.oom_score_adj,
            resources: limits(&resources),
            devices: devices.collect(),
            privileged,
            masked_paths: if privileged { Vec::new() } else { paths(&security.masked_paths) },
            read_only_paths: if privileged { Vec::new() } else { paths(&security.readonly_paths) },
            log,
            stdin: config.stdin,
            stdin_once: config.stdin_once,
        })
        .inspect(|_| tracing::debug!(container = id, "described"))
    }

    fn container_namespaces(
        &self,
        sandbox: &Sandbox,
        security: &LinuxContainerSecurityContext,
    ) -> Result<Namespaces, RuntimeError> {
        let options = security.namespace_options.clone().unwrap_or_default();
        let of_pod = |name: &str| Some(sandbox.namespace(name)).filter(|path| path.exists());
        let pid = match options.pid() {
            NamespaceMode::Container => PidNamespace::New,
            NamespaceMode::Node => PidNamespace::Host,
            NamespaceMode::Pod => PidNamespace::Of(of_pod("pid").ok_or_else(|| {
                RuntimeError::Invalid("the pod's containers do not share a pid namespace".to_owned())
            })?),
            NamespaceMode::Target => {
                let target = self.container(&options.target_id)?;
                let started = target.running().ok_or_else(|| {
                    RuntimeError::Conflict(format!("container {} is not running", options.target_id))
                })?;
                PidNamespace::OfProcess { pid: started.pid, start_time: started.start_time }
            }
        };
        let users = match super::sandboxes::users(&super::sandboxes::namespaces(&sandbox.config))? {
            Some(map) => {
                let missing = || RuntimeError::Conflict("the pod's user namespace is gone".to_owned());
                Some((map, of_pod("user").ok_or_else(missing)?))
            }
            None => None,
        };
        Ok(Namespaces { network: of_pod("net"), ipc: of_pod("ipc"), uts: of_pod("uts"), pid, users })
    }

    fn mounts(
        &self,
        sandbox: &Sandbox,
        config: &ContainerConfig,
        security: &LinuxContainerSecurityContext,
    ) -> Result<Vec<Mount>, RuntimeError> {
        let privileged = security.privileged;
        let kernel = |target: &str, kind: &str, options: &str, no_exec: bool, read_only: bool| Mount {
            target: target.into(),
            source: Source::Kernel {
                kind: kind.to_owned(),
                options: options.to_owned(),
                no_exec,
                no_suid: true,
                no_dev: kind != "tmpfs" && kind != "devpts",
            },
            read_only,
            recursive_read_only: false,
            propagation: Propagation::Private,
            mapped: false,
        };
        let bind = |target: &str, source: PathBuf, read_only: bool| Mount {
            target: target.into(),
            source: Source::Bind(source),
            read_only,
            recursive_read_only: false,
            propagation: Propagation::Private,
            mapped: false,
        };
        let mut mounts = vec![
            kernel("/proc", "proc", "", true, false),
            kernel("/dev", "tmpfs", "mode=755,size=65536k", false, false),
            kernel("/dev/pts", "devpts", "newinstance,ptmxmode=0666,mode=0620,gid=5", true, false),
            kernel("/dev/mqueue", "mqueue", "", true, false),
            kernel("/sys", "sysfs", "", true, !privileged),
        ];
        mounts.push(Mount {
            target: "/sys/fs/cgroup".into(),
            source: Source::Cgroups,
            read_only: !privileged,
            recursive_read_only: false,
            propagation: Propagation::Private,
            mapped: false,
        });
        let wanted = |target: &str| {
            !config.mounts.iter().any(|mount| Path::new(&mount.container_path) == Path::new(target))
        };
        let memory = sandbox.directory.join("shm");
        let memory = if memory.exists() { memory } else { PathBuf::from("/dev/shm") };
        let read_only = security.readonly_rootfs;
        for (target, source, read_only) in [
            ("/dev/shm", memory, false),
            ("/etc/resolv.conf", sandbox.directory.join("resolv.conf"), read_only),
            ("/etc/hostname", sandbox.directory.join("hostname"), read_only),
        ] {
            if wanted(target) {
                mounts.push(bind(target, source, read_only));
            }
        }
        let mut asked = Vec::new();
        for mount in &config.mounts {
            asked.push(self.mount(mount)?);
        }
        // What lies deeper comes later; otherwise the order is the caller's.
        asked.sort_by_key(|mount: &Mount| mount.target.components().count());
        mounts.retain(|own| !asked.iter().any(|mount| mount.target == own.target));
        mounts.extend(asked);
        Ok(mounts)
    }

    fn mount(&self, mount: &cri::v1::Mount) -> Result<Mount, RuntimeError> {
        let target = PathBuf::from(&mount.container_path);
        if !target.is_absolute() {
            return Err(RuntimeError::Invalid(format!(
                "mount path {:?} is not absolute",
                mount.container_path
            )));
        }
        let source = match &mount.image {
            Some(image) if !image.image.is_empty() => {
                let found = self.images.find(&image.image);
                let found = found
                    .ok_or_else(|| RuntimeError::NotFound(format!("image {:?} not found", image.image)))?;
                if !mount.readonly {
                    return Err(RuntimeError::Invalid(format!(
                        "the mount of image {:?} at {:?} must be read-only",
                        image.image, mount.container_path
                    )));
                }
                let (root, part) = (found.root(&self.images, true), Path::new(&mount.image_sub_path));
                if !images::contains(&root, part).doing(|| format!("look into image {:?}", image.image))? {
                    return Err(RuntimeError::NotFound(format!(
                        "image {:?} has no {:?}",
                        image.image, mount.image_sub_path
                    )));
                }
                Source::Layers { root, sub_path: part.to_owned() }
            }
            _ => {
                let path = PathBuf::from(&mount.host_path);
                if !path.exists() {
                    // As other runtimes do: what a pod mounts from the host begins as an empty directory.
                    std::fs::create_dir_all(&path).doing(|| format!("make {}", path.display()))?;
                }
                // Where a link leads now is what is mounted.
                Source::Bind(std::fs::canonicalize(&path).doing(|| format!("resolve {}", path.display()))?)
            }
        };
        if mount.recursive_read_only
            && !(mount.readonly && mount.propagation() == MountPropagation::PropagationPrivate)
        {
            return Err(RuntimeError::Invalid(
                "a recursively read-only mount must be read-only and private".to_owned(),
            ));
        }
        Ok(Mount {
            target,
            source,
            read_only: mount.readonly,
            recursive_read_only: mount.recursive_read_only,
            mapped: !mount.uid_mappings.is_empty(),
            propagation: match mount.propagation() {
                MountPropagation::PropagationPrivate => Propagation::Private,
                MountPropagation::PropagationHostToContainer => Propagation::HostToContainer,
                MountPropagation::PropagationBidirectional => Propagation::Bidirectional,
            },
        })
    }
}

/// Limits as control groups have them. Zero is "not said" in CRI.
pub(super) fn limits(resources: &LinuxContainerResources) -> Resources {
    let said = |number: i64| Some(number).filter(|number| *number != 0);
    let positive = |number: i64| u64::try_from(number).ok().filter(|number| *number > 0);
    let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    Resources {
        cpu_shares: positive(resources.cpu_shares),
        cpu_quota: said(resources.cpu_quota),
        cpu_period: positive(resources.cpu_period),
        cpuset_cpus: text(&resources.cpuset_cpus),
        cpuset_mems: text(&resources.cpuset_mems),
        memory_limit: said(resources.memory_limit_in_bytes),
        swap_limit: said(resources.memory_swap_limit_in_bytes),
        pids_limit: None,
        hugepages: resources
            .hugepage_limits
            .iter()
            .map(|limit| (limit.page_size.clone(), limit.limit))
            .collect(),
        unified: resources.unified.clone(),
    }
}

fn process(
    config: &ContainerConfig,
    pod: &PodSandboxConfig,
    run: &RunConfig,
    security: &LinuxContainerSecurityContext,
) -> Result<Process, RuntimeError> {
    // A command replaces both of the image's, arguments only its arguments.
    let mut arguments =
        if config.command.is_empty() { run.entrypoint.clone() } else { config.command.clone() };
    if !config.args.is_empty() {
        arguments.extend(config.args.iter().cloned());
    } else if config.command.is_empty() {
        arguments.extend(run.cmd.iter().cloned());
    }
    if arguments.is_empty() {
        return Err(RuntimeError::Invalid("no command specified".to_owned()));
    }
    let mut environment: Vec<(String, String)> = Vec::new();
    let mut set = |name: &str, value: &str| match environment.iter_mut().find(|(known, _)| known == name) {
        Some(entry) => value.clone_into(&mut entry.1),
        None => environment.push((name.to_owned(), value.to_owned())),
    };
    set("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    set("HOSTNAME", &pod.hostname);
    if config.tty {
        set("TERM", "xterm");
    }
    for variable in &run.env {
        let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
        set(name, value);
    }
    for variable in &config.envs {
        let value = std::str::from_utf8(&variable.value);
        let value =
            value.map_err(|_| RuntimeError::Invalid(format!("variable {:?} is not UTF-8", variable.key)))?;
        set(&variable.key, value);
    }
    if let Some((name, _)) = environment
        .iter()
        .find(|(name, value)| name.is_empty() || name.contains(['\0', '=']) || value.contains('\0'))
    {
        return Err(RuntimeError::Invalid(format!("{name:?} is no environment variable")));
    }
    if arguments.iter().any(|argument| argument.contains('\0')) {
        return Err(RuntimeError::Invalid("an argument contains a zero byte".to_owned()));
    }
    let (held, ambient) = capabilities_of(security)?;
    let directory = if config.working_dir.is_empty() { &run.working_dir } else { &config.working_dir };
    Ok(Process {
        arguments,
        environment,
        directory: directory.into(),
        user: user(run, security)?,
        capabilities: held,
        ambient,
        no_new_privileges: security.no_new_privs && !security.privileged,
        seccomp: seccomp(security)?,
        apparmor: apparmor(security)?,
        terminal: config.tty,
    })
}

fn user(run: &RunConfig, security: &LinuxContainerSecurityContext) -> Result<User, RuntimeError> {
    if security.run_as_group.is_some()
        && security.run_as_user.is_none()
        && security.run_as_username.is_empty()
    {
        return Err(RuntimeError::Invalid("a group to run as needs a user to run as".to_owned()));
    }
    let name = match (&security.run_as_user, security.run_as_username.as_str()) {
        (Some(uid), _) => uid.value.to_string(),
        (None, "") => run.user.clone(),
        (None, name) => name.to_owned(),
    };
    Ok(User {
        name,
        group: security.run_as_group.as_ref().and_then(|gid| u32::try_from(gid.value).ok()),
        supplemental: security
            .supplemental_groups
            .iter()
            .filter_map(|gid| u32::try_from(*gid).ok())
            .collect(),
        strict: security.supplemental_groups_policy() == SupplementalGroupsPolicy::Strict,
    })
}

/// What is held, and what plain programs of other users inherit of it.
fn capabilities_of(security: &LinuxContainerSecurityContext) -> Result<(u64, u64), RuntimeError> {
    if security.privileged {
        return Ok((capabilities::all(), 0));
    }
    let asked = security.capabilities.clone().unwrap_or_default();
    let bits = |names: &[String]| {
        names.iter().filter(|name| !is_all(name)).try_fold(0, |bits, name| {
            let unknown = || RuntimeError::Invalid(format!("unknown capability {name:?}"));
            Ok::<u64, RuntimeError>(bits | 1 << capabilities::number(name).ok_or_else(unknown)?)
        })
    };
    let mut held = capabilities::defaults();
    if asked.add_capabilities.iter().any(|name| is_all(name)) {
        held = capabilities::all();
    }
    if asked.drop_capabilities.iter().any(|name| is_all(name)) {
        held = 0;
    }
    let ambient = bits(&asked.add_ambient_capabilities)?;
    held = (held & !bits(&asked.drop_capabilities)?) | bits(&asked.add_capabilities)? | ambient;
    Ok((held, ambient))
}

fn is_all(name: &str) -> bool {
    name.eq_ignore_ascii_case("all")
}

fn seccomp(security: &LinuxContainerSecurityContext) -> Result<Seccomp, RuntimeError> {
    if security.privileged {
        return Ok(Seccomp::Unconfined);
    }
    // CRI's word: who wants the default has to ask for it, and kubelets do.
    let Some(profile) = &security.seccomp else { return Ok(Seccomp::Unconfined) };
    match profile.profile_type() {
        SecurityProfileProfileType::RuntimeDefault => Ok(Seccomp::Default),
        SecurityProfileProfileType::Unconfined => Ok(Seccomp::Unconfined),
        SecurityProfileProfileType::Localhost => {
            let path = profile.localhost_ref.strip_prefix("localhost/").unwrap_or(&profile.localhost_ref);
            let text = std::fs::read_to_string(path).doing(|| format!("read seccomp profile {path}"))?;
            sys::seccomp::Profile::parse(text.as_bytes())
                .map_err(|error| RuntimeError::Invalid(format!("seccomp profile {path}: {error}")))?;
            Ok(Seccomp::Profile(text))
        }
    }
}

/// Mandatory access control that the host enforces besides capabilities and seccomp.
#[derive(Clone, Copy, Debug)]
struct Host {
    apparmor: bool,
    selinux: bool,
}

impl Host {
    fn find() -> Self {
        let selinux = Path::new("/sys/fs/selinux/enforce").exists();
        Self { apparmor: sys::apparmor::is_enabled(), selinux }
    }
}

/// The AppArmor profile to run under. A profile that cannot be enforced is an error, never ignored.
fn apparmor(security: &LinuxContainerSecurityContext) -> Result<Option<String>, RuntimeError> {
    let host = Host::find();
    refuse_selinux(security, host)?;
    let Some(name) = apparmor_profile(security, host)? else { return Ok(None) };
    let loaded = sys::apparmor::is_loaded(&name).doing(|| "read the AppArmor profiles".to_owned())?;
    if !loaded {
        return Err(RuntimeError::Invalid(format!("apparmor profile not found {name}")));
    }
    Ok(Some(name))
}

/// The profile that containerd loads for `RuntimeDefault`; used if it is loaded.
const DEFAULT_PROFILE: &str = "cri-containerd.apparmor.d";

fn apparmor_profile(
    security: &LinuxContainerSecurityContext,
    host: Host,
) -> Result<Option<String>, RuntimeError> {
    // As containerd: a privileged container has no profile unless it asks for one.
    let Some(profile) = &security.apparmor else { return Ok(None) };
    let name = match profile.profile_type() {
        SecurityProfileProfileType::Unconfined => return Ok(None),
        SecurityProfileProfileType::RuntimeDefault if security.privileged => return Ok(None),
        SecurityProfileProfileType::RuntimeDefault => DEFAULT_PROFILE,
        SecurityProfileProfileType::Localhost => {
            profile.localhost_ref.strip_prefix("localhost/").unwrap_or(&profile.localhost_ref)
        }
    };
    if !host.apparmor {
        return Err(RuntimeError::Invalid(
            "Cannot enforce AppArmor: AppArmor is not enabled on the host".to_owned(),
        ));
    }
    if name.is_empty() || name.contains(['\0', '\n']) {
        return Err(RuntimeError::Invalid(format!("invalid AppArmor profile name: {name:?}")));
    }
    Ok(Some(name.to_owned()))
}

/// Refuses labels where SELinux could enforce them: this runtime does not set them. Elsewhere they mean nothing, as for
/// containerd.
fn refuse_selinux(security: &LinuxContainerSecurityContext, host: Host) -> Result<(), RuntimeError> {
    let asked = security.selinux_options.as_ref().is_some_and(|options| {
        [&options.user, &options.role, &options.r#type, &options.level].iter().any(|part| !part.is_empty())
    });
    if asked && host.selinux {
        return Err(RuntimeError::Invalid(
            "SELinux options are set, but this runtime does not apply SELinux labels".to_owned(),
        ));
    }
    if asked {
        tracing::warn!("SELinux options are ignored, SELinux is not enabled on the host");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands() {
        let run = RunConfig {
            entrypoint: vec!["/entry".into()],
            cmd: vec!["default".into()],
            env: vec!["A=image".into(), "PATH=/bin".into()],
            ..RunConfig::default()
        };
        let with = |command: &[&str], args: &[&str]| {
            let own = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
            let envs = vec![cri::v1::KeyValue { key: "A".into(), value: b"pod".to_vec() }];
            let config =
                ContainerConfig { command: own(command), args: own(args), envs, ..Default::default() };
            process(&config, &PodSandboxConfig::default(), &run, &LinuxContainerSecurityContext::default())
                .unwrap()
        };
        assert_eq!(with(&[], &[]).arguments, ["/entry", "default"]);
        assert_eq!(with(&[], &["x"]).arguments, ["/entry", "x"]);
        assert_eq!(with(&["c"], &[]).arguments, ["c"]);
        assert_eq!(with(&["c"], &["x"]).arguments, ["c", "x"]);
        let environment = with(&[], &[]).environment;
        assert!(
            environment.contains(&("A".into(), "pod".into()))
                && environment.contains(&("PATH".into(), "/bin".into()))
        );
    }

    #[test]
    fn who_and_how_confined() {
        let int = |value| Some(cri::v1::Int64Value { value });
        let of = |user: Option<i64>, name: &str, group: Option<i64>| {
            let security = LinuxContainerSecurityContext {
                run_as_user: user.and_then(int),
                run_as_username: name.to_owned(),
                run_as_group: group.and_then(int),
                ..Default::default()
            };
            user_of(&security).map(|user| (user.name, user.group))
        };
        assert_eq!(of(Some(5), "", Some(6)).unwrap(), ("5".to_owned(), Some(6)));
        assert_eq!(of(None, "web", Some(6)).unwrap(), ("web".to_owned(), Some(6)));
        assert_eq!(of(None, "", None).unwrap(), ("image".to_owned(), None));
        assert!(of(None, "", Some(6)).is_err(), "CRI wants that refused");

        let confined = |kind: Option<SecurityProfileProfileType>, privileged| {
            let profile = |kind: SecurityProfileProfileType| cri::v1::SecurityProfile {
                profile_type: kind.into(),
                ..Default::default()
            };
            let security = LinuxContainerSecurityContext {
                seccomp: kind.map(profile),
                privileged,
                ..Default::default()
            };
            seccomp(&security).unwrap()
        };
        assert_eq!(confined(Some(SecurityProfileProfileType::RuntimeDefault), false), Seccomp::Default);
        assert_eq!(confined(Some(SecurityProfileProfileType::RuntimeDefault), true), Seccomp::Unconfined);
        assert_eq!(confined(None, false), Seccomp::Unconfined);
    }

    fn user_of(security: &LinuxContainerSecurityContext) -> Result<User, RuntimeError> {
        user(&RunConfig { user: "image".to_owned(), ..RunConfig::default() }, security)
    }

    #[test]
    fn apparmor_profile_without_apparmor_is_refused() {
        use SecurityProfileProfileType::{Localhost, RuntimeDefault, Unconfined};
        let with = |kind: Option<SecurityProfileProfileType>, name: &str, enabled: bool| {
            let security = LinuxContainerSecurityContext {
                apparmor: kind.map(|kind| cri::v1::SecurityProfile {
                    profile_type: kind.into(),
                    localhost_ref: name.to_owned(),
                }),
                ..Default::default()
            };
            let host = Host { apparmor: enabled, selinux: false };
            apparmor_profile(&security, host).map_err(|error| error.to_string())
        };
        let missing = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
        assert_eq!(with(None, "", false), Ok(None));
        assert_eq!(with(Some(Unconfined), "", false), Ok(None));
        assert_eq!(with(Some(RuntimeDefault), "", false), Err(missing.to_owned()));
        assert_eq!(with(Some(Localhost), "mine", false), Err(missing.to_owned()));
        assert_eq!(with(Some(Localhost), "localhost/mine", true), Ok(Some("mine".to_owned())));
        assert_eq!(with(Some(RuntimeDefault), "", true), Ok(Some(DEFAULT_PROFILE.to_owned())));
        assert!(with(Some(Localhost), "", true).is_err());
    }

    #[test]
    fn selinux_label_that_would_be_ignored_is_refused() {
        let security = LinuxContainerSecurityContext {
            selinux_options: Some(cri::v1::SELinuxOption { level: "s0:c1,c2".into(), ..Default::default() }),
            ..Default::default()
        };
        assert!(refuse_selinux(&security, Host { apparmor: false, selinux: true }).is_err());
        assert!(refuse_selinux(&security, Host { apparmor: false, selinux: false }).is_ok());
        let none = LinuxContainerSecurityContext::default();
        assert!(refuse_selinux(&none, Host { apparmor: false, selinux: true }).is_ok());
    }

    #[test]
    fn capability_sets() {
        let set = |add: &[&str], drop: &[&str]| {
            let own = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
            capabilities_of(&LinuxContainerSecurityContext {
                capabilities: Some(cri::v1::Capability {
                    add_capabilities: own(add),
                    drop_capabilities: own(drop),
                    ..Default::default()
                }),
                ..Default::default()
            })
            .map(|(held, _)| held)
        };
        assert_eq!(set(&[], &[]).unwrap(), capabilities::defaults());
        assert_eq!(set(&["NET_ADMIN"], &["ALL"]).unwrap(), 1 << 12);
        assert_eq!(set(&["ALL"], &["CHOWN"]).unwrap(), capabilities::all() & !1);
        assert!(set(&["NONSENSE"], &[]).is_err());
    }
}
