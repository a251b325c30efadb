//! The volume expansion loop. Watches claims; records an event that names the external resizer of bound claims that
//! request more than their capacity.

use async_trait::async_trait;
use machinery::quantity::Quantity;
use objects::core::v1::{PersistentVolume, PersistentVolumeClaim};
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "persistentvolume-expander-controller",
    resource: "persistentvolumeclaims",
    identity: "system:serviceaccount:kube-system:expand-controller",
    workers: 1,
};

struct Expander {
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let claims = ctx.watch::<PersistentVolumeClaim>(|change| {
        let claim = change.object();
        let unchanged =
            change.old().is_some_and(|old| old.spec == claim.spec && wants_more(old) == wants_more(claim));
        if wants_more(claim) && !unchanged { vec![Key::of(&**claim)] } else { Vec::new() }
    });
    Box::new(Expander { claims, volumes: ctx.cache() })
}

#[async_trait]
impl Loop for Expander {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(claim) = self.claims.get_key(key).filter(|claim| wants_more(claim)) else {
            return Ok(Action::Done);
        };
        let volume = claim.spec.as_ref().and_then(|spec| self.volumes.get("", spec.volume_name.as_deref()?));
        let Some(volume) = volume else { return Ok(Action::Done) };
        if volume.spec.as_ref().is_some_and(|spec| spec.csi.is_some()) {
            let driver =
                volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()).map_or("", |csi| &csi.driver);
            let note = format!("waiting for an external controller to expand this PVC: {driver}");
            ctx.recorder.normal(&*claim, "ExternalExpanding", note);
        } else {
            let note = "didn't find a plugin capable of expanding the volume; waiting for an external controller to process this PVC";
            ctx.recorder.warning(&*claim, "ExternalExpanding", note);
        }
        Ok(Action::Done)
    }
}

/// True if bound, and smaller than its request.
fn wants_more(claim: &PersistentVolumeClaim) -> bool {
    let status = claim.status.as_ref();
    let bound = status.and_then(|status| status.phase.as_deref()) == Some("Bound");
    let size = |text: Option<&objects::Quantity>| text.and_then(|text| Quantity::parse(&text.0).ok());
    let has = size(status.and_then(|status| status.capacity.as_ref()?.get("storage")));
    let requested =
        size(claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage")));
    bound && matches!((has, requested), (Some(has), Some(requested)) if requested > has)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_bound_claims_below_request_are_expanded() {
        let claim = |phase: &str, requested: &str| -> PersistentVolumeClaim {
            serde_json::from_value(json!({
                "spec": { "resources": { "requests": { "storage": requested } } },
                "status": { "phase": phase, "capacity": { "storage": "5Gi" } },
            }))
            .expect("a claim")
        };
        assert!(wants_more(&claim("Bound", "6Gi")));
        assert!(!wants_more(&claim("Bound", "5Gi")));
        assert!(!wants_more(&claim("Pending", "6Gi")));
    }
}
