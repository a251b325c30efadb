//! Context of CSI calls: secrets, publish context, pod info, service account tokens.

use std::collections::BTreeMap;

use objects::core::v1::{Pod, Secret, SecretReference};
use objects::storage::v1::{CSIDriver, VolumeAttachment};
use serde_json::json;

use super::mount::Publishing;
use super::{CsiError, attachment_name};
use crate::lifecycle::status::seconds;

/// Volume context key for service account tokens.
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

pub type StringMap = BTreeMap<String, String>;

impl Publishing<'_> {
    /// `CSIDriver` object of the driver, if any.
    pub(super) async fn settings(&self, name: &str) -> Result<Option<CSIDriver>, CsiError> {
        match self.client.get("", name).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(source) => Err(CsiError::Read { what: format!("csidriver {name}"), source }),
        }
    }

    pub(super) async fn secret(&self, reference: Option<&SecretReference>) -> Result<StringMap, CsiError> {
        let Some(reference) = reference else { return Ok(StringMap::new()) };
        let (namespace, name) = (
            reference.namespace.as_deref().unwrap_or_default(),
            reference.name.as_deref().unwrap_or_default(),
        );
        match self.client.get::<Secret>(namespace, name).await {
            Ok(secret) => Ok(secret
                .data
                .unwrap_or_default()
                .into_iter()
                .map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned()))
                .collect()),
            Err(error) if error.is_not_found() => Err(CsiError::NoSecret(format!("{namespace}/{name}"))),
            Err(source) => Err(CsiError::Read { what: format!("secret {namespace}/{name}"), source }),
        }
    }

    /// Publish context from the VolumeAttachment; empty if the driver does not attach.
    pub(super) async fn attachment(
        &self,
        settings: Option<&CSIDriver>,
        driver: &str,
        handle: &str,
    ) -> Result<StringMap, CsiError> {
        if settings.and_then(|driver| driver.spec.attach_required) == Some(false) {
            return Ok(StringMap::new());
        }
        let name = attachment_name(driver, handle, self.node);
        let found = match self.client.get::<VolumeAttachment>("", &name).await {
            Ok(found) => found,
            Err(error) if error.is_not_found() => return Err(CsiError::NotAttached(handle.to_owned())),
            Err(source) => return Err(CsiError::Read { what: format!("volumeattachment {name}"), source }),
        };
        let status = found.status.unwrap_or_default();
        if !status.attached {
            return Err(CsiError::NotAttached(handle.to_owned()));
        }
        Ok(status.attachment_metadata.unwrap_or_default())
    }

    /// Service account tokens of the pod for the driver's audiences: additions to the volume context and to the
    /// secrets.
    pub(super) async fn tokens(
        &self,
        settings: Option<&CSIDriver>,
    ) -> Result<(StringMap, StringMap), CsiError> {
        let Some(spec) = settings.map(|driver| &driver.spec) else { return Ok(Default::default()) };
        let requests = spec.token_requests.as_deref().unwrap_or_default();
        if requests.is_empty() {
            return Ok(Default::default());
        }
        let mut shown = serde_json::Map::new();
        for request in requests {
            let life = request.expiration_seconds;
            let got = self.tokens.get(self.client, self.pod, &request.audience, life, self.now).await;
            let token = got.map_err(CsiError::Token)?;
            let ends = seconds(token.ends).0.to_string();
            shown.insert(request.audience.clone(), json!({"token": token.text, "expirationTimestamp": ends}));
        }
        let entries = StringMap::from([(TOKENS.to_owned(), serde_json::Value::Object(shown).to_string())]);
        if spec.service_account_token_in_secrets == Some(true) {
            Ok((StringMap::new(), entries))
        } else {
            Ok((entries, StringMap::new()))
        }
    }
}

/// Pod info for drivers with `podInfoOnMount`.
pub fn about_pod(pod: &Pod, settings: Option<&CSIDriver>, ephemeral: bool) -> StringMap {
    if settings.and_then(|driver| driver.spec.pod_info_on_mount) != Some(true) {
        return StringMap::new();
    }
    let meta = &pod.metadata;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
    let attributes = [
        ("csi.storage.k8s.io/pod.name", text(&meta.name)),
        ("csi.storage.k8s.io/pod.namespace", text(&meta.namespace)),
        ("csi.storage.k8s.io/pod.uid", text(&meta.uid)),
        ("csi.storage.k8s.io/serviceAccount.name", account.unwrap_or_default()),
        ("csi.storage.k8s.io/ephemeral", ephemeral.to_string()),
    ];
    attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns true if the driver supports this lifecycle mode; ephemeral volumes only if it declares them.
pub fn check_mode(settings: Option<&CSIDriver>, driver: &str, mode: &'static str) -> Result<(), CsiError> {
    let fits = match settings {
        None => mode == "Persistent",
        Some(settings) => match settings.spec.volume_lifecycle_modes.as_deref() {
            None | Some([]) => mode == "Persistent",
            Some(modes) => modes.iter().any(|known| known == mode),
        },
    };
    if fits {
        return Ok(());
    }
    Err(CsiError::NotForThis { driver: driver.to_owned(), mode, known: settings.is_some() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_lifecycle_modes() {
        let with = |modes: &[&str]| {
            let mut driver = CSIDriver::default();
            driver.spec.volume_lifecycle_modes = Some(modes.iter().map(|&mode| mode.to_owned()).collect());
            driver
        };
        for (settings, mode, want) in [
            (None, "Persistent", true),
            (None, "Ephemeral", false),
            (Some(with(&[])), "Persistent", true),
            (Some(with(&["Persistent"])), "Ephemeral", false),
            (Some(with(&["Ephemeral"])), "Ephemeral", true),
            (Some(with(&["Ephemeral"])), "Persistent", false),
        ] {
            assert_eq!(check_mode(settings.as_ref(), "d", mode).is_ok(), want, "{mode} {settings:?}");
        }
        let text = check_mode(None, "d", "Ephemeral").expect_err("not known").to_string();
        assert_eq!(text, "volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)");
    }
}
