//! The state file of the CPU manager, with Kubernetes' file name, fields and checksum.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::CpuError;
use super::cpu_set::CpuSet;
use super::static_policy::CpuState;

pub const FILE: &str = "cpu_manager_state";
/// Maximum size of the file.
const MAX_SIZE: u64 = 64 << 20;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Checkpoint {
    policy_name: String,
    #[serde(alias = "defaultCPUSet")]
    default_cpu_set: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, String>>,
    checksum: u64,
}

impl Checkpoint {
    fn new(policy: &str, state: &CpuState) -> Self {
        let mut checkpoint = Self {
            policy_name: policy.to_owned(),
            default_cpu_set: state.default_cpu_set.to_string(),
            ..Self::default()
        };
        for (uid, containers) in &state.entries {
            let texts = containers.iter().map(|(name, cpus)| (name.clone(), cpus.to_string()));
            checkpoint.entries.insert(uid.clone(), texts.collect());
        }
        checkpoint.checksum = checkpoint.sum();
        checkpoint
    }

    /// FNV-1a of the text that Go's spew prints for the struct, as in Kubernetes.
    fn sum(&self) -> u64 {
        let pods = self.entries.iter().map(|(uid, containers)| {
            let texts = containers.iter().map(|(name, cpus)| format!("{name}:{cpus}"));
            format!("{uid}:map[{}]", texts.collect::<Vec<_>>().join(" "))
        });
        let text = format!(
            "(*state.CPUManagerCheckpoint){{PolicyName:(string){} DefaultCPUSet:(string){} \
             Entries:(map[string]map[string]string)map[{}] Checksum:(checksum.Checksum)0}}",
            self.policy_name,
            self.default_cpu_set,
            pods.collect::<Vec<_>>().join(" ")
        );
        let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        u64::from(text.bytes().fold(0x811c_9dc5, step))
    }

    /// Checks the checksum and the policy. A checksum of zero is accepted, as in Kubernetes.
    fn state(&self, policy: &str) -> Result<CpuState, String> {
        if self.checksum != 0 && self.checksum != self.sum() {
            return Err("checkpoint is corrupted".to_owned());
        }
        if self.policy_name != policy {
            return Err(format!(
                "configured policy {policy:?} differs from state checkpoint policy {:?}",
                self.policy_name
            ));
        }
        let parse = |text: &str, of: &str| {
            CpuSet::parse(text).map_err(|error| format!("could not parse cpuset {text:?} of {of}: {error}"))
        };
        let mut state = CpuState {
            default_cpu_set: parse(&self.default_cpu_set, "the shared pool")?,
            ..CpuState::default()
        };
        for (uid, containers) in &self.entries {
            let all = state.entries.entry(uid.clone()).or_default();
            for (name, text) in containers {
                all.insert(name.clone(), parse(text, &format!("container {name:?} in pod {uid:?}"))?);
            }
        }
        Ok(state)
    }
}

fn load(path: &Path, policy: &str) -> Result<Option<CpuState>, String> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let mut text = Vec::new();
    file.take(MAX_SIZE).read_to_end(&mut text).map_err(|error| error.to_string())?;
    let checkpoint: Checkpoint = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    checkpoint.state(policy).map(Some)
}

/// Reads the state of a policy; `None` if there is none.
pub fn read(path: &Path, policy: &str) -> Result<Option<CpuState>, CpuError> {
    load(path, policy).map_err(|reason| CpuError::Restore { path: PathBuf::from(path), reason })
}

pub fn write(path: &Path, policy: &str, state: &CpuState) -> io::Result<()> {
    let checkpoint = Checkpoint::new(policy, state);
    base::file::replace(path, &serde_json::to_vec(&checkpoint)?, base::file::PRIVATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Option<CpuState>, String> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(FILE);
        std::fs::write(&path, text).expect("a file");
        read(&path, "none").map_err(|error| error.to_string())
    }

    /// Checksums of Kubernetes' tests (`state_checkpoint_test.go`).
    #[test]
    fn files_of_kubernetes_are_read() {
        let state = read_text(
            r#"{"policyName":"none","defaultCPUSet":"1-3","entries":{"pod":{"container1":"4-6","container2":"1-3"}},
                "checksum":3610638499}"#,
        );
        let state = state.expect("valid").expect("a state");
        assert_eq!(state.default_cpu_set.to_string(), "1-3");
        assert_eq!(state.entries["pod"]["container1"].to_string(), "4-6");
        for (set, sum) in [("4-6", 354_655_845_u64), ("4-6", 0), ("", 1_353_318_690)] {
            let text = format!(r#"{{"policyName":"none","defaultCpuSet":"{set}","checksum":{sum}}}"#);
            let state = read_text(&text).expect("valid").expect("a state");
            assert_eq!(state.default_cpu_set.to_string(), set);
        }
    }

    #[test]
    fn invalid_files_are_rejected() {
        for (text, reason) in [
            ("", "EOF"),
            (r#"{"policyName":"none","defaultCpuSet":"4-6","checksum":1337}"#, "checkpoint is corrupted"),
            (
                r#"{"policyName":"none","defaultCpuSet":"4-7","checksum":354655845}"#,
                "checkpoint is corrupted",
            ),
            (
                r#"{"policyName":"none","defaultCpuSet":"1.3","checksum":3021697696}"#,
                "could not parse cpuset",
            ),
            (
                r#"{"policyName":"none","defaultCpuSet":"0-99999999999","checksum":0}"#,
                "could not parse cpuset",
            ),
            (
                r#"{"policyName":"none","defaultCpuSet":"1","entries":{"p":{"c":"asd"}},"checksum":0}"#,
                "container \"c\" in pod \"p\"",
            ),
            (
                r#"{"policyName":"other","defaultCPUSet":"1-3","entries":{},"checksum":1394507217}"#,
                "configured policy \"none\" differs from state checkpoint policy \"other\"",
            ),
        ] {
            let error = read_text(text).expect_err(text);
            assert!(error.contains(reason) && error.contains("drain this node"), "{error}");
        }
    }

    #[test]
    fn written_states_are_read_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(FILE);
        assert_eq!(read(&path, "static").expect("no file"), None);
        let set = |text| CpuSet::parse(text).expect("a list");
        let containers = BTreeMap::from([("a".to_owned(), set("1,5")), ("b".to_owned(), set("2"))]);
        let entries = BTreeMap::from([("1".to_owned(), containers), ("2".to_owned(), BTreeMap::new())]);
        let state = CpuState { default_cpu_set: set("0,3-4"), entries };
        write(&path, "static", &state).expect("written");
        assert_eq!(read(&path, "static").expect("valid"), Some(state));
        read(&path, "none").expect_err("of another policy");
    }
}
