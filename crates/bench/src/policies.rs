//! Network policies on one node of a large cluster: from empty, then one pod more. In a separate network namespace.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use policy::feed;
use policy::model::{Name, Pod, Policy};
use policy::nftables::Nftables;
use policy::state::State;
use serde_json::json;

use crate::PoliciesArguments;
use crate::report::{Line, print};

/// Changes that are measured individually.
const CHANGES: u32 = 200;

pub fn run(arguments: &PoliciesArguments) -> Result<()> {
    if sys::process::unshare(&[sys::process::Namespace::Network]).is_err() {
        bail!("skipped: needs the right to make a network namespace");
    }
    let backend = Nftables::open(sys::instance::Instance::MAIN).context("failed to open nftables")?;
    let mut lines = Vec::new();
    let mut line = |name: String, unit, value| {
        lines.push(Line { name, unit, ferry: value, other: None, more_is_better: false });
    };
    let mut state = State::default();
    let begin = Instant::now();
    fill(&mut state, arguments)?;
    state.commit();
    let planned = begin.elapsed();
    let whole = state.whole();
    backend.replace(&whole).context("failed to set all rules")?;
    let (pods, policies) = (arguments.pods, arguments.policies);
    line(format!("{policies} policies, {pods} pods: planned"), "ms", milliseconds(planned));
    line("given to the kernel too".to_owned(), "ms", milliseconds(begin.elapsed()));
    let (mut plan, mut apply) = (Duration::ZERO, Duration::ZERO);
    for change in 0..CHANGES {
        let name = Name::new("ns-0", &format!("new-{}", change / 2));
        let begin = Instant::now();
        state.set_pod(&name, (change % 2 == 0).then(|| pod(pods + change as usize, false)));
        let difference = state.commit();
        plan += begin.elapsed();
        let begin = Instant::now();
        backend.apply(&difference).context("one pod more or less")?;
        apply += begin.elapsed();
    }
    line("one pod comes or goes: planned".to_owned(), "ms", milliseconds(plan / CHANGES));
    line("given to the kernel".to_owned(), "ms", milliseconds(apply / CHANGES));
    print(&lines);
    Ok(())
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// Pods evenly over 100 namespaces; of each, some are on this node.
fn fill(state: &mut State, arguments: &PoliciesArguments) -> Result<()> {
    for namespace in 0..NAMESPACES {
        let labels = BTreeMap::from([("team".to_owned(), format!("t{}", namespace % 10))]);
        state.set_namespace(&format!("ns-{namespace}"), Some(labels));
    }
    for number in 0..arguments.pods {
        let name = Name::new(&format!("ns-{}", number % NAMESPACES), &format!("pod-{number}"));
        state.set_pod(&name, Some(pod(number, number < arguments.local)));
    }
    for number in 0..arguments.policies {
        let name = Name::new(&format!("ns-{}", number % NAMESPACES), &format!("policy-{number}"));
        state.set_policy(&name, Some(policy(&name, number)?));
    }
    Ok(())
}

const NAMESPACES: usize = 100;

fn pod(number: usize, local: bool) -> Pod {
    let [_, a, b, c] = (number as u32 + 1).to_be_bytes();
    Pod {
        labels: BTreeMap::from([("app".to_owned(), format!("a{}", number % 7))]),
        addresses: [[10, a, b, c].into()].into(),
        ports: Default::default(),
        local,
    }
}

fn policy(name: &Name, number: usize) -> Result<Policy> {
    let object = json!({
        "metadata": { "namespace": name.namespace, "name": name.name },
        "spec": { "podSelector": { "matchLabels": { "app": format!("a{}", number % 7) } }, "ingress": [{
            "from": [
                { "podSelector": { "matchLabels": { "app": format!("a{}", (number + 1) % 7) } } },
                { "namespaceSelector": { "matchLabels": { "team": format!("t{}", number % 10) } } },
            ],
            "ports": [{ "port": 8080 }, { "port": 9000, "endPort": 9100 }],
        }] },
    });
    feed::policy(&serde_json::from_value(object)?).context("a policy")
}
