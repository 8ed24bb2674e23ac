//! The work under the lock of all objects.

use node_attestation_runtime::shared::Lock;
use node_attestation_runtime::shared::testing::most_visited;
use serde_json::json;

use super::*;
use crate::tenancy::{IdentityKind, TenancySettings};

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
        // A new one, its replacement, and its removal.
        for found in [Some(&object), Some(&object), None] {
            put_custom(&store, &source, &key, found).unwrap();
        }
    });

    assert_eq!(visited, BTreeMap::from([(Lock::Identities, 0)]));
}
