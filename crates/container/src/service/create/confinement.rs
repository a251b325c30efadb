//! Confinement of a container besides namespaces and capabilities: seccomp, AppArmor and SELinux.

use std::path::Path;

use cri::v1::{LinuxContainerSecurityContext, SecurityProfileProfileType};

use super::super::{Doing, RuntimeError};
use crate::shim::spec::Seccomp;

pub(super) fn seccomp(security: &LinuxContainerSecurityContext) -> Result<Seccomp, RuntimeError> {
    if security.privileged {
        return Ok(Seccomp::Unconfined);
    }
    // CRI defines unset as unconfined: the default profile must be requested explicitly, as the kubelet does.
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

/// The AppArmor profile to apply. A profile that cannot be enforced is an error, never ignored.
pub(super) fn apparmor(security: &LinuxContainerSecurityContext) -> Result<Option<String>, RuntimeError> {
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
    // As in containerd: a privileged container has no profile unless it requests one.
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

/// Rejects labels where SELinux could enforce them, since this runtime does not set them. Elsewhere they have no
/// effect, as in containerd.
fn refuse_selinux(security: &LinuxContainerSecurityContext, host: Host) -> Result<(), RuntimeError> {
    let requested = security.selinux_options.as_ref().is_some_and(|options| {
        [&options.user, &options.role, &options.r#type, &options.level].iter().any(|part| !part.is_empty())
    });
    if requested && host.selinux {
        return Err(RuntimeError::Invalid(
            "SELinux options are set, but this runtime does not apply SELinux labels".to_owned(),
        ));
    }
    if requested {
        tracing::warn!("SELinux options are ignored, SELinux is not enabled on the host");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seccomp_profile_types_are_converted() {
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

    #[test]
    fn apparmor_profile_without_apparmor_is_rejected() {
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
    fn selinux_label_that_would_be_ignored_is_rejected() {
        let security = LinuxContainerSecurityContext {
            selinux_options: Some(cri::v1::SELinuxOption { level: "s0:c1,c2".into(), ..Default::default() }),
            ..Default::default()
        };
        assert!(refuse_selinux(&security, Host { apparmor: false, selinux: true }).is_err());
        assert!(refuse_selinux(&security, Host { apparmor: false, selinux: false }).is_ok());
        let none = LinuxContainerSecurityContext::default();
        assert!(refuse_selinux(&none, Host { apparmor: false, selinux: true }).is_ok());
    }
}
