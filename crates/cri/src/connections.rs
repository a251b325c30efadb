//! Count of the open connections of a client, by which it notices that its server is gone.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

/// Number of open connections. Clones share it.
#[derive(Clone, Debug)]
pub struct Connections(Arc<watch::Sender<usize>>);

impl Default for Connections {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }
}

impl Connections {
    /// Receiver of changes of the count.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<usize> {
        self.0.subscribe()
    }

    #[must_use]
    pub fn is_connected(&self) -> bool {
        *self.0.borrow() > 0
    }

    pub(crate) fn connector(&self, path: PathBuf) -> Connector {
        Connector { path, connections: self.clone() }
    }
}

/// Connects to a unix socket.
pub(crate) struct Connector {
    path: PathBuf,
    connections: Connections,
}

impl Service<Uri> for Connector {
    type Response = CountedStream;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<CountedStream>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (path, connections) = (self.path.clone(), self.connections.clone());
        Box::pin(async move {
            let stream = UnixStream::connect(path).await?;
            connections.0.send_modify(|count| *count += 1);
            Ok(CountedStream { stream: TokioIo::new(stream), connections })
        })
    }
}

/// A connection that is counted until it is dropped.
pub(crate) struct CountedStream {
    stream: TokioIo<UnixStream>,
    connections: Connections,
}

impl Drop for CountedStream {
    fn drop(&mut self) {
        self.connections.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

impl Read for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl Write for CountedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
