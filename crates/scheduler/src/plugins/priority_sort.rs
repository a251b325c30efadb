//! PrioritySort: pods of higher priority first, then those that have waited longest. The queue implements this order;
//! the plugin is in the table so that profiles can name it.

use crate::framework::Plugin;

pub struct PrioritySort;

impl Plugin for PrioritySort {}
