//! Objects of any kind behind one pointer type, for caches that are compiled once for all kinds.

use std::any::Any;
use std::sync::Arc;

use crate::Object;
use crate::meta::v1::ObjectMeta;

/// An object whose kind is known only at run time.
pub trait AnyObject: Any + Send + Sync {
    fn meta(&self) -> &ObjectMeta;
}

impl<K: Object> AnyObject for K {
    fn meta(&self) -> &ObjectMeta {
        self.metadata()
    }
}

/// A shared object of any kind.
pub type Shared = Arc<dyn AnyObject>;

/// The object as its own type; `None` if it is of another.
#[must_use]
pub fn downcast<K: Object>(object: &Shared) -> Option<Arc<K>> {
    let object: Arc<dyn Any + Send + Sync> = Arc::<dyn AnyObject>::clone(object);
    object.downcast().ok()
}
