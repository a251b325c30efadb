//! Probes and lifecycle hooks of containers.

use crate::pod_spec::checks::{invalid_number, invalid_texts, non_negative_field, one_of};
use crate::value::Fields;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

/// Handler fields in the order in which they are checked.
const HANDLERS: [&str; 5] = ["exec", "httpGet", "tcpSocket", "grpc", "sleep"];

/// The three probes of a container; `grace` is the pod's termination grace period.
pub fn validate_probes(container: &Value, grace: Option<i64>, path: &Path<'_>, errors: &mut ErrorList) {
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = container.field(name);
        if probe.is_null() {
            continue;
        }
        let path = path.child(name);
        validate_probe(probe, grace, &path, errors);
        if name == "readinessProbe" {
            let grace = probe.field("terminationGracePeriodSeconds");
            if !grace.is_null() {
                let path = path.child("terminationGracePeriodSeconds");
                errors.push(FieldError::invalid(&path, grace, "must not be set for readinessProbes"));
            }
        } else if probe.int("successThreshold") != 1 {
            let value = Value::from(probe.int("successThreshold"));
            errors.push(FieldError::invalid(&path.child("successThreshold"), &value, "must be 1"));
        }
    }
}

fn validate_probe(probe: &Value, grace: Option<i64>, path: &Path<'_>, errors: &mut ErrorList) {
    validate_handler(probe, grace, path, errors);
    for name in
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
    {
        non_negative_field(probe, name, path, errors);
    }
    let grace = probe.field("terminationGracePeriodSeconds");
    if grace.as_i64().is_some_and(|seconds| seconds <= 0) {
        let path = path.child("terminationGracePeriodSeconds");
        errors.push(FieldError::invalid(&path, grace, "must be greater than 0"));
    }
}

pub fn validate_lifecycle(spec: &Value, container: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let lifecycle = container.field("lifecycle");
    if lifecycle.is_null() {
        return;
    }
    let grace = spec.opt_int("terminationGracePeriodSeconds");
    let path = path.child("lifecycle");
    for hook in ["postStart", "preStop"] {
        if lifecycle.has(hook) {
            validate_handler(lifecycle.field(hook), grace, &path.child(hook), errors);
        }
    }
    if let Some(signal) = lifecycle.opt_text("stopSignal") {
        validate_stop_signal(signal, spec.field("os"), &path.child("stopSignal"), errors);
    }
}

fn validate_handler(handler: &Value, grace: Option<i64>, path: &Path<'_>, errors: &mut ErrorList) {
    let mut found = false;
    for name in HANDLERS {
        let action = handler.field(name);
        if action.is_null() {
            continue;
        }
        let path = path.child(name);
        if found {
            errors.push(FieldError::forbidden(&path, "may not specify more than 1 handler type"));
            continue;
        }
        found = true;
        match name {
            "exec" if action.items("command").is_empty() => {
                errors.push(FieldError::required(&path.child("command"), ""));
            }
            "httpGet" => validate_http_get(action, &path, errors),
            "tcpSocket" => validate_port(action.field("port"), &path.child("port"), errors),
            "grpc" => {
                let port = action.int("port");
                invalid_number(names::port_number(port), port, &path.child("port"), errors);
            }
            "sleep" => {
                let seconds = action.int("seconds");
                if let Some(grace) = grace.filter(|grace| seconds < 0 || seconds > *grace) {
                    let detail =
                        format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                    errors.push(FieldError::invalid(&path, &Value::from(seconds), detail));
                }
            }
            _ => {}
        }
    }
    if !found {
        errors.push(FieldError::required(path, "must specify a handler type"));
    }
}

fn validate_http_get(get: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if get.text("path").is_empty() {
        errors.push(FieldError::required(&path.child("path"), ""));
    }
    validate_port(get.field("port"), &path.child("port"), errors);
    one_of(get.text("scheme"), &["HTTP", "HTTPS"], &path.child("scheme"), errors);
    for header in get.items("httpHeaders") {
        let name = header.text("name");
        invalid_texts(names::http_header_name(name), name, &path.child("httpHeaders"), errors);
    }
}

/// A port by number or name; a missing one is the number 0.
pub fn validate_port(port: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    match port.as_str() {
        Some(name) => invalid_texts(names::port_name(name), name, path, errors),
        None => {
            let number = port.as_i64().unwrap_or(0);
            invalid_number(names::port_number(number), number, path, errors);
        }
    }
}

fn validate_stop_signal(signal: &str, os: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    match os.text("name") {
        "windows" => one_of(signal, &["SIGKILL", "SIGTERM"], path, errors),
        "linux" if !SIGNALS.contains(&signal) => {
            errors.push(FieldError::not_supported(path, &Value::from(signal), SIGNALS));
        }
        _ if os.is_null() => {
            errors
                .push(FieldError::forbidden(path, "may not be set for containers with empty `spec.os.name`"));
        }
        _ => {}
    }
}

/// Signals of Linux, sorted.
const SIGNALS: &[&str] = &[
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGRTMAX",
    "SIGRTMAX-1",
    "SIGRTMAX-10",
    "SIGRTMAX-11",
    "SIGRTMAX-12",
    "SIGRTMAX-13",
    "SIGRTMAX-14",
    "SIGRTMAX-2",
    "SIGRTMAX-3",
    "SIGRTMAX-4",
    "SIGRTMAX-5",
    "SIGRTMAX-6",
    "SIGRTMAX-7",
    "SIGRTMAX-8",
    "SIGRTMAX-9",
    "SIGRTMIN",
    "SIGRTMIN+1",
    "SIGRTMIN+10",
    "SIGRTMIN+11",
    "SIGRTMIN+12",
    "SIGRTMIN+13",
    "SIGRTMIN+14",
    "SIGRTMIN+15",
    "SIGRTMIN+2",
    "SIGRTMIN+3",
    "SIGRTMIN+4",
    "SIGRTMIN+5",
    "SIGRTMIN+6",
    "SIGRTMIN+7",
    "SIGRTMIN+8",
    "SIGRTMIN+9",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];
