//! Connections that behave, and some that do not.

mod serving;
mod slow_clients;
