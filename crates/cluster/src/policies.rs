//! Network policies on a node.

use std::net::IpAddr;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;

use base::tasks::TaskGroup;
use client::Client;
use futures_util::future::BoxFuture;
use kubelet::Gate;
use policy::{OnFailure, PodStartGate};
use sys::instance::Instance;

use crate::chain;

/// Gate that starts pods once their policies are enforced.
#[derive(Debug)]
struct Isolation(Arc<PodStartGate>);

impl Gate for Isolation {
    fn pass<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        addresses: Vec<IpAddr>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move { self.0.register(namespace, name, &addresses).await })
    }
}

/// Enforces the policies of the node `name` in `tasks`, once `prepared` completes. Returns the gate that holds back
/// pods until their policies are enforced; `on_failure` applies to pods whose policies cannot be.
pub(crate) fn start(
    name: &str,
    instance: Instance,
    client: Client,
    on_failure: OnFailure,
    prepared: BoxFuture<'static, ()>,
    tasks: &TaskGroup,
) -> Arc<dyn Gate> {
    let early = Arc::new(PodStartGate::new(on_failure));
    let (name, group, own) = (name.to_owned(), tasks.clone(), Arc::clone(&early));
    tasks.spawn(async move {
        prepared.await;
        group.supervise_scope("network-policies", move |scope| {
            let (name, client, own) = (name.clone(), client.clone(), Arc::clone(&own));
            async move {
                let Err(error) = policy::run(&name, instance, client, own, scope, Box::new(|| {})).await
                else {
                    return ControlFlow::Continue(());
                };
                tracing::error!(error = chain(&error), ?on_failure, "failed to enforce network policies");
                match on_failure {
                    OnFailure::Wait => ControlFlow::Continue(()),
                    OnFailure::Start => ControlFlow::Break(()),
                }
            }
        });
    });
    Arc::new(Isolation(early))
}
