//! Resolves the user and groups of a process from the files of its image.

use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use serde::{Deserialize, Serialize};

use super::spec::User;
use super::{ShimError, failure};

/// User and group ids of the pod: inside its user namespace if it has one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub home: String,
}

/// Size limit for passwd and group files, whose content is untrusted.
const LARGEST: u64 = 4 << 20;

fn lines(path: &str) -> Vec<Vec<String>> {
    use std::io::Read as _;
    let mut text = Vec::new();
    if let Ok(file) = std::fs::File::open(path) {
        let _ = file.take(LARGEST).read_to_end(&mut text);
    }
    let text = String::from_utf8_lossy(&text);
    text.lines().map(|line| line.split(':').map(str::to_owned).collect()).collect()
}

pub(super) fn resolve(user: &User) -> Result<Identity, ShimError> {
    resolve_with(user, &lines("/etc/passwd"), &lines("/etc/group"))
}

fn resolve_with(user: &User, passwd: &[Vec<String>], group: &[Vec<String>]) -> Result<Identity, ShimError> {
    let (name, group_name) = match user.name.split_once(':') {
        Some((name, group)) => (name, Some(group)),
        None => (user.name.as_str(), None),
    };
    let name = if name.is_empty() { "0" } else { name };
    let field = |entry: &[String], at: usize| entry.get(at).and_then(|text| text.parse::<u32>().ok());
    let numeric = name.parse::<u32>().ok();
    let entry = passwd.iter().find(|entry| match numeric {
        Some(uid) => field(entry, 2) == Some(uid),
        None => entry.first().is_some_and(|found| found == name),
    });
    let uid = numeric.or_else(|| entry.and_then(|entry| field(entry, 2)));
    let uid = uid.ok_or_else(|| {
        failure(&format!("unable to find user {name}"), "no matching entries in passwd file")
    })?;
    let own = entry.and_then(|entry| field(entry, 3)).unwrap_or(0);
    let named = group_name.filter(|wanted| !wanted.is_empty()).map(|wanted| {
        let found = wanted.parse().ok().or_else(|| {
            group
                .iter()
                .find(|entry| entry.first().is_some_and(|name| name == wanted))
                .and_then(|entry| field(entry, 2))
        });
        found.ok_or_else(|| {
            failure(&format!("unable to find group {wanted}"), "no matching entries in group file")
        })
    });
    let gid = match user.group {
        Some(gid) => gid,
        None => named.transpose()?.unwrap_or(own),
    };
    let login = entry.and_then(|entry| entry.first());
    let mut groups = vec![gid];
    if let Some(login) = login.filter(|_| !user.strict) {
        let member =
            |entry: &&Vec<String>| entry.get(3).is_some_and(|list| list.split(',').any(|name| name == login));
        groups.extend(group.iter().filter(member).filter_map(|entry| field(entry, 2)));
    }
    groups.extend(&user.supplemental);
    groups.sort_unstable();
    groups.dedup();
    let home = entry.and_then(|entry| entry.get(5)).filter(|home| !home.is_empty());
    Ok(Identity { uid, gid, groups, home: home.cloned().unwrap_or_else(|| "/".to_owned()) })
}

pub(super) fn may_execute(file: &Metadata, who: &Identity) -> bool {
    let mode = file.permissions().mode();
    let bit = if who.uid == 0 {
        0o111
    } else if file.uid() == who.uid {
        0o100
    } else if file.gid() == who.gid || who.groups.contains(&file.gid()) {
        0o010
    } else {
        0o001
    };
    mode & bit != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Vec<Vec<String>> {
        text.lines().map(|line| line.split(':').map(str::to_owned).collect()).collect()
    }

    #[test]
    fn user_by_name_and_id_is_resolved() {
        let passwd = table("root:x:0:0:root:/root:/bin/sh\nweb:x:33:33:web:/var/www:/bin/false\nbroken");
        let group = table("root:x:0:\nweb:x:33:\nlogs:x:4:web,other");
        let who = |name: &str, gid: Option<u32>, strict: bool| {
            let user = User { name: name.to_owned(), group: gid, supplemental: vec![1000], strict };
            resolve_with(&user, &passwd, &group).ok().map(|who| (who.uid, who.gid, who.groups, who.home))
        };
        let some = |uid, gid, groups: &[u32], home: &str| Some((uid, gid, groups.to_vec(), home.to_owned()));
        assert_eq!(who("", None, false), some(0, 0, &[0, 1000], "/root"));
        assert_eq!(who("web", None, false), some(33, 33, &[4, 33, 1000], "/var/www"));
        assert_eq!(who("web", None, true), some(33, 33, &[33, 1000], "/var/www"));
        assert_eq!(who("33:logs", None, true), some(33, 4, &[4, 1000], "/var/www"));
        assert_eq!(who("5000", None, false), some(5000, 0, &[0, 1000], "/"));
        assert_eq!(who("5000:6000", Some(7), false), some(5000, 7, &[7, 1000], "/"));
        assert_eq!(who("nobody", None, false), None);
        assert_eq!(who("web:nogroup", None, false), None);
    }
}
