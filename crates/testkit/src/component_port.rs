//! Requests to the HTTPS ports of components, and tokens that are permitted to make them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::{Context, Result};
use base::http::{Authorities, Client, Limits, Origin, Trust};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::json;

use crate::Server;

const MAX_PAGE: usize = 4 << 20;
const RBAC: &str = "rbac.authorization.k8s.io";

/// A loopback address whose port is free at the moment.
///
/// # Errors
///
/// If no port is free.
pub fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Gets `path` by HTTPS without verification of the certificate: status and page, or 0 and the error.
pub async fn get_page(address: SocketAddr, path: &str, token: Option<&str>) -> (u16, String) {
    let read = async {
        let trust = Trust { authorities: Authorities::Unverified, ..Trust::default() };
        let origin = Origin::of_url(&format!("https://{address}/"), &trust)?;
        let mut request = Request::builder().uri(path);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Full::new(Bytes::new()))?;
        let mut response = Client::new(Limits::default()).send(&origin, request).await?;
        let mut page = Vec::new();
        while page.len() < MAX_PAGE
            && let Some(piece) = response.piece().await?
        {
            page.extend_from_slice(&piece);
        }
        anyhow::Ok((response.status.as_u16(), String::from_utf8_lossy(&page).into_owned()))
    };
    read.await.unwrap_or_else(|error| (0, error.to_string()))
}

/// Creates service account `default/NAME`, binds it to cluster role `role` if there is one, and requests a token.
///
/// # Errors
///
/// If a request fails.
pub async fn service_account_token(server: &Server, name: &str, role: Option<&str>) -> Result<String> {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
    server.admin.post("/api/v1/namespaces/default/serviceaccounts", &account).await?;
    if let Some(role) = role {
        let bound = json!({"apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": name}]});
        server.admin.post(&format!("/apis/{RBAC}/v1/clusterrolebindings"), &bound).await?;
    }
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let path = format!("/api/v1/namespaces/default/serviceaccounts/{name}/token");
    let reply = server.admin.post(&path, &request).await?;
    let token = reply.body["status"]["token"].as_str();
    Ok(token.with_context(|| format!("token of {name}: {}", reply.body))?.to_owned())
}
