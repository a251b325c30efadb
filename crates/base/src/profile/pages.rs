//! The pages of `/debug/pprof`, for servers of any protocol.

use std::time::Duration;

use super::{CONTENT_TYPE, DEFAULT, Error, Samples, cpu, heap};
use crate::redact;

const TEXT: &str = "text/plain; charset=utf-8";

/// A reply: status, content type and body.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    pub status: u16,
    pub content_type: &'static str,
    pub body: Vec<u8>,
}

impl Page {
    fn text(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, content_type: TEXT, body: body.into() }
    }
}

const INDEX: &str = "\
/debug/pprof/

cmdline  the command line of this process, its arguments separated by NUL
heap     allocations of ?seconds=N: all, and those that were not freed; without seconds, allocations since the start of
         a process with --heap-profile-rate, and of 10 seconds of others
profile  CPU profile of ?seconds=N, 30 if not given

Read them with: go tool pprof URL
";

/// Replies to a path below `/debug/pprof`. `seconds` is the parameter of that name.
pub async fn page(name: &str, seconds: Option<&str>) -> Page {
    let given = seconds;
    let seconds = given.and_then(|seconds| seconds.parse().ok()).filter(|seconds| *seconds > 0);
    let seconds = seconds.map(Duration::from_secs);
    match name.trim_matches('/') {
        "" => Page::text(200, INDEX),
        "cmdline" => {
            let line = std::fs::read("/proc/self/cmdline").unwrap_or_default();
            let line = String::from_utf8_lossy(line.strip_suffix(&[0]).unwrap_or(&line)).into_owned();
            Page::text(200, redact::command_line(line.split('\0')).join("\0"))
        }
        // pprof requests it before it sends addresses; names are in the profiles already.
        "symbol" => Page::text(200, "num_symbols: 0\n"),
        "profile" => reply(cpu::profile(seconds.unwrap_or(DEFAULT)).await).await,
        "heap" if given.is_some() && seconds.is_none() => {
            Page::text(400, "invalid value for \"seconds\" - must be a positive integer\n")
        }
        "heap" => reply(heap::profile(seconds).await).await,
        _ => Page::text(404, "Unknown profile\n"),
    }
}

async fn reply(samples: Result<Samples, Error>) -> Page {
    let samples = match samples {
        Ok(samples) => samples,
        Err(error) => {
            let status = match error {
                Error::Busy => 429,
                Error::NoAllocator => 501,
                Error::Timer(_) => 500,
            };
            return Page::text(status, format!("{error}\n"));
        }
    };
    match tokio::task::spawn_blocking(move || samples.encode()).await {
        Ok(body) => Page { status: 200, content_type: CONTENT_TYPE, body },
        Err(error) => Page::text(500, format!("failed to encode the profile: {error}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn paths_map_to_pages() {
        assert!(String::from_utf8_lossy(&page("/", None).await.body).contains("go tool pprof"));
        assert_eq!(page("goroutine", None).await.status, 404);
        assert!(page("/cmdline", None).await.body.windows(4).any(|part| part == b"base"));
        for wrong in ["-1", "0", "x"] {
            assert_eq!(page("heap", Some(wrong)).await.status, 400, "{wrong}");
        }
    }
}
