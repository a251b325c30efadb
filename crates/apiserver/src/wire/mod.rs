//! Wire format of requests and responses: query parameters, options, negotiation, bodies, replies.

pub mod decode;
pub mod encode;
pub mod forms;
pub mod negotiate;
pub mod options;
pub mod query;
pub mod reply;
