//! The command `config`.

use std::fs;

use kubelet_authenticator_tests::node::{INSECURE, NULL, Node};
use kubelet_authenticator_tests::tpm;
use serde_json::{Value, json};

use crate::nodes::{AWS, node, piped};

const PLUGINS: [&str; 4] = [NULL, INSECURE, AWS, tpm::PLUGIN];

/// A settings file with this change to the header and these settings.
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
fn the_defaults_pass_the_check_and_change_nothing() {
    for plugin in PLUGINS {
        let defaults = piped(plugin, &["config", "defaults"], "");
        assert!(defaults.lines().all(|line| line.len() <= 84), "{defaults}");
        let (_server, node) = node();
        let file = node.scratch().write("config.yaml", &defaults);
        let file = file.to_str().unwrap();

        let given = piped(plugin, &["config", "check", "-o", "json", file], "");
        let none = piped(plugin, &["config", "check", "-o", "json"], "");

        let given: Value = serde_json::from_str(&given).unwrap();
        let none: Value = serde_json::from_str(&none).unwrap();
        assert_eq!(given["files"], json!([file]));
        let settings = none.as_object().unwrap().iter();
        for (name, setting) in settings.filter(|(name, _)| *name != "files") {
            assert_eq!(given[name]["value"], setting["value"], "{plugin}: {name}");
            assert_eq!(setting["source"], "default");
        }
    }
}

#[test]
fn the_defaults_of_the_plugin_for_instances() {
    let defaults = piped(AWS, &["config", "defaults"], "");

    let expected = "\
# The settings of kubelet-authenticator-aws, each with its default.
apiVersion: kubelet-authenticator.cluster.x-k8s.io/v1alpha1
kind: KubeletAuthenticatorConfiguration

# The node's name. Default: the stored name, the kubelet's --hostname-override, or
# the host's name.
nodeName: \"\"

# The provider ID of this machine. Default: the machine's own, or the kubelet's
# --provider-id.
providerID: \"\"

# The kubeconfig to enrol with.
bootstrapKubeconfig: \"/etc/kubernetes/kubelet-authenticator/bootstrap.kubeconfig\"

# The kubeconfig that names the cluster, where nothing else does. Default: the
# cluster of client-go, of the store, or of the bootstrap kubeconfig.
kubeconfig: \"\"

# The directory of the stored credential.
stateDirectory: \"/var/lib/kubelet-authenticator\"

# The cluster that evidence is for. Default: the digest of the cluster's first CA
# certificate.
audience: \"\"

# The signer.
signerName: \"cluster.x-k8s.io/kube-apiserver-client-kubelet-aws\"

# The lifetime to ask for.
expirationSeconds: 604800

# The time limit of a run without a valid credential.
timeoutSeconds: 60

aws:
  # The principal of calls of STS: instanceIdentityRole or instanceProfile.
  principal: \"instanceIdentityRole\"
  # The name of the instance that its node has: hostname, localHostname or
  # instanceID.
  nodeName: \"hostname\"
  # The host of STS, where it is not the region's own. Default: the region's own.
  stsEndpoint: \"\"
  # The instance metadata service, where it is not at its usual addresses. Default:
  # 169.254.169.254, then [fd00:ec2::254].
  metadataEndpoint: \"\"
";
    assert_eq!(defaults, expected);
}

#[test]
fn each_value_is_shown_with_its_source() {
    let (_server, mut node) = node();
    let file = node.scratch().write(
        "config.yaml",
        document(&json!({"signerName": "file.test/x", "expirationSeconds": 700, "audience": "a"}))
            .to_string(),
    );
    let drop_ins = node.scratch().directory("config.d");
    let drop_in = drop_ins.join("10.yaml");
    fs::write(
        &drop_in,
        document(&json!({"expirationSeconds": 800})).to_string(),
    )
    .unwrap();
    node.set("AUDIENCE", "b");
    let file = file.to_str().unwrap();

    let found = checked(&node, &[file, "--timeout-seconds", "7"]);

    let setting = |value: Value, source: &str| json!({"value": value, "source": source});
    assert_eq!(found["signerName"], setting(json!("file.test/x"), file));
    let drop_in = drop_in.to_str().unwrap();
    assert_eq!(found["expirationSeconds"], setting(json!(800), drop_in));
    assert_eq!(
        found["audience"],
        setting(json!("b"), "KUBELET_AUTHENTICATOR_AUDIENCE")
    );
    assert_eq!(
        found["timeoutSeconds"],
        setting(json!(7), "--timeout-seconds")
    );
    assert_eq!(found["kubeconfig"], setting(Value::Null, "default"));
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
kubeconfig           not set: the cluster of client-go, of the store, or of the
                     bootstrap kubeconfig
stateDirectory       /var/lib/kubelet-authenticator (default)
audience             not set: the digest of the cluster's first CA certificate
signerName           cluster.x-k8s.io/kube-apiserver-client-kubelet-null
                     (default)
expirationSeconds    604800 (default)
timeoutSeconds       60 (default)
";
    assert_eq!(table, expected);
    assert!(table.lines().all(|line| line.len() <= 80), "{table}");
}

#[test]
fn an_invalid_file_is_refused_as_a_run_refuses_it() {
    let (_server, mut node) = node();
    for (text, words) in [
        ("nodeNam: x\n", "key nodeNam: there is no such key"),
        ("other:\n  x: 1\n", "key other: there is no such key"),
        (
            "timeoutSeconds: 0\n",
            "line 3: key timeoutSeconds: a whole number from 1 to 600 is needed",
        ),
    ] {
        let header = "apiVersion: kubelet-authenticator.cluster.x-k8s.io/v1alpha1\nkind: KubeletAuthenticatorConfiguration\n";
        let file = node
            .scratch()
            .write("config.yaml", format!("{header}{text}"));

        let check = node
            .command(&["config", "check", file.to_str().unwrap()])
            .failed(3);
        node.set("CONFIG", &file);
        let run = node.command(&["credential"]).failed(3);
        node.unset("CONFIG");

        assert_eq!(check.stderr, run.stderr);
        check.saying(words).saying(file.to_str().unwrap());
    }
    node.command(&["config", "check", "/missing"]).failed(3);
}

/// A plugin, a valid file of it, and what is changed in that to make it invalid.
type Case<'a> = (&'a str, &'a Value, &'a [(&'a str, Value)]);

/// A value in the file, or its removal.
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

/// Whether the value is valid by the schema (JSON Schema 2020-12), as far as ours go: another keyword is a panic.
fn is_valid(schema: &Value, value: &Value) -> bool {
    let list = |value: &Value| {
        value
            .as_array()
            .cloned()
            .unwrap_or_else(|| vec![value.clone()])
    };
    let is_type = |name: &Value| match name.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "null" => value.is_null(),
        other => panic!("type {other}"),
    };
    let keywords = schema.as_object().unwrap().iter();
    let mut keywords = keywords.map(|(keyword, given)| match (keyword.as_str(), value) {
        ("$schema" | "title" | "description" | "default", _) => true,
        ("type", _) => list(given).iter().any(is_type),
        ("const", _) => value == given,
        ("enum", _) => list(given).contains(value),
        ("minimum", Value::Number(number)) => number.as_i64() >= given.as_i64(),
        ("maximum", Value::Number(number)) => number.as_i64() <= given.as_i64(),
        ("pattern", Value::String(text)) => regex_lite::Regex::new(given.as_str().unwrap())
            .unwrap()
            .is_match(text),
        ("maxLength", Value::String(text)) => text.len() as u64 <= given.as_u64().unwrap(),
        ("minItems", Value::Array(items)) => items.len() as u64 >= given.as_u64().unwrap(),
        ("uniqueItems", Value::Array(items)) => {
            (1..items.len()).all(|at| !items[..at].contains(&items[at]))
        }
        ("items", Value::Array(items)) => items.iter().all(|item| is_valid(given, item)),
        ("required", Value::Object(members)) => list(given)
            .iter()
            .all(|name| members.contains_key(name.as_str().unwrap())),
        ("properties", Value::Object(members)) => members
            .iter()
            .all(|(name, value)| given.get(name).is_none_or(|schema| is_valid(schema, value))),
        ("additionalProperties", Value::Object(members)) => {
            assert_eq!(given, false);
            members
                .keys()
                .all(|name| schema["properties"].get(name).is_some())
        }
        (
            "minimum"
            | "maximum"
            | "pattern"
            | "maxLength"
            | "minItems"
            | "uniqueItems"
            | "items"
            | "required"
            | "properties"
            | "additionalProperties",
            _,
        ) => true,
        (other, _) => panic!("keyword {other}"),
    });
    keywords.all(|is_valid| is_valid)
}

#[test]
fn the_schema_and_the_check_accept_and_refuse_the_same_files() {
    let valid = document(&json!({
        "nodeName": "n1.example.com", "providerID": "aws:///a/i-1", "bootstrapKubeconfig": "/a/b",
        "kubeconfig": "", "stateDirectory": null, "audience": "prod", "signerName": "a.b/c",
        "expirationSeconds": 600, "timeoutSeconds": 600,
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
            "pcrs": [0, 23], "deviceProgram": "",
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
        ("/signerName", json!("no-domain/c")),
        ("/signerName", json!("a.b")),
        ("/expirationSeconds", json!(599)),
        ("/expirationSeconds", json!("an hour")),
        ("/timeoutSeconds", json!(601)),
        ("/timeoutSeconds", json!(-1)),
        ("/timeoutSeconds", json!(1.5)),
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
        let schema = node.command(&["config", "schema"]).succeeded().stdout;
        let schema: Value = serde_json::from_str(&schema).unwrap();
        let is_accepted = |document: &Value| {
            let file = node.scratch().write("config.yaml", document.to_string());
            let run = node.command(&["config", "check", file.to_str().unwrap()]);
            assert!(matches!(run.code, Some(0 | 3)), "{run:#?}");
            run.code == Some(0)
        };

        assert!(is_valid(&schema, valid), "{plugin}");
        assert!(is_accepted(valid), "{plugin}");
        for (path, value) in general.iter().chain(own) {
            let invalid = with(valid, path, Some(value.clone()));
            assert!(!is_valid(&schema, &invalid), "{plugin}: {path}: {value}");
            assert!(!is_accepted(&invalid), "{plugin}: {path}: {value}");
        }
        for required in ["/kind", "/apiVersion"] {
            let invalid = with(valid, required, None);
            assert!(
                !is_valid(&schema, &invalid) && !is_accepted(&invalid),
                "{required}"
            );
        }
    }
}
