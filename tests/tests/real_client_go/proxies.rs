//! Tests of proxies.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use kubelet_authenticator_test_support::connect_proxy::ConnectProxy;

use super::bed::{Bed, Form, kubeconfig};

/// Starts a proxy that sends this response to every request.
fn answering(answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 4096]);
            let _ = client.write_all(answer.as_bytes());
        }
    });
    address
}

/// Starts a SOCKS5 proxy without authentication, which connects to `server`.
fn socks5(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut buffer = [0; 300];
            let _ = client.read(&mut buffer);
            let _ = client.write_all(&[5, 0]);
            let _ = client.read(&mut buffer);
            let _ = client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
            let server = TcpStream::connect(server).unwrap();
            for (mut from, mut to) in [
                (server.try_clone().unwrap(), client.try_clone().unwrap()),
                (client, server),
            ] {
                thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
        }
    });
    address
}

pub fn forms(bed: &Bed) -> Vec<Form> {
    let server = SocketAddr::from(([127, 0, 0, 1], bed.server.port));
    // These proxies run until the process ends.
    let [proxy, asking] = [
        ConnectProxy::leading_to(server),
        ConnectProxy::asking_for("Basic dXNlcjpwQHcgMQ=="),
    ]
    .map(|proxy| Box::leak(Box::new(proxy)).url());
    let socks = socks5(server);
    let refusing = answering("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n");
    let created = answering("HTTP/1.1 204 No Content\r\n\r\n");
    let host = |url: &str| url.trim_start_matches("http://").to_owned();
    let field = |name, url: &str| {
        let text = bed.kubeconfig();
        let text = text.replacen(
            "contexts:",
            &format!("    proxy-url: \"{url}\"\ncontexts:"),
            1,
        );
        Form::new(name, bed, text)
    };
    // The host name does not have an address, so only a proxy can connect to it.
    let elsewhere = kubeconfig(&format!("https://api.test:{}", bed.server.port), &bed.ca());
    let variable = |name, url: &str| Form::new(name, bed, &elsewhere).with("HTTPS_PROXY", url);
    vec![
        field("proxy-url", &proxy),
        field("proxy-url with a slash at its end", &format!("{proxy}/")),
        field(
            "proxy-url with user and password",
            &asking.replace("//", "//user:p%40w%201@"),
        ),
        field(
            "proxy-url with a wrong password",
            &asking.replace("//", "//user:wrong@"),
        ),
        field("proxy-url of a SOCKS5 proxy", &format!("socks5://{socks}")),
        field("proxy-url of a SOCKS4 proxy", &format!("socks4://{socks}")),
        field("proxy-url without a scheme", &host(&proxy)),
        field("proxy that answers 403", &format!("http://{refusing}")),
        field("proxy that answers 204", &format!("http://{created}")),
        field("proxy where nothing listens", "http://127.0.0.1:1"),
        variable("HTTPS_PROXY", &proxy),
        variable("HTTPS_PROXY without a scheme", &host(&proxy)),
        variable(
            "HTTPS_PROXY of a SOCKS5 proxy",
            &format!("socks5://{socks}"),
        ),
        variable(
            "HTTPS_PROXY with a # in the password",
            &proxy.replace("//", "//user:p#w@"),
        ),
        variable("HTTPS_PROXY and NO_PROXY", &proxy).with("NO_PROXY", "api.test"),
        variable("HTTPS_PROXY and NO_PROXY for the domain", &proxy).with("NO_PROXY", ".test"),
        variable("HTTPS_PROXY and NO_PROXY for another domain", &proxy)
            .with("NO_PROXY", "pi.test,10.0.0.0/8"),
        variable("HTTPS_PROXY and NO_PROXY for another port", &proxy)
            .with("NO_PROXY", "api.test:1"),
        Form::new("ALL_PROXY", bed, &elsewhere).with("ALL_PROXY", &proxy),
        Form::new("proxy for loopback", bed, bed.kubeconfig())
            .with("HTTPS_PROXY", "http://127.0.0.1:1"),
        {
            let text = elsewhere.replacen("api.test:", "api.test.:", 1);
            Form::new("dot after the server's name", bed, text).with("HTTPS_PROXY", &proxy)
        },
        {
            let text = elsewhere.replacen("api.test:", "other.test:", 1);
            let field = "    tls-server-name: api.test\ncontexts:";
            let text = text.replacen("contexts:", field, 1);
            Form::new("HTTPS_PROXY with tls-server-name", bed, text).with("HTTPS_PROXY", &proxy)
        },
    ]
}
