//! Documented behaviour of the smaller loops: actions of a client and their expected results, one test per scenario.
//!
//! Each scenario runs twice. Once with all loops inside the server, each with its own permissions. Once with two
//! managers at a time, each with its own caches, unaware of the other's writes, while one of the two is continually
//! killed and restarted. The scenarios of a mode that run at the same time share a server.

mod cluster;
mod storage;
mod workloads;

use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ::cluster::Components;
use anyhow::{Error, Result};
use base::clock::Clock;
use base::tasks::TaskGroup;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use testkit::{Server, eventually};
use tokio::runtime::Runtime;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::steps::{CORE, PATIENCE, Scenario, Step, run};

const LOOPS: &str =
    "*,bootstrap-signer-controller,token-cleaner-controller,storage-version-migrator-controller";
const PODS_OF_CLUSTER: &str = "10.200.0.0/16";

/// One test per scenario and mode.
macro_rules! scenarios {
    ($($module:ident::$name:ident),* $(,)?) => {
        mod loops_with_own_permissions {
            $(#[test]
            fn $name() -> anyhow::Result<()> {
                super::run_inside(stringify!($name), super::$module::$name())
            })*
        }

        mod killed_and_competing_loops {
            $(#[test]
            fn $name() -> anyhow::Result<()> {
                super::run_competing(stringify!($name), super::$module::$name())
            })*
        }
    };
}

scenarios!(
    storage::volumes,
    storage::classes,
    storage::ephemeral,
    storage::attach,
    storage::expansion,
    workloads::quota,
    workloads::autoscaling,
    workloads::ambiguous,
    workloads::claims,
    workloads::mirroring,
    cluster::addresses,
    cluster::accounts,
    cluster::bootstrap,
    cluster::policies,
    cluster::out_of_service,
    cluster::certificates,
);

/// Path of a core resource in a namespace.
pub fn at(ns: &str, rest: &str) -> String {
    format!("{CORE}/{ns}/{rest}")
}

fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({"metadata": {"name": name, "labels": {"app": name}}, "spec": {
        "containers": [{"name": "c", "image": "image:1"}], "terminationGracePeriodSeconds": 0,
    }});
    for (key, value) in spec.as_object().into_iter().flatten() {
        pod["spec"][key] = value.clone();
    }
    pod
}

/// A certificate signing request in the API's form.
pub fn signing_request(user: &str, organization: &str, signer: &str) -> Result<Value> {
    let key = rcgen::KeyPair::generate()?;
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
    params.distinguished_name.push(rcgen::DnType::CommonName, user);
    let text = params.serialize_request(&key)?.pem()?;
    Ok(json!({"metadata": {"name": user.replace(':', "-")}, "spec": {
        "request": STANDARD.encode(text), "signerName": signer,
        "usages": ["digital signature", "client auth"],
    }}))
}

fn loops() -> Vec<String> {
    LOOPS.split(',').map(str::to_owned).collect()
}

/// Runtime of the servers, which outlive the test that starts them.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));
static INSIDE: Mutex<SharedWorld> = Mutex::const_new(SharedWorld { users: 0, world: None });
static COMPETING: Mutex<SharedWorld> = Mutex::const_new(SharedWorld { users: 0, world: None });

/// The server of a mode while scenarios use it.
struct SharedWorld {
    users: usize,
    world: Option<Arc<World>>,
}

struct World {
    server: Server,
    outside: Option<(TaskGroup, JoinHandle<()>)>,
}

impl World {
    async fn stop(self) -> Result<()> {
        if let Some((steady, disturbance)) = self.outside {
            disturbance.abort();
            steady.abort();
        }
        self.server.stop().await
    }
}

fn run_inside(name: &'static str, steps: Vec<Step>) -> Result<()> {
    RUNTIME.block_on(run_in(&INSIDE, start_inside, name, steps))
}

fn run_competing(name: &'static str, steps: Vec<Step>) -> Result<()> {
    RUNTIME.block_on(run_in(&COMPETING, start_competing, name, steps))
}

/// Runs a scenario; the first user starts the server and the last one stops it.
async fn run_in(
    shared: &Mutex<SharedWorld>,
    start: impl AsyncFnOnce() -> Result<World>,
    name: &'static str,
    steps: Vec<Step>,
) -> Result<()> {
    let world = {
        let mut shared = shared.lock().await;
        if shared.world.is_none() {
            shared.world = Some(Arc::new(start().await?));
        }
        shared.users += 1;
        shared.world.clone()
    };
    let client = world.as_ref().map(|world| world.server.client_as("admin", Some("system:masters")));
    let outcome = match client.transpose()? {
        Some(client) => run(&client, Scenario { name, steps }).await.map_err(Error::msg),
        None => Ok(()),
    };
    drop(world);
    let mut shared = shared.lock().await;
    shared.users -= 1;
    if shared.users == 0
        && let Some(world) = shared.world.take().and_then(Arc::into_inner)
    {
        world.stop().await?;
    }
    outcome
}

async fn start_inside() -> Result<World> {
    let server = Server::start_with(|config| {
        config.components.controllers = loops();
        config.components.cluster_cidrs = vec![PODS_OF_CLUSTER.to_owned()];
    })
    .await?;
    Ok(World { server, outside: None })
}

/// A manager in its own tasks.
fn manager(components: &Components, kubeconfig: &Path) -> TaskGroup {
    let tasks = TaskGroup::new();
    let (components, kubeconfig, group) = (components.clone(), kubeconfig.to_owned(), tasks.clone());
    tokio::spawn(async move {
        ::cluster::run_alone(&components, &kubeconfig, &Clock::system(), &group)
            .await
            .expect("loops that run");
    });
    tasks
}

async fn start_competing() -> Result<World> {
    let server = Server::start().await?;
    let pki = server.data_dir().join("pki");
    let key = pki.join("service-account.key");
    let there = async || key.exists();
    eventually("a key of service accounts", PATIENCE, there, |there| *there).await;
    let read = |name: &str| std::fs::read_to_string(pki.join(name));
    let authority = read("server-ca.crt")?;
    let mut components = Components {
        controllers: loops(),
        cluster_cidrs: vec![PODS_OF_CLUSTER.to_owned()],
        signing: Some((read("client-ca.crt")?, read("client-ca.key")?).into()),
        legacy_tokens: Some(::cluster::legacy_tokens(&key, authority.clone())?),
        ..Components::default()
    };
    components.settings.root_ca = Some(authority);
    let steady = manager(&components, &server.kubeconfig);
    let disturbance = {
        let kubeconfig = server.kubeconfig.clone();
        tokio::spawn(async move {
            loop {
                let other = manager(&components, &kubeconfig);
                tokio::time::sleep(Duration::from_millis(1500)).await;
                other.abort();
            }
        })
    };
    Ok(World { server, outside: Some((steady, disturbance)) })
}
