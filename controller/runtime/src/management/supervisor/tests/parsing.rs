//! Tests that the objects of a Cluster are parsed once, in the Cluster's turn.

use data_encoding::BASE64;
use node_attestation_core::verifier::{InsecureVerifier, Verifier};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

use super::*;
use crate::capi::created_clients;

/// The number of clusters in the busy namespace.
const BUSY: usize = 20;

/// The same object, moved to this namespace.
fn moved(mut object: Value, namespace: &str) -> Value {
    let metadata = &mut object["metadata"];
    let uid = format!("{namespace}-{}", metadata["name"].as_str().unwrap());
    metadata["uid"] = json!(uid);
    metadata["namespace"] = json!(namespace);
    object
}

fn list(items: &[Value]) -> Answer {
    let metadata = json!({"resourceVersion": "1"});
    let list = json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items});
    whole(200, &list)
}

/// The kind of the objects that this request lists, and its selector. `None` for any other request.
fn listed(request: &Request<kube::client::Body>) -> Option<(String, String)> {
    let query = request.uri().query().unwrap_or_default();
    let kind = request.uri().path().rsplit('/').next()?;
    let is_list = request.method() == Method::GET && !query.contains("watch=");
    is_list.then(|| (kind.to_owned(), query.to_owned()))
}

/// A management cluster with one cluster in one namespace, and many clusters in another.
async fn two_namespaces(request: Request<kube::client::Body>) -> Answer {
    let all = |object: &dyn Fn(usize) -> Value| {
        let busy = (0..BUSY).map(|number| moved(object(number), "busy"));
        let all: Vec<_> = busy.chain([moved(object(BUSY), "quiet")]).collect();
        list(&all)
    };
    match listed(&request) {
        Some((kind, _)) if kind == "kubeletauthentications" => {
            all(&|number| authentication(number, 1))
        }
        Some((kind, _)) if kind == "clusters" => all(&cluster),
        _ if request
            .uri()
            .query()
            .is_some_and(|query| query.contains("watch=")) =>
        {
            Response::new(StreamBody::new(stream::pending()).boxed_unsync())
        }
        _ => answer(request, Written::default()).await,
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_namespace_delays_another_cluster_by_one_reconcile() {
    let order: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = order.clone();
    let management = ClusterAccess::in_memory(two_namespaces);
    let verifiers = move |authentication: &KubeletAuthentication, _: &str| {
        let namespace = authentication.metadata.namespace.clone();
        noted.lock().unwrap().push(namespace.unwrap());
        Verifiers::default()
    };
    let controller = Controller::new(&management, Settings::default(), Arc::new(verifiers));
    let (shared, _watching) = controller.watching();
    let work = crate::management::work(shared.clone(), pending());
    let working = tokio::spawn(work);
    sleep(8 * SLOW).await;
    assert!(order.lock().unwrap().len() > BUSY);

    // All clusters are due while a different cluster has the turn.
    let line = shared.parsing.line(&ObjectKey::new("other", "c"));
    let turn = line.turn().await;
    sleep(2 * LOOK_AGAIN).await;
    order.lock().unwrap().clear();
    drop(turn);
    sleep(SLOW).await;

    let order = order.lock().unwrap().clone();
    assert_eq!(order.len(), BUSY + 1, "{order:?}");
    let at = order.iter().position(|namespace| namespace == "quiet");
    assert!(at.is_some_and(|at| at <= 1), "{order:?}");
    working.abort();
}

/// The Secrets of a cluster. The client key does not match its certificate.
fn secrets() -> [(&'static str, Value); 2] {
    let pair = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&pair).unwrap().pem();
    let base64 = |text: String| json!(BASE64.encode(text.as_bytes()));
    let other = KeyPair::generate().unwrap();
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {
            "server": "https://203.0.113.7:6443",
            "certificate-authority-data": base64(certificate.clone()),
        }}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "users": [{"name": "a", "user": {
            "client-certificate-data": base64(certificate.clone()),
            "client-key-data": base64(other.serialize_pem()),
        }}],
    });
    let secret = |name: &'static str, data: Value| {
        let metadata = json!({"name": name, "namespace": "default", "resourceVersion": "1"});
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data,
        });
        (name, secret)
    };
    let ca = json!({"tls.crt": base64(certificate), "tls.key": base64(pair.serialize_pem())});
    [
        secret("c0-ca", ca),
        secret(
            "c0-kubeconfig",
            json!({"value": base64(kubeconfig.to_string())}),
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_client_key_that_does_not_match_is_parsed_once() {
    let secrets = Arc::new(secrets());
    let reasons: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let told = reasons.clone();
    let management = ClusterAccess::in_memory(move |request: Request<kube::client::Body>| {
        let (secrets, told) = (secrets.clone(), told.clone());
        async move {
            if request.method() == Method::PUT {
                let object = request.into_body().collect().await.unwrap().to_bytes();
                let object: Value = serde_json::from_slice(&object).unwrap();
                let conditions = object["status"]["conditions"].as_array();
                for condition in conditions.into_iter().flatten() {
                    if condition["type"] == "Ready" {
                        let reason = condition["reason"].as_str().unwrap();
                        told.lock().unwrap().insert(reason.to_owned());
                    }
                }
                return whole(200, &object);
            }
            match listed(&request) {
                Some((kind, _)) if kind == "kubeletauthentications" => {
                    list(&[authentication(0, 1)])
                }
                Some((kind, _)) if kind == "clusters" => list(&[cluster(0)]),
                Some((kind, query)) if kind == "secrets" => {
                    let found = secrets.iter().filter(|(name, _)| query.contains(name));
                    let found: Vec<_> = found.map(|(_, secret)| secret.clone()).collect();
                    list(&found)
                }
                _ if request
                    .uri()
                    .query()
                    .is_some_and(|query| query.contains("watch=")) =>
                {
                    Response::new(StreamBody::new(stream::pending()).boxed_unsync())
                }
                _ => answer(request, Written::default()).await,
            }
        }
    });
    let reconciled: Arc<Mutex<usize>> = Arc::default();
    let counted = reconciled.clone();
    let verifiers = move |_: &KubeletAuthentication, _: &str| -> Verifiers {
        *counted.lock().unwrap() += 1;
        let insecure: Arc<dyn Verifier> = Arc::new(InsecureVerifier);
        [insecure].into_iter().collect()
    };
    let controller = Controller::new(&management, Settings::default(), Arc::new(verifiers));
    let before = created_clients();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(controller.run(async move { drop(stopped.await) }));

    sleep(10 * LOOK_AGAIN).await;

    let count = *reconciled.lock().unwrap();
    assert!(count >= 5, "{count}");
    assert!(reasons.lock().unwrap().contains("KubeconfigRefused"));
    assert_eq!(created_clients() - before, 1);
    drop(stop);
    running.await.unwrap();
}
