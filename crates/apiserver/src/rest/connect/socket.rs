//! Streams a log or a watch over a WebSocket, for browsers.

use super::upstream::copy_headers;
use crate::context::Context;
use crate::serve::ResponseBody;
use crate::wire::reply::Reply;
use base::tasks::TaskGroup;
use base64::Engine as _;
use bytes::{Buf, Bytes};
use futures_util::{Stream, StreamExt};
use http::Response;
use http_body_util::BodyStream;
use hyper_util::rt::TokioIo;
use machinery::status::{Result, Status};
use std::pin::pin;
use streaming::upgrade::{Encoding, choose_reader, choose_watcher};
use streaming::websocket::{Message, Reader, Writer, close};

/// Sends the body of `answer` as messages once the caller's connection is a WebSocket.
pub(super) fn over_websocket(context: &Context, answer: Reply, streams: &TaskGroup) -> Result<Reply> {
    let (encoding, switch) =
        choose_reader(&context.headers).map_err(|error| Status::bad_request(error.to_string()))?;
    let pieces = BodyStream::new(answer.into_body())
        .filter_map(|frame| async { frame.ok().and_then(|frame| frame.into_data().ok()) })
        .map(|mut piece| piece.copy_to_bytes(piece.remaining()));
    messages(context, pieces, encoding, &switch, streams)
}

/// Sends a watch, one message per event.
pub(in crate::rest) fn watch_over_websocket(
    context: &Context,
    events: impl Stream<Item = Bytes> + Send + 'static,
    encoding: Encoding,
    streams: &TaskGroup,
) -> Result<Reply> {
    let switch = choose_watcher(&context.headers).map_err(|error| Status::bad_request(error.to_string()))?;
    messages(context, events, encoding, &switch, streams)
}

fn messages(
    context: &Context,
    pieces: impl Stream<Item = Bytes> + Send + 'static,
    encoding: Encoding,
    switch: &Response<()>,
    streams: &TaskGroup,
) -> Result<Reply> {
    let Some(upgrade) = context.upgrade.lock().take() else {
        return Err(Status::bad_request("Upgrade request required"));
    };
    let counted = context.long_running.lock().take();
    streams.spawn(async move {
        let _counted = counted;
        let Ok(connection) = upgrade.await else { return };
        let (reader, writer) = tokio::io::split(TokioIo::new(connection));
        let (mut reader, mut writer) = (Reader::new(reader), Writer::server(writer));
        let mut pieces = pin!(pieces);
        loop {
            let sent = tokio::select! {
                piece = pieces.next() => match piece {
                    Some(piece) => send(&mut writer, encoding, &piece).await,
                    None => break,
                },
                message = reader.next() => match message {
                    Ok(Message::Ping(payload)) => writer.pong(&payload).await,
                    Ok(Message::Data(_) | Message::Pong) => Ok(()),
                    Ok(Message::Close(_)) => break,
                    Err(error) => {
                        let _ = writer.close_with(close::of_error(&error)).await;
                        return;
                    }
                },
            };
            if sent.is_err() {
                return;
            }
        }
        let _ = writer.close().await;
    });
    let mut reply = Response::new(ResponseBody::Full(Bytes::new()));
    *reply.status_mut() = switch.status();
    copy_headers(switch.headers(), reply.headers_mut(), true);
    Ok(reply)
}

async fn send<W: tokio::io::AsyncWrite + Unpin>(
    writer: &mut Writer<W>,
    encoding: Encoding,
    piece: &[u8],
) -> std::result::Result<(), streaming::StreamError> {
    match encoding {
        Encoding::Binary => writer.data(&[piece]).await,
        Encoding::Text => writer.text(&String::from_utf8_lossy(piece)).await,
        Encoding::Base64 => writer.text(&base64::prelude::BASE64_STANDARD.encode(piece)).await,
    }
}
