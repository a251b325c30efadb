//! Exec, attach and port-forward over the clients' protocols.

use cri::v1::*;
use streaming::websocket::{Message, Reader, Writer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::net::TcpStream;

use crate::{Node, PATIENCE};

/// Connects to a URL of the streaming server and upgrades the protocol.
async fn upgrade(url: &str, headers: &str) -> TcpStream {
    let rest = url.strip_prefix("http://").expect("an address");
    let (host, path) = rest.split_once('/').expect("a path");
    let mut socket = TcpStream::connect(host).await.expect("the streaming server");
    let request = format!("POST /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\n{headers}\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(socket.read_u8().await.expect("an answer"));
    }
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
    socket
}

const WEBSOCKET: &str = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n";

type Ends = (Reader<ReadHalf<TcpStream>>, Writer<WriteHalf<TcpStream>>);

async fn websocket(url: &str) -> Ends {
    let (reader, writer) = tokio::io::split(upgrade(url, WEBSOCKET).await);
    (Reader::new(reader), Writer::client(writer))
}

/// Everything until the close: output, errors, the final status.
async fn collect(reader: &mut Reader<ReadHalf<TcpStream>>) -> [String; 3] {
    let mut streams = [const { Vec::new() }; 3];
    let reading = async {
        loop {
            match reader.next().await.expect("a message") {
                Message::Data(data) if (1..=3).contains(&data[0]) => {
                    streams[usize::from(data[0]) - 1].extend_from_slice(&data[1..]);
                }
                Message::Close(_) => return,
                _ => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("an end");
    streams.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

async fn exec(node: &Node, id: &str, command: &[&str], tty: bool) -> String {
    let request = ExecRequest {
        container_id: id.to_owned(),
        cmd: command.iter().map(|&argument| argument.to_owned()).collect(),
        tty,
        stdin: true,
        stdout: true,
        stderr: !tty,
    };
    node.cri.clone().runtime.exec(request).await.expect("an address").into_inner().url
}

pub async fn exec_over_websocket_works(node: Node) {
    let (_, id) = node.run("ws", node.container("ws", &["sleep", "1000"])).await;
    let url = exec(&node, &id, &["sh", "-c", "cat; echo no >&2; exit 6"], false).await;
    let (mut reader, mut writer) = websocket(&url).await;
    writer.data(&[b"\x00", &vec![b'a'; 100_000]]).await.unwrap();
    writer.data(&[b"\x00end"]).await.unwrap();
    writer.data(&[b"\xff\x00"]).await.unwrap();
    let [out, err, status] = collect(&mut reader).await;
    assert_eq!((out.len(), out.ends_with("aend"), err.as_str()), (100_003, true, "no\n"));
    assert!(status.contains(r#""message":"6""#), "{status}");
    let mut again = TcpStream::connect(url["http://".len()..].split_once('/').unwrap().0).await.unwrap();
    let path = url.rsplit_once('/').unwrap().1;
    again.write_all(format!("GET /exec/{path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
    let mut head = [0; 12];
    again.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 404", "an address is good for one connection");
    // A command whose client disconnects, or sends a close frame, is killed.
    for (number, closes) in [("7777", false), ("8888", true)] {
        let url = exec(&node, &id, &["sleep", number], false).await;
        let (reader, mut writer) = websocket(&url).await;
        until_command(&node, &id, number, true).await;
        if closes {
            writer.close().await.unwrap();
        }
        drop((reader, writer));
        until_command(&node, &id, number, false).await;
    }
}

/// Waits until `sleep NUMBER` runs in the container, or does not.
async fn until_command(node: &Node, id: &str, number: &str, runs: bool) {
    node.until("the command", async || {
        let seen = node.exec(id, &["ps"]).await.1;
        if seen.contains(&format!("sleep {number}")) == runs { Ok(()) } else { Err(seen) }
    })
    .await;
}

/// Waits until its terminal has the requested size.
const RESIZED: &str = "tty; read line; until stty size | grep '33 101'; do sleep 0.1; done; echo got $line";

pub async fn exec_with_terminal_resizes(node: Node) {
    let (_, id) = node.run("tty", node.container("tty", &["sleep", "1000"])).await;
    let url = exec(&node, &id, &["sh", "-c", RESIZED], true).await;
    let (mut reader, mut writer) = websocket(&url).await;
    writer.data(&[b"\x04{\"Width\":101,\"Height\":33}"]).await.unwrap();
    writer.data(&[b"\x00hello\n"]).await.unwrap();
    let [out, _, status] = collect(&mut reader).await;
    assert!(out.contains("/dev/pts/0") && out.contains("33 101") && out.contains("got hello"), "{out}");
    assert!(status.contains("Success"), "{status}");
}

pub async fn attach_copies_streams(node: Node) {
    let mut config =
        node.container("att", &["sh", "-c", "while read line; do echo you said $line; done; echo over"]);
    config.stdin = true;
    config.stdin_once = true;
    let (_, id) = node.run("att", config).await;
    let request =
        AttachRequest { container_id: id.clone(), stdin: true, tty: false, stdout: true, stderr: true };
    let url = node.cri.clone().runtime.attach(request).await.unwrap().into_inner().url;
    let (mut reader, mut writer) = websocket(&url).await;
    writer.data(&[b"\x00hi\n"]).await.unwrap();
    writer.data(&[b"\xff\x00"]).await.unwrap();
    let [out, _, status] = collect(&mut reader).await;
    assert_eq!(out, "you said hi\nover\n");
    assert!(status.contains("Success"), "{status}");
    assert_eq!(node.exited(&id).await.exit_code, 0);
    assert_eq!(node.log("att", "att"), ["stdout F you said hi", "stdout F over"]);
}

/// Without `stdin_once`, EOF on a client's stdin ends its session, but neither the container nor its stdin.
pub async fn attach_to_open_stdin_ends_with_client(node: Node) {
    let mut config = node.container("open", &["sh", "-c", "while read line; do echo you said $line; done"]);
    config.stdin = true;
    let (_, id) = node.run("open", config).await;
    for argument in ["one", "two"] {
        let request =
            AttachRequest { container_id: id.clone(), stdin: true, tty: false, stdout: true, stderr: true };
        let url = node.cri.clone().runtime.attach(request).await.unwrap().into_inner().url;
        let (mut reader, mut writer) = websocket(&url).await;
        writer.data(&[format!("\0{argument}\n").as_bytes()]).await.unwrap();
        writer.data(&[b"\xff\x00"]).await.unwrap();
        let [_, _, status] = collect(&mut reader).await;
        assert!(status.contains("Success"), "{status}");
    }
    node.until("both words in the log", async || {
        let log = node.log("open", "open");
        if log == ["stdout F you said one", "stdout F you said two"] {
            Ok(())
        } else {
            Err(format!("{log:?}"))
        }
    })
    .await;
}

pub async fn port_forward_over_spdy_works(node: Node) {
    let serve = "echo hello > /tmp/index.html; exec httpd -f -p 127.0.0.1:8080 -h /tmp";
    let (pod, id) = node.run("pf", node.container("pf", &["sh", "-c", serve])).await;
    node.until("the server", async || {
        let seen = node
            .exec(&id, &["sh", "-c", "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 127.0.0.1 8080"])
            .await;
        if seen.1.contains("hello") { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
    let request = PortForwardRequest { pod_sandbox_id: pod, port: vec![] };
    let url = node.cri.clone().runtime.port_forward(request).await.unwrap().into_inner().url;
    let headers = "Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: portforward.k8s.io\r\n";
    let mut client = streaming::spdy::connect(upgrade(&url, headers).await);
    let driver = tokio::spawn(client.driver);
    let common = [("port", "8080"), ("requestID", "0")];
    client.sender.open(1, &[("streamType", "error"), common[0], common[1]]).await;
    client.sender.open(3, &[("streamType", "data"), common[0], common[1]]).await;
    client.sender.data(3, "GET / HTTP/1.0\r\n\r\n".into()).await;
    let mut page = Vec::new();
    let reading = async {
        while let Some((id, data)) = client.answers.recv().await {
            if id == 3 && data.is_empty() {
                return;
            }
            page.extend_from_slice(&data);
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("a page");
    assert!(String::from_utf8_lossy(&page).ends_with("hello\n"), "{}", String::from_utf8_lossy(&page));
    driver.abort();
}

pub async fn port_forward_over_channels_works(node: Node) {
    let serve = "echo hello > /tmp/index.html; exec httpd -f -p 127.0.0.1:8081 -h /tmp";
    let (pod, id) = node.run("pfc", node.container("pfc", &["sh", "-c", serve])).await;
    node.until("the server", async || {
        let seen = node
            .exec(&id, &["sh", "-c", "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 127.0.0.1 8081"])
            .await;
        if seen.1.contains("hello") { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
    let request = PortForwardRequest { pod_sandbox_id: pod, port: vec![8081] };
    let url = node.cri.clone().runtime.port_forward(request).await.unwrap().into_inner().url;
    let headers = "Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                   Sec-WebSocket-Protocol: v4.channel.k8s.io\r\nSec-WebSocket-Version: 13\r\n";
    let (reader, writer) = tokio::io::split(upgrade(&url, headers).await);
    let (mut reader, mut writer) =
        (streaming::websocket::Reader::new(reader), streaming::websocket::Writer::client(writer));
    writer.data(&[b"\0GET / HTTP/1.0\r\n\r\n"]).await.unwrap();
    let mut seen = Vec::new();
    let reading = async {
        while let streaming::websocket::Message::Data(data) = reader.next().await.unwrap() {
            seen.push(data);
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("a page");
    assert_eq!(seen[..2], [&b"\x00\x91\x1f"[..], b"\x01\x91\x1f"]);
    let page: Vec<u8> = seen[2..].iter().flat_map(|piece| piece[1..].to_vec()).collect();
    assert!(String::from_utf8_lossy(&page).ends_with("hello\n"), "{}", String::from_utf8_lossy(&page));
}
