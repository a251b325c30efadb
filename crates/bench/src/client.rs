//! A minimal HTTP/1.1 client over TLS for the load generators.

use crate::kubeconfig::Access;
use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Opens connections to one server as one user.
#[derive(Clone)]
pub struct Target {
    address: SocketAddr,
    connector: TlsConnector,
}

impl Target {
    pub fn new(access: &Access) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        for authority in &access.authority {
            roots.add(authority.clone())?;
        }
        let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(access.identity.chain.clone(), access.identity.key())?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { address: access.address, connector: TlsConnector::from(Arc::new(config)) })
    }

    /// As [`Target::new`], without a client certificate: requests carry their own credentials.
    pub fn without_identity(access: &Access) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        for authority in &access.authority {
            roots.add(authority.clone())?;
        }
        let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { address: access.address, connector: TlsConnector::from(Arc::new(config)) })
    }

    /// As [`Target::new`], for a server at another address whose certificate is not verified.
    pub fn unverified(access: &Access, address: SocketAddr) -> Result<Self> {
        let builder = base::tls::client_builder()?.dangerous();
        let builder = builder.with_custom_certificate_verifier(base::tls::accept_all());
        let mut config =
            builder.with_client_auth_cert(access.identity.chain.clone(), access.identity.key())?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { address, connector: TlsConnector::from(Arc::new(config)) })
    }

    pub async fn connect(&self) -> Result<Connection> {
        let stream = TcpStream::connect(self.address).await.context("failed to connect")?;
        stream.set_nodelay(true)?;
        let name = ServerName::IpAddress(self.address.ip().into());
        let stream = self.connector.connect(name, stream).await.context("TLS handshake")?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(Connection { sender })
    }
}

pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
}

impl Connection {
    async fn send(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<http::Response<Incoming>> {
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.sender.ready().await?;
        Ok(self.sender.send_request(request.body(Full::new(body))?).await?)
    }

    /// Sends a request and returns the length of its response.
    pub async fn request(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<(StatusCode, usize)> {
        let mut response = self.send(method, path, headers, body).await?;
        let mut length = 0;
        while let Some(frame) = response.body_mut().frame().await {
            if let Ok(data) = frame?.into_data() {
                length += data.len();
            }
        }
        Ok((response.status(), length))
    }

    /// Sends a GET request and returns the response body.
    pub async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Result<(StatusCode, Bytes)> {
        let response = self.send(Method::GET, path, headers, Bytes::new()).await?;
        let status = response.status();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }

    /// Sends a request and returns the response as JSON.
    pub async fn json(&mut self, method: Method, path: &str, body: Bytes) -> Result<serde_json::Value> {
        let headers = [("content-type", "application/json")];
        let response = self.send(method, path, &headers, body).await?;
        let bytes = response.into_body().collect().await?.to_bytes();
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// A streaming response.
    pub async fn stream(mut self, path: &str) -> Result<(SendRequest<Full<Bytes>>, Incoming)> {
        let response = self.send(Method::GET, path, &[], Bytes::new()).await?;
        anyhow::ensure!(response.status() == StatusCode::OK, "the watch was refused: {}", response.status());
        Ok((self.sender, response.into_body()))
    }
}
