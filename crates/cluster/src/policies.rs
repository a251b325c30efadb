//! Network policies on a node.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use base::tasks::TaskGroup;
use client::Client;
use kubelet::Gate;
use policy::Early;

use crate::chain;

/// Pods start once they are under their policies.
#[derive(Debug)]
struct Isolation(Arc<Early>);

impl Gate for Isolation {
    fn pass<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        addresses: Vec<IpAddr>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move { self.0.tell(namespace, name, &addresses).await })
    }
}

/// Keeps the policies of the node `name` in force, in `tasks`; the gate by which its pods start under them. `client` may
/// read what they speak of, once `administrator`, if there is one here, has said so.
pub(crate) fn start(
    name: &str,
    client: Client,
    administrator: Option<Client>,
    tasks: &TaskGroup,
) -> Arc<dyn Gate> {
    let early = Arc::new(Early::default());
    let (name, group, told) = (name.to_owned(), tasks.clone(), Arc::clone(&early));
    tasks.spawn(async move {
        if let Some(administrator) = administrator
            && let Err(error) = policy::access::install(&administrator).await
        {
            tracing::error!(error = chain(&error), "network policies cannot be read");
        }
        if let Err(error) = policy::run(&name, client, told, group, Box::new(|| {})).await {
            tracing::error!(error = chain(&error), "network policies are not enforced on this node");
        }
    });
    Arc::new(Isolation(early))
}
