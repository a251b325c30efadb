//! Network policies on a node.

use base::tasks::TaskGroup;
use client::Client;

use crate::chain;

/// Keeps the policies of the node `name` in force, in `tasks`. `client` may read what they speak of, once
/// `administrator`, if there is one here, has said so.
pub(crate) fn start(name: &str, client: Client, administrator: Option<Client>, tasks: &TaskGroup) {
    let (name, group) = (name.to_owned(), tasks.clone());
    tasks.spawn(async move {
        if let Some(administrator) = administrator
            && let Err(error) = policy::access::install(&administrator).await
        {
            tracing::error!(error = chain(&error), "network policies cannot be read");
        }
        if let Err(error) = policy::run(&name, client, group, || {}).await {
            tracing::error!(error = chain(&error), "network policies are not enforced on this node");
        }
    });
}
