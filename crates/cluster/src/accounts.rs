//! Clients of service accounts: of controllers that run alone, as with `--use-service-account-credentials` in
//! Kubernetes, and of the agents of a joined node. Another client requests the tokens: the controller manager's, or
//! the node's.

use std::path::Path;
use std::sync::Arc;

use client::{Account, Client, ClientError, Kubeconfig, Remote, Transport};
use runtime::Identities;

const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// Clients of service accounts, over shared connections.
pub(crate) struct Accounts {
    manager: Client,
    shared: Arc<dyn Transport>,
    /// Node that tokens are bound to.
    node: Option<String>,
}

impl Accounts {
    /// `manager` requests the tokens; the server is the kubeconfig's.
    pub fn new(manager: Client, kubeconfig: &Path) -> Result<Self, ClientError> {
        let config = Kubeconfig::load(kubeconfig)?.without_credentials();
        Ok(Self::over(manager, Remote::new(config)?))
    }

    /// The same over connections without credentials to the server.
    pub fn over(manager: Client, shared: Remote) -> Self {
        Self { manager, shared: Arc::new(shared), node: None }
    }

    /// Binds all tokens to a node.
    pub fn bound_to_node(self, node: &str) -> Self {
        Self { node: Some(node.to_owned()), ..self }
    }
}

impl Identities for Accounts {
    fn client(&self, identity: &str, user_agent: &str) -> Result<Client, ClientError> {
        let account = identity.strip_prefix(SERVICE_ACCOUNT).and_then(|account| account.split_once(':'));
        Ok(match account {
            Some((namespace, name)) => {
                let account = Account::new(Arc::clone(&self.shared), self.manager.clone(), namespace, name);
                let account = match &self.node {
                    Some(node) => account.bound_to_node(node),
                    None => account,
                };
                Client::new(Arc::new(account), user_agent)
            }
            // The manager's identity is in its kubeconfig.
            None => self.manager.called(user_agent),
        })
    }
}
