//! DefaultBinder: writes the node to the pod's `binding` subresource. The driver does it outside the scheduling
//! cycle; the plugin is in the table so that profiles can name it.

use crate::framework::Plugin;

pub struct DefaultBinder;

impl Plugin for DefaultBinder {}
