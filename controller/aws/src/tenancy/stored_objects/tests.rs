//! Tests of the work under the lock on all objects, and of the size limits for their text fields.

use node_attestation_runtime::shared::Lock;
use node_attestation_runtime::shared::testing::most_visited;
use serde_json::json;

use super::*;
use crate::tenancy::{Ack, IdentityKind, TenancySettings};

#[test]
fn an_identity_is_parsed_without_the_lock_of_all_objects() {
    let store = IdentityStore::new(TenancySettings::default(), "capa-system");
    let source = Source::Identities(IdentityKind::ServiceAccount);
    let key = ObjectKey::new("tenant-a", "nodes");
    let object = json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1",
        "kind": "AWSServiceAccountIdentity",
        "metadata": {"namespace": "tenant-a", "name": "nodes"},
        "spec": {
            "roleARN": "arn:aws:iam::111122223333:role/nodes",
            "inlinePolicy": " ".repeat(2048),
        },
    });
    let object: WithSpec = serde_json::from_str(&object.to_string()).unwrap();

    let visited = most_visited(|| {
        // The cases are a new object, its replacement, and its removal.
        for found in [Some(&object), Some(&object), None] {
            put_custom(&store, &source, &key, found).unwrap();
        }
    });

    assert_eq!(visited, BTreeMap::from([(Lock::Identities, 0)]));
}

#[test]
fn a_name_of_253_bytes_is_read_and_a_longer_name_is_not() {
    let (longest, longer) = ("a".repeat(253), "a".repeat(254));
    let unreadable = Unreadable::because("a name in its spec is longer than 253 bytes");

    assert_eq!(are_short([&longest, &longest]), Ok(()));
    assert_eq!(are_short([&longest, &longer]), Err(unreadable));
}

#[test]
fn labels_of_8_kib_are_read_and_longer_labels_are_not() {
    let settings = TenancySettings {
        ack: Ack::RoleSelectors,
        ..TenancySettings::default()
    };
    let store = IdentityStore::new(settings, "capa-system");
    let key = ObjectKey::new("tenant-a", "one");
    let read = |len: usize| {
        let labels = Labels::from([
            ("team".to_owned(), "a".repeat(100)),
            ("tier".to_owned(), "a".repeat(len - 108)),
        ]);
        let read = cluster(&store, &key, Some(&labels), [None, None]);
        read.map(|cluster| cluster.labels == labels)
    };
    let unreadable = Unreadable::because("its labels are longer than 8 KiB");

    assert_eq!(read(8192), Ok(true));
    assert_eq!(read(8193), Err(unreadable));
}
