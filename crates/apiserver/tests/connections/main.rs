//! Connections that behave, and some that do not.

mod catalogue;
mod serving;
mod slow_clients;
