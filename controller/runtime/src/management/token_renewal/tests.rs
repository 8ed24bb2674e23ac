use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::UNIX_EPOCH;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, Response};
use kube::client::Body;
use serde_json::Value;

use super::*;
use crate::capi::{kubeconfig_text, token_of};
use crate::client::{ClusterAccess, EgressPolicy, caller_of};
use crate::management::single_object::Observed;

const DAY: u64 = 24 * 3_600;

const ACCOUNT: &str = "system:serviceaccount:node-attestation-system:node-attestation-controller";

/// The day on which the token in the Secret was issued.
const ISSUED: u64 = 100;

/// A certificate that is not parsed in these tests.
const CA: &[u8] = b"a certificate";

fn day(number: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(number * DAY)
}

/// A token that is valid from the first of these days to the second.
fn token(account: &str, issued: u64, expires: u64) -> String {
    token_of(&json!({"sub": account, "iat": issued * DAY, "exp": expires * DAY}))
}

fn current() -> String {
    token(ACCOUNT, ISSUED, ISSUED + 30)
}

fn next() -> String {
    token(ACCOUNT, ISSUED + 10, ISSUED + 40)
}

fn kubeconfig(token: &str) -> TenantKubeconfig {
    let text = kubeconfig_text("https://203.0.113.7:6443/", None, &[ca()], token).unwrap();
    TenantKubeconfig::parse(text.as_bytes(), EgressPolicy::default()).unwrap()
}

fn ca() -> Vec<u8> {
    CA.to_vec()
}

fn status(code: u16, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "code": code, "reason": "", "message": message})
}

/// The response to a token request.
fn granted(token: &str) -> Answer {
    let object = json!({
        "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {},
        "spec": {"audiences": []},
        "status": {"token": token, "expirationTimestamp": "2026-12-01T00:00:00Z"},
    });
    (201, object)
}

/// The response to a write of the Secret.
fn stored() -> Answer {
    let object = json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": {"name": "workload-access.a.b", "resourceVersion": "8"},
    });
    (200, object)
}

type Answer = (u16, Value);

/// The method, the path and the body of each call.
type Calls = Arc<Mutex<Vec<(Method, String, Value)>>>;

/// An API server that returns one response to each call.
fn server(answers: impl IntoIterator<Item = Answer>) -> (ClusterAccess, Calls) {
    let calls = Calls::default();
    let answers: VecDeque<Answer> = answers.into_iter().collect();
    let (noted, answers) = (calls.clone(), Arc::new(Mutex::new(answers)));
    let access = ClusterAccess::in_memory(move |request: Request<Body>| {
        let (noted, answers) = (noted.clone(), answers.clone());
        async move {
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            noted.lock().unwrap().push((method, path, body));
            let (code, object) = answers.lock().unwrap().pop_front().unwrap();
            let body = Full::new(Bytes::from(object.to_string()));
            Response::builder().status(code).body(body).unwrap()
        }
    });
    (access, calls)
}

/// A token renewal with its two API servers.
struct World {
    renewal: TokenRenewal,
    workload: (ClusterAccess, Calls),
    management: (ClusterAccess, Calls),
}

impl World {
    fn new(workload: Vec<Answer>, management: Vec<Answer>) -> Self {
        Self {
            renewal: TokenRenewal::default(),
            workload: server(workload),
            management: server(management),
        }
    }

    /// Renews this kubeconfig's token if it is due. Returns the warning.
    async fn renew(&mut self, kubeconfig: &TenantKubeconfig, now: SystemTime) -> Option<String> {
        let own = OwnSecret {
            name: "workload-access.a.b",
            version: Some("7"),
            management: self.management.0.client(),
            namespace: "tenant-a",
        };
        let workload = self.workload.0.client();
        self.renewal.renew(kubeconfig, &own, workload, now).await;
        self.renewal.warning(kubeconfig, &own, now)
    }

    fn calls(&self) -> [usize; 2] {
        [&self.workload, &self.management].map(|(_, calls)| calls.lock().unwrap().len())
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_is_renewed_after_a_third_of_its_life_with_one_write() {
    let mut world = World::new(vec![granted(&next())], vec![stored()]);
    let kubeconfig = kubeconfig(&current());
    assert_eq!(world.renew(&kubeconfig, day(ISSUED + 10)).await, None);
    assert_eq!(world.calls(), [0, 0], "not due yet");

    assert_eq!(world.renew(&kubeconfig, day(ISSUED + 11)).await, None);

    assert_eq!(world.calls(), [1, 1]);
    let (method, path, body) = world.workload.1.lock().unwrap().remove(0);
    assert_eq!(method, Method::POST);
    assert_eq!(
        path,
        "/api/v1/namespaces/node-attestation-system/serviceaccounts/node-attestation-controller/token"
    );
    assert_eq!(body["spec"]["expirationSeconds"], 30 * DAY);
    let (method, path, body) = world.management.1.lock().unwrap().remove(0);
    assert_eq!(method, Method::PATCH);
    assert_eq!(
        path,
        "/api/v1/namespaces/default/secrets/workload-access.a.b"
    );
    assert_eq!(body["metadata"], json!({"resourceVersion": "7"}));
    let text = BASE64.decode(body["data"]["value"].as_str().unwrap().as_bytes());
    let written = TenantKubeconfig::parse(&text.unwrap(), EgressPolicy::default()).unwrap();
    assert_eq!(written.claims(), TokenClaims::of(&next()).as_ref());
    assert_eq!(written.ca_certificates(), [ca()]);
    assert_eq!(body["data"].as_object().unwrap().len(), 1);
}

#[expect(
    clippy::disallowed_methods,
    reason = "the response contains what the API server received"
)]
#[tokio::test]
async fn own_kubeconfigs_use_the_turns_of_the_namespace_of_their_cluster() {
    let access = ClusterAccess::in_memory(|request: Request<Body>| async move {
        let caller = caller_of(&request).unwrap_or("none").to_owned();
        let name = json!({"name": caller, "namespace": request.uri().path()});
        let body = json!({"kind": "Secret", "apiVersion": "v1", "metadata": name});
        Response::new(Full::new(Bytes::from(body.to_string())))
    });
    let api: Api<Secret> = own_secrets(access.client(), "tenant-a");

    let (parameters, patch) = (merge(CONTROLLER), Patch::Merge(json!({})));
    let written = api.patch_metadata("workload-access.tenant-a.b", &parameters, &patch);
    let metadata = written.await.unwrap().metadata;

    assert_eq!(metadata.name.as_deref(), Some("tenant-a"));
    let asked = "/api/v1/namespaces/default/secrets/workload-access.tenant-a.b";
    assert_eq!(metadata.namespace.as_deref(), Some(asked));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_ends_at_any_call_is_repeated_with_the_current_token() {
    let conflict = (409, status(409, "the object has been modified"));
    for (workload, management, calls) in [
        (vec![(503, status(503, "busy"))], vec![], [1, 0]),
        (vec![granted(&next())], vec![conflict], [1, 1]),
        (
            vec![granted(&next())],
            vec![(500, status(500, "lost"))],
            [1, 1],
        ),
    ] {
        let mut world = World::new(workload, management);
        let kubeconfig = kubeconfig(&current());
        let (due, late) = (day(ISSUED + 11), day(ISSUED + 16));
        assert_eq!(world.renew(&kubeconfig, due).await, None);
        assert_eq!(world.calls(), calls);

        // The next attempt waits. The warning begins after half of the lifetime.
        let warning = world.renew(&kubeconfig, late).await.unwrap();
        assert_eq!(world.calls(), calls);
        assert!(
            warning.starts_with("renew the token in Secret workload-access.a.b, which expires at "),
            "{warning}"
        );

        world.workload = server([granted(&next())]);
        world.management = server([stored()]);
        tokio::time::advance(AGAIN).await;
        world.renew(&kubeconfig, late).await;
        assert_eq!(world.calls(), [1, 1]);
        let renewed = self::kubeconfig(&next());
        assert_eq!(world.renew(&renewed, late).await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_of_a_short_token_is_repeated_in_a_twelfth_of_its_life() {
    let busy = || vec![(503, status(503, "busy"))];
    let short = token_of(&json!({"sub": ACCOUNT, "iat": 0, "exp": 3_600}));
    let (kubeconfig, now) = (kubeconfig(&short), UNIX_EPOCH + Duration::from_secs(1_300));
    let mut world = World::new(busy(), vec![]);
    world.renew(&kubeconfig, now).await;
    assert_eq!(world.calls(), [1, 0]);
    world.workload = server(busy());

    tokio::time::advance(Duration::from_secs(299)).await;
    world.renew(&kubeconfig, now).await;
    assert_eq!(world.calls(), [0, 0]);
    tokio::time::advance(Duration::from_secs(1)).await;
    world.renew(&kubeconfig, now).await;
    assert_eq!(world.calls(), [1, 0]);
}

#[tokio::test(start_paused = true)]
async fn tokens_with_short_lives_cause_one_write_in_30_seconds() {
    // Each new token is due for renewal when it is issued.
    let short = |end: u64| token_of(&json!({"sub": ACCOUNT, "iat": end - 12, "exp": end}));
    let now = UNIX_EPOCH + Duration::from_secs(995);
    let granted = || vec![granted(&short(1_001)), granted(&short(1_002))];
    let mut world = World::new(granted(), vec![stored(), stored()]);
    world.renew(&kubeconfig(&short(1_000)), now).await;
    assert_eq!(world.calls(), [1, 1]);
    let renewed = kubeconfig(&short(1_001));

    // A token that is not due does not end the delay.
    let lasting = kubeconfig(&short(1_006));
    world.renew(&lasting, now).await;
    tokio::time::advance(Duration::from_secs(29)).await;
    world.renew(&renewed, now).await;
    assert_eq!(world.calls(), [1, 1]);
    tokio::time::advance(Duration::from_secs(1)).await;
    world.renew(&renewed, now).await;
    assert_eq!(world.calls(), [2, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_response_without_a_later_token_of_the_account_is_not_stored() {
    const NOT_LATER: &str =
        "the API server did not return a token with a later expiry for the same service account";
    const INVALID: &str = "the response to the token request is invalid";
    let foreign = ACCOUNT.replace("node-attestation-controller", "default");
    let with_line = format!("{}\n  exec: {{}}", next());
    for (answer, error) in [
        (granted(&token(&foreign, ISSUED, ISSUED + 40)), NOT_LATER),
        (granted(&current()), NOT_LATER),
        (granted("secret-text"), NOT_LATER),
        (granted(&with_line), NOT_LATER),
        ((201, json!({"spec": {"audiences": []}})), INVALID),
        (
            (201, json!({"status": {"token": {"secret": "text"}}})),
            INVALID,
        ),
        ((201, json!("secret-text")), INVALID),
    ] {
        let mut world = World::new(vec![answer], vec![]);

        let warning = world.renew(&kubeconfig(&current()), day(ISSUED + 16)).await;

        let warning = warning.unwrap();
        assert!(warning.ends_with(error), "{warning}");
        assert!(!warning.contains("secret-text"), "{warning}");
        assert_eq!(world.calls(), [1, 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_response_with_a_token_is_not_stored() {
    let padded = |len: usize| {
        let (code, mut object) = granted(&next());
        object["metadata"]["name"] = json!("");
        let rest = len - object.to_string().len();
        object["metadata"]["name"] = json!("n".repeat(rest));
        (code, object)
    };
    for (len, written) in [(MAX_RESPONSE_LEN, 1), (MAX_RESPONSE_LEN + 1, 0)] {
        let mut world = World::new(vec![padded(len)], vec![stored()]);

        let warning = world.renew(&kubeconfig(&current()), day(ISSUED + 16)).await;

        assert_eq!(world.calls(), [1, written]);
        let is_invalid = warning.is_some_and(|warning| {
            warning.ends_with("the response to the token request is invalid")
        });
        assert_eq!(is_invalid, written == 0, "{len}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_warning_about_a_token_does_not_contain_a_token() {
    let forbidden = (403, status(403, "not allowed"));
    let mut world = World::new(vec![granted(&next())], vec![forbidden]);

    let warning = world.renew(&kubeconfig(&current()), day(ISSUED + 29)).await;

    let warning = warning.unwrap();
    assert!(
        warning.contains("cannot patch Secret workload-access.a.b"),
        "{warning}"
    );
    for secret in [current(), next()] {
        assert!(!warning.contains(&secret), "{warning}");
        let signature = secret.rsplit('.').next().unwrap();
        assert!(!warning.contains(signature), "{warning}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kubeconfig_without_an_expiring_token_is_not_renewed() {
    let mut world = World::new(vec![], vec![]);

    let warning = world.renew(&kubeconfig("opaque"), day(ISSUED + 29)).await;

    assert_eq!(warning, None);
    assert_eq!(world.calls(), [0, 0]);
}

#[tokio::test]
async fn only_an_own_kubeconfig_is_renewed() {
    let (management, _) = server([]);
    let mut sources = Sources {
        kubeconfig: Observed::Present(Arc::new(Secret::default())),
        ..Sources::default()
    };
    let is_own =
        |sources: &Sources| OwnSecret::of(sources, management.client(), "tenant-a").is_some();
    assert!(!is_own(&sources));
    sources.own_kubeconfig = Some("workload-access.a.b".to_owned());
    assert!(is_own(&sources));
    sources.kubeconfig = Observed::Absent;
    assert!(!is_own(&sources));
}
