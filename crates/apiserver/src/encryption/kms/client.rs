//! Calls of a key management service: gRPC over a Unix socket, a connection per call. Calls are rare.

use super::envelope::{
    DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, StatusRequest, StatusResponse,
};
use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, TE};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::UnixStream;

const SERVICE: &str = "/v2.KeyManagementService/";
/// A flag for compression and the length of the message.
const FRAME_BYTES: usize = 5;
/// Keys are small.
const MAX_ANSWER: usize = 64 * 1024;

pub struct Client {
    socket: PathBuf,
    timeout: Duration,
}

impl Client {
    pub fn new(socket: PathBuf, timeout: Duration) -> Self {
        Self { socket, timeout }
    }

    /// What the service says of itself; an error unless it is well.
    pub async fn status(&self) -> Result<StatusResponse, String> {
        let status: StatusResponse = self.call("Status", &StatusRequest {}).await?;
        if !matches!(status.version.as_str(), "v2" | "v2beta1") {
            return Err(format!("the key management service speaks version {:?}, not v2", status.version));
        }
        if status.healthz != "ok" {
            return Err(format!("the key management service is not well: {}", status.healthz));
        }
        Ok(status)
    }

    pub async fn encrypt(&self, plain: &[u8]) -> Result<EncryptResponse, String> {
        let uid = uuid::Uuid::new_v4().to_string();
        self.call("Encrypt", &EncryptRequest { plaintext: plain.to_vec(), uid }).await
    }

    pub async fn decrypt(
        &self,
        ciphertext: Vec<u8>,
        key_id: String,
        annotations: HashMap<String, Vec<u8>>,
    ) -> Result<Vec<u8>, String> {
        let uid = uuid::Uuid::new_v4().to_string();
        let request = DecryptRequest { ciphertext, uid, key_id, annotations };
        let answer: DecryptResponse = self.call("Decrypt", &request).await?;
        Ok(answer.plaintext)
    }

    async fn call<T: Message + Default>(&self, method: &str, request: &impl Message) -> Result<T, String> {
        let place = self.socket.display();
        match tokio::time::timeout(self.timeout, self.exchange(method, request)).await {
            Ok(outcome) => {
                outcome.map_err(|why| format!("key management service at {place}: {method}: {why}"))
            }
            Err(_) => Err(format!(
                "key management service at {place}: {method} took longer than {:?}",
                self.timeout
            )),
        }
    }

    async fn exchange<T: Message + Default>(
        &self,
        method: &str,
        request: &impl Message,
    ) -> Result<T, String> {
        let text = |error: &dyn std::error::Error| error.to_string();
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| text(&error))?;
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| text(&error))?;
        let driver = tokio::spawn(connection);
        let mut body = BytesMut::with_capacity(FRAME_BYTES + request.encoded_len());
        body.put_u8(0);
        body.put_u32(u32::try_from(request.encoded_len()).unwrap_or(u32::MAX));
        request.encode(&mut body).map_err(|error| text(&error))?;
        let request = http::Request::post(format!("http://localhost{SERVICE}{method}"))
            .header(CONTENT_TYPE, "application/grpc")
            .header(TE, "trailers")
            .body(Full::new(body.freeze()))
            .map_err(|error| text(&error))?;
        let answer = sender.send_request(request).await.map_err(|error| text(&error))?;
        let (head, body) = answer.into_parts();
        let collected = Limited::new(body, MAX_ANSWER).collect().await.map_err(|error| error.to_string())?;
        drop(sender);
        driver.abort();
        let trailers = collected.trailers().cloned().unwrap_or_default();
        let field = |name: &str| {
            let found = trailers.get(name).or_else(|| head.headers.get(name));
            found.and_then(|value| value.to_str().ok()).unwrap_or("").to_owned()
        };
        let code = field("grpc-status");
        if code != "0" {
            return Err(format!("status {code}: {}", field("grpc-message")));
        }
        decode(&collected.to_bytes())
    }
}

fn decode<T: Message + Default>(frame: &Bytes) -> Result<T, String> {
    let (head, message) = frame.split_at_checked(FRAME_BYTES).ok_or("the answer is empty")?;
    if head[0] != 0 {
        return Err("the answer is compressed".to_owned());
    }
    T::decode(message).map_err(|error| error.to_string())
}
