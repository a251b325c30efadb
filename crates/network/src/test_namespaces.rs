//! Network namespaces for tests that send packets; they end with the test.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::process::Command;
use std::sync::Arc;

use sys::netlink::Netlink;
use sys::process::{Namespace, enter, unshare};

/// A network namespace without external routes, which exists while a descriptor of it is open.
#[derive(Clone)]
pub struct NetworkNamespace(pub Arc<File>);

impl NetworkNamespace {
    /// `None` without the permission to create one.
    pub fn new() -> Option<Self> {
        let made = std::thread::spawn(|| {
            unshare(&[Namespace::Network]).ok()?;
            Netlink::open().ok()?.set_up("lo").ok()?;
            File::open("/proc/thread-self/ns/net").ok()
        });
        made.join().ok()?.map(|file| Self(Arc::new(file)))
    }

    /// Runs `body` in a thread inside the namespace.
    pub fn within<T: Send + 'static>(&self, body: impl FnOnce(&mut Netlink) -> T + Send + 'static) -> T {
        let file = Arc::clone(&self.0);
        let inside = std::thread::spawn(move || {
            enter(file.as_fd(), Namespace::Network).expect("entering the namespace");
            body(&mut Netlink::open().expect("netlink"))
        });
        inside.join().expect("the thread")
    }

    /// Runs the `ip` command inside the namespace and returns its output.
    pub fn ip(&self, arguments: &str) -> String {
        let arguments: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
        self.within(move |_| {
            let output = Command::new("ip").args(&arguments).output().expect("the ip command");
            assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8_lossy(&output.stdout).into_owned()
        })
    }
}
