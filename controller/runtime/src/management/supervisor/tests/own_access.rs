//! Tests of the Secrets that the controller reads, both with its own kubeconfigs and without them.

use node_attestation_core::verifier::{InsecureVerifier, Verifier};

use super::*;
use crate::management::WorkloadAccess;

const OWN: &str = "workload-access.default.c0";
const CLUSTER_API: &str = "c0-kubeconfig";

/// The calls that the management cluster's API server received.
#[derive(Default)]
struct Heard {
    /// The queries about Secrets.
    secrets: Vec<String>,
    /// The messages of the condition `Ready`.
    messages: BTreeSet<String>,
}

fn list(items: &[Value]) -> Answer {
    let metadata = json!({"resourceVersion": "1"});
    let list = json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items});
    whole(200, &list)
}

/// The controller's own kubeconfig, which is invalid.
fn own() -> Value {
    let metadata = json!({"name": OWN, "namespace": "default", "resourceVersion": "1"});
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"value": "YQ=="}})
}

/// A management cluster with one Cluster. If `has_own` is set, the management cluster also contains the controller's
/// own kubeconfig.
async fn one_cluster(
    request: Request<kube::client::Body>,
    has_own: bool,
    heard: Arc<Mutex<Heard>>,
) -> Answer {
    if request.method() == Method::PUT {
        let object = request.into_body().collect().await.unwrap().to_bytes();
        let object: Value = serde_json::from_slice(&object).unwrap();
        let conditions = object["status"]["conditions"].as_array();
        for condition in conditions.into_iter().flatten() {
            if condition["type"] == "Ready" {
                let message = condition["message"].as_str().unwrap().to_owned();
                heard.lock().unwrap().messages.insert(message);
            }
        }
        return whole(200, &object);
    }
    let query = request.uri().query().unwrap_or_default().to_owned();
    let kind = request.uri().path().rsplit('/').next().unwrap().to_owned();
    if kind == "secrets" {
        heard.lock().unwrap().secrets.push(query.clone());
    }
    match kind.as_str() {
        _ if query.contains("watch=") => {
            Response::new(StreamBody::new(stream::pending()).boxed_unsync())
        }
        "secrets" if has_own && query.contains(OWN) => list(&[own()]),
        "secrets" => list(&[]),
        "kubeletauthentications" => list(&[authentication(0, 1)]),
        "clusters" => list(&[cluster(0)]),
        _ => answer(request, Written::default()).await,
    }
}

/// Whether the controller reads its own kubeconfig, whether it reads Cluster API's kubeconfig, and the last message of
/// the condition `Ready`.
async fn reads(access: WorkloadAccess, has_own: bool) -> ([bool; 2], BTreeSet<String>) {
    let heard: Arc<Mutex<Heard>> = Arc::default();
    let noted = heard.clone();
    let management =
        ClusterAccess::in_memory(move |request| one_cluster(request, has_own, noted.clone()));
    let settings = Settings {
        workload_access: access,
        ..Settings::default()
    };
    let verifiers = |_: &KubeletAuthentication, _: &str| -> Verifiers {
        let insecure: Arc<dyn Verifier> = Arc::new(InsecureVerifier);
        [insecure].into_iter().collect()
    };
    let controller = Controller::new(&management, settings, Arc::new(verifiers));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(controller.run(async move { drop(stopped.await) }));

    sleep(3 * LOOK_AGAIN).await;

    drop(stop);
    running.await.unwrap();
    let heard = std::mem::take(&mut *heard.lock().unwrap());
    let has_read = |name: &str| heard.secrets.iter().any(|query| query.contains(name));
    ([OWN, CLUSTER_API].map(has_read), heard.messages)
}

#[tokio::test(start_paused = true)]
async fn an_administrators_kubeconfig_is_read_only_without_an_own_one() {
    use WorkloadAccess::{ClusterApi, Own, PreferOwn};
    let missing = |name: &str| format!("Secret {name} does not exist");
    let refused = format!("the kubeconfig in Secret {OWN} is not accepted: ");
    for (access, has_own, expected, message) in [
        (ClusterApi, true, [false, true], missing(CLUSTER_API)),
        (PreferOwn, false, [true, true], missing(CLUSTER_API)),
        (PreferOwn, true, [true, false], refused.clone()),
        (Own, false, [true, false], missing(OWN)),
        (Own, true, [true, false], refused),
    ] {
        let (read, messages) = reads(access, has_own).await;

        assert_eq!(read, expected, "{access:?}, {has_own}");
        let is_told = messages.iter().any(|told| told.starts_with(&message));
        assert!(is_told, "{access:?}, {has_own}: {messages:?}");
    }
}
