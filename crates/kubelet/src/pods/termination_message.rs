//! Termination message of a container: a file it wrote, or the end of its log.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use objects::core::v1::Pod;

use crate::lifecycle::members::members;
use crate::lifecycle::{ObservedPod, RunState};
use crate::logs;
use crate::volumes::PodDirectories;

/// Maximum message size of one container and of a whole pod.
const MAX_MESSAGE: u64 = 4096;
const MAX_MESSAGES: usize = 12 * 1024;
/// Maximum size taken from a log.
const MAX_LOG_BYTES: u64 = 2048;
const MAX_LOG_LINES: usize = 80;

/// Adds the termination messages of exited containers to the observed state.
pub fn add(observed: &mut ObservedPod, pod: &Pod, directories: &PodDirectories) {
    let all = pod.spec.as_ref().map(members).unwrap_or_default();
    let limit = MAX_MESSAGES.checked_div(all.len().max(1)).unwrap_or(MAX_MESSAGES);
    for container in observed.containers.iter_mut().filter(|container| container.state == RunState::Exited) {
        let Some(member) = all.iter().find(|member| member.name() == container.name) else { continue };
        let file = directories.termination_log(&container.name, container.restarts);
        let mut message = read_end(&file, MAX_MESSAGE).unwrap_or_default();
        let fall_back =
            member.container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError");
        if message.is_empty() && fall_back && container.exit_code != 0 && !container.log_path.is_empty() {
            message = end_of_log(Path::new(&container.log_path));
        }
        if message.is_empty() {
            continue;
        }
        let mut cut = message.len().min(limit);
        while !message.is_char_boundary(cut) {
            cut -= 1;
        }
        message.truncate(cut);
        container.message = message;
    }
}

fn read_end(path: &Path, limit: u64) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    if length > limit {
        file.seek(SeekFrom::Start(length - limit))?;
    }
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn end_of_log(path: &Path) -> String {
    // Log lines have a timestamp, stream and tag before the text.
    let raw = read_end(path, MAX_LOG_BYTES * 4).unwrap_or_default();
    let mut lines: Vec<String> = raw
        .lines()
        .filter_map(|line| logs::parse_line(line.as_bytes()))
        .map(|line| {
            let mut text = String::from_utf8_lossy(line.content).into_owned();
            if !line.partial {
                text.push('\n');
            }
            text
        })
        .collect();
    let extra = lines.len().saturating_sub(MAX_LOG_LINES);
    lines.drain(..extra);
    let mut text = lines.concat();
    while text.len() as u64 > MAX_LOG_BYTES {
        let first = text.chars().next().map_or(1, char::len_utf8);
        text.drain(..first);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::ObservedContainer;
    use objects::core::v1::{Container, PodSpec};

    #[test]
    fn termination_message_prefers_file_to_log() {
        let directory = tempfile::tempdir().expect("a directory");
        let log = directory.path().join("0.log");
        std::fs::write(&log, "2026-01-01T00:00:00Z stderr F boom\n2026-01-01T00:00:00Z stdout F bang\n")
            .expect("a log");
        let pod = Pod {
            spec: Some(PodSpec {
                containers: vec![Container {
                    name: "c".to_owned(),
                    termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
                    ..Container::default()
                }],
                ..PodSpec::default()
            }),
            ..Pod::default()
        };
        let directories = PodDirectories { root: directory.path().to_owned() };
        let container = ObservedContainer {
            name: "c".to_owned(),
            state: RunState::Exited,
            exit_code: 1,
            log_path: log.display().to_string(),
            ..ObservedContainer::default()
        };
        let mut observed = ObservedPod { containers: vec![container], ..ObservedPod::default() };
        add(&mut observed, &pod, &directories);
        assert_eq!(observed.containers[0].message, "boom\nbang\n");
        let file = directories.termination_log("c", 0);
        std::fs::create_dir_all(file.parent().expect("a parent")).expect("a directory");
        std::fs::write(&file, "farewell").expect("a message");
        add(&mut observed, &pod, &directories);
        assert_eq!(observed.containers[0].message, "farewell");
    }
}
