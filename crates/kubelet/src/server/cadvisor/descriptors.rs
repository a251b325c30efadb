//! Open file descriptors of a container's processes.

/// Limit of descriptors that are counted; a container with more has no row.
const MAX_DESCRIPTORS: u64 = 10_000;
/// Limit of processes whose descriptors are counted.
const MAX_PROCESSES: usize = 500;

/// Number of descriptors, and of the sockets among them; `None` beyond the limits.
pub fn count(processes: &[i32]) -> Option<(u64, u64)> {
    if processes.len() > MAX_PROCESSES {
        return None;
    }
    let (mut all, mut sockets) = (0, 0);
    for pid in processes {
        // An exited process has none.
        for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            all += 1;
            if all > MAX_DESCRIPTORS {
                return None;
            }
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            sockets += u64::from(target.as_os_str().as_encoded_bytes().starts_with(b"socket:"));
        }
    }
    Some((all, sockets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_sockets_are_counted() {
        let own = [i32::try_from(std::process::id()).expect("a pid")];
        let _listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
        let (all, sockets) = count(&own).expect("few descriptors");
        assert!(sockets >= 1 && all > sockets, "{all} {sockets}");
        assert_eq!(count(&vec![0; MAX_PROCESSES + 1]), None);
    }
}
