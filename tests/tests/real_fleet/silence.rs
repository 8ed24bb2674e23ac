//! Tests that no log, Event, condition or other object of the project contains a secret.

use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_authenticator_test_support::control_plane::Kubectl;
use kubelet_authenticator_test_support::pki::{CertificateAuthority, traditional_key};
use kubelet_authenticator_tests::management::{WorkloadCluster, workload_kubeconfig};
use serde_json::json;

use crate::bed::{Manager, authorize, management};
use crate::requests::{file, join};

/// The minimum length of a line in a secret. Shorter pieces of random text can occur in any text.
const LONG_ENOUGH: usize = 12;

/// The length of the pieces of encoded text for which the test searches.
const PIECE: usize = 24;

/// The secret texts, in every form in which they occur.
#[derive(Default)]
struct Secrets(Vec<(&'static str, String)>);

impl Secrets {
    /// Adds each line of the secret as a whole and in pieces, and the base64 of the line in pieces.
    fn add(&mut self, what: &'static str, secret: &str) {
        let lines = secret.lines().filter(|line| line.len() >= LONG_ENOUGH);
        for line in lines {
            self.0.push((what, line.to_owned()));
            for start in (0..line.len().saturating_sub(PIECE)).step_by(PIECE) {
                self.0.push((what, line[start..start + PIECE].to_owned()));
            }
        }
        // In the base64 of a longer text, a secret has one of three encodings, depending on its offset.
        for skipped in 0..3 {
            let encoded = STANDARD.encode(&secret.as_bytes()[skipped..]);
            for start in (0..encoded.len().saturating_sub(PIECE)).step_by(PIECE) {
                self.0
                    .push((what, encoded[start..start + PIECE].to_owned()));
            }
        }
    }

    /// Adds the random part of a private key as PEM, and in the format that kubeconfigs use.
    fn add_key(&mut self, what: &'static str, pem: &str) {
        let random = random_part(pem);
        self.add(what, &pem[random.clone()]);
        let encoded = STANDARD.encode(pem);
        // Use only complete groups of four characters.
        let (start, end) = (random.start.div_ceil(3) * 4, random.end / 3 * 4);
        self.add(what, &encoded[start..end]);
    }

    /// The secrets in the text.
    fn in_text(&self, text: &str) -> Vec<&'static str> {
        let found = self.0.iter().filter(|(_, piece)| text.contains(piece));
        let mut found: Vec<_> = found.map(|(what, _)| *what).collect();
        found.dedup();
        found
    }
}

/// All objects in an API server that the controller writes, or that other components write about the controller's work.
fn told(kubectl: &Kubectl, resources: &str) -> String {
    kubectl.ok(["get", resources, "-A", "-o", "json"])
}

/// The range of the private number in the PEM of a P-256 key. The part before the number is the same in every P-256
/// key, and a piece of this part occurs in every certificate request.
fn random_part(pem: &str) -> Range<usize> {
    /// The bytes before the number: the version of the structure, and the length of the number (RFC 5915).
    const BEFORE: [u8; 5] = [2, 1, 1, 4, 32];
    let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    let der = STANDARD.decode(&body).unwrap();
    let mut windows = der.windows(BEFORE.len());
    let number = windows.position(|bytes| bytes == BEFORE).unwrap() + BEFORE.len();
    // Take the characters that encode only the number.
    let (first, last) = ((number * 4).div_ceil(3), (number + 32) * 4 / 3 - 1);
    let begins = pem.find('\n').unwrap() + 1;
    // A line of PEM is 64 characters long.
    let place = |character: usize| begins + character + character / 64;
    place(first)..place(last)
}

fn secrets_of(cluster: &WorkloadCluster) -> Secrets {
    let mut secrets = Secrets::default();
    let ca = cluster.control_plane().ca().pair();
    secrets.add_key("the CA's key", &traditional_key(&ca.key_pem));
    secrets
}

/// The user's key in a kubeconfig, in its encoded form.
fn client_key(kubeconfig: &str) -> &str {
    let line = kubeconfig
        .lines()
        .find(|line| line.contains("client-key-data"));
    line.unwrap().split_once(": ").unwrap().1
}

#[test]
fn logs_events_and_written_objects_contain_no_secrets() {
    const PASSWORD: &str = "correct-horse-battery-staple-1";
    const IN_EXEC: &str = "exec-environment-hush-hush-0001";
    const IN_GARBAGE: &str = "garbage-that-nobody-is-to-see-02";
    const IN_PEM: &str = "bm90LWEta2V5LWJ1dC1zZWNyZXQtYWxsLXRoZS1zYW1lLTAz";
    const BEARER: &str = "bearer-of-nobody-to-be-known-0004";
    let management = management();
    let cluster = management.cluster("prod-1").create();
    let machines = ["joins", "is-refused"].map(|name| cluster.machine(name).create());
    let good = workload_kubeconfig("prod-1", cluster.control_plane());
    let authority = cluster.control_plane().ca().pair();
    let other = CertificateAuthority::new("another");
    let mut secrets = secrets_of(&cluster);
    let key = STANDARD.decode(client_key(&good)).unwrap();
    secrets.add_key("a user's key", std::str::from_utf8(&key).unwrap());
    secrets.add_key("the key that does not match", &other.pair().key_pem);
    for (what, secret) in [
        ("a password", PASSWORD),
        ("a program's environment", IN_EXEC),
        ("garbage", IN_GARBAGE),
        ("a broken key", IN_PEM),
        ("a bearer token", BEARER),
    ] {
        secrets.add(what, secret);
    }
    for machine in &machines {
        let bearer = machine.token().bearer();
        let (_, secret) = bearer.split_once('.').unwrap();
        secrets.add("a bootstrap token", secret);
    }
    let manager = Manager::insecure(&management, &[]);
    let authentication = authorize(&management, &cluster, &["insecure"], json!({}));
    let kubectl = management.kubectl();
    authentication.wait_until_ready(kubectl);
    let not_ready = |reason| {
        authentication.wait_for(kubectl, "Ready", "False", reason);
    };
    let mended = || {
        cluster.write_kubeconfig(&good);
        let key = traditional_key(&authority.key_pem);
        cluster.write_ca(&authority.certificate_pem, Some(&key));
        authentication.wait_until_ready(kubectl);
    };

    join(&cluster, &machines[0]);
    cluster.write_ca(&authority.certificate_pem, Some(&other.pair().key_pem));
    not_ready("CAKeyMismatch");
    let broken = format!("-----BEGIN PRIVATE KEY-----\n{IN_PEM}\n-----END PRIVATE KEY-----\n");
    for key in [broken, IN_GARBAGE.to_owned()] {
        mended();
        cluster.write_ca(&authority.certificate_pem, Some(&key));
        not_ready("CAInvalid");
    }
    mended();
    let user = |fields: &str| {
        let key = format!("    client-key-data: {}\n", client_key(&good));
        assert!(good.contains(&key));
        good.replace(&key, &format!("{key}{fields}"))
    };
    let exec = format!("    exec: {{command: sh, env: [{{name: A, value: {IN_EXEC}}}]}}\n");
    for refused in [
        user(&format!("    username: admin\n    password: {PASSWORD}\n")),
        user(&exec),
        format!("{{ {IN_GARBAGE}: [ {PASSWORD}"),
        IN_GARBAGE.to_owned(),
    ] {
        cluster.write_kubeconfig(&refused);
        not_ready("KubeconfigRefused");
        mended();
    }
    let certificate = good
        .lines()
        .find(|line| line.contains("client-certificate-data"));
    let key = good.lines().find(|line| line.contains("client-key-data"));
    let stranger = good
        .replace(certificate.unwrap(), &format!("    token: {BEARER}"))
        .replace(key.unwrap(), "");
    cluster.write_kubeconfig(&stranger);
    not_ready("KubeconfigWithoutAccess");
    mended();
    file(&cluster, &machines[1]);

    // The search must find the secrets in the objects that contain them.
    let stored = told(kubectl, "secrets");
    assert!(secrets.in_text(&stored).contains(&"the CA's key"));
    assert!(secrets.in_text(&stored).contains(&"a user's key"));
    let leak = format!("cannot parse {IN_GARBAGE} and {PASSWORD}");
    assert_eq!(secrets.in_text(&leak), ["a password", "garbage"]);

    let workload = cluster.control_plane().kubectl();
    for (place, text) in [
        ("the log", manager.process.log().text()),
        (
            "the management cluster",
            told(kubectl, "events,kubeletauthentications,nodeidentities"),
        ),
        (
            "the workload cluster",
            told(workload, "events,csr,revokednodecredentials"),
        ),
    ] {
        assert!(text.len() > LONG_ENOUGH, "nothing was told in {place}");
        let leaked = secrets.in_text(&text);
        assert!(leaked.is_empty(), "{place} tells of {leaked:?}");
    }
}
