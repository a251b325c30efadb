//! ComponentStatus of the components in this process: they have no port of their own, so their health is that of
//! their tasks.

use apiserver::{ApiServer, ComponentHealth, Unhealthy};
use base::tasks::{Supervision, TaskGroup};

use crate::Components;

/// Reports the scheduler and the controllers of this process to the API server. Others are probed at their ports.
pub(crate) fn report(components: &Components, server: &ApiServer, tasks: &TaskGroup) {
    let checks = &server.chain.rest.components;
    if components.scheduler.is_some() {
        let supervision = tasks.supervision().clone();
        checks.set("scheduler", move || {
            let health = health(&supervision, |task| task.ends_with("kube-scheduler"));
            Box::pin(std::future::ready(health))
        });
    }
    let rows = controllers::selected(&components.controllers).unwrap_or_default();
    if !rows.is_empty() {
        let supervision = tasks.supervision().clone();
        let names: Vec<&'static str> = rows.iter().map(|row| row.descriptor.name).collect();
        checks.set("controller-manager", move || {
            let concerns = |task: &str| task.ends_with("kube-controller-manager") || names.contains(&task);
            Box::pin(std::future::ready(health(&supervision, concerns)))
        });
    }
}

fn health(supervision: &Supervision, concerns: impl Fn(&str) -> bool) -> ComponentHealth {
    supervision.check_tasks(concerns).map(|()| "ok".to_owned()).map_err(Unhealthy::Message)
}
