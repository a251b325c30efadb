//! Revisioned key-value store with compare-and-swap, ranges and watches over opaque bytes; embedded and etcd backends.
