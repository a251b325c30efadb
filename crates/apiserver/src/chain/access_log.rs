//! One line per request.

use crate::context::Context;
use crate::reply::Reply;
use crate::serve::{Connection, Peer};
use std::time::Duration;

pub fn write(context: &Context, connection: &Connection, reply: &Reply, took: Duration) {
    if !tracing::enabled!(target: "access", tracing::Level::INFO) {
        return;
    }
    let peer = match connection.peer {
        Peer::Remote(address) => address.to_string(),
        Peer::InProcess => "in-process".to_owned(),
    };
    tracing::info!(
        target: "access",
        client = peer,
        user = context.user.name,
        verb = context.info.verb,
        path = &*context.path,
        code = reply.status().as_u16(),
        micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
    );
}
