//! Tests of the command `inspect`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_authenticator_test_support::api_server::{ApiServer, Signer};
use kubelet_authenticator_test_support::pki::{CertificateAuthority, Contents, Subject};
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_tests::node::{NULL, Node};
use kubelet_authenticator_tests::{program, tpm};
use serde_json::{Value, json};

use crate::nodes::{
    ACCESS_KEY_ID, AWS, INSTANCE, NAME, SESSION_TOKEN, instance, joined, node, piped, stable,
};

/// The output as JSON.
#[track_caller]
fn inspected(node: &Node, arguments: &[&str]) -> Value {
    let words = [&["inspect"], arguments, &["-o", "json"]].concat();
    let run = node.command(&words).succeeded();
    assert!(!run.stdout.contains("PRIVATE KEY"), "{run:#?}");
    serde_json::from_str(&run.stdout).unwrap()
}

/// The output as a table that is 80 columns wide.
#[track_caller]
fn table(node: &Node, arguments: &[&str]) -> String {
    let run = node
        .command(&[&["inspect"], arguments].concat())
        .succeeded();
    assert_eq!(run.stderr, "");
    for line in run.stdout.lines() {
        let is_one_word = line.split_whitespace().count() < 2;
        assert!(line.chars().count() <= 80 || is_one_word, "{line}");
    }
    assert!(!run.stdout.contains('\u{1b}'), "{run:#?}");
    run.stdout
}

#[test]
fn a_private_key_in_the_store_is_checked_and_not_shown() {
    let (_server, node) = joined();
    let (_other, other) = joined();
    let read = |node: &Node| fs::read_to_string(node.file("kubelet-client.pem")).unwrap();
    let parts = |text: &str| {
        let (certificate, key) = text.split_at(text.find("-----BEGIN PRIVATE").unwrap());
        (certificate.to_owned(), key.to_owned())
    };
    let (certificate, key) = parts(&read(&node));
    let foreign = parts(&read(&other)).1;
    for (text, state) in [
        (certificate.clone(), "none"),
        (format!("{certificate}{key}"), "fits"),
        (format!("{key}{certificate}"), "fits"),
        (format!("{certificate}{foreign}"), "another"),
        (
            format!("{certificate}-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"),
            "unreadable",
        ),
    ] {
        fs::write(node.file("kubelet-client.pem"), &text).unwrap();

        let found = inspected(&node, &["store"]);

        let certificate = &found["certificate"];
        assert_eq!(certificate["privateKey"], state, "{found}");
        assert_eq!(certificate["nodeName"], "n1");
        let line = key.lines().nth(1).unwrap();
        assert!(!found.to_string().contains(line));
    }
}

#[test]
fn invalid_input_is_reported_with_the_fault_and_a_remedy() {
    let (_server, node) = node();
    let csr = r#"{"kind": "CertificateSigningRequest", "metadata": {"name": "x"}, "spec": {"signerName": "a.b/c", "request": "?"}}"#;
    for (object, text, what, remedy) in [
        (
            "request",
            "",
            "it is neither PEM nor an object",
            "kubectl get csr",
        ),
        ("request", "a: b: c", "it is not YAML", "kubectl get csr"),
        ("request", "kind: Pod\n", "it is a Pod", "kubectl get csr"),
        (
            "request",
            "items: [{kind: Secret}]\n",
            "items[0]: it is a Secret",
            "kubectl get csr",
        ),
        (
            "request",
            csr,
            "field spec.request does not match the Kubernetes API",
            "kubectl get csr",
        ),
        (
            "request",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "does not begin with a CERTIFICATE REQUEST block",
            "kubectl get csr",
        ),
        (
            "evidence",
            "[]",
            "cannot decode the evidence in ",
            "use the JSON of an evidence block",
        ),
    ] {
        let file = node.scratch().write("input", text);
        let file = file.to_str().unwrap();

        let run = node.command(&["inspect", object, file]).failed(2);

        run.saying(file).saying(what).saying(remedy);
    }
    let der = node.scratch().write("input.der", [0x30, 0x82, 0xff]);
    node.command(&["inspect", "request", der.to_str().unwrap()])
        .failed(2)
        .saying("it is not text: byte 1 is not UTF-8")
        .saying("openssl req -inform der");
    node.command(&["inspect", "request", "/missing"])
        .failed(2)
        .saying("cannot read /missing: No such file");
    node.command(&["inspect", "store"])
        .failed(4)
        .saying("does not exist");
}

#[test]
fn inspect_shows_a_request_from_the_api_server_as_a_table() {
    let (server, node) = joined();
    let file = node
        .scratch()
        .write("csr.json", server.csrs()[0].to_string());

    let found = table(&node, &["request", file.to_str().unwrap()]);

    let expected = "\
Name
    REQUEST
Created          TIME
Signer           cluster.x-k8s.io/kube-apiserver-client-kubelet-null
Requester        system:bootstrap:abcdef
Groups           system:bootstrappers
                 system:bootstrappers:kubeadm:default-node-token
                 system:authenticated
Usages           digital signature
                 client auth
Lifetime         604800 seconds
Condition
  Type           Approved
  Reason         TestSigner
  Message        approved by the test signer
  At             TIME
Certificate
  Subject        O=system:nodes, CN=system:node:n1
  Node           n1
  Provider ID    test:///machine-1
  Issuer         CN=kubernetes
  Serial number  SERIAL
  Valid from     TIME
  Valid until    TIME (LEFT)
  Usages         digital signature
                 client auth
  Key            ECDSA
  Key's SHA-256
      DIGEST
  Private key    none in the file
Request
  Subject        CN=system:node:n1,O=system:nodes
  Node           n1
  Provider ID    test:///machine-1
  Key            ECDSA
  Key's SHA-256
      DIGEST
  Provider       null
  Evidence
    Version      v1
    Audience
        CA
";
    assert_eq!(stable(&node, &found), expected);
}

#[test]
fn a_yaml_list_is_shown_with_each_request_and_its_conditions() {
    let (server, node) = node();
    server.set_signer(Signer::deny("AnotherMachine", "not you"));
    node.run().failed(12);
    let denied = server.csrs()[0].clone();
    let mut failed = denied.clone();
    failed["metadata"]["name"] = "failed".into();
    failed["status"]["conditions"] =
        json!([{"type": "Failed", "status": "True", "reason": "No", "message": "m"}]);
    failed["spec"]["request"] = STANDARD
        .encode("-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n")
        .into();
    let mut pending = denied.clone();
    pending["metadata"]["name"] = "pending".into();
    pending.as_object_mut().unwrap().remove("status");
    // The format of `kubectl get csr -o yaml`. JSON is valid YAML.
    let list = format!(
        "apiVersion: v1\nitems:\n- {denied}\n- {failed}\n- {pending}\nkind: List\nmetadata:\n  resourceVersion: \"\"\n"
    );
    let file = node.scratch().write("list.yaml", list);
    let file = file.to_str().unwrap();

    let found = inspected(&node, &["request", file]);

    let reason = |at: usize| found[at]["conditions"][0]["reason"].clone();
    assert_eq!(
        (reason(0), reason(1)),
        (json!("AnotherMachine"), json!("No"))
    );
    assert_eq!(found[0]["conditions"][0]["type"], "Denied");
    assert_eq!(found[0]["request"]["nodeName"], "n1");
    assert_eq!(found[0]["requester"], "system:bootstrap:abcdef");
    assert_eq!(found[2]["conditions"], json!([]));
    let why = found[1]["request"].as_str().unwrap();
    assert!(why.starts_with("not decoded: "), "{why}");
    assert_eq!(
        table(&node, &["request", file]).matches("\nName").count(),
        2
    );
}

#[test]
fn the_evidence_from_an_instance_is_shown_without_secrets() {
    let (server, node, _imds) = instance();
    let shown = node
        .command(&["csr", "--dry-run", "--show-secrets"])
        .succeeded();
    let left_out = node.command(&["csr", "--dry-run"]).succeeded();
    node.run().succeeded();
    let object = server.csrs()[0].to_string();

    for (input, signature) in [
        (shown.stdout.as_str(), "present"),
        (left_out.stdout.as_str(), "left out"),
        (object.as_str(), "present"),
    ] {
        let text = piped(AWS, &["inspect", "request", "-o", "json"], input);
        let found: Value = serde_json::from_str(&text).unwrap();
        let request = if found.get("request").is_some() {
            &found["request"]
        } else {
            &found
        };

        assert_eq!(request["nodeName"], NAME);
        let evidence = &request["evidence"];
        assert_eq!(evidence["document"]["instanceId"], INSTANCE, "{evidence}");
        assert_eq!(evidence["document"]["accountId"], "123456789012");
        assert_eq!(evidence["sts"]["region"], "eu-west-1");
        assert_eq!(evidence["sts"]["signature"], signature);
        for secret in [SESSION_TOKEN, ACCESS_KEY_ID] {
            assert!(!text.contains(secret), "{text}");
        }
        // Every plugin decodes the evidence of every provider.
        assert_eq!(
            piped(NULL, &["inspect", "request", "-o", "json"], input),
            text
        );
    }
    let evidence = piped(AWS, &["inspect", "evidence", "-o", "json"], &shown.stdout);
    let evidence: Value = serde_json::from_str(&evidence).unwrap();
    assert_eq!(evidence["document"]["region"], "eu-west-1");
}

#[test]
fn the_evidence_of_a_tpm_has_keys_and_registers() {
    let machine = TpmMachine::new(Arc::new(Swtpm::start()), EndorsementKey::P384);
    let server = ApiServer::start();
    let node = tpm::node(&machine, &server);
    let enrolment = node.command(&["csr", "--dry-run"]).succeeded().stdout;

    let found = piped(NULL, &["inspect", "evidence", "-o", "json"], &enrolment);

    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["phase"], "enrol");
    for key in ["endorsementKeySHA256", "attestationKeySHA256"] {
        assert_eq!(found[key].as_str().unwrap().len(), 64, "{found}");
    }
    let key = STANDARD.encode([7; 90]);
    let response = json!({
        "version": "v1", "audience": "prod", "phase": "respond", "ekPub": key, "akPub": key,
        "id": STANDARD.encode([1; 16]), "expiry": "2026-01-01T00:00:00Z",
        "quote": {"attest": key, "signature": STANDARD.encode("the quote's signature"),
                  "pcrs": {"sha256": {"0": "0a".repeat(32), "7": "0b".repeat(32)}}},
    });
    let found = piped(
        NULL,
        &["inspect", "evidence", "-o", "json"],
        &response.to_string(),
    );
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["phase"], "respond");
    assert_eq!(
        found["pcrs"][1],
        json!({"pcr": 7, "sha256": "0b".repeat(32)})
    );
    assert!(
        !found
            .to_string()
            .contains(&STANDARD.encode("the quote's signature"))
    );
}

/// The name, mode, size and time of every file.
fn state(node: &Node) -> BTreeMap<String, (u32, u64, i64, i64)> {
    let files = node.files().into_iter();
    files
        .map(|name| {
            let metadata = fs::symlink_metadata(node.file(&name)).unwrap();
            let times = (metadata.mtime(), metadata.mtime_nsec());
            (name, (metadata.mode(), metadata.len(), times.0, times.1))
        })
        .collect()
}

#[test]
fn inspect_does_not_change_the_store() {
    let (server, node) = joined();
    server.set_signer(Signer::deny("AnotherMachine", "not you"));
    node.command(&["renew", "--force"]).failed(12);
    let mode = fs::Permissions::from_mode(0o644);
    fs::set_permissions(node.file("kubelet-client.pem"), mode).unwrap();
    let before = state(&node);

    let hint = format!(
        "to explain the reason, run: {} explain-reason AnotherMachine",
        program(NULL).display()
    );
    // The line breaks depend on the length of the program's path.
    let table = |arguments: &[&str]| {
        let text = table(&node, arguments);
        let (before, rest) = text.split_once("  Hint").unwrap();
        let (shown, after) = rest.split_once("  Consecutive").unwrap();
        let shown: Vec<_> = shown.split_whitespace().collect();
        assert_eq!(shown.join(" "), hint);
        format!("{before}  Hint                  HINT\n  Consecutive{after}")
    };
    let found = table(&["store"]);

    let expected = "\
Directory               /SCRATCH/state
Files                   failure.json 0600 N bytes TIME
                        kubelet-client.pem 0644 N bytes TIME
                        last-check 0777 N bytes TIME
                        lock 0600 N bytes TIME
                        origin.json 0600 N bytes TIME
                        pending.json 0600 N bytes TIME
Invalid files           none
Warning                 kubelet-client.pem has mode 0644, so other users can
                        read the private key
Node                    n1
API server              https://API
Certificate
  Subject               O=system:nodes, CN=system:node:n1
  Node                  n1
  Provider ID           test:///machine-1
  Issuer                CN=kubernetes
  Serial number         SERIAL
  Valid from            TIME
  Valid until           TIME (LEFT)
  Usages                digital signature
                        client auth
  Key                   ECDSA
  Key's SHA-256
      DIGEST
  Private key           matches the certificate (not shown)
Pending request
  Private key           present (not shown)
  Name                  none (only a key is stored)
Last failure
  Exit code             12
  Error
      request
      REQUEST
      was denied (AnotherMachine): not you
  Hint                  HINT
  Consecutive failures  1
  Failed requests       0
  At                    TIME
  Next attempt          TIME
Endorsement key kind    none
Lock                    free
";
    assert_eq!(stable(&node, &found), expected);
    let by_name = table(&["store", node.state().to_str().unwrap()]);
    // The number of remaining days can decrease between the two commands.
    assert_eq!(stable(&node, &by_name), expected);
    assert_eq!(state(&node), before);
}

#[test]
fn inspect_shows_a_pending_request_and_unusable_files() {
    let (server, mut node) = node();
    server.set_signer(Signer::Off);
    node.set("timeLimit", "5");
    node.run().failed(11);

    let found = inspected(&node, &["store"]);

    assert_eq!(
        found["pending"]["name"],
        server.csrs()[0]["metadata"]["name"]
    );
    assert_eq!(found["pending"]["privateKey"], "present");
    assert_eq!(found["pending"]["request"]["nodeName"], "n1");
    assert_eq!(found["lastFailure"]["exitCode"], 11);
    assert_eq!(found["lastFailure"]["failedRequests"], 0);
    assert!(found["lastFailure"]["nextAttemptNotBefore"].is_string());
    assert_eq!(found["certificate"], Value::Null);

    fs::write(node.file("kubelet-client.pem"), "torn").unwrap();
    let found = inspected(&node, &["store"]);
    let next = found["setAsideNext"][0].as_str().unwrap();
    assert!(next.starts_with("kubelet-client.pem: "), "{next}");
    let why = found["certificate"].as_str().unwrap();
    assert!(why.starts_with("not decoded: "), "{why}");
}

#[test]
fn a_stored_certificate_from_another_ca_is_decoded_with_its_chain() {
    let (_server, node) = joined();
    let ca = CertificateAuthority::new("some authority");
    let issued = ca.issue(&Contents::client(Subject::user("alice")));
    let text = format!("{}{}", issued.certificate_pem, ca.certificate_pem());
    fs::write(node.file("kubelet-client.pem"), text).unwrap();

    let found = &inspected(&node, &["store"])["certificate"];

    assert_eq!(found["nodeName"], Value::Null);
    let subject = |of: &Value| of["subject"].as_str().unwrap().to_owned();
    assert!(subject(found).contains("alice"), "{found}");
    assert!(subject(&found["chain"][0]).contains("some authority"));
    assert_eq!(found["privateKey"], "none");
}
