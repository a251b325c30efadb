//! DefaultBinder: the API server is told the node in the pod's `binding` subresource. The work is the driver's, off the
//! scheduling cycle; the plugin stands in the table so that profiles can name it.

use crate::framework::Plugin;

pub struct DefaultBinder;

impl Plugin for DefaultBinder {}
