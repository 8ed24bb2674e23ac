//! Nodes for the tests, and commands that read standard input.

use std::fs::File;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use kubelet_authenticator_test_support::api_server::{ApiServer, Signer};
use kubelet_authenticator_test_support::clock::now;
use kubelet_authenticator_test_support::imds::{Credentials, Imds, Instance};
use kubelet_authenticator_test_support::instance_identity::{Document, TestSigner};
use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_tests::node::{NULL, Node};
use kubelet_authenticator_tests::{program, snapshot};

pub const AWS: &str = "kubelet-authenticator-aws";
pub const INSTANCE: &str = "i-0123456789abcdef0";
pub const NAME: &str = "ip-10-0-0-1.eu-west-1.compute.internal";
pub const SESSION_TOKEN: &str = "IQoJb3JpZ2luX2VjABCDEF0123456789";
pub const ACCESS_KEY_ID: &str = "ASIA0123456789ABCDEF";

/// All tests share this key, because it takes a long time to generate.
static SIGNER: LazyLock<TestSigner> = LazyLock::new(|| TestSigner::new([0x81; 8]));

/// A node that is ready to join.
pub fn node() -> (ApiServer, Node) {
    let server = ApiServer::start();
    server.set_signer(Signer::issue());
    let node = Node::new(NULL, &server);
    (server, node)
}

/// A node that has joined.
pub fn joined() -> (ApiServer, Node) {
    let (server, node) = node();
    node.run().succeeded();
    (server, node)
}

/// An instance that is ready to join.
pub fn instance() -> (ApiServer, Node, Imds) {
    let document = Document::new("123456789012", "eu-west-1", "eu-west-1a", INSTANCE);
    let imds = Imds::start(Instance {
        local_hostname: NAME.to_owned(),
        document: document.to_json().into_bytes(),
        rsa2048: SIGNER.sign(&document),
        identity_credentials: Some(Credentials {
            access_key_id: ACCESS_KEY_ID.to_owned(),
            secret_access_key: "secret".repeat(7),
            session_token: SESSION_TOKEN.to_owned(),
            expiration: now() + Duration::from_secs(3600),
        }),
        ..Instance::new("eu-west-1", "eu-west-1a", INSTANCE)
    });
    let server = ApiServer::start();
    server.set_signer(Signer::issue());
    let mut node = Node::new(AWS, &server);
    node.set("nodeName", NAME);
    node.unset("providerID");
    node.set("aws.metadataEndpoint", imds.url());
    node.set("aws.stsEndpoint", "127.0.0.1:443");
    (server, node, imds)
}

/// The output of a plugin that is run by an arbitrary user, without settings and with this standard input.
#[track_caller]
pub fn piped(plugin: &str, arguments: &[&str], input: &str) -> String {
    let scratch = Scratch::new("input");
    let file = scratch.write("input", input);
    let output = Command::new(program(plugin))
        .args(arguments)
        .env_clear()
        .stdin(Stdio::from(File::open(file).unwrap()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The text with placeholders for values that differ between runs, such as paths, sizes and remaining days.
pub fn stable(node: &Node, text: &str) -> String {
    let scratch = node.scratch().path().display().to_string();
    let text = text.replace(&scratch, "/SCRATCH");
    let replaced = |pattern, word, text: &str| {
        let pattern = regex_lite::Regex::new(pattern).unwrap();
        pattern.replace_all(text, word).into_owned()
    };
    let text = replaced("[0-9]+ bytes", "N bytes", &text);
    let text = replaced(r"\([0-9]+ days left\)", "(LEFT)", &text);
    snapshot::stable(&text)
}
