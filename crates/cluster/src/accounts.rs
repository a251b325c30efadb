//! The identities of loops that run alone: each is its service account, as `--use-service-account-credentials` has it
//! in Kubernetes. The manager's own client asks for the tokens, which is a right it has; what the loops may do is their
//! accounts' business.

use std::path::Path;
use std::sync::Arc;

use client::{Account, Client, ClientError, Kubeconfig, Remote, Transport};
use runtime::Identities;

const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// Clients of service accounts, over connections that all of them share.
pub(crate) struct Accounts {
    manager: Client,
    shared: Arc<dyn Transport>,
}

impl Accounts {
    /// `manager` asks for the tokens; the server is the kubeconfig's.
    pub fn new(manager: Client, kubeconfig: &Path) -> Result<Self, ClientError> {
        let config = Kubeconfig { certificate: None, token: None, ..Kubeconfig::load(kubeconfig)? };
        Ok(Self { manager, shared: Arc::new(Remote::new(config)?) })
    }
}

impl Identities for Accounts {
    fn client(&self, identity: &str, user_agent: &str) -> Result<Client, ClientError> {
        let account = identity.strip_prefix(SERVICE_ACCOUNT).and_then(|account| account.split_once(':'));
        Ok(match account {
            Some((namespace, name)) => {
                let account = Account::new(Arc::clone(&self.shared), self.manager.clone(), namespace, name);
                Client::new(Arc::new(account), user_agent)
            }
            // Who the manager is, its kubeconfig says.
            None => self.manager.called(user_agent),
        })
    }
}
