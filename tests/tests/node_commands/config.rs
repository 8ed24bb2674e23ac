//! Tests of the command `config`.

use std::fs;

use kubelet_authenticator_tests::node::{INSECURE, NULL, Node};
use kubelet_authenticator_tests::tpm;
use serde_json::{Value, json};

use crate::nodes::{AWS, node, piped};

/// A settings file with these settings.
fn document(settings: &Value) -> Value {
    let mut document = json!({
        "apiVersion": "kubelet-authenticator.cluster.x-k8s.io/v1alpha1",
        "kind": "KubeletAuthenticatorConfiguration",
    });
    let settings = settings.as_object().unwrap();
    document.as_object_mut().unwrap().extend(settings.clone());
    document
}

#[track_caller]
fn checked(node: &Node, arguments: &[&str]) -> Value {
    let words = [&["config", "check", "-o", "json"], arguments].concat();
    serde_json::from_str(&node.command(&words).succeeded().stdout).unwrap()
}

#[test]
fn each_value_is_shown_with_its_source() {
    let (_server, mut node) = node();
    let file = node.scratch().write(
        "config.yaml",
        document(&json!({"nodeName": "n2", "expirationSeconds": 700, "audience": "a"})).to_string(),
    );
    let drop_ins = node.scratch().directory("config.d");
    let drop_in = drop_ins.join("10.yaml");
    fs::write(
        &drop_in,
        document(&json!({"expirationSeconds": 800})).to_string(),
    )
    .unwrap();
    node.set("audience", "b");
    node.unset("nodeName");
    let file = file.to_str().unwrap();

    let found = checked(&node, &[file, "--provider-id", "test:///m"]);

    let setting = |value: Value, source: &str| json!({"value": value, "source": source});
    assert_eq!(found["nodeName"], setting(json!("n2"), file));
    let drop_in = drop_in.to_str().unwrap();
    assert_eq!(found["expirationSeconds"], setting(json!(800), drop_in));
    assert_eq!(found["audience"], setting(json!("b"), "--audience"));
    assert_eq!(
        found["providerID"],
        setting(json!("test:///m"), "--provider-id")
    );
    assert_eq!(
        checked(&node, &[])["audience"],
        setting(json!("b"), "--audience")
    );
    assert_eq!(found["files"], json!([file, drop_in]));
    assert_eq!(
        checked(&node, &["--config", file])["audience"],
        found["audience"]
    );
}

#[test]
fn the_table_of_settings_has_eighty_columns() {
    let table = piped(NULL, &["config", "check"], "");

    let expected = "\
Files                none
nodeName             not set: the stored name, the kubelet's
                     --hostname-override, or the host's name
providerID           not set: the machine's own, or the kubelet's --provider-id
bootstrapKubeconfig  /etc/kubernetes/kubelet-authenticator/bootstrap.kubeconfig
                     (default)
stateDirectory       /var/lib/kubelet-authenticator (default)
audience             not set: the digest of the cluster's first CA certificate
expirationSeconds    604800 (default)
";
    assert_eq!(table, expected);
    assert!(table.lines().all(|line| line.len() <= 80), "{table}");
}

#[test]
fn config_check_refuses_an_invalid_file_like_a_run() {
    let (_server, mut node) = node();
    for (text, words) in [
        ("nodeNam: x\n", "key nodeNam: unknown key"),
        ("other:\n  x: 1\n", "key other: unknown key"),
        (
            "expirationSeconds: 0\n",
            "line 3: key expirationSeconds: must be an integer from 600 to 2147483647",
        ),
    ] {
        let header = "apiVersion: kubelet-authenticator.cluster.x-k8s.io/v1alpha1\nkind: KubeletAuthenticatorConfiguration\n";
        let file = node
            .scratch()
            .write("config.yaml", format!("{header}{text}"));

        let check = node
            .command(&["config", "check", file.to_str().unwrap()])
            .failed(3);
        node.set("config", &file);
        let run = node.command(&["credential"]).failed(3);
        node.unset("config");

        assert_eq!(check.stderr, run.stderr);
        check.saying(words).saying(file.to_str().unwrap());
    }
    node.command(&["config", "check", "/missing"]).failed(3);
}

/// A plugin, a valid file for this plugin, and the changes that make the file invalid.
type Case<'a> = (&'a str, &'a Value, &'a [(&'a str, Value)]);

/// The file with this value at this path. If `value` is `None`, the file without the field at this path.
fn with(document: &Value, path: &str, value: Option<Value>) -> Value {
    let mut changed = document.clone();
    let (parent, key) = path.rsplit_once('/').unwrap();
    let parent = changed
        .pointer_mut(parent)
        .unwrap()
        .as_object_mut()
        .unwrap();
    match value {
        Some(value) => drop(parent.insert(key.to_owned(), value)),
        None => drop(parent.remove(key).unwrap()),
    }
    changed
}

#[test]
fn a_file_with_one_invalid_value_or_unknown_key_is_refused() {
    let valid = document(&json!({
        "nodeName": "n1.example.com", "providerID": "aws:///a/i-1", "bootstrapKubeconfig": "/a/b",
        "stateDirectory": null, "audience": "prod", "expirationSeconds": 600,
        "aws": {"metadataEndpoint": "http://[fd00:ec2::254]"}, "tpm": null,
    }));
    let aws = with(
        &valid,
        "/aws",
        Some(json!({
            "principal": "instanceProfile", "nodeName": "localHostname", "stsEndpoint": "sts.test:8443",
            "metadataEndpoint": "http://127.0.0.1:8080/",
        })),
    );
    let tpm = with(
        &valid,
        "/tpm",
        Some(json!({
            "device": "/dev/tpm0", "tcti": "swtpm:host=::1,port=2321", "endorsementKey": "ecc-p384",
            "pcrs": [0, 23],
        })),
    );
    let general = [
        ("/nodeName", json!("N1")),
        ("/nodeName", json!("a..b")),
        ("/nodeName", json!(["n1"])),
        ("/nodeName", json!("a".repeat(254))),
        ("/providerID", json!("aws://")),
        ("/providerID", json!("aws:///")),
        ("/bootstrapKubeconfig", json!("relative")),
        ("/stateDirectory", json!("~/x")),
        ("/audience", json!("two words")),
        ("/expirationSeconds", json!(599)),
        ("/expirationSeconds", json!("an hour")),
        ("/expirationSeconds", json!(-1)),
        ("/expirationSeconds", json!(600.5)),
        ("/unknown", json!(1)),
        ("/kind", json!("Configuration")),
        ("/apiVersion", json!("v1")),
    ];
    let of_aws = [
        ("/aws/principal", json!("anybody")),
        ("/aws/nodeName", json!("Hostname")),
        ("/aws/stsEndpoint", json!("http://sts.test")),
        ("/aws/metadataEndpoint", json!("http://metadata.test")),
        ("/aws/unknown", json!(1)),
        ("/aws", json!([])),
    ];
    let of_tpm = [
        ("/tpm/device", json!("tpm0")),
        ("/tpm/tcti", json!("mssim:host=x,port=1")),
        ("/tpm/endorsementKey", json!("dsa")),
        ("/tpm/pcrs", json!([24])),
        ("/tpm/pcrs", json!([1, 1])),
        ("/tpm/pcrs", json!([])),
        ("/tpm/pcrs", json!(7)),
        ("/tpm/unknown", json!(1)),
        ("/aws/metadataEndpoint", json!("https://127.0.0.1")),
    ];
    let cases: [Case<'_>; 4] = [
        (NULL, &valid, &[]),
        (INSECURE, &valid, &[]),
        (AWS, &aws, &of_aws),
        (tpm::PLUGIN, &tpm, &of_tpm),
    ];
    for (plugin, valid, own) in cases {
        let server = kubelet_authenticator_test_support::api_server::ApiServer::start();
        let node = Node::new(plugin, &server);
        let is_accepted = |document: &Value| {
            let file = node.scratch().write("config.yaml", document.to_string());
            let run = node.command(&["config", "check", file.to_str().unwrap()]);
            assert!(matches!(run.code, Some(0 | 3)), "{run:#?}");
            run.code == Some(0)
        };

        assert!(is_accepted(valid), "{plugin}");
        for (path, value) in general.iter().chain(own) {
            let invalid = with(valid, path, Some(value.clone()));
            assert!(!is_accepted(&invalid), "{plugin}: {path}: {value}");
        }
        for required in ["/kind", "/apiVersion"] {
            let invalid = with(valid, required, None);
            assert!(!is_accepted(&invalid), "{required}");
        }
    }
}
