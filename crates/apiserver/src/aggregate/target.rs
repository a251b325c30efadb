//! The routing part of an APIService.

use api::value::Fields;
use base::http::Authorities;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use machinery::{Value, meta};

/// Default port of a service reference.
const DEFAULT_PORT: u16 = 443;

/// An APIService with a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name of the APIService.
    pub name: String,
    pub group: String,
    pub version: String,
    pub group_priority: i32,
    pub version_priority: i32,
    pub service: ServiceReference,
    /// CA bundle for the server's certificate, PEM; empty: the system's CAs.
    ca_bundle: Vec<u8>,
    insecure_skip_tls_verify: bool,
}

/// A port of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceReference {
    pub namespace: String,
    pub name: String,
    pub port: u16,
}

impl Target {
    /// Reads an APIService; `None` for a local one.
    pub fn new(api_service: &Value) -> Option<Self> {
        let spec = api_service.field("spec");
        let service = spec.get("service").filter(|service| service.is_object())?;
        let number =
            |value: &Value| value.as_i64().and_then(|number| i32::try_from(number).ok()).unwrap_or(0);
        let port = service.field("port").as_u64().and_then(|port| u16::try_from(port).ok());
        Some(Self {
            name: meta::name(api_service).to_owned(),
            group: spec.text("group").to_owned(),
            version: spec.text("version").to_owned(),
            group_priority: number(spec.field("groupPriorityMinimum")),
            version_priority: number(spec.field("versionPriority")),
            service: ServiceReference {
                namespace: service.text("namespace").to_owned(),
                name: service.text("name").to_owned(),
                port: port.unwrap_or(DEFAULT_PORT),
            },
            ca_bundle: STANDARD.decode(spec.text("caBundle")).unwrap_or_default(),
            insecure_skip_tls_verify: spec.field("insecureSkipTLSVerify").as_bool().unwrap_or(false),
        })
    }

    pub fn authorities(&self) -> Authorities {
        match (self.insecure_skip_tls_verify, self.ca_bundle.is_empty()) {
            (true, _) => Authorities::Unverified,
            (false, true) => Authorities::System,
            (false, false) => Authorities::Pem(self.ca_bundle.clone()),
        }
    }

    /// Server name in its certificate.
    pub fn server_name(&self) -> String {
        format!("{}.{}.svc", self.service.name, self.service.namespace)
    }

    /// Path of its APIResourceList.
    pub fn discovery_path(&self) -> String {
        if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        }
    }
}
