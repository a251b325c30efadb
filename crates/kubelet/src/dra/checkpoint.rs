//! The checkpoint of prepared claims, with Kubernetes' file name and form.

use std::io::{self, Read as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::claims::{ClaimInfo, Claims};

pub const FILE: &str = "dra_manager_state";
const KIND: &str = "DRACheckpoint";
const API_VERSION: &str = "checkpoint.dra.kubelet.k8s.io/v1";
/// Maximum size of the file.
const MAX_SIZE: u64 = 64 << 20;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    /// JSON of the state.
    data: String,
    checksum: u32,
}

#[derive(Serialize, Deserialize)]
struct State {
    kind: String,
    #[serde(rename = "apiVersion")]
    api_version: String,
    #[serde(rename = "ClaimInfoStateList")]
    claims: Option<Vec<ClaimInfo>>,
}

/// CRC-32 of IEEE 802.3.
fn checksum(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}

/// Content of the file for claims.
pub fn encode(claims: &Claims) -> Vec<u8> {
    let state = State {
        kind: KIND.to_owned(),
        api_version: API_VERSION.to_owned(),
        claims: Some(claims.values().cloned().collect()),
    };
    let data = serde_json::to_string(&state).unwrap_or_default();
    let checksum = checksum(data.as_bytes());
    serde_json::to_vec(&File { data, checksum }).unwrap_or_default()
}

/// Reads the checkpoint; empty if there is none.
pub fn read(kubelet: &Path) -> io::Result<Claims> {
    let file = match std::fs::File::open(kubelet.join(FILE)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Claims::new()),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(MAX_SIZE).read_to_end(&mut text)?;
    let file: File = serde_json::from_slice(&text)?;
    if file.checksum != checksum(file.data.as_bytes()) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "checkpoint is corrupted"));
    }
    let state: State = serde_json::from_str(&file.data)?;
    let claims = state.claims.into_iter().flatten();
    Ok(claims.map(|claim| ((claim.namespace.clone(), claim.claim_name.clone()), claim)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_that_of_ieee() {
        assert_eq!(checksum(b"123456789"), 0xcbf4_3926);
    }
}
