//! An API server for one empty API group version, to be aggregated.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;

/// Serves HTTPS on the returned port of localhost until the runtime ends: discovery of one empty API group
/// version, and for any other request an echo of its head.
pub async fn tiny_api_server(group_version: &'static str) -> u16 {
    let key = rcgen::KeyPair::generate().expect("make a key");
    let certificate = rcgen::CertificateParams::new(["localhost".to_owned()])
        .and_then(|params| params.self_signed(&key))
        .expect("sign a certificate");
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], PrivatePkcs8KeyDer::from(key.serialize_der()).into())
        .expect("use the certificate");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("listen");
    let port = listener.local_addr().expect("read the port").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that goes away while it is answered is no concern of this server.
            tokio::spawn(answer(acceptor.clone(), stream, group_version));
        }
    });
    port
}

async fn answer(acceptor: TlsAcceptor, stream: TcpStream, group_version: &str) -> std::io::Result<()> {
    let mut stream = acceptor.accept(stream).await?;
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let head = String::from_utf8_lossy(&head).to_lowercase();
    let body = if head.starts_with(&format!("get /apis/{group_version} ")) {
        format!(r#"{{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"{group_version}","resources":[]}}"#)
    } else {
        head
    };
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}
