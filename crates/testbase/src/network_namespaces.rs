//! Named network namespaces for tests that send packets.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Network namespaces of one test, without external routes; they are deleted when this is dropped.
#[derive(Debug)]
pub struct NetworkNamespaces {
    prefix: String,
    names: Vec<String>,
}

/// Runs the `ip` command in the current namespace.
pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().expect("running ip");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

impl NetworkNamespaces {
    /// Namespaces with these names, and a loopback interface each; prints `skipped:` and returns `None` without root or
    /// the `ip` command. `of` names the test.
    #[must_use]
    pub fn new<'n>(of: &str, names: impl IntoIterator<Item = &'n str>) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || Command::new("ip").arg("-V").output().is_err() {
            eprintln!("skipped: needs root and the ip command");
            return None;
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let names = names.into_iter().map(str::to_owned).collect();
        let namespaces = Self { prefix: format!("ferry-{of}-{}-{next}", std::process::id()), names };
        for name in &namespaces.names {
            ip(&format!("netns add {}", namespaces.name(name)));
            namespaces.ip(name, "link set lo up");
        }
        Some(namespaces)
    }

    /// Name of a namespace for the `ip` command.
    #[must_use]
    pub fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    /// Runs the `ip` command inside a namespace.
    pub fn ip(&self, name: &str, arguments: &str) {
        ip(&format!("-n {} {arguments}", self.name(name)));
    }

    /// Writes 1 to sysctls of a namespace, as paths below `/proc/sys/net`.
    pub fn enable(&self, name: &str, sysctls: &'static [&'static str]) {
        self.within(name, move || {
            for file in sysctls {
                std::fs::write(format!("/proc/sys/net/{file}"), "1").expect(file);
            }
        });
    }

    /// Runs `body` on a thread inside a namespace.
    pub fn within<T: Send + 'static>(&self, name: &str, body: impl FnOnce() -> T + Send + 'static) -> T {
        self.start(name, body).join().expect("the thread")
    }

    /// As [`NetworkNamespaces::within`], without waiting for the end.
    pub fn start<T: Send + 'static>(
        &self,
        name: &str,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let path = format!("/run/netns/{}", self.name(name));
        std::thread::spawn(move || {
            let file = File::open(path).expect("the namespace");
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("entering it");
            body()
        })
    }
}

impl Drop for NetworkNamespaces {
    fn drop(&mut self) {
        for name in &self.names {
            // Creation may have failed before this one.
            let _ = Command::new("ip").args(["netns", "del", &self.name(name)]).output();
        }
    }
}
