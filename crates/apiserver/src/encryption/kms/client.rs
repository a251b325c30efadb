//! Client of a key management service: gRPC over a Unix socket, a connection per call, since calls are rare.

use super::envelope::{
    DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, StatusRequest, StatusResponse,
};
use crate::unix_grpc::UnixGrpc;
use prost::Message;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

const SERVICE: &str = "v2.KeyManagementService";
/// Size limit of a response: keys are small.
const MAX_RESPONSE: usize = 64 * 1024;

pub struct KmsClient {
    socket: PathBuf,
    grpc: UnixGrpc,
    timeout: Duration,
}

impl KmsClient {
    pub fn new(socket: PathBuf, timeout: Duration) -> Self {
        let grpc = UnixGrpc::new(&socket, SERVICE);
        Self { socket, grpc, timeout }
    }

    /// Status of the service; an error unless it is healthy.
    pub async fn status(&self) -> Result<StatusResponse, String> {
        let status: StatusResponse = self.call("Status", StatusRequest {}).await?;
        if !matches!(status.version.as_str(), "v2" | "v2beta1") {
            return Err(format!("key management service has version {:?}, not v2", status.version));
        }
        if status.healthz != "ok" {
            return Err(format!("key management service is unhealthy: {}", status.healthz));
        }
        Ok(status)
    }

    pub async fn encrypt(&self, plain: &[u8]) -> Result<EncryptResponse, String> {
        let uid = uuid::Uuid::new_v4().to_string();
        self.call("Encrypt", EncryptRequest { plaintext: plain.to_vec(), uid }).await
    }

    pub async fn decrypt(
        &self,
        ciphertext: Vec<u8>,
        key_id: String,
        annotations: HashMap<String, Vec<u8>>,
    ) -> Result<Vec<u8>, String> {
        let uid = uuid::Uuid::new_v4().to_string();
        let request = DecryptRequest { ciphertext, uid, key_id, annotations };
        let answer: DecryptResponse = self.call("Decrypt", request).await?;
        Ok(answer.plaintext)
    }

    async fn call<T: Message + Default + 'static>(
        &self,
        method: &str,
        request: impl Message + 'static,
    ) -> Result<T, String> {
        let socket_path = self.socket.display();
        let call = self.grpc.call(method, request, MAX_RESPONSE);
        match tokio::time::timeout(self.timeout, call).await {
            Ok(outcome) => {
                outcome.map_err(|why| format!("key management service at {socket_path}: {method}: {why}"))
            }
            Err(_) => Err(format!(
                "key management service at {socket_path}: {method} took longer than {:?}",
                self.timeout
            )),
        }
    }
}
