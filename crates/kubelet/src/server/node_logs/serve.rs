//! Responses of `/logs/`.

use std::convert::Infallible;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use jiff::Timestamp;
use tokio::io::AsyncReadExt as _;
use tokio::sync::{Semaphore, mpsc};

use super::{NodeLogSettings, files, journal, query};
use crate::server::containers::parameters;
use crate::server::{Body, Reply, text, typed};
use base::tasks::TaskGroup;

/// Maximum number of concurrent queries of services, each of which runs a command.
const QUERIES: usize = 4;
const BLOCK: usize = 64 * 1024;
/// Bytes of a file that its content type is chosen by.
const SNIFFED: u64 = 512;
const OCTETS: &str = "application/octet-stream";

/// Limits concurrent queries.
pub struct Queries(Arc<Semaphore>);

impl Default for Queries {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(QUERIES)))
    }
}

/// A request to the endpoint; `path` is the decoded rest after `/logs`.
pub struct NodeLogRequest<'a> {
    pub path: &'a str,
    pub query: Option<&'a str>,
    pub headers: &'a HeaderMap,
}

impl Queries {
    /// Serves a request.
    pub async fn serve(
        &self,
        settings: &NodeLogSettings,
        request: &NodeLogRequest<'_>,
        tasks: &TaskGroup,
    ) -> Reply {
        if !settings.serve {
            return text(StatusCode::METHOD_NOT_ALLOWED, "logs endpoint is disabled.\n");
        }
        if request.path.is_empty() {
            return moved("/logs/", request.query);
        }
        let mut path = request.path.to_owned();
        if settings.query {
            let wanted = match query::parse(&parameters(request.query)) {
                Ok(wanted) => wanted,
                Err(message) => return text(StatusCode::BAD_REQUEST, format!("{message}\n")),
            };
            if let Some(wanted) = wanted {
                if path != "/" {
                    return text(StatusCode::NOT_ACCEPTABLE, "path not allowed in query mode\n");
                }
                if let Err(message) = wanted.validate() {
                    return text(StatusCode::NOT_ACCEPTABLE, format!("{message}\n"));
                }
                match wanted.files.first() {
                    Some(file) => path.clone_from(file),
                    None => return self.services(settings, wanted, tasks),
                }
            }
        }
        file(settings, &path, request).await
    }

    fn services(&self, settings: &NodeLogSettings, wanted: query::NodeLogQuery, tasks: &TaskGroup) -> Reply {
        let Ok(slot) = Arc::clone(&self.0).try_acquire_owned() else {
            return text(StatusCode::TOO_MANY_REQUESTS, "too many log queries\n");
        };
        let (sender, receiver) = mpsc::channel::<Bytes>(4);
        let directory = settings.directory.clone();
        tasks.spawn_until_stopped(async move {
            let _slot = slot;
            journal::copy(journal::JOURNALCTL, &directory, &wanted, sender).await;
        });
        let pieces = futures_util::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|piece| (Ok::<_, Infallible>(Frame::data(piece)), receiver))
        });
        let mut reply = Response::new(StreamBody::new(pieces.boxed()).boxed_unsync());
        set(&mut reply, header::CONTENT_TYPE, "text/plain;charset=UTF-8");
        reply
    }
}

/// Content of a file or directory that was opened away from the threads of the event loop.
enum Content {
    Page(String),
    File { file: std::fs::File, begin: Vec<u8>, size: u64, modified: Option<Timestamp> },
}

fn load(settings: &NodeLogSettings, path: &str) -> io::Result<Content> {
    let files::Opened { mut file, metadata } = files::open(&settings.directory, path)?;
    if metadata.is_dir() {
        return files::listing(&file).map(Content::Page);
    }
    let mut begin = Vec::new();
    (&mut file).take(SNIFFED).read_to_end(&mut begin)?;
    let modified = metadata.modified().ok().and_then(|time| Timestamp::try_from(time).ok());
    Ok(Content::File { file, begin, size: metadata.len(), modified })
}

async fn file(settings: &NodeLogSettings, path: &str, request: &NodeLogRequest<'_>) -> Reply {
    let (settings, owned) = (settings.clone(), path.to_owned());
    let loaded = tokio::task::spawn_blocking(move || load(&settings, &owned)).await;
    let loaded = loaded.unwrap_or_else(|error| Err(io::Error::other(error)));
    let has_slash = path.ends_with('/');
    let cleaned = files::clean(path);
    let last = cleaned.rsplit('/').next().unwrap_or_default();
    match loaded {
        Ok(Content::Page(_)) if !has_slash => moved(&format!("{last}/"), request.query),
        Ok(Content::File { .. }) if has_slash => moved(&format!("../{last}"), request.query),
        Ok(Content::Page(page)) => typed(StatusCode::OK, "text/html; charset=utf-8", page),
        Ok(Content::File { file, begin, size, modified }) => {
            let range = request.headers.get(header::RANGE).and_then(|range| range.to_str().ok());
            part_of_file(file, &begin, size, modified, range)
        }
        Err(error) => failed(&error),
    }
}

fn failed(error: &io::Error) -> Reply {
    use rustix::io::Errno;
    match Errno::from_io_error(error) {
        Some(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => {
            text(StatusCode::NOT_FOUND, "404 page not found\n")
        }
        _ if error.kind() == io::ErrorKind::PermissionDenied => {
            text(StatusCode::FORBIDDEN, "403 Forbidden\n")
        }
        _ => {
            tracing::debug!(%error, "failed to serve a log of the node");
            text(StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error\n")
        }
    }
}

fn part_of_file(
    mut file: std::fs::File,
    begin: &[u8],
    size: u64,
    modified: Option<Timestamp>,
    range: Option<&str>,
) -> Reply {
    let Some((first, length)) = files::part(range, size) else {
        let mut reply = text(StatusCode::RANGE_NOT_SATISFIABLE, "invalid range: failed to overlap\n");
        set(&mut reply, header::CONTENT_RANGE, &format!("bytes */{size}"));
        return reply;
    };
    if let Err(error) = file.seek(SeekFrom::Start(first)) {
        return failed(&error);
    }
    let mut reply = Response::new(body_of(file, length));
    if length < size {
        *reply.status_mut() = StatusCode::PARTIAL_CONTENT;
        let last = first.saturating_add(length).saturating_sub(1);
        set(&mut reply, header::CONTENT_RANGE, &format!("bytes {first}-{last}/{size}"));
    }
    set(&mut reply, header::ACCEPT_RANGES, "bytes");
    set(&mut reply, header::CONTENT_LENGTH, &length.to_string());
    set(&mut reply, header::CONTENT_TYPE, files::content_type(begin));
    // Browsers must not guess that a log with tags is a page.
    set(&mut reply, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    if let Some(modified) = modified {
        set(&mut reply, header::LAST_MODIFIED, &modified.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string());
    }
    reply
}

/// The next `length` bytes of a file, read when the client takes them. A body that ends earlier ends the connection.
fn body_of(file: std::fs::File, length: u64) -> Body {
    let file = tokio::fs::File::from_std(file).take(length);
    let pieces = futures_util::stream::unfold(file, |mut file| async move {
        let mut block = Vec::with_capacity(BLOCK);
        match file.read_buf(&mut block).await {
            Ok(0) => None,
            Ok(_) => Some((Ok::<_, Infallible>(Frame::data(Bytes::from(block))), file)),
            Err(error) => {
                tracing::debug!(%error, "failed to read a log of the node");
                None
            }
        }
    });
    StreamBody::new(pieces.boxed()).boxed_unsync()
}

/// Redirects to a relative path; the query is kept.
fn moved(path: &str, query: Option<&str>) -> Reply {
    let mut reply = text(StatusCode::MOVED_PERMANENTLY, "");
    let location = percent_encoding::utf8_percent_encode(path, files::LINK).to_string();
    let location = query.map_or(location.clone(), |query| format!("{location}?{query}"));
    set(&mut reply, header::LOCATION, &location);
    reply
}

fn set(reply: &mut Reply, name: header::HeaderName, value: &str) {
    let value = HeaderValue::from_str(value).unwrap_or(HeaderValue::from_static(OCTETS));
    reply.headers_mut().insert(name, value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Duration;

    struct Fixture {
        directory: tempfile::TempDir,
        settings: NodeLogSettings,
        queries: Queries,
        tasks: TaskGroup,
    }

    impl Fixture {
        fn new() -> Self {
            let directory = tempfile::tempdir().expect("a directory");
            fs::create_dir(directory.path().join("apt")).expect("a directory");
            fs::write(directory.path().join("a.log"), "0123456789").expect("a file");
            let settings =
                NodeLogSettings { directory: directory.path().to_owned(), ..NodeLogSettings::default() };
            Self { directory, settings, queries: Queries::default(), tasks: TaskGroup::new() }
        }

        async fn get(&self, path: &str, query: Option<&str>, range: Option<&'static str>) -> (Reply, u16) {
            let mut headers = HeaderMap::new();
            headers.extend(range.map(|range| (header::RANGE, HeaderValue::from_static(range))));
            let request = NodeLogRequest { path, query, headers: &headers };
            let reply = self.queries.serve(&self.settings, &request, &self.tasks).await;
            let status = reply.status().as_u16();
            (reply, status)
        }
    }

    async fn text_of(reply: Reply) -> String {
        let body = reply.into_body().collect().await.expect("a body").to_bytes();
        String::from_utf8(body.to_vec()).expect("text")
    }

    fn header_of(reply: &Reply, name: header::HeaderName) -> &str {
        reply.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    #[tokio::test]
    async fn files_and_directories_are_served() {
        let logs = Fixture::new();
        let (reply, status) = logs.get("/", None, None).await;
        assert_eq!((status, header_of(&reply, header::CONTENT_TYPE)), (200, "text/html; charset=utf-8"));
        assert!(text_of(reply).await.contains("<a href=\"a.log\">a.log</a>\n<a href=\"apt/\">apt/</a>\n"));
        let (reply, status) = logs.get("/a.log", None, None).await;
        assert_eq!((status, header_of(&reply, header::CONTENT_LENGTH)), (200, "10"));
        assert_eq!(text_of(reply).await, "0123456789");
        let (reply, status) = logs.get("/a.log", None, Some("bytes=-3")).await;
        assert_eq!((status, header_of(&reply, header::CONTENT_RANGE)), (206, "bytes 7-9/10"));
        assert_eq!(text_of(reply).await, "789");
        assert_eq!(logs.get("/a.log", None, Some("bytes=10-")).await.1, 416);
        assert_eq!(logs.get("/none", None, None).await.1, 404);
        assert_eq!(logs.get("/a.log/x", None, None).await.1, 404);
    }

    #[tokio::test]
    async fn slashes_are_corrected_by_redirects() {
        let logs = Fixture::new();
        for (path, query, want) in [
            ("", None, "/logs/"),
            ("/apt", Some("a=b"), "apt/?a=b"),
            ("/a.log/", None, "../a.log"),
            ("//example.com/..//apt", None, "apt/"),
        ] {
            let (reply, status) = logs.get(path, query, None).await;
            assert_eq!((status, header_of(&reply, header::LOCATION)), (301, want), "{path}");
        }
    }

    #[tokio::test]
    async fn paths_and_links_outside_of_the_directory_are_refused() {
        let logs = Fixture::new();
        std::os::unix::fs::symlink("/etc/passwd", logs.directory.path().join("passwd")).expect("a link");
        std::os::unix::fs::symlink("/etc", logs.directory.path().join("etc")).expect("a link");
        for (path, want) in [
            ("/passwd", 403),
            ("/etc/passwd", 403),
            ("/etc/", 403),
            ("/../../../../../../etc/passwd", 403),
            ("/a\0b", 500),
        ] {
            let (reply, status) = logs.get(path, None, None).await;
            assert_eq!(status, want, "{path}");
            assert!(!text_of(reply).await.contains("root:"), "{path}");
        }
    }

    #[tokio::test]
    async fn huge_file_is_sent_in_blocks() {
        const HUGE: u64 = 1 << 40;
        let logs = Fixture::new();
        let sparse = fs::File::create(logs.directory.path().join("huge")).expect("a file");
        sparse.set_len(HUGE).expect("a sparse file");
        let (reply, status) = logs.get("/huge", None, None).await;
        assert_eq!((status, header_of(&reply, header::CONTENT_LENGTH)), (200, "1099511627776"));
        let mut body = reply.into_body();
        for _ in 0..3 {
            let frame = body.frame().await.expect("a frame").expect("no error");
            assert!(frame.into_data().is_ok_and(|data| !data.is_empty() && data.len() <= BLOCK));
        }
        let (reply, status) = logs.get("/huge", None, Some("bytes=-5")).await;
        assert_eq!((status, text_of(reply).await.len()), (206, 5));
    }

    #[tokio::test]
    async fn queries_need_their_setting() {
        let mut logs = Fixture::new();
        assert_eq!(logs.get("/", Some("query=%2Fa.log"), None).await.1, 200, "a listing");
        logs.settings.query = true;
        let (reply, status) = logs.get("/", Some("query=%2Fa.log"), None).await;
        assert_eq!((status, text_of(reply).await), (200, "0123456789".to_owned()));
        let (reply, status) = logs.get("/", Some("query=a"), None).await;
        assert_eq!((status, text_of(reply).await), (200, "0123456789".to_owned()));
        assert_eq!(logs.get("/apt", Some("query=a"), None).await.1, 406);
        assert_eq!(logs.get("/", Some("query=a%20b"), None).await.1, 406);
        assert_eq!(logs.get("/", Some("tailLines=x"), None).await.1, 400);
        logs.settings.serve = false;
        assert_eq!(logs.get("/", None, None).await.1, 405);
    }

    #[tokio::test]
    async fn concurrent_queries_are_limited() {
        let mut logs = Fixture::new();
        logs.settings.query = true;
        let all = Arc::clone(&logs.queries.0).acquire_many_owned(QUERIES as u32).await.expect("slots");
        assert_eq!(logs.get("/", Some("query=a"), None).await.1, 429);
        drop(all);
        assert_eq!(logs.get("/", Some("query=a"), None).await.1, 200);
        logs.tasks.drain(Duration::from_secs(5)).await.expect("tasks end");
    }
}
