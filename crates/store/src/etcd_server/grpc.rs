//! Decodes gRPC requests, calls a method and encodes its answer.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use tonic::body::Body;
use tonic::server::{Grpc, StreamingService, UnaryService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::MAX_MESSAGE;

/// An encoded answer.
pub(super) type Answer = BoxFuture<'static, http::Response<Body>>;

/// Messages of a streaming answer.
pub(super) struct Messages<T>(Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>);

impl<T> Messages<T> {
    pub fn new(stream: impl Stream<Item = Result<T, Status>> + Send + 'static) -> Self {
        Self(Box::pin(stream))
    }
}

impl<T> Stream for Messages<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(context)
    }
}

/// Adapter from a closure to the service traits of tonic.
struct Method<F>(F);

impl<F, Fut, Req, Res> UnaryService<Req> for Method<F>
where
    F: FnMut(Req) -> Fut,
    Fut: Future<Output = Result<Res, Status>> + Send + 'static,
{
    type Response = Res;
    type Future = BoxFuture<'static, Result<Response<Res>, Status>>;

    fn call(&mut self, request: Request<Req>) -> Self::Future {
        let answer = (self.0)(request.into_inner());
        Box::pin(async move { answer.await.map(Response::new) })
    }
}

impl<F, Req, Res> StreamingService<Req> for Method<F>
where
    F: FnMut(Streaming<Req>) -> Messages<Res>,
    Res: 'static,
{
    type Response = Res;
    type ResponseStream = Messages<Res>;
    type Future = BoxFuture<'static, Result<Response<Messages<Res>>, Status>>;

    fn call(&mut self, request: Request<Streaming<Req>>) -> Self::Future {
        let messages = (self.0)(request.into_inner());
        Box::pin(std::future::ready(Ok(Response::new(messages))))
    }
}

fn codec<Req, Res>() -> Grpc<ProstCodec<Res, Req>>
where
    Req: prost::Message + Default + Send + 'static,
    Res: prost::Message + Default + Send + 'static,
{
    // Answers of ranges have no limit: clients set theirs, and page.
    Grpc::new(ProstCodec::default())
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(usize::MAX)
}

/// Answers one message with one.
pub(super) fn unary<Req, Res, Fut>(
    request: http::Request<Incoming>,
    method: impl FnOnce(Req) -> Fut + Send + 'static,
) -> Answer
where
    Req: prost::Message + Default + Send + 'static,
    Res: prost::Message + Default + Send + 'static,
    Fut: Future<Output = Result<Res, Status>> + Send + 'static,
{
    let mut method = Some(method);
    let call = move |message| {
        let method = method.take();
        async move {
            match method {
                Some(method) => method(message).await,
                None => Err(Status::internal("a unary method was called twice")),
            }
        }
    };
    Box::pin(async move { codec::<Req, Res>().unary(Method(call), request).await })
}

/// Answers a stream of messages with another.
pub(super) fn streaming<Req, Res>(
    request: http::Request<Incoming>,
    method: impl FnOnce(Streaming<Req>) -> Messages<Res> + Send + 'static,
) -> Answer
where
    Req: prost::Message + Default + Send + 'static,
    Res: prost::Message + Default + Send + 'static,
{
    let mut method = Some(method);
    let call = move |messages: Streaming<Req>| -> Messages<Res> {
        match method.take() {
            Some(method) => method(messages),
            None => Messages::new(futures_util::stream::empty()),
        }
    };
    Box::pin(async move { codec::<Req, Res>().streaming(Method(call), request).await })
}
