//! Files and variables for clients, and the proxy.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use kubelet_authenticator_test_support::api_server::ApiServer;
use kubelet_authenticator_test_support::connect_proxy::ConnectProxy;
use serde_json::Value;

#[test]
fn exec_info_is_what_client_go_sends() {
    let server = ApiServer::start();

    assert_eq!(
        server.exec_info("v1", false),
        "{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\
         \"spec\":{\"interactive\":false}}\n"
    );
    let info = server.exec_info("v1beta1", true);
    assert!(info.ends_with("}\n"));
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["apiVersion"], "client.authentication.k8s.io/v1beta1");
    assert_eq!(info["spec"]["cluster"]["server"], server.url());
    assert!(info["spec"]["cluster"]["certificate-authority-data"].is_string());
}

#[test]
fn kubeconfigs_are_private_and_say_what_was_asked() {
    let server = ApiServer::start();
    let dir = tempfile::tempdir().unwrap();

    let path = server.write_bootstrap_kubeconfig(dir.path(), "tttttt.0000000000000000");
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let text = std::fs::read_to_string(path).unwrap();
    assert!(
        text.contains("    token: \"tttttt.0000000000000000\"\n"),
        "{text}"
    );
    assert!(
        text.contains(&format!("    server: \"{}\"\n", server.url())),
        "{text}"
    );
    let text = std::fs::read_to_string(server.write_admin_kubeconfig(dir.path())).unwrap();
    assert!(text.contains("    client-key-data: "), "{text}");

    let text = server
        .kubeconfig()
        .ca_file(&dir.path().join("ca.crt"))
        .token_file(&dir.path().join("token"))
        .tls_server_name("kubernetes")
        .proxy_url("http://127.0.0.1:1")
        .other_contexts(2)
        .to_yaml();
    for part in [
        "tls-server-name: \"kubernetes\"",
        "proxy-url: ",
        "tokenFile: ",
        "name: other-1",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("certificate-authority-data"), "{text}");
}

#[test]
fn the_authority_is_written_with_a_pkcs8_key() {
    let server = ApiServer::start();
    let dir = tempfile::tempdir().unwrap();

    let (certificate, key) = server.write_ca(dir.path());

    assert_eq!(
        std::fs::read_to_string(certificate).unwrap(),
        server.ca_pem()
    );
    assert!(
        std::fs::read_to_string(key)
            .unwrap()
            .starts_with("-----BEGIN PRIVATE KEY-----")
    );
}

#[test]
fn the_proxy_connects_and_remembers() {
    let server = ApiServer::start();
    let proxy = ConnectProxy::start();
    let address = server.address().to_string();

    let mut stream = TcpStream::connect(proxy.url().trim_start_matches("http://")).unwrap();
    write!(
        stream,
        "CONNECT {address} HTTP/1.1\r\nhost: {address}\r\n\r\n"
    )
    .unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();

    assert_eq!(&answer, b"HTTP/1.1 200");
    assert_eq!(proxy.connects(), [address]);
}
