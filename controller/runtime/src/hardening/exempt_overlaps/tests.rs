use std::sync::{Arc, Mutex};
use std::time::UNIX_EPOCH;

use http_body_util::Full;
use hyper::Response;
use hyper::body::Bytes;
use k8s_openapi::ByteString;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, date_time_ymd};
use serde_json::{Value, json};

use super::*;
use crate::client::ClusterAccess;

const DAY: u64 = 24 * 60 * 60;

/// The day in 2025 with this number, starting from 0.
fn day(number: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs((20_089 + number) * DAY)
}

fn name(text: &str) -> NodeName {
    NodeName::parse(text).unwrap()
}

/// A request with a certificate for this user. The certificate is valid for 100 days, starting on this day.
fn issued(user: &str, begin: u64) -> Value {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, user);
    let from = |days: u64| date_time_ymd(2025, 1, 1) + Duration::from_secs(days * DAY);
    params.not_before = from(begin);
    params.not_after = from(begin + 100);
    let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
    let pem = ByteString(certificate.pem().into_bytes());
    json!({
        "metadata": {"name": format!("{user}-{begin}")},
        "spec": {"request": "", "signerName": BUILT_IN_CLIENT_SIGNER},
        "status": {"certificate": pem},
    })
}

/// The response to a list call, for a cluster that contains these requests.
type Answer = fn(&[Value]) -> (u16, Value);

fn all(items: &[Value]) -> (u16, Value) {
    (200, json!({"metadata": {}, "items": items}))
}

fn endless(items: &[Value]) -> (u16, Value) {
    (
        200,
        json!({"metadata": {"continue": "next"}, "items": items}),
    )
}

fn with_unreadable(items: &[Value]) -> (u16, Value) {
    let mut items = items.to_vec();
    items.push(json!({"metadata": {"name": "odd"}, "spec": 7}));
    all(&items)
}

fn forbidden(_: &[Value]) -> (u16, Value) {
    let status = json!({
        "kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden",
        "message": "forbidden",
    });
    (403, status)
}

/// The message that some requests were not evaluated.
const PARTIAL: &str = "the controller could not read all requests for kubernetes.io/kube-apiserver-client-kubelet, so more exempt names can have two valid certificates";

/// A cluster in which a test can change the requests.
struct Cluster {
    requests: Arc<Mutex<Vec<Value>>>,
    answer: Arc<Mutex<Answer>>,
    access: ClusterAccess,
    overlaps: ExemptOverlaps,
}

impl Cluster {
    fn new() -> Self {
        let requests: Arc<Mutex<Vec<Value>>> = Arc::default();
        let answer: Arc<Mutex<Answer>> = Arc::new(Mutex::new(all));
        let (listed, answered) = (requests.clone(), answer.clone());
        let access = ClusterAccess::in_memory(move |_| {
            let items = listed.lock().unwrap().clone();
            let (code, list) = (*answered.lock().unwrap())(&items);
            let body = Full::new(Bytes::from(list.to_string()));
            async move { Response::builder().status(code).body(body).unwrap() }
        });
        Self {
            requests,
            answer,
            access,
            overlaps: ExemptOverlaps::default(),
        }
    }

    /// The number of overlaps and the message, if these requests exist on this day.
    async fn look(&mut self, requests: Vec<Value>, exempt: &[&str], today: u64) -> (usize, String) {
        let (found, message) = self.seen(requests, exempt, today).await;
        (found.expect(&message), message)
    }

    /// Like [`look`](Self::look), but the number is `None` if it is unknown.
    async fn seen(
        &mut self,
        requests: Vec<Value>,
        exempt: &[&str],
        today: u64,
    ) -> (Option<usize>, String) {
        *self.requests.lock().unwrap() = requests;
        let exempt = exempt.iter().map(|one| name(one)).collect();
        let client = self.access.client();
        let looked = self.overlaps.look(client, &exempt, day(today)).await;
        let (code, _) = (*self.answer.lock().unwrap())(&[]);
        assert_eq!(looked.is_ok(), code == 200 || exempt.is_empty());
        let message = self.overlaps.message().unwrap_or_default();
        (self.overlaps.count(), message)
    }
}

const CP_1: &str = "system:node:cp-1";

#[tokio::test]
async fn a_second_certificate_of_an_exempt_name_is_found_before_a_renewal() {
    for (begin, expected) in [
        (1, 1),
        (64, 1),
        (65, 0),
        (70, 0),
        (90, 0),
        (100, 0),
        (200, 0),
    ] {
        let mut cluster = Cluster::new();
        let first = vec![issued(CP_1, 0)];
        assert_eq!(cluster.look(first, &["cp-1"], 0).await.0, 0);

        // The first request no longer exists.
        let second = vec![issued(CP_1, begin)];
        let (found, message) = cluster.look(second, &["cp-1"], begin).await;

        assert_eq!(found, expected, "{begin}");
        assert_eq!(message.ends_with(": cp-1"), expected == 1, "{message}");
    }
}

#[tokio::test]
async fn only_certificates_of_exempt_names_are_compared() {
    let both = || vec![issued(CP_1, 0), issued(CP_1, 1)];
    for (requests, exempt, expected) in [
        (both(), "cp-1", 1),
        (both().into_iter().rev().collect(), "cp-1", 1),
        (vec![issued(CP_1, 0), issued(CP_1, 0)], "cp-1", 1),
        (vec![issued(CP_1, 0); 2], "cp-1", 0),
        (both(), "cp-2", 0),
        (vec![issued(CP_1, 0), issued("cp-1", 1)], "cp-1", 0),
        (
            vec![issued(CP_1, 0), issued("system:node:cp-2", 1)],
            "cp-1",
            0,
        ),
        (vec![issued(CP_1, 0)], "cp-1", 0),
    ] {
        let (found, message) = Cluster::new().look(requests, &[exempt], 1).await;
        assert_eq!(found, expected, "{exempt}: {message}");
    }
}

#[tokio::test]
async fn only_a_limited_number_of_certificates_is_compared() {
    let first = issued(CP_1, 0);
    let second = issued(CP_1, 1);
    for (count, expected) in [(MAX_ISSUED - 1, Some(1)), (MAX_ISSUED, None)] {
        let mut requests = vec![first.clone(); count];
        requests.push(second.clone());

        let (found, message) = Cluster::new().seen(requests, &["cp-1"], 1).await;

        assert_eq!(found, expected, "{message}");
        assert_eq!(message == PARTIAL, expected.is_none(), "{message}");
    }
}

#[tokio::test]
async fn requests_of_exempt_names_that_are_not_read_are_reported() {
    let answers: [(Answer, bool); 4] = [
        (all, false),
        (endless, true),
        (with_unreadable, true),
        (forbidden, true),
    ];
    for (answer, is_partial) in answers {
        let mut cluster = Cluster::new();
        *cluster.answer.lock().unwrap() = answer;

        let (found, message) = cluster.seen(vec![issued(CP_1, 0)], &["cp-1"], 1).await;

        assert_eq!(found, (!is_partial).then_some(0), "{message}");
        assert_eq!(message, if is_partial { PARTIAL } else { "" });
        let without = cluster.seen(Vec::new(), &[], 1).await;
        assert_eq!(without, (Some(0), String::new()));
    }
}

#[tokio::test]
async fn an_overlap_stays_known_while_requests_cannot_be_read() {
    let mut cluster = Cluster::new();
    let both = vec![issued(CP_1, 0), issued(CP_1, 1)];
    assert_eq!(cluster.look(both, &["cp-1"], 1).await.0, 1);
    *cluster.answer.lock().unwrap() = forbidden;

    for (today, expected) in [(99, Some(1)), (100, None)] {
        let (found, message) = cluster.seen(Vec::new(), &["cp-1"], today).await;

        assert_eq!(found, expected, "{message}");
        assert!(message.starts_with(PARTIAL), "{message}");
    }
}

#[tokio::test]
async fn an_overlap_ends_with_a_certificate_or_the_exemption() {
    let both = || vec![issued(CP_1, 0), issued(CP_1, 1)];
    for (exempt, today, expected) in [
        (&["cp-1"][..], 99, 1),
        (&["cp-1"][..], 100, 0),
        (&["cp-2"][..], 2, 0),
        (&[][..], 2, 0),
    ] {
        let mut cluster = Cluster::new();
        assert_eq!(cluster.look(both(), &["cp-1"], 1).await.0, 1);

        let (found, message) = cluster.look(Vec::new(), exempt, today).await;

        assert_eq!(found, expected, "{today}: {message}");
        assert_eq!(message.is_empty(), expected == 0, "{message}");
    }
}

#[tokio::test]
async fn a_request_without_a_certificate_is_not_compared() {
    let mut pending = issued(CP_1, 1);
    pending["status"] = json!({});
    let mut malformed = issued(CP_1, 1);
    malformed["status"]["certificate"] = json!(ByteString(b"text".to_vec()));
    for second in [pending, malformed] {
        let requests = vec![issued(CP_1, 0), second];
        assert_eq!(Cluster::new().look(requests, &["cp-1"], 1).await.0, 0);
    }
}

#[tokio::test]
async fn known_certificates_outlive_new_settings_but_not_the_cluster() {
    for (uid, expected) in [("uid-1", 1), ("uid-2", 0)] {
        let mut cluster = Cluster::new();
        let kept = ExemptOverlaps::default();
        cluster.overlaps = kept.clone().of_cluster("uid-1");
        cluster.look(vec![issued(CP_1, 0)], &["cp-1"], 0).await;

        cluster.overlaps = kept.of_cluster(uid);

        let second = vec![issued(CP_1, 1)];
        let (found, message) = cluster.look(second, &["cp-1"], 1).await;
        assert_eq!(found, expected, "{uid}: {message}");
    }
}
