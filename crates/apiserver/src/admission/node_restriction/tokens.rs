//! Tokens: a kubelet requests them for its own pods, with the audiences that the pods' volumes need. Node agents get
//! theirs bound to the node itself.

use super::Write;
use crate::admission::Operation;
use crate::authorize::node::is_agent_account;
use crate::authorize::{self, Decision};
use api::value::{Fields, texts};
use machinery::status::Result;
use machinery::{Value, meta};

/// In-tree volume sources and the CSI drivers they are migrated to.
const MIGRATED: [(&str, &str); 7] = [
    ("awsElasticBlockStore", "ebs.csi.aws.com"),
    ("azureDisk", "disk.csi.azure.com"),
    ("azureFile", "file.csi.azure.com"),
    ("cinder", "cinder.csi.openstack.org"),
    ("gcePersistentDisk", "pd.csi.storage.gke.io"),
    ("portworxVolume", "pxd.portworx.com"),
    ("vsphereVolume", "csi.vsphere.vmware.com"),
];

pub async fn check(write: &Write<'_>) -> Result<()> {
    if write.operation() != Operation::Create || write.attributes.subresource() != "token" {
        return Ok(());
    }
    let reference = write.object.field("spec").field("boundObjectRef");
    let (version, kind, name) =
        (reference.text("apiVersion"), reference.text("kind"), reference.text("name"));
    let uid = reference.text("uid");
    if (version, kind) == ("v1", "Node")
        && is_agent_account(write.attributes.context.namespace, write.attributes.name)
    {
        return agent(write, name, uid).await;
    }
    if (version, kind) != ("v1", "Pod") || name.is_empty() {
        return write.refuse("node requested token not bound to a pod");
    }
    if uid.is_empty() {
        return write.refuse("node requested token with a pod binding without a uid");
    }
    let pod = write.pod(name).await?;
    if meta::uid(&pod) != uid {
        return write.refuse(format_args!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        ));
    }
    if pod.field("spec").text("nodeName") != write.node {
        return write.refuse("node requested token bound to a pod scheduled on a different node");
    }
    audience(write, &pod).await
}

/// A token of an agent account is bound to the Node object of the requesting node, and valid for the API server only.
async fn agent(write: &Write<'_>, name: &str, uid: &str) -> Result<()> {
    if name != write.node {
        return write.refuse("node requested token bound to a different node");
    }
    if uid.is_empty() {
        return write.refuse("node requested token with a node binding without a uid");
    }
    if !write.object.field("spec").items("audiences").is_empty() {
        return write.refuse("node requested token of a node agent for another audience");
    }
    let node = write.found("nodes", "", name).await?;
    if meta::uid(&node) != uid {
        return write.refuse(format_args!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        ));
    }
    Ok(())
}

async fn audience(write: &Write<'_>, pod: &Value) -> Result<()> {
    let audiences: Vec<&str> = texts(write.object.field("spec").items("audiences")).collect();
    let audience = match audiences.as_slice() {
        [] => "",
        [one] => one,
        _ => return write.refuse("node may only request 0 or 1 audiences"),
    };
    match is_in_pod(write, pod, audience).await? {
        Ok(true) => return Ok(()),
        Ok(false) => {}
        Err(why) => return write.refuse(format_args!("error validating audience {audience:?}: {why}")),
    }
    let user = write.attributes.context.user;
    let wanted = authorize::Attributes {
        verb: "request-serviceaccounts-token-audience",
        is_resource: true,
        version: "v1",
        resource: audience,
        namespace: write.attributes.context.namespace,
        name: write.name(),
        ..authorize::Attributes::default()
    };
    if let Decision::Allowed(_) = write.registry.authorization.decide(user, &wanted).await? {
        return Ok(());
    }
    write.refuse(format_args!(
        "audience {audience:?} not found in pod spec volume, {} is not authorized to request tokens for this audience",
        user.name
    ))
}

/// Reports whether a volume of the pod needs a token for this audience; the inner error is a failed lookup.
async fn is_in_pod(write: &Write<'_>, pod: &Value, audience: &str) -> Result<Result<bool, String>> {
    let mut errors: Vec<String> = Vec::new();
    for volume in pod.field("spec").items("volumes") {
        let sources = volume.field("projected").items("sources");
        let requests_token = |source: &Value| {
            source.has("serviceAccountToken")
                && source.field("serviceAccountToken").text("audience") == audience
        };
        if sources.iter().any(requests_token) {
            return Ok(Ok(true));
        }
        let driver = match driver(write, pod, volume).await? {
            Ok(driver) => driver,
            Err(why) => {
                errors.push(why);
                continue;
            }
        };
        if driver.is_empty() {
            continue;
        }
        let resource = ("storage.k8s.io", "v1", "csidrivers");
        let Some(found) = write.registry.find(resource, "", &driver).await? else {
            errors.push(format!("csidriver.storage.k8s.io {driver:?} not found"));
            continue;
        };
        let requests = found.field("spec").items("tokenRequests");
        if requests.iter().any(|request| request.text("audience") == audience) {
            return Ok(Ok(true));
        }
    }
    Ok(match errors.len() {
        0 => Ok(false),
        1 => Err(errors.swap_remove(0)),
        _ => Err(format!("[{}]", errors.join(", "))),
    })
}

/// CSI driver of the volume; empty if there is none.
async fn driver(write: &Write<'_>, pod: &Value, volume: &Value) -> Result<Result<String, String>> {
    let claim = if volume.field("ephemeral").has("volumeClaimTemplate") {
        format!("{}-{}", meta::name(pod), volume.text("name"))
    } else if volume.has("persistentVolumeClaim") {
        volume.field("persistentVolumeClaim").text("claimName").to_owned()
    } else {
        return Ok(Ok(driver_of(volume)));
    };
    let claims = ("", "v1", "persistentvolumeclaims");
    let Some(found) = write.registry.find(claims, meta::namespace(pod), &claim).await? else {
        return Ok(Err(format!("persistentvolumeclaim {claim:?} not found")));
    };
    let name = found.field("spec").text("volumeName");
    let Some(volume) = write.registry.find(("", "v1", "persistentvolumes"), "", name).await? else {
        return Ok(Err(format!("persistentvolume {name:?} not found")));
    };
    Ok(Ok(driver_of(volume.field("spec"))))
}

fn driver_of(source: &Value) -> String {
    if source.has("csi") {
        return source.field("csi").text("driver").to_owned();
    }
    let migrated = MIGRATED.iter().find(|(field, _)| source.has(field));
    migrated.map(|(_, driver)| (*driver).to_owned()).unwrap_or_default()
}
