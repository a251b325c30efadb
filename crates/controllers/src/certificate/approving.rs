//! The approving loop. Watches certificate signing requests; approves those of kubelets whose user is authorized.

use async_trait::async_trait;
use client::ResourceKey;
use objects::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use objects::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};

use super::request::{KUBELET_CLIENT, Request};
use super::{IDENTITY, has, is_issued};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "certificatesigningrequest-approving-controller",
    resource: "certificatesigningrequests.certificates.k8s.io",
    identity: IDENTITY,
    workers: 1,
};

struct Approving {
    requests: Cache<CertificateSigningRequest>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    Box::new(Approving { requests: ctx.watch_self() })
}

#[async_trait]
impl Loop for Approving {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(request) = self.requests.get_key(key) else { return Ok(Action::Done) };
        if is_issued(&request) || has(&request, "Approved") || has(&request, "Denied") {
            return Ok(Action::Done);
        }
        for (permission, message) in plan(&request) {
            let review = SubjectAccessReview {
                spec: SubjectAccessReviewSpec {
                    user: request.spec.username.clone(),
                    uid: request.spec.uid.clone(),
                    groups: request.spec.groups.clone(),
                    extra: request.spec.extra.clone(),
                    resource_attributes: Some(ResourceAttributes {
                        group: Some("certificates.k8s.io".to_owned()),
                        version: Some("*".to_owned()),
                        resource: Some("certificatesigningrequests".to_owned()),
                        subresource: Some(permission.to_owned()),
                        verb: Some("create".to_owned()),
                        ..ResourceAttributes::default()
                    }),
                    ..SubjectAccessReviewSpec::default()
                },
                ..SubjectAccessReview::default()
            };
            let review = ctx.client.create("", &review).await?;
            if !review.status.is_some_and(|status| status.allowed) {
                continue;
            }
            let mut approved = request.as_ref().clone();
            let status = approved.status.get_or_insert_default();
            status.conditions.get_or_insert_default().push(CertificateSigningRequestCondition {
                type_: "Approved".to_owned(),
                status: "True".to_owned(),
                reason: Some("AutoApproved".to_owned()),
                message: Some(message.to_owned()),
                ..CertificateSigningRequestCondition::default()
            });
            let resource = ResourceKey::of::<CertificateSigningRequest>();
            let value = objects::to_value(&approved)?;
            ctx.client.dynamic(&resource).update("", &key.name, Some("approval"), &value).await?;
            return Ok(Action::Done);
        }
        Ok(Action::Done)
    }
}

/// Alternative permissions of the user, and the message of the approval.
fn plan(request: &CertificateSigningRequest) -> Vec<(&'static str, &'static str)> {
    let usages = request.spec.usages.clone().unwrap_or_default();
    let Ok((parsed, _)) = Request::parse(&request.spec.request.0) else { return Vec::new() };
    if request.spec.signer_name != KUBELET_CLIENT || parsed.kubelet_client(&usages).is_err() {
        return Vec::new();
    }
    let mut permissions = Vec::new();
    let Ok(user) = parsed.user() else { return Vec::new() };
    if request.spec.username.as_deref() == Some(&user.name) {
        let message = "Auto approving self kubelet client certificate after SubjectAccessReview.";
        permissions.push(("selfnodeclient", message));
    }
    permissions.push(("nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."));
    permissions
}

#[cfg(test)]
mod tests {
    use super::super::request::tests::{make, make_two_names};
    use super::*;
    use objects::ByteString;
    use objects::certificates::v1::CertificateSigningRequestSpec;

    #[test]
    fn only_kubelet_requests_are_recognized() {
        let request = |signer: &str, user: &str, common_name: &str| CertificateSigningRequest {
            spec: CertificateSigningRequestSpec {
                request: ByteString(make(common_name, "system:nodes", &[]).into_bytes()),
                signer_name: signer.into(),
                username: Some(user.into()),
                usages: Some(vec!["client auth".into(), "digital signature".into()]),
                ..Default::default()
            },
            ..Default::default()
        };
        let permissions = |request| plan(&request).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(permissions(request(KUBELET_CLIENT, "boot", "system:node:n")), ["nodeclient"]);
        let own = request(KUBELET_CLIENT, "system:node:n", "system:node:n");
        assert_eq!(permissions(own), ["selfnodeclient", "nodeclient"]);
        assert!(permissions(request(KUBELET_CLIENT, "ann", "ann")).is_empty());
        assert!(permissions(request("example.com/own", "boot", "system:node:n")).is_empty());
    }

    #[test]
    fn request_with_two_common_names_is_not_approved() {
        let request = CertificateSigningRequest {
            spec: CertificateSigningRequestSpec {
                request: ByteString(make_two_names().into_bytes()),
                signer_name: KUBELET_CLIENT.into(),
                username: Some("system:bootstrap:abcdef".into()),
                usages: Some(vec!["client auth".into(), "digital signature".into()]),
                ..Default::default()
            },
            ..Default::default()
        };
        assert!(plan(&request).is_empty());
    }
}
