//! The process of a container: its command, environment, user and capabilities.

use cri::v1::{ContainerConfig, LinuxContainerSecurityContext, PodSandboxConfig, SupplementalGroupsPolicy};
use sys::capabilities;

use super::super::RuntimeError;
use super::confinement::{apparmor, seccomp};
use crate::images::RunConfig;
use crate::shim::spec::{Process, User};

pub(super) fn process(
    config: &ContainerConfig,
    pod: &PodSandboxConfig,
    run: &RunConfig,
    security: &LinuxContainerSecurityContext,
) -> Result<Process, RuntimeError> {
    // A command replaces both entrypoint and arguments of the image, arguments only its arguments.
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
        return Err(RuntimeError::Invalid(format!("{name:?} is not a valid environment variable name")));
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

/// Effective capabilities, and ambient ones, which programs of non-root users inherit.
fn capabilities_of(security: &LinuxContainerSecurityContext) -> Result<(u64, u64), RuntimeError> {
    if security.privileged {
        return Ok((capabilities::all(), 0));
    }
    let requested = security.capabilities.clone().unwrap_or_default();
    let bits = |names: &[String]| {
        names.iter().filter(|name| !is_all(name)).try_fold(0, |bits, name| {
            let unknown = || RuntimeError::Invalid(format!("unknown capability {name:?}"));
            Ok::<u64, RuntimeError>(bits | 1 << capabilities::number(name).ok_or_else(unknown)?)
        })
    };
    let mut held = capabilities::defaults();
    if requested.add_capabilities.iter().any(|name| is_all(name)) {
        held = capabilities::all();
    }
    if requested.drop_capabilities.iter().any(|name| is_all(name)) {
        held = 0;
    }
    let ambient = bits(&requested.add_ambient_capabilities)?;
    held = (held & !bits(&requested.drop_capabilities)?) | bits(&requested.add_capabilities)? | ambient;
    Ok((held, ambient))
}

fn is_all(name: &str) -> bool {
    name.eq_ignore_ascii_case("all")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_and_arguments_replace_image_defaults() {
        let run = RunConfig {
            entrypoint: vec!["/entry".into()],
            cmd: vec!["default".into()],
            env: vec!["A=image".into(), "PATH=/bin".into()],
            ..RunConfig::default()
        };
        let with = |command: &[&str], args: &[&str]| {
            let own = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
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
    fn user_and_group_settings_are_combined() {
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
    }

    fn user_of(security: &LinuxContainerSecurityContext) -> Result<User, RuntimeError> {
        user(&RunConfig { user: "image".to_owned(), ..RunConfig::default() }, security)
    }

    #[test]
    fn capability_sets_are_computed() {
        let set = |add: &[&str], drop: &[&str]| {
            let own = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
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
