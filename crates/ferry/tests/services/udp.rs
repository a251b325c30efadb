//! UDP between pods, from nodes to pods, and beside TCP on the same port of a service.

use std::net::UdpSocket;
use std::time::Duration;

use super::cluster::{Cluster, IMAGE, ask, until};
use super::names::programs_of_debian;

type Pods<'a> = &'a [(String, String)];

/// Replies to every packet with the pod's name.
const SERVER: &str = r#"chomp($n=`hostname`);socket(S,2,2,17);bind(S,pack("Snx12",2,9000));while($p=recv(S,$b,99,0)){send(S,$n,0,$p)}"#;

/// Sends a packet and prints the reply.
fn client(address: &str, port: u16) -> String {
    let numbers = address.replace('.', ",");
    format!(
        "perl -e 'alarm 5;socket(S,2,2,17);send(S,\"x\",0,pack(\"SnC4x8\",2,{port},{numbers}));recv(S,$b,99,0);print $b'"
    )
}

fn ask_udp(address: &str, port: u16) -> Result<String, String> {
    let text = |error: std::io::Error| error.to_string();
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(text)?;
    socket.set_read_timeout(Some(Duration::from_secs(5))).map_err(text)?;
    socket.send_to(b"x", (address, port)).map_err(text)?;
    let mut buffer = [0; 99];
    let length = socket.recv(&mut buffer).map_err(text)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

pub fn run(cluster: &Cluster, pods: Pods<'_>) {
    if programs_of_debian().is_empty() {
        println!("partly skipped: no perl with a shared libc here");
        return;
    }
    cluster.apply(&format!(
        r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: udp}}
spec:
  selector: {{matchLabels: {{app: udp}}}}
  template:
    metadata: {{labels: {{app: udp}}}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: udp
        image: {IMAGE}
        command: [/usr/bin/perl, -e, '{SERVER}']
        env: [{{name: PATH, value: "/bin:/usr/bin"}}]
      - name: tcp
        image: {IMAGE}
        command: [sh, -c, "mkdir -p /www; hostname > /www/index.html; exec httpd -f -p 9000 -h /www"]
---
apiVersion: v1
kind: Service
metadata: {{name: udp}}
spec:
  selector: {{app: udp}}
  ports: [{{name: udp, port: 80, targetPort: 9000, protocol: UDP}}, {{name: tcp, port: 80, targetPort: 9000}}]
"#
    ));
    let servers = cluster.wait_for_pods("udp", 2);
    for (server, node) in &servers {
        let ip = cluster.kubectl(&["get", "pod", server, "-o", "jsonpath={.status.podIP}"]);
        for (pod, from) in pods {
            until(&format!("{pod} on {from} reaches {server} on {node} by UDP"), || {
                let answer = cluster.inside(pod, &format!("PATH=/bin:/usr/bin {}", client(&ip, 9000)))?;
                if answer == *server { Ok(()) } else { Err(answer) }
            });
        }
        let answer = until(&format!("the first node reaches {server} by UDP"), || ask_udp(&ip, 9000));
        assert_eq!(answer, *server);
    }
    let service = cluster.kubectl(&["get", "service", "udp", "-o", "jsonpath={.spec.clusterIP}"]);
    let ours = |answer: &String| servers.iter().any(|(name, _)| name == answer);
    let answer = until("the service by UDP", || ask_udp(&service, 80));
    assert!(ours(&answer), "{answer}");
    let answer = until("the service by TCP", || ask(&format!("{service}:80")));
    assert!(ours(&answer), "{answer}");
    cluster.kubectl(&["delete", "daemonset/udp", "service/udp"]);
}
