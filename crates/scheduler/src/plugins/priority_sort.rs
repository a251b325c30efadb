//! PrioritySort: pods of higher priority first, then those that have waited longest. The queue keeps this order by
//! itself; the plugin stands in the table so that profiles can name it.

use crate::framework::Plugin;

pub struct PrioritySort;

impl Plugin for PrioritySort {}
