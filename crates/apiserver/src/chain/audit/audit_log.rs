//! The built-in audit log: every write and connection, without objects, in files of bounded size.

use super::backend::{Backend, BufferedLog, Format};
use super::log_file::{LogFile, Rotation};
use super::{AUDIT_LOG_BUFFER, AuditSetupError};
use crate::context::Context;
use crate::request_info::Verb;
use base::clock::Clock;
use std::path::Path;
use std::sync::Arc;

/// Disk limit: this file, and rotated, compressed ones of the same size.
const ROTATION: Rotation = Rotation { max_bytes: 32 << 20, max_backups: 8, max_age_days: 0, compress: true };
/// Longest line, in bytes.
const MAX_EVENT: usize = 16 * 1024;

pub fn open(path: &Path, clock: &Clock) -> Result<Arc<dyn Backend>, AuditSetupError> {
    let file = LogFile::open(path, ROTATION)
        .map_err(|source| AuditSetupError::Log { path: path.to_owned(), source })?;
    let log = BufferedLog::start(file, Format::Json, MAX_EVENT, AUDIT_LOG_BUFFER, clock.clone());
    Ok(Arc::new(log.map_err(AuditSetupError::Start)?))
}

/// Subresources whose requests reach a pod, a service or a node, whatever their method.
const CONNECTIONS: [&str; 4] = ["attach", "exec", "portforward", "proxy"];

/// Matches connections, and writes except those without information: heartbeats, events, reviews.
pub fn wants(context: &Context) -> bool {
    let info = &context.info;
    let connects = info.group.is_empty() && CONNECTIONS.contains(&info.subresource.as_str());
    if info.is_resource && connects {
        return true;
    }
    let writes = matches!(
        info.verb,
        Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection
    );
    if !writes || !info.is_resource {
        return false;
    }
    let quiet = match (info.group.as_str(), info.resource.as_str(), info.subresource.as_str()) {
        ("coordination.k8s.io", "leases", "") | ("" | "events.k8s.io", "events", "") => {
            !matches!(info.verb, Verb::Delete | Verb::DeleteCollection)
        }
        ("", "nodes", "status") => true,
        ("authentication.k8s.io" | "authorization.k8s.io", _, _) => true,
        _ => false,
    };
    !quiet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_log_skips_heartbeats_events_and_reviews() {
        for (method, path, kept) in [
            ("DELETE", "/api/v1/namespaces/n/pods/p", true),
            ("POST", "/apis/apps/v1/namespaces/n/deployments", true),
            ("PATCH", "/apis/apps/v1/namespaces/n/deployments/d/scale", true),
            ("DELETE", "/api/v1/namespaces/n/pods", true),
            ("GET", "/api/v1/namespaces/n/pods/p", false),
            ("PUT", "/apis/coordination.k8s.io/v1/namespaces/n/leases/l", false),
            ("DELETE", "/apis/coordination.k8s.io/v1/namespaces/n/leases/l", true),
            ("POST", "/api/v1/namespaces/n/events", false),
            ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", false),
            ("POST", "/version", false),
            ("GET", "/api/v1/namespaces/n/pods/p/exec?command=sh", true),
            ("POST", "/api/v1/namespaces/n/pods/p/attach", true),
            ("GET", "/api/v1/namespaces/n/pods/p/portforward", true),
            ("GET", "/api/v1/namespaces/n/services/s/proxy/path", true),
            ("HEAD", "/api/v1/nodes/n/proxy/metrics", true),
            ("GET", "/api/v1/namespaces/n/pods/p/log", false),
            ("GET", "/apis/example.com/v1/namespaces/n/widgets/w/proxy", false),
        ] {
            let request = http::Request::builder().method(method).uri(path).body(()).expect("a request");
            let context = Context::of_test(request.into_parts().0);
            assert_eq!(wants(&context), kept, "{method} {path}");
        }
    }
}
