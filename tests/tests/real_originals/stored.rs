//! Objects as a real API server stores them, with the definitions of the originals.

use std::fs;
use std::sync::LazyLock;
use std::thread;

use kubelet_authenticator_test_support::control_plane::ControlPlane;
use kubelet_authenticator_tests::management::{Contract, Management};
use serde_json::{Value, json};

use super::judge;

/// The namespace of the clusters, and another namespace.
pub const NAMESPACES: [&str; 2] = ["tenant-a", "tenant-b"];

/// The namespaces of the controllers.
const CONTROLLERS: [&str; 2] = ["capa-system", "ack-system"];

static MANAGEMENT: LazyLock<Management> = LazyLock::new(|| {
    let management = Management::on(ControlPlane::builder().start(), Contract::V1Beta2);
    management.define_aws();
    // Each case has its own Namespace objects, or none.
    management
        .kubectl()
        .ok(["delete", "awsclustercontrolleridentities", "default"]);
    let selectors = fs::read_to_string(judge::directory().join("iamroleselectors.yaml")).unwrap();
    let kubectl = management.kubectl();
    kubectl.apply(&selectors);
    let established = "--for=condition=Established";
    let name = "crd/iamroleselectors.services.k8s.aws";
    kubectl.ok(["wait", established, "--timeout=180s", name]);
    for name in NAMESPACES.into_iter().chain(CONTROLLERS) {
        let metadata = json!({"name": name});
        kubectl
            .apply_object(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
    }
    management
});

/// The object as the API server would store it, or the reason why the API server rejects it.
///
/// # Panics
///
/// Panics if the API server fails for a reason other than an invalid object.
pub fn stored(object: &Value) -> Result<Value, String> {
    // The namespaces of the clusters must exist.
    let exists = object["kind"] == "Namespace";
    let answer = MANAGEMENT.kubectl().dry_run(object, exists);
    answer.inspect_err(|error| {
        let is_refusal = ["code: 400", "code: 422", "Some(400)", "Some(422)"];
        let is_refusal = is_refusal.iter().any(|code| error.contains(code));
        assert!(is_refusal, "{error}: {object:#}");
    })
}

/// The cases as the API server stores them, without objects that the API server rejects.
pub fn all_stored<T: Send>(
    sent: Vec<T>,
    objects: impl Fn(&mut T) -> Vec<&mut Value> + Sync,
) -> Vec<T> {
    LazyLock::force(&MANAGEMENT);
    let store = |mut case: T| -> T {
        for object in objects(&mut case) {
            *object = stored(object).unwrap_or_else(|error| panic!("{error}: {object:#}"));
        }
        case
    };
    let mut sent = sent;
    let mut parts = Vec::new();
    while !sent.is_empty() {
        let rest = sent.split_off(sent.len().min(50));
        parts.push(std::mem::replace(&mut sent, rest));
    }
    // The test sends several requests at the same time.
    let mut all = Vec::new();
    while !parts.is_empty() {
        let rest = parts.split_off(parts.len().min(8));
        let turn = std::mem::replace(&mut parts, rest);
        thread::scope(|scope| {
            let running: Vec<_> = turn
                .into_iter()
                .map(|part| scope.spawn(|| part.into_iter().map(store).collect::<Vec<_>>()))
                .collect();
            for done in running {
                all.extend(done.join().unwrap());
            }
        });
    }
    all
}
