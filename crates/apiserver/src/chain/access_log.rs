//! Access log: one line per request.

use crate::context::Context;
use crate::serve::{Connection, Peer};
use crate::wire::reply::Reply;
use base::logging::{self, Access};
use std::fmt::Display;
use std::time::Duration;

pub fn write(context: &Context, connection: &Connection, reply: &Reply, took: Duration) {
    let client: &dyn Display = match &connection.peer {
        Peer::Remote(address) => address,
        Peer::InProcess => &"in-process",
    };
    logging::access(&Access {
        client,
        user: &context.user.name,
        verb: context.info.verb.as_str(),
        path: &context.path,
        code: reply.status().as_u16(),
        micros: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
    });
}
