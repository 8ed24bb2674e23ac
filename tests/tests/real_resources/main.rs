//! Tests of the custom resources on a real API server: the values that the API server rejects, and the output for
//! administrators.

mod authentication;
mod identity;
mod reading;
mod revoked;
mod stored;

use std::process::Command;
use std::sync::LazyLock;

use kubelet_authenticator_test_support::control_plane::{ControlPlane, Kubectl};
use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_tests::program;
use serde_json::{Value, json};

const API_VERSION: &str = "attestation.cluster.x-k8s.io/v1alpha1";

/// The API server that all tests share, because every test has separate objects, or makes only dry runs.
static CLUSTER: LazyLock<ControlPlane> = LazyLock::new(|| {
    let cluster = ControlPlane::start();
    let kubectl = cluster.kubectl();
    kubectl.apply(&definitions());
    let wait = ["wait", "--for=condition=Established", "--timeout=180s"];
    kubectl.ok([&wait[..], &["crd", "--all"]].concat());
    cluster
});

/// The definitions, as the program prints them.
fn definitions() -> String {
    let mut printer = Command::new(program("node-attestation-controller"));
    let printed = printer.arg("crds").output().unwrap();
    String::from_utf8(printed.stdout).unwrap()
}

fn kubectl() -> &'static Kubectl {
    CLUSTER.kubectl()
}

/// An object for checks that change one value.
struct Subject {
    object: Value,
}

impl Subject {
    /// The object with this value at this path. If the value is null, the path is removed.
    fn with(&self, pointer: &str, value: &Value) -> Value {
        let mut object = self.object.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[key] = value.clone();
        object
    }

    /// Asserts that the API server would store the object with this change.
    #[track_caller]
    fn accepts(&self, pointer: &str, value: &Value) -> Value {
        let object = self.with(pointer, value);
        let (accepted, text) = dry_run("create", &object);
        assert!(accepted, "{pointer} = {value}: {text}");
        if object["kind"] == "KubeletAuthentication" {
            authentication::files::a_file_refuses(&object, &[]);
        }
        serde_json::from_str(&text).unwrap()
    }

    /// Asserts that the API server rejects the object after each of these changes to its spec. Each change contains the
    /// rejected field (the part before an index is changed), the value, and a part of the message.
    #[track_caller]
    fn refuses_each(&self, cases: &[(&str, Value, &str)]) {
        for (field, value, message) in cases {
            let changed = field.split('[').next().unwrap().replace('.', "/");
            let field = format!("spec.{field}");
            self.refuses(&format!("/spec/{changed}"), value, &field, message);
        }
    }

    /// Asserts that the API server rejects the object with this change, for one reason, in this field.
    #[track_caller]
    fn refuses(&self, pointer: &str, value: &Value, field: &str, message: &str) {
        let object = self.with(pointer, value);
        let (accepted, text) = dry_run("create", &object);
        assert_refused(accepted, &text, field, message);
        if object["kind"] == "KubeletAuthentication" {
            authentication::files::a_file_refuses(&object, &[field]);
        }
    }

    /// Stores the object.
    #[track_caller]
    fn store(&self) {
        kubectl().apply_object(&self.object);
    }

    /// Asserts that the stored object cannot be replaced with an object that has this change.
    #[track_caller]
    fn stays(&self, pointer: &str, value: &Value, field: &str, message: &str) {
        let (accepted, text) = dry_run("replace", &self.with(pointer, value));
        assert_refused(accepted, &text, field, message);
    }

    /// Asserts that the stored object can be replaced with an object that has these changes.
    #[track_caller]
    fn may_become(&self, changes: &[(&str, Value)]) {
        let changed = changes.iter().fold(self.object.clone(), |object, change| {
            Self { object }.with(change.0, &change.1)
        });
        let (accepted, text) = dry_run("replace", &changed);
        assert!(accepted, "{changes:?}: {text}");
    }
}

/// Makes a dry run on the API server. Returns whether the dry run succeeded, and the response.
fn dry_run(verb: &str, object: &Value) -> (bool, String) {
    let scratch = Scratch::new("resource");
    scratch.write("object.json", object.to_string());
    let file = scratch.join("object.json");
    let output = kubectl().run([
        verb,
        "--dry-run=server",
        "-ojson",
        "-f",
        file.to_str().unwrap(),
    ]);
    let text = if output.status.success() {
        output.stdout
    } else {
        output.stderr
    };
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// The API server's message about CEL rules that it skipped because other checks failed.
const RULES_LEFT_OUT: &str = "<nil>: Invalid value: null: some validation rules were not checked";

#[track_caller]
fn assert_refused(accepted: bool, text: &str, field: &str, message: &str) {
    assert!(!accepted, "accepted: {text}");
    let errors = text.split_once(" is invalid: ").map(|(_, errors)| errors);
    let errors =
        errors.unwrap_or_else(|| panic!("the error is not about an invalid object: {text}"));
    let errors: Vec<_> = errors
        .lines()
        .map(|line| line.trim_start_matches("* "))
        .filter(|line| !line.is_empty() && !line.starts_with(RULES_LEFT_OUT))
        .collect();
    let about = format!("{field}: ");
    assert!(
        errors.iter().all(|line| line.starts_with(&about)),
        "{errors:#?}"
    );
    assert!(
        errors.iter().any(|line| line.contains(message)),
        "{errors:#?}"
    );
}

/// A KubeletAuthentication that contains all fields.
fn authentication(name: &str) -> Subject {
    let object = json!({
        "apiVersion": API_VERSION, "kind": "KubeletAuthentication",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "clusterName": name,
            "authorizedAttestors": ["aws", "tpm"],
            "certificate": {"expirationSeconds": 86400},
            "audiences": ["blue", "green"],
            "autoApproveBindings": "Remove",
            "bootstrapTokens": "Ignore",
            "adoption": "Allow",
            "exemptNodes": ["ControlPlane", "windows-1"],
            "guestReportedAddresses": "Allow",
            "servingAddressRanges": ["10.0.0.0/8", "2001:db8::/32"],
            "aws": {
                "accounts": ["111122223333"], "regions": ["eu-west-1", "us-gov-west-1"],
                "nodeName": "InstanceID", "rootVolumeCheck": false, "requiredTags": {"team": "a"},
            },
            "tpm": {
                "endorsementKeys": {
                    "platform": "none",
                    "requireCA": ["-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"],
                    "allowList": [
                        {"machine": "m-1", "ekSha256": "1".repeat(64)},
                        {"providerID": "metal3://metal/host-7/", "ekSha256": "2".repeat(64)},
                    ],
                    "configMaps": ["rack-1", "rack-2.metal"],
                },
                "lateProviderIDs": "Allow",
                "pcrPolicy": {
                    "allowed": [{"0": "a".repeat(64), "23": "b".repeat(64)}], "osSeparator": "Permitted",
                },
            },
        },
    });
    Subject { object }
}

/// A NodeIdentity that contains all fields, in generation 3.
fn identity(cluster: &str, node: &str) -> Subject {
    let object = json!({
        "apiVersion": API_VERSION, "kind": "NodeIdentity",
        "metadata": {"name": format!("{cluster}.{node}"), "namespace": "default"},
        "spec": {
            "clusterName": cluster,
            "nodeName": node,
            "uid": "0123456789abcdef0123456789abcdef",
            "providerID": "aws:///eu-west-1a/i-0123456789abcdef0",
            "attestor": "aws",
            "instance": "i-0123456789abcdef0",
            "machineName": "prod-1-md-0-abcde",
            "endorsementKeySHA256": "e".repeat(64),
            "generation": 3,
            "opened": {
                "keySHA256": "c".repeat(64),
                "requestName": "kubelet-authenticator-abc",
                "requestUID": "7a3ff4f2-5f4c-4c55-9d41-b42cbbba6c1f",
                "time": "2026-11-21T12:00:00Z",
            },
            "notAfter": "2026-11-28T12:00:00Z",
            "formerUntil": "2026-11-23T12:00:00Z",
            "tombstone": {
                "since": "2026-11-22T12:00:00Z", "reason": "MachineGone",
                "until": "2026-11-28T12:00:00Z",
            },
            "revoked": {"generation": 2, "at": "2026-11-22T12:00:00Z"},
        },
    });
    Subject { object }
}
