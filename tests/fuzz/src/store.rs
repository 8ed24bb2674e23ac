//! Targets for the parsers in the node library's store: the files in the state directory, and their contents.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use kubelet_attestation::errors::error_chain;
use kubelet_attestation::names::{Audience, NodeName, ProviderId};
use kubelet_authenticator::clock as clock_of_node;
use kubelet_authenticator::failure::{Code, Failure};
use kubelet_authenticator::secret::Secret;
use kubelet_authenticator::testing::Credential;
use kubelet_authenticator::testing::MachineDigest;
use kubelet_authenticator::testing::Origin;
use kubelet_authenticator::testing::PrivateKey;
use kubelet_authenticator::testing::inspected;
use kubelet_authenticator::testing::{ClusterEndpoint, EndpointFields};
use kubelet_authenticator::testing::{FailureRecord, FailureScope};
use kubelet_authenticator::testing::{OpenRequest, Pending, Subject as Asked};
use kubelet_authenticator_test_support::clock;
use kubelet_authenticator_test_support::pki::{
    CertificateAuthority, Contents, KeyAndCertificate, Subject,
};
use serde_json::json;

use crate::{Outcome, attestation};

const PROVIDER_ID: &str = "aws:///eu-west-1a/i-0123456789abcdef0";

/// The longest pause after a failure, including rounding of its start and its end.
const LONGEST_PAUSE: Duration = Duration::from_secs(3601);

/// The minimum length of a relevant part of a key in base64.
const KEY_PART_LEN: usize = 24;

/// A node's key and certificate, and the CA of its cluster.
struct Node {
    ca: CertificateAuthority,
    pair: KeyAndCertificate,
}

static NODE: LazyLock<Node> = LazyLock::new(|| {
    let ca = CertificateAuthority::new("kubernetes");
    let mut contents = Contents::client(Subject::node("n1").with_uid("0123.1"));
    let length = u8::try_from(PROVIDER_ID.len()).unwrap();
    contents.provider_id = Some([&[0x0c, length], PROVIDER_ID.as_bytes()].concat());
    Node {
        pair: ca.issue(&contents),
        ca,
    }
});

/// Checks that an accepted credential is written to the file unchanged, byte for byte.
pub fn credential_file(input: &[u8]) -> Outcome {
    let Ok(text) = str::from_utf8(input) else {
        return Outcome::Refused;
    };
    match Credential::from_store(text) {
        Ok(credential) => {
            // A later release might have written additional data to the file.
            let kept = credential.to_pem();
            let again = Credential::from_store(&kept).unwrap();
            assert_eq!(*again.to_pem(), *kept);
            assert!(credential.key_pem().expose().contains("PRIVATE KEY"));
            Outcome::Accepted
        }
        Err(error) => {
            assert_keeps_keys(&error_chain(&error), text);
            Outcome::Refused
        }
    }
}

/// A credential, and a credential with a chain.
pub fn credential_file_seeds() -> Vec<Vec<u8>> {
    let KeyAndCertificate {
        certificate_pem,
        key_pem,
    } = &NODE.pair;
    let ca = NODE.ca.certificate_pem();
    let files = [
        [certificate_pem, "", key_pem],
        [certificate_pem, ca, key_pem],
    ];
    files.map(|parts| parts.concat().into_bytes()).into()
}

/// The subject of the node's requests.
fn subject() -> Asked {
    Asked {
        signer_name: "cluster.x-k8s.io/kube-apiserver-client-kubelet-aws".to_owned(),
        expiration_seconds: 3600,
        node_name: NodeName::parse("n1").unwrap(),
        provider_id: ProviderId::parse(PROVIDER_ID).unwrap(),
        audience: Audience::parse("prod").unwrap(),
    }
}

/// Checks that a credential that is created from an issued chain can be stored, and that the credential belongs to this
/// key and node.
pub fn issued_chain(input: &[u8]) -> Outcome {
    let key = || PrivateKey::from_pem(Secret::new(NODE.pair.key_pem.clone())).unwrap();
    let subject = subject();
    let now = SystemTime::UNIX_EPOCH + *ISSUED;
    let credential = match Credential::from_issued(input, key(), &subject, now) {
        Ok(credential) => credential,
        Err(error) => {
            assert!(!error_chain(&error).contains("BEGIN"));
            return Outcome::Refused;
        }
    };
    assert_eq!(credential.public_bits(), key().public_bits());
    assert_eq!(credential.leaf().node_name, Some(subject.node_name.clone()));
    assert!(now < credential.validity().not_after);
    let stored = Credential::from_store(&credential.to_pem()).unwrap();
    assert_eq!(stored.leaf(), credential.leaf());
    let pem = credential.certificate_pem();
    let again = Credential::from_issued(pem.as_bytes(), key(), &subject, now).unwrap();
    assert_eq!(again.certificate_pem(), pem);
    Outcome::Accepted
}

/// The start of the certificate's validity, as the time since 1970.
static ISSUED: LazyLock<Duration> = LazyLock::new(|| {
    let file = [&*NODE.pair.certificate_pem, &NODE.pair.key_pem].concat();
    let start = Credential::from_store(&file).unwrap().validity().not_before;
    clock::since_epoch(start)
});

/// The node's certificate without other data, with its CA's certificate, and with text around it.
pub fn issued_chain_seeds() -> Vec<Vec<u8>> {
    let leaf = &NODE.pair.certificate_pem;
    let ca = NODE.ca.certificate_pem();
    let chains = [
        leaf.clone(),
        [leaf, ca].concat(),
        ["text\n", leaf, "\n\nmore\n", ca].concat(),
    ];
    chains.map(String::into_bytes).into()
}

/// Checks that `origin.json` is unchanged after a round trip.
pub fn origin_file(input: &[u8]) -> Outcome {
    let origin = str::from_utf8(input).ok().map(Origin::parse);
    let Some(Ok(origin)) = origin else {
        return Outcome::Refused;
    };
    let written = String::from_utf8(origin.to_json()).unwrap();
    assert_eq!(Origin::parse(&written).unwrap(), origin);
    if let Ok(endpoint) = ClusterEndpoint::from_fields(origin.endpoint, "origin.json") {
        assert!(endpoint.server().starts_with("https://"));
    }
    Outcome::Accepted
}

/// Origins with all fields, and with only the required fields.
pub fn origin_file_seeds() -> Vec<Vec<u8>> {
    let endpoint = |tls_server_name: Option<&str>, proxy_url: Option<&str>| EndpointFields {
        server: "https://10.0.0.1:6443".to_owned(),
        ca_pem: NODE.ca.certificate_pem().to_owned(),
        tls_server_name: tls_server_name.map(str::to_owned),
        proxy_url: proxy_url.map(str::to_owned),
    };
    let origin = |endpoint, machine, boot: Option<&str>| {
        let origin = Origin {
            node_name: NodeName::parse("n1").unwrap(),
            endpoint,
            machine,
            boot_id: boot.map(str::to_owned),
            refused_again: None,
        };
        origin.to_json()
    };
    let proxy = endpoint(None, Some("http://proxy:3128"));
    vec![
        origin(endpoint(None, None), MachineDigest::default(), None),
        origin(endpoint(Some("api.example"), None), machine(), Some("boot")),
        origin(proxy, machine(), None),
    ]
}

fn machine() -> MachineDigest {
    serde_json::from_str(r#"{"productUuid":"00ff","boardAssetTag":"i-1"}"#).unwrap()
}

/// Checks that `pending.json` is unchanged after a round trip. Errors do not contain any part of its key.
pub fn pending_file(input: &[u8]) -> Outcome {
    let Ok(text) = str::from_utf8(input) else {
        return Outcome::Refused;
    };
    let pending = match Pending::parse(text) {
        Ok(pending) => pending,
        Err(error) => {
            assert_keeps_keys(&error_chain(&error), text);
            return Outcome::Refused;
        }
    };
    let written = String::from_utf8(pending.to_json().to_vec()).unwrap();
    let again = Pending::parse(&written).unwrap();
    assert_eq!(again.key.pem().expose(), pending.key.pem().expose());
    assert_eq!(again.request, pending.request);
    assert_eq!(again.machine, pending.machine);
    assert_eq!(again.ca, pending.ca);
    if let Some(request) = &pending.request {
        // All times in the file are within the range of the clock.
        request.is_worth_taking_up(&request.subject, None, SystemTime::UNIX_EPOCH);
    }
    Outcome::Accepted
}

/// A key without a request, and requests with and without the fields of later releases.
pub fn pending_file_seeds() -> Vec<Vec<u8>> {
    let key = || PrivateKey::from_pem(Secret::new(NODE.pair.key_pem.clone())).unwrap();
    let now = SystemTime::UNIX_EPOCH + *ISSUED;
    let request = OpenRequest::new("name".to_owned(), b"request".to_vec(), subject(), now);
    let mut answer = request.clone();
    answer.answers = true;
    answer.asked = Some(scope());
    let unused = Pending::of_key(key(), MachineDigest::default());
    let with = |request, ca: Option<&str>| {
        let mut pending = Pending::of_key(key(), machine());
        pending.request = Some(request);
        pending.ca = ca.map(str::to_owned);
        pending.to_json().to_vec()
    };
    let files = vec![with(request, None), with(answer, Some("00ff"))];
    [vec![unused.to_json().to_vec()], files].concat()
}

/// Checks that the record of a failure is unchanged after a round trip, and never applies for longer than the longest
/// pause.
pub fn failure_record(input: &[u8]) -> Outcome {
    let text = str::from_utf8(input).ok();
    let Some(record) = text.and_then(FailureRecord::parse) else {
        return Outcome::Refused;
    };
    let written = String::from_utf8(record.to_json()).unwrap();
    assert_eq!(FailureRecord::parse(&written).as_ref(), Some(&record));
    let here = record.scope.clone();
    let start = SystemTime::UNIX_EPOCH;
    let times = [record.at, record.in_full, record.not_before].map(Duration::from_secs);
    let times = times.into_iter().filter_map(|time| start.checked_add(time));
    for now in times.chain([start, start + *ISSUED]) {
        if let Some(until) = record.holds(&here, now) {
            assert!(clock_of_node::until(until, now) <= LONGEST_PAUSE);
        }
        record.had_full_time(now);
    }
    let failure = Failure::new(Code::Failed, "in vain", "wait");
    let next = FailureRecord::after(Some(&record), &failure, &here, start + *ISSUED);
    assert!(next.not_before - next.at <= LONGEST_PAUSE.as_secs());
    Outcome::Accepted
}

/// Records of a first failure, and of a failure in a series.
pub fn failure_record_seeds() -> Vec<Vec<u8>> {
    let now = SystemTime::UNIX_EPOCH + *ISSUED;
    let failure = Failure::new(Code::Denied, "denied", "look at the reason");
    let first = FailureRecord::after(None, &failure, &scope(), now);
    let mut next = FailureRecord::after(Some(&first), &failure, &scope(), now);
    next.scope.boot_id = None;
    vec![first.to_json(), next.to_json()]
}

fn scope() -> FailureScope {
    FailureScope {
        boot_id: Some("boot".to_owned()),
        settings: "settings".to_owned(),
    }
}

/// Checks the output of `inspect` for a text: it contains tables of printable lines, and no part of a private key.
pub fn inspected_text(input: &[u8]) -> Outcome {
    let Ok(text) = str::from_utf8(input) else {
        return Outcome::Refused;
    };
    let (decoded, errors) = inspected(text, clock::now());
    for shown in decoded.iter().chain(&errors) {
        assert!(
            !shown.contains(|c: char| c.is_control() && c != '\n'),
            "{shown:?}"
        );
        assert!(!shown.contains("PRIVATE KEY"), "{shown}");
    }
    if decoded.is_empty() {
        Outcome::Refused
    } else {
        Outcome::Accepted
    }
}

/// Requests with evidence, in PEM and as an object, and evidence without a request.
pub fn inspected_text_seeds() -> Vec<Vec<u8>> {
    let requests = attestation::envelope_seeds();
    let objects = requests.iter().map(|request| {
        let request = BASE64_STANDARD.encode(request);
        let spec = json!({"signerName": "a.b/c", "request": request, "username": "u"});
        let conditions = json!([{"type": "Denied", "status": "True", "reason": "R"}]);
        let object = json!({
            "metadata": {"name": "n"}, "spec": spec, "status": {"conditions": conditions},
        });
        json!({"items": [object]}).to_string().into_bytes()
    });
    let objects: Vec<_> = objects.collect();
    [
        requests,
        objects,
        attestation::aws_evidence_seeds(),
        attestation::tpm_evidence_seeds(),
    ]
    .concat()
}

/// Asserts that an error does not contain a long part of the base64 in the parsed text.
fn assert_keeps_keys(error: &str, text: &str) {
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
    let mut parts = text.split(|c: char| !is_base64(c));
    let shown = parts.find(|part| part.len() >= KEY_PART_LEN && error.contains(part));
    assert_eq!(shown, None, "{error}");
}
