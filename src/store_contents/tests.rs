use std::fs;
use std::path::Path;
use std::time::Duration;

use data_encoding::HEXLOWER;
use kubelet_attestation::names::{Audience, NodeName, ProviderId};
use rcgen::{CertificateParams, DnType, Issuer, KeyPair};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::*;
use crate::backoff::{FailureRecord, FailureScope};
use crate::clock::Deadline;
use crate::key::PrivateKey;
use crate::kube::kubeconfig::EndpointFields;
use crate::pending::{OpenRequest, Pending, Subject};
use crate::secret::Secret;
use crate::store::StoreLock;

const BOOT: &str = "proc/sys/kernel/random/boot_id";
const UUID: &str = "sys/class/dmi/id/product_uuid";
const ASSET_TAG: &str = "sys/class/dmi/id/board_asset_tag";

/// A machine with a store that holds a credential for node `n1`.
struct Fixture {
    root: tempfile::TempDir,
    store: Store,
}

impl Fixture {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let store = Store::create(&root.path().join("state")).unwrap();
        let fixture = Self { root, store };
        fixture.write(BOOT, "boot-1\n");
        fixture.write(UUID, "uuid-1\n");
        fixture.put(StoreFile::Credential, &credential("system:node:n1"));
        let origin = Origin {
            node_name: NodeName::parse("n1").unwrap(),
            endpoint: EndpointFields::default(),
            machine: fixture.machine().digest(),
            boot_id: fixture.machine().boot_id(),
            refused_again: None,
        };
        fixture.put(
            StoreFile::Origin,
            str::from_utf8(&origin.to_json()).unwrap(),
        );
        fixture
    }

    fn machine(&self) -> Machine {
        Machine::rooted(self.root.path())
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
        fs::write(path, content).unwrap();
    }

    fn put(&self, file: StoreFile, content: &str) {
        self.lock().replace(file, content.as_bytes()).unwrap();
    }

    fn lock(&self) -> StoreLock {
        let deadline = Deadline::after(Duration::ZERO);
        self.store
            .lock(deadline, "test", SystemTime::UNIX_EPOCH)
            .unwrap()
    }

    fn load(&self) -> StoreContents {
        StoreContents::load(&self.store, &self.machine()).unwrap()
    }
}

fn credential(common_name: &str) -> String {
    let ca = Issuer::new(CertificateParams::default(), KeyPair::generate().unwrap());
    let key = PrivateKey::generate().unwrap();
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    let certificate = params.signed_by(&key.pair().unwrap(), &ca).unwrap();
    certificate.pem() + key.pem().expose()
}

fn rejected(stored: &StoreContents) -> Vec<(StoreFile, &str)> {
    let rejected = stored.rejected.iter();
    rejected.map(|(file, why)| (*file, why.as_str())).collect()
}

#[test]
fn a_valid_store_is_used_without_reading_the_firmware_again() {
    let stored = Fixture::new().load();

    assert!(stored.credential.is_some());
    assert!(stored.rejected.is_empty());
    assert_eq!(stored.machine, None);
}

#[test]
fn the_first_load_of_a_boot_compares_the_machine() {
    let fixture = Fixture::new();
    fixture.write(BOOT, "boot-2\n");

    let stored = fixture.load();

    assert!(stored.credential.is_some());
    assert!(stored.machine.is_some());
}

#[test]
fn a_store_from_another_machine_is_rejected() {
    let fixture = Fixture::new();
    fixture.write(BOOT, "boot-2\n");
    fixture.write(UUID, "uuid-2\n");

    let stored = fixture.load();

    assert!(stored.credential.is_none() && stored.origin.is_none());
    assert_eq!(
        rejected(&stored),
        StoreFile::ALL.map(|file| (file, "it belongs to a different machine"))
    );
}

#[test]
fn a_machine_keeps_its_credential_if_its_asset_tag_changes() {
    let fixture = Fixture::new();
    let uuid = "4C4C4544-0042-3510-8052-B3C04F4B4E32";
    // The origin has the format of earlier releases, which compared every value.
    let digest = |name: &str, value: &str| {
        let bytes = Sha256::digest([name.as_bytes(), &[0], value.as_bytes()].concat());
        HEXLOWER.encode(&bytes)
    };
    let origin = serde_json::json!({
        "version": 1, "nodeName": "n1", "endpoint": EndpointFields::default(), "bootId": "boot-1",
        "machine": {
            "productUuid": digest("product_uuid", uuid),
            "boardAssetTag": digest("board_asset_tag", "Default string"),
        },
    });
    fixture.put(StoreFile::Origin, &origin.to_string());
    fixture.write(BOOT, "boot-2\n");
    fixture.write(ASSET_TAG, "RACK-7-U12\n");
    for now in [uuid, &uuid.to_lowercase()] {
        fixture.write(UUID, now);
        let stored = fixture.load();
        assert_eq!(rejected(&stored), [], "{now}");
        assert!(stored.credential.is_some(), "{now}");
    }

    fixture.write(UUID, "4C4C4544-0042-3510-8052-B3C04F4B4E33");

    let stored = fixture.load();
    assert!(stored.credential.is_none());
    let other = StoreFile::ALL.map(|file| (file, "it belongs to a different machine"));
    assert_eq!(rejected(&stored), other);
}

#[test]
fn a_credential_for_another_node_is_rejected() {
    let fixture = Fixture::new();
    fixture.put(StoreFile::Credential, &credential("system:node:n2"));

    let stored = fixture.load();

    assert!(stored.credential.is_none() && stored.origin.is_some());
    assert_eq!(
        rejected(&stored),
        [(StoreFile::Credential, "it is for a different node from n1")]
    );
}

/// The data that a later release has added to a file of the store.
fn of_later_release(file: StoreFile, text: &str) -> Vec<String> {
    match file {
        StoreFile::Credential => {
            let begin = "-----BEGIN PRIVATE KEY-----";
            let (chain, key) = text.split_once(begin).unwrap();
            let key = format!("{begin}{key}");
            let block = "-----BEGIN LATER-----\nQUJD\n-----END LATER-----\n";
            vec![
                format!("# written by a later release\n{text}"),
                format!("{text}{block}"),
                format!("{block}{chain}{block}{key}"),
                format!("{key}{chain}"),
            ]
        }
        StoreFile::Origin | StoreFile::Pending | StoreFile::Failure => {
            let json: Value = serde_json::from_str(text).unwrap();
            let mut changed = Vec::new();
            add_everywhere(&json, &mut |json| changed.push(json.to_string()));
            let mut format = json.clone();
            format["version"] = 2.into();
            changed.push(format.to_string());
            changed
        }
        StoreFile::Remembered => vec![format!("{text}\nlater\n"), format!("{text}\r\n\n")],
    }
}

/// Calls `take` with each copy of `json` that has an additional member in one of its objects.
fn add_everywhere(json: &Value, take: &mut dyn FnMut(Value)) {
    let Some(members) = json.as_object() else {
        return;
    };
    let mut changed = members.clone();
    changed.insert("later".to_owned(), serde_json::json!({"a": [1, null]}));
    take(changed.into());
    for (name, member) in members {
        add_everywhere(member, &mut |member| {
            let mut changed = members.clone();
            changed.insert(name.clone(), member);
            take(changed.into());
        });
    }
}

#[test]
fn a_node_keeps_its_credential_despite_files_of_a_later_release() {
    let fixture = Fixture::new();
    let mut pending = Pending::of_key(PrivateKey::generate().unwrap(), fixture.machine().digest());
    let subject = Subject {
        signer_name: "a.b/c".to_owned(),
        expiration_seconds: 3600,
        node_name: NodeName::parse("n1").unwrap(),
        provider_id: ProviderId::parse("aws:///a/i-1").unwrap(),
        audience: Audience::parse("prod").unwrap(),
    };
    let (name, now) = ("name".to_owned(), SystemTime::UNIX_EPOCH);
    let open = OpenRequest::new(name, b"request".to_vec(), subject, now);
    pending.request = Some(open.clone());
    let failure = FailureRecord::after(
        None,
        &Failure::new(Code::Denied, "denied", "wait"),
        &FailureScope {
            boot_id: fixture.machine().boot_id(),
            settings: "settings".to_owned(),
        },
        now,
    );
    fixture.put(
        StoreFile::Pending,
        str::from_utf8(&pending.to_json()).unwrap(),
    );
    fixture.put(
        StoreFile::Failure,
        str::from_utf8(&failure.to_json()).unwrap(),
    );
    fixture.put(StoreFile::Remembered, "ecc-p256");
    let read = |file| fixture.store.read(file).unwrap().unwrap().to_string();
    let before = fixture.load();
    let certificate = before
        .credential
        .as_ref()
        .unwrap()
        .certificate_pem()
        .to_owned();

    for file in StoreFile::ALL {
        let text = read(file);
        let later = of_later_release(file, &text);
        assert!(later.len() > 1, "{file:?}");
        for later in later {
            assert_ne!(later, text);
            fixture.put(file, &later);

            let stored = fixture.load();

            assert_eq!(rejected(&stored), [], "{later}");
            assert_eq!(stored.origin, before.origin, "{later}");
            let credential = stored.credential.unwrap();
            assert_eq!(credential.certificate_pem(), certificate, "{later}");
            let read_back = Pending::parse(&read(StoreFile::Pending)).unwrap();
            assert_eq!(read_back.key.public_bits(), pending.key.public_bits());
            assert_eq!(read_back.request, Some(open.clone()), "{later}");
            let read_back = FailureRecord::read(&fixture.store);
            assert_eq!(read_back, Some(failure.clone()), "{later}");
            let read_back = remembered(&fixture.store);
            assert_eq!(read_back.as_deref(), Some("ecc-p256"), "{later}");
        }
        fixture.put(file, &text);
    }
    fixture.put(StoreFile::Credential, &read(StoreFile::Credential));
    let state = fixture.root.path().join("state");
    fs::write(state.join("later"), "a file").unwrap();
    fs::write(state.join("lock"), "2\n{\"later\":").unwrap();
    std::os::unix::fs::symlink("2:later", state.join("last-check")).unwrap();
    assert!(fixture.load().credential.is_some());
    drop(fixture.lock());
}

#[test]
fn an_unreadable_origin_from_a_later_release_is_kept() {
    let fixture = Fixture::new();
    fixture.put(StoreFile::Origin, "{\"version\":2,\"node\":\"n1\"}");

    let failure = StoreContents::load(&fixture.store, &fixture.machine()).unwrap_err();

    assert_eq!(failure.code(), Code::Store);
    assert!(
        failure.what().contains("is from a later release"),
        "{failure}"
    );
    assert!(
        failure.remedy().contains("install that release"),
        "{}",
        failure.remedy()
    );
}

#[test]
fn a_credential_without_an_origin_is_rejected() {
    let fixture = Fixture::new();
    fixture.lock().remove(StoreFile::Origin).unwrap();
    assert_eq!(
        rejected(&fixture.load()),
        [(
            StoreFile::Credential,
            "without origin.json, its machine is unknown"
        )]
    );

    fixture.put(StoreFile::Origin, "{}");
    let stored = fixture.load();
    let files: Vec<_> = rejected(&stored)
        .into_iter()
        .map(|(file, _)| file)
        .collect();
    assert_eq!(
        files,
        [StoreFile::Pending, StoreFile::Credential, StoreFile::Origin]
    );
}

#[test]
fn an_empty_store_is_not_an_error() {
    let fixture = Fixture::new();
    for file in StoreFile::ALL {
        fixture.lock().remove(file).unwrap();
    }

    let stored = fixture.load();

    assert!(stored.credential.is_none() && stored.rejected.is_empty());
}

#[test]
fn debug_output_of_a_credential_contains_no_secret() {
    let text = credential("system:node:n1");
    let secret = text.lines().rev().nth(1).unwrap();

    let shown = format!("{:?}", Credential::from_store(&text).unwrap());

    assert!(!shown.contains(secret));
    assert_eq!(format!("{:?}", Secret::new(text)), "Secret(..)");
}

#[test]
fn an_empty_store_requires_an_enrollment() {
    for renewal in [Renewal::Attested, Renewal::Impossible] {
        let contents = StoreContents::default();
        assert_eq!(
            contents.rotation(renewal, None, SystemTime::UNIX_EPOCH),
            Rotation::Enrol
        );
    }
}

#[test]
fn the_comparison_of_byte_strings_checks_every_byte() {
    for length in 0..20 {
        let bytes = vec![1; length];
        assert!(is_same(&bytes, &bytes));
        assert!(!is_same(&bytes, &vec![1; length + 1]));
        for changed in 0..length {
            let mut other = bytes.clone();
            other[changed] = 2;
            assert!(!is_same(&bytes, &other), "{changed} of {length}");
        }
    }
}

#[test]
fn a_credential_of_another_ca_is_renewed() {
    let fixture = Fixture::new();
    let mut stored = fixture.load();
    stored.origin.as_mut().unwrap().endpoint.ca_pem = "ca".to_owned();
    let validity = stored.credential.as_ref().unwrap().validity();
    let now = validity.issued() + Duration::from_secs(1);

    for (ca_pem, renewal, expected) in [
        (None, Renewal::Attested, Rotation::Keep),
        (Some("ca"), Renewal::Attested, Rotation::Keep),
        (Some("another"), Renewal::Attested, Rotation::Renew),
        (Some(""), Renewal::Attested, Rotation::Renew),
        (Some("another"), Renewal::Impossible, Rotation::Keep),
    ] {
        let rotation = stored.rotation(renewal, ca_pem.map(str::as_bytes), now);
        assert_eq!(rotation, expected, "{ca_pem:?}");
    }
}
