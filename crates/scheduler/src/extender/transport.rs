//! The way to an extender: HTTP/1.1, over TLS where it is asked for. Connections are kept for the next pod.

use std::io;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::config::{ConfigError, ExtenderConfig, TlsConfig};

/// Answers longer than this are not read.
const LONGEST_ANSWER: usize = 64 << 20;
/// Connections kept while nobody uses them.
const MOST_IDLE: usize = 4;

type Failure = Box<dyn std::error::Error + Send + Sync>;

pub struct Transport {
    host: String,
    port: u16,
    path: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

impl Transport {
    pub fn new(config: &ExtenderConfig) -> Result<Self, ConfigError> {
        let problem = |problem: String| ConfigError::Field { field: "extenders.urlPrefix", problem };
        let uri: Uri = config.url_prefix.parse().map_err(|error| problem(format!("{error}")))?;
        let secure = match uri.scheme_str() {
            Some("http") => config.enable_https,
            Some("https") => true,
            _ => return Err(problem(format!("{:?} is neither an http nor an https URL", config.url_prefix))),
        };
        let host = uri.host().ok_or_else(|| problem(format!("{:?} names no host", config.url_prefix)))?;
        let tls = secure.then(|| connector(&config.tls_config, host)).transpose()?;
        Ok(Self {
            host: host.to_owned(),
            port: uri.port_u16().unwrap_or(if secure { 443 } else { 80 }),
            path: uri.path().trim_end_matches('/').to_owned(),
            tls,
            idle: Mutex::default(),
        })
    }

    /// Posts `body` to a verb; code and text of the answer.
    pub async fn call(&self, verb: &str, body: Vec<u8>) -> Result<(u16, Bytes), Failure> {
        let body = Bytes::from(body);
        // An idle connection may have been closed just now; a new one says whether the extender is there.
        let idle = || self.idle.lock().pop();
        while let Some(mut sender) = idle() {
            if sender.ready().await.is_ok()
                && let Ok(answer) = self.exchange(sender, verb, body.clone()).await
            {
                return Ok(answer);
            }
        }
        self.exchange(self.connect().await?, verb, body).await
    }

    async fn exchange(
        &self,
        mut sender: SendRequest<Full<Bytes>>,
        verb: &str,
        body: Bytes,
    ) -> Result<(u16, Bytes), Failure> {
        let request = Request::post(format!("{}/{verb}", self.path))
            .header(header::HOST, format!("{}:{}", self.host, self.port))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        let response = sender.send_request(request).await?;
        let code = response.status().as_u16();
        let text = Limited::new(response.into_body(), LONGEST_ANSWER).collect().await?.to_bytes();
        self.keep(sender);
        Ok((code, text))
    }

    fn keep(&self, sender: SendRequest<Full<Bytes>>) {
        let mut idle = self.idle.lock();
        if idle.len() < MOST_IDLE && !sender.is_closed() {
            idle.push(sender);
        }
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Failure> {
        let host = self.host.trim_matches(['[', ']']);
        let stream = TcpStream::connect((host, self.port)).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => drive(stream).await,
            Some((connector, name)) => drive(connector.connect(name.clone(), stream).await?).await,
        }
    }
}

async fn drive<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, Failure>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    // Ends with the connection, which ends when nobody holds its sender.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to an extender ended");
        }
    });
    Ok(sender)
}

fn connector(config: &TlsConfig, host: &str) -> Result<(TlsConnector, ServerName<'static>), ConfigError> {
    let problem = |problem: String| ConfigError::Field { field: "extenders.tlsConfig", problem };
    if config.insecure {
        return Err(problem("insecure is not supported: give the extender's authority as caFile".to_owned()));
    }
    let read = |file: &str, data: &str| -> Result<Vec<u8>, ConfigError> {
        if data.is_empty() {
            let named = |error: io::Error| problem(format!("reading {file:?}: {error}"));
            return if file.is_empty() { Ok(Vec::new()) } else { std::fs::read(file).map_err(named) };
        }
        STANDARD.decode(data).map_err(|error| problem(error.to_string()))
    };
    let pem =
        |bytes: &[u8]| base::pki::certificates_from_pem(&String::from_utf8_lossy(bytes)).map_err(problem);
    let authority = read(&config.ca_file, &config.ca_data)?;
    if authority.is_empty() {
        return Err(problem("neither caFile nor caData says whom to trust".to_owned()));
    }
    let mut roots = RootCertStore::empty();
    for certificate in pem(&authority)? {
        roots.add(certificate).map_err(|error| problem(error.to_string()))?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| problem(error.to_string()))?
        .with_root_certificates(roots);
    let certificate = read(&config.cert_file, &config.cert_data)?;
    let tls = if certificate.is_empty() {
        builder.with_no_client_auth()
    } else {
        let key = read(&config.key_file, &config.key_data)?;
        let key =
            PrivateKeyDer::from_pem_slice(&key).map_err(|error| problem(format!("the key: {error}")))?;
        builder.with_client_auth_cert(pem(&certificate)?, key).map_err(|error| problem(error.to_string()))?
    };
    let name =
        if config.server_name.is_empty() { host.trim_matches(['[', ']']) } else { &config.server_name };
    let name = ServerName::try_from(name.to_owned()).map_err(|error| problem(error.to_string()))?;
    Ok((TlsConnector::from(Arc::new(tls)), name))
}
