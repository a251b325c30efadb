//! JSON encoder of events, hand-written because every write of a cluster produces one.

use super::event::{Event, ObjectRef, ResponseStatus, User};
use jiff::Timestamp;
use machinery::codec::json_writer::{write_text, write_value};
use machinery::codec::time::{self, Instant};
use std::io::Write;

/// Writes the members of an object in sequence; empty values are omitted.
struct Members<'o> {
    out: &'o mut Vec<u8>,
    first: bool,
}

impl<'o> Members<'o> {
    fn begin(out: &'o mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, first: true }
    }

    fn name(&mut self, name: &str) -> &mut Vec<u8> {
        if !std::mem::take(&mut self.first) {
            self.out.push(b',');
        }
        write_text(self.out, name);
        self.out.push(b':');
        self.out
    }

    fn text(&mut self, name: &str, text: &str) {
        if !text.is_empty() {
            write_text(self.name(name), text);
        }
    }

    fn texts(&mut self, name: &str, texts: &[String]) {
        if !texts.is_empty() {
            write_list(self.name(name), texts);
        }
    }

    fn object(&mut self, name: &str, members: impl FnOnce(&mut Members<'_>)) {
        let mut inner = Members::begin(self.name(name));
        members(&mut inner);
        inner.end();
    }

    fn end(self) {
        self.out.push(b'}');
    }
}

fn write_list(out: &mut Vec<u8>, texts: &[String]) {
    out.push(b'[');
    for (index, text) in texts.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_text(out, text);
    }
    out.push(b']');
}

/// Always six decimals.
fn micro_time(time: Timestamp) -> String {
    let micros = time.as_microsecond();
    let nanos = u32::try_from(micros.rem_euclid(1_000_000) * 1_000).unwrap_or(0);
    time::format(Instant { seconds: micros.div_euclid(1_000_000), nanos }, true)
}

impl Event<'_> {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let mut event = Members::begin(out);
        event.text("level", self.level.text());
        // Required members, written even if empty.
        write_text(event.name("auditID"), self.audit_id);
        event.text("stage", self.stage.text());
        write_text(event.name("requestURI"), self.request_uri);
        write_text(event.name("verb"), self.verb);
        event.object("user", |members| self.user.write(members));
        if let Some(user) = &self.impersonated_user {
            event.object("impersonatedUser", |members| user.write(members));
        }
        if !self.source_ips.is_empty() {
            let ips: Vec<String> = self.source_ips.iter().map(ToString::to_string).collect();
            write_list(event.name("sourceIPs"), &ips);
        }
        event.text("userAgent", self.user_agent);
        if let Some(object) = &self.object_ref {
            event.object("objectRef", |members| object.write(members));
        }
        if let Some(status) = self.response_status {
            event.object("responseStatus", |members| status.write(members));
        }
        for (name, object) in
            [("requestObject", self.request_object), ("responseObject", self.response_object)]
        {
            if let Some(object) = object {
                write_value(event.name(name), object);
            }
        }
        event.text("requestReceivedTimestamp", &micro_time(self.request_received_timestamp));
        event.text("stageTimestamp", &micro_time(self.stage_timestamp));
        if !self.annotations.is_empty() {
            event.object("annotations", |members| {
                for (key, value) in &self.annotations {
                    write_text(members.name(key), value);
                }
            });
        }
        event.end();
    }
}

impl ResponseStatus {
    fn write(&self, members: &mut Members<'_>) {
        // Writing to memory cannot fail.
        let _ = write!(members.name("code"), "{}", self.code);
        for field in ["details", "message", "metadata", "reason", "status"] {
            match self.error_status.as_ref().and_then(|error_status| error_status.get(field)) {
                _ if field == "metadata" => members.name(field).extend_from_slice(b"{}"),
                Some(value) => write_value(members.name(field), value),
                None => {}
            }
        }
    }
}

impl User<'_> {
    fn write(&self, members: &mut Members<'_>) {
        members.text("username", self.username);
        members.text("uid", self.uid);
        members.texts("groups", self.groups);
        if let Some(extra) = self.extra {
            members.object("extra", |members| {
                for (key, values) in extra {
                    write_list(members.name(key), values);
                }
            });
        }
    }
}

impl ObjectRef<'_> {
    fn write(&self, members: &mut Members<'_>) {
        for (name, text) in [
            ("resource", self.resource),
            ("namespace", self.namespace),
            ("name", self.name),
            ("uid", self.uid),
            ("apiGroup", self.api_group),
            ("apiVersion", self.api_version),
            ("resourceVersion", self.resource_version),
            ("subresource", self.subresource),
        ] {
            members.text(name, text);
        }
    }
}
