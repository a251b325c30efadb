//! Cgroups of the node's pods, and the containers and pods that they belong to.

use sys::cgroups::{Group, Hierarchy};

use super::{Known, Labels};

/// Levels below the root of pods: QoS class, pod, container.
const LEVELS: usize = 3;
/// Limit of cgroups on one page.
const MAX_GROUPS: usize = 8192;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// Above pods, or of a system service.
    Raw,
    Pod,
    Container,
    Sandbox,
}

#[derive(Debug)]
pub struct FoundGroup {
    pub group: Group,
    pub kind: GroupKind,
    pub labels: Labels,
}

/// Labels of a cgroup that belongs to no pod.
pub fn raw(group: &Group) -> Labels {
    Labels { id: group.id(), ..Labels::default() }
}

/// Finds the cgroup of all pods and those below it. Cgroups that containers created themselves are left out.
pub fn below(hierarchy: &Hierarchy, root: &str, known: &Known) -> Vec<FoundGroup> {
    let Some(root) = hierarchy.group(root).filter(Group::exists) else { return Vec::new() };
    let mut found = vec![FoundGroup { labels: raw(&root), group: root, kind: GroupKind::Raw }];
    let (mut begin, mut level) = (0, 0);
    while level < LEVELS && begin < found.len() {
        let end = found.len();
        for at in begin..end {
            if matches!(found[at].kind, GroupKind::Container | GroupKind::Sandbox) {
                continue;
            }
            let in_pod = found[at].kind == GroupKind::Pod;
            for group in found[at].group.children() {
                if found.len() >= MAX_GROUPS {
                    return found;
                }
                found.extend(classify(group, in_pod, known));
            }
        }
        (begin, level) = (end, level + 1);
    }
    found
}

fn classify(group: Group, in_pod: bool, known: &Known) -> Option<FoundGroup> {
    let with_id = |labels: &Labels| Labels { id: group.id(), ..labels.clone() };
    let id = container_id(group.name());
    let (kind, labels) = if let Some(labels) = known.containers.get(id) {
        (GroupKind::Container, with_id(labels))
    } else if let Some(labels) = known.sandboxes.get(id) {
        (GroupKind::Sandbox, with_id(labels))
    } else if in_pod {
        return None;
    } else if let Some(uid) = pod_uid(group.name()) {
        let uid_of = |known: &&String| known.replace('_', "-") == uid;
        let labels = known.pods.get(&uid).or_else(|| known.pods.get(known.pods.keys().find(uid_of)?))?;
        (GroupKind::Pod, with_id(labels))
    } else {
        (GroupKind::Raw, raw(&group))
    };
    Some(FoundGroup { group, kind, labels })
}

/// Container ID in a name such as `<id>` or `cri-containerd-<id>.scope`.
fn container_id(name: &str) -> &str {
    match name.strip_suffix(".scope") {
        Some(name) => name.rsplit('-').next().unwrap_or(name),
        None => name,
    }
}

/// UID in a name such as `pod<uid>` or `kubepods-burstable-pod<uid>.slice`, where the latter has `_` for `-`.
fn pod_uid(name: &str) -> Option<String> {
    match name.strip_suffix(".slice") {
        Some(name) => name.rsplit_once("-pod").map(|(_, uid)| uid.replace('_', "-")),
        None => name.strip_prefix("pod").map(ToOwned::to_owned),
    }
}

/// Path of this process's own cgroup.
pub fn own() -> Option<String> {
    path_of(&std::fs::read_to_string("/proc/self/cgroup").ok()?)
}

fn path_of(text: &str) -> Option<String> {
    let of = |wanted: &dyn Fn(&str) -> bool| {
        text.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            wanted(controllers).then(|| path.to_owned())
        })
    };
    of(&|controllers| controllers.split(',').any(|one| one == "cpu"))
        .or_else(|| of(&|controllers| controllers.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_cgroup_drivers_are_understood() {
        assert_eq!(container_id("0a1b"), "0a1b");
        assert_eq!(container_id("cri-containerd-0a1b.scope"), "0a1b");
        assert_eq!(pod_uid("podaa-bb").as_deref(), Some("aa-bb"));
        assert_eq!(pod_uid("kubepods-burstable-podaa_bb.slice").as_deref(), Some("aa-bb"));
        assert_eq!(pod_uid("burstable"), None);
        assert_eq!(pod_uid("kubepods-burstable.slice"), None);
    }

    #[test]
    fn own_cgroup_is_that_of_the_cpu_controller_or_unified() {
        assert_eq!(
            path_of("0::/system.slice/ferry.service\n").as_deref(),
            Some("/system.slice/ferry.service")
        );
        assert_eq!(path_of("5:cpu,cpuacct:/a\n3:memory:/b\n0::/\n").as_deref(), Some("/a"));
        assert_eq!(path_of(""), None);
    }
}
