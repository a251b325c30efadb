//! Pod certificates: a kubelet requests them for pods on its node, with the pods' own identity.

use super::Write;
use crate::admission::Operation;
use api::value::Fields;
use machinery::meta;
use machinery::status::{Result, Status};

const MIRROR: &str = "kubernetes.io/config.mirror";

pub async fn check(write: &Write<'_>) -> Result<()> {
    if write.operation() != Operation::Create {
        return write.refuse(format_args!("unexpected operation {}", write.operation()));
    }
    let subresource = write.attributes.subresource();
    if !subresource.is_empty() {
        return write.refuse(format_args!("unexpected subresource {subresource}"));
    }
    let (spec, namespace, node) =
        (write.object.field("spec"), write.attributes.context.namespace, write.node);
    let named = spec.text("nodeName");
    if named != node {
        return write.refuse(format_args!(
            "PodCertificateRequest.Spec.NodeName={named:?}, which is not the requesting node {node:?}"
        ));
    }
    let pod_name = format!("{namespace}/{}", spec.text("podName"));
    let lookup = |what: String| {
        move |mut status: Status| {
            status.message =
                format!("while retrieving {what} named in the PodCertificateRequest: {}", status.message);
            status
        }
    };
    // Mismatches that may be transient return a retriable error instead of 403.
    let unequal = |why: String| Err(Status::internal(why));

    let found = write.found("nodes", "", named).await.map_err(lookup(format!("node {named:?}")))?;
    let (submitted, real) = (spec.text("nodeUID"), meta::uid(&found));
    if submitted != real {
        return unequal(format!(
            "PodCertificateRequest for pod {pod_name:?} names node UID {submitted:?}, inconsistent with the running node ({real:?})"
        ));
    }
    let pod = write.pod(spec.text("podName")).await.map_err(lookup(format!("pod {pod_name:?}")))?;
    let (submitted, real) = (spec.text("podUID"), meta::uid(&pod));
    if submitted != real {
        return unequal(format!(
            "PodCertificateRequest for pod {pod_name:?} contains pod UID ({submitted:?}) which differs from running pod {real:?}"
        ));
    }
    if pod.field("spec").text("nodeName") != named {
        return write.refuse(format_args!(
            "pod {pod_name:?} is not running on node {named:?} named in the PodCertificateRequest"
        ));
    }
    if meta::annotation(&pod, MIRROR).is_some() {
        return write.refuse(format_args!("pod {pod_name:?} is a mirror pod"));
    }
    let (submitted, real) = (spec.text("serviceAccountName"), pod.field("spec").text("serviceAccountName"));
    if submitted != real {
        return write.refuse(format_args!(
            "PodCertificateRequest for pod {pod_name:?} contains serviceAccountName ({submitted:?}) that differs from running pod ({real:?})"
        ));
    }
    let account = write.found("serviceaccounts", namespace, submitted).await;
    let account =
        account.map_err(lookup(format!("service account {:?}", format!("{namespace}/{submitted}"))))?;
    let (submitted, real) = (spec.text("serviceAccountUID"), meta::uid(&account));
    if submitted != real {
        return unequal(format!(
            "PodCertificateRequest for pod {pod_name:?} names service account UID {submitted:?}, which differs from the running service account ({real:?})"
        ));
    }
    Ok(())
}
