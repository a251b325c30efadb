//! Messages of network protocols, and certificates.

use super::{outcome, steps};
use crate::engine::Target;
use base::pki::{user_of_certificate, user_of_subject};
use dns::wire::Query;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use streaming::spdy;
use streaming::websocket::{Message, Reader};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

/// The output of a future; `None` if it is pending.
fn now<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

pub static DNS: Target = Target {
    name: "dns",
    corpus: &[
        b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x01b\x00\x00\x01\x00\x01",
        b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01\x03www\x00\x00\x1c\x00\x01\x00\x00\x29\x10\x00\x00\x00\x00\x00\x00\x00",
    ],
    dictionary: &[b"\xc0\x0c", b"\x00\x29", b"\x3f", b"\x00\x01", b"\x00\xff"],
    run: |input| {
        let read = Query::parse(input).map_err(|error| format!("{error:?}"));
        if let Ok(query) = &read {
            let _ = (query.name(), query.name_text(), query.udp_limit(), query.is_internet());
        }
        let _ = dns::wire::skip_name(input, 0);
        outcome(&read, steps(input.len()))
    },
    floor: 1 << 20,
    factor: 64,
};

pub static WEBSOCKET: Target = Target {
    name: "websocket",
    corpus: &[
        b"\x82\x85\0\0\0\0hello\x88\x00",
        b"\x02\x01a\x80\x01b\x89\x00",
        b"\x82\x7e\x00\x05hello",
        b"\x82\x7f\x00\x00\x00\x00\x00\x00\x00\x01x",
    ],
    dictionary: &[
        b"\x82",
        b"\x02",
        b"\x80",
        b"\x7e\xff\xff",
        b"\x7f\x00\x00\x00\x00\x00\x40\x00\x00",
        b"\x88\x00",
        b"\x8a\x00",
    ],
    run: |input| {
        let mut reader = Reader::new(input);
        let mut messages = 0;
        loop {
            let next = now(reader.next()).expect("complete input").map_err(|error| error.to_string());
            match next {
                Ok(Message::Close(_)) => return outcome(&Ok::<_, String>(()), messages),
                Ok(_) => messages += 1,
                Err(_) => return outcome(&next, messages),
            }
        }
    },
    floor: 6 << 20,
    factor: 64,
};

pub static SPDY: Target = Target {
    name: "spdy",
    corpus: &[
        b"\x80\x03\x00\x06\x00\x00\x00\x04\x00\x00\x00\x01",
        b"\x80\x03\x00\x01\x01\x00\x00\x0e\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
        b"\x00\x00\x00\x01\x01\x00\x00\x02hi",
        b"\x80\x03\x00\x07\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x00",
    ],
    dictionary: &[
        b"\x80\x03\x00\x01",
        b"\x80\x03\x00\x04",
        b"\x80\x03\x00\x09",
        b"\x78\xbb",
        b"\x00\xff\xff\xff",
    ],
    run: |input| {
        let io = tokio::io::join(std::io::Cursor::new(input.to_vec()), tokio::io::sink());
        let spdy::Connection { driver, incoming, answers, sender } = spdy::connect(io);
        drop((incoming, answers, sender));
        let ended = now(driver).unwrap_or(Ok(())).map_err(|error| error.to_string());
        outcome(&ended, steps(input.len()))
    },
    floor: 20 << 20,
    factor: 64,
};

/// A certificate with the subject `CN=a`, reduced to the parts that are parsed.
const CERTIFICATE_DER: &[u8] = b"\x30\x5c\x30\x47\xa0\x03\x02\x01\x02\x02\x01\x01\x30\x05\x06\x03\x2b\x65\x70\x30\x00\x30\x1e\x17\x0d260101000000Z\x17\x0d360101000000Z\x30\x0c\x31\x0a\x30\x08\x06\x03\x55\x04\x03\x0c\x01a\x30\x0a\x30\x05\x06\x03\x2b\x65\x70\x03\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x03\x01\x00";
const REQUEST_DER: &[u8] = b"\x30\x2d\x30\x1f\x02\x01\x00\x30\x0c\x31\x0a\x30\x08\x06\x03\x55\x04\x03\x0c\x01a\x30\x0a\x30\x05\x06\x03\x2b\x65\x70\x03\x01\x00\xa0\x00\x30\x05\x06\x03\x2b\x65\x70\x03\x03\x00\x00\x00";
const DER_DICTIONARY: &[&[u8]] = &[
    b"\x30\x08\x06\x03\x55\x04\x03\x0c\x01a",
    b"\x31\x0a",
    b"\x06\x03\x55\x04\x0a",
    b"\x0c\x01b",
    b"\x1e\x02\x00a",
    b"\x30\x80",
    b"\x30\x84\xff\xff\xff\xff",
    b"\xa0\x00",
];

pub static CERTIFICATE: Target = Target {
    name: "certificate",
    corpus: &[CERTIFICATE_DER],
    dictionary: DER_DICTIONARY,
    run: |input| {
        let user = user_of_certificate(input);
        if let Ok(user) = &user {
            assert!(!user.name.is_empty());
        }
        outcome(&user, user.as_ref().map_or(0, |user| steps(user.groups.len())))
    },
    floor: 2 << 20,
    factor: 400,
};

pub static REQUEST: Target = Target {
    name: "certificate-request",
    corpus: &[
        REQUEST_DER,
        b"-----BEGIN CERTIFICATE REQUEST-----\nMC0wHwIBADAMMQowCAYDVQQDDAFhMAowBQYDK2VwAwEAoAAwBQYDK2VwAwMAAAA=\n-----END CERTIFICATE REQUEST-----\n",
    ],
    dictionary: DER_DICTIONARY,
    run: |input| {
        let pem = x509_parser::pem::parse_x509_pem(input);
        let der = pem.as_ref().map_or(input, |(_, pem)| pem.contents.as_slice());
        let user = X509CertificationRequest::from_der(der)
            .map_err(|error| error.to_string())
            .and_then(|(_, request)| {
                user_of_subject(&request.certification_request_info.subject).map_err(|error| error.to_string())
            });
        outcome(&user, 0)
    },
    floor: 2 << 20,
    factor: 400,
};
