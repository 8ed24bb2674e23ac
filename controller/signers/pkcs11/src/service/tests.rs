//! Tests of the service with a token that hangs.

mod served;

use std::io;
use std::sync::LazyLock;

use node_attestation_signer_api::SignatureAlgorithm;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::timeout;
use tonic::Code;

use super::*;
use crate::policy::tests::{Ca, ca, now, to_be_signed, valid};

/// The log of all tests in this program.
static LOG: LazyLock<Log> = LazyLock::new(|| {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .init();
    log
});

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log lines that contain this word.
fn logged(word: &str) -> Vec<String> {
    let text = String::from_utf8(LOG.0.lock().clone()).unwrap();
    let lines = text.lines().filter(|line| line.contains(word));
    lines.map(str::to_owned).collect()
}

/// A token that reports the key in each call for a signature, and waits before it responds. The token responds to a
/// health check immediately, unless the check also hangs.
pub(crate) struct Hanging {
    asked: mpsc::UnboundedSender<String>,
    may_answer: Mutex<mpsc::UnboundedReceiver<()>>,
    check_hangs: bool,
}

impl Hanging {
    fn wait(&self, key: &str) {
        self.asked.send(key.to_owned()).unwrap();
        self.may_answer.lock().blocking_recv().unwrap();
    }
}

impl Keys for Hanging {
    fn check(&self) -> Result<(), TokenError> {
        if self.check_hangs {
            self.wait("");
        }
        Ok(())
    }

    fn check_key(&self, _: &str) -> Result<(), TokenError> {
        Ok(())
    }

    fn sign(&self, key: &str, _: SignatureAlgorithm, _: &[u8]) -> Result<Vec<u8>, TokenError> {
        self.wait(key);
        Ok(vec![1])
    }
}

/// A token that has rejected the PIN.
struct Refusing;

impl Keys for Refusing {
    fn check(&self) -> Result<(), TokenError> {
        Err(TokenError::PinRefused)
    }

    fn check_key(&self, _: &str) -> Result<(), TokenError> {
        Err(TokenError::PinRefused)
    }

    fn sign(&self, _: &str, _: SignatureAlgorithm, _: &[u8]) -> Result<Vec<u8>, TokenError> {
        Err(TokenError::PinRefused)
    }
}

/// A service for several CAs.
pub(crate) struct World {
    pub(crate) service: Arc<Service<Hanging>>,
    asked: mpsc::UnboundedReceiver<String>,
    may_answer: mpsc::UnboundedSender<()>,
    /// A request for each CA.
    pub(crate) requests: Vec<SignRequest>,
}

const ONE_CALL: Calls = Calls {
    of_all: 1,
    of_ca: 1,
};

/// The deadline for a call to the token. Without a deadline, a test would never end if the service does not make the
/// call.
const ASKED_WITHIN: Duration = Duration::from_mins(1);

fn world() -> World {
    world_of(ONE_CALL, false)
}

/// A service for two CAs.
pub(crate) fn world_of(calls: Calls, check_hangs: bool) -> World {
    world_with(calls, check_hangs, &["", ""])
}

/// A service that has a CA for each of these namespaces. The keys are `ca-0`, `ca-1` and so on.
fn world_with(calls: Calls, check_hangs: bool, namespaces: &[&str]) -> World {
    LazyLock::force(&LOG);
    let cas = namespaces.iter().enumerate().map(|(number, namespace)| {
        let key = format!("ca-{number}");
        let mut ca = ca(&key);
        ca.authority.cluster.namespace = (*namespace).to_owned();
        ca.authority.cluster.name.clone_from(&key);
        ca.authority.key_label = key;
        ca
    });
    let cas: Vec<_> = cas.collect();
    let request = |ca: &Ca| SignRequest {
        ca_certificate_sha256: ca.authority.sha256.to_vec(),
        cluster_namespace: ca.authority.cluster.namespace.clone(),
        cluster_name: ca.authority.cluster.name.clone(),
        algorithm: SignatureAlgorithm::EcdsaP256Sha256.into(),
        tbs_certificate: to_be_signed(&valid(), ca),
    };
    let requests = cas.iter().map(request).collect();
    let (asked_sender, asked) = mpsc::unbounded_channel();
    let (may_answer, answers) = mpsc::unbounded_channel();
    let token = Hanging {
        asked: asked_sender,
        may_answer: Mutex::new(answers),
        check_hangs,
    };
    let service = Service::new(token, calls, now);
    let authorities = cas.into_iter().map(|ca| Arc::new(ca.authority));
    service.serve(authorities, Vec::new());
    World {
        service: Arc::new(service),
        asked,
        may_answer,
        requests,
    }
}

type Call = tokio::task::JoinHandle<Result<Vec<u8>, Status>>;

impl World {
    /// Requests a signature with the key of this CA.
    fn call(&self, ca: usize) -> Call {
        let (service, request) = (self.service.clone(), self.requests[ca].clone());
        tokio::spawn(async move {
            let answer = service.sign(Request::new(request)).await;
            answer.map(|response| response.into_inner().signature)
        })
    }

    async fn sign(&self) -> Result<Vec<u8>, Status> {
        let call = timeout(ASKED_WITHIN, self.call(0)).await;
        call.expect("the call hangs").unwrap()
    }

    /// Waits for the next call to the token, and returns its key.
    pub(crate) async fn asked(&mut self) -> String {
        let asked = timeout(ASKED_WITHIN, self.asked.recv()).await;
        asked.expect("the service does not call the token").unwrap()
    }

    /// Requests this number of signatures with the key of this CA, and waits until each call runs or waits for its
    /// turn.
    async fn calls(&self, ca: usize, count: usize) -> Vec<Call> {
        let calls = (0..count).map(|_| self.call(ca)).collect();
        for _ in 0..8 {
            yield_now().await;
        }
        calls
    }

    /// The keys of the next `count` signatures. After each signature, the token responds once.
    async fn signed(&mut self, count: usize) -> Vec<String> {
        let mut keys = Vec::new();
        for _ in 0..count {
            self.answer();
            keys.push(self.asked().await);
        }
        keys
    }

    /// Requests a signature, and abandons the call while the token works, as a caller does at its deadline.
    async fn abandon(&mut self) {
        let call = self.call(0);
        self.asked().await;
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
    }

    pub(crate) fn answer(&self) {
        self.may_answer.send(()).unwrap();
    }

    async fn health(&self) -> String {
        let status = self.service.status(Request::new(StatusRequest::default()));
        status.await.unwrap().into_inner().health
    }

    /// The first CA.
    fn first(&self) -> Arc<Signing> {
        self.service.signing(&self.requests[0]).unwrap()
    }

    /// Waits until the first CA has a thread that does not wait for the token.
    async fn one_is_free(&self) {
        self.first().turns.one_is_free().await;
    }

    /// The number of turns in the first CA's namespace that are free for other CAs.
    fn free_turns(&self) -> usize {
        let first = self.first();
        let namespace = &first.authority.cluster.namespace;
        let others = (0..2 * crate::CALLS.of_all).map(|number| {
            let mut other = ca("other").authority;
            other.cluster.namespace.clone_from(namespace);
            other.key_label = format!("other-{number}");
            self.service.calls.line(&other)
        });
        let others: Vec<_> = others.collect();
        let free: Vec<_> = others.iter().map(Line::try_turn).collect();
        free.iter().flatten().count()
    }

    fn serial(&self) -> String {
        let algorithm = SignatureAlgorithm::EcdsaP256Sha256;
        let authority = &self.first().authority;
        let message = &self.requests[0].tbs_certificate;
        policy::check(message, authority, algorithm, now())
            .unwrap()
            .serial
    }
}

#[tokio::test]
async fn a_call_is_refused_immediately_while_abandoned_calls_hang() {
    let mut world = world();
    world.abandon().await;

    assert_eq!(
        world.sign().await.unwrap_err().code(),
        Code::ResourceExhausted
    );

    world.answer();
    world.one_is_free().await;
    world.answer();
    assert_eq!(world.sign().await.unwrap(), [1]);
}

/// One CA has twice as many hanging calls as the token can run concurrently. Another CA has one call.
#[tokio::test]
async fn a_hanging_ca_key_does_not_block_another_ca() {
    let calls = Calls {
        of_all: 4,
        of_ca: 4,
    };
    let mut world = world_of(calls, false);
    for _ in 0..4 {
        world.abandon().await;
    }
    for _ in 0..4 {
        let refused = world.sign().await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
    }

    let other = world.call(1);

    world.asked().await;
    for _ in 0..5 {
        world.answer();
    }
    assert_eq!(other.await.unwrap().unwrap(), [1]);
    // The token has responded, so the first CA has turns again.
    world.one_is_free().await;
    world.answer();
    assert_eq!(world.sign().await.unwrap(), [1]);
}

/// Calls for one CA wait for each other, and leave turns for another CA.
#[tokio::test]
async fn a_busy_ca_gets_4_of_16_signing_slots() {
    let mut world = world_of(crate::CALLS, false);
    let of_one: Vec<_> = (0..8).map(|_| world.call(0)).collect();
    for _ in 0..crate::CALLS.of_ca {
        world.asked().await;
    }

    let other = world.call(1);
    world.asked().await;

    assert_eq!(world.free_turns(), crate::CALLS.of_all - 5);
    for _ in 0..9 {
        world.answer();
    }
    assert_eq!(other.await.unwrap().unwrap(), [1]);
    for call in of_one {
        assert_eq!(call.await.unwrap().unwrap(), [1]);
    }
}

const FOUR_CALLS: Calls = Calls {
    of_all: 4,
    of_ca: 2,
};

/// Two CAs occupy all turns, and two other CAs have more calls than there are turns. The number of turns for each CA is
/// limited. If turns were assigned in the order of arrival, the fifth CA would wait for four signatures.
#[tokio::test]
async fn a_ca_with_one_call_waits_for_one_signature_of_each_waiting_ca() {
    let mut world = world_with(FOUR_CALLS, false, &["a"; 5]);
    let mut calls = Vec::new();
    for busy in 0..4 {
        calls.extend(world.calls(busy, 4).await);
    }
    for _ in 0..4 {
        world.asked().await;
    }
    calls.extend(world.calls(4, 1).await);

    assert_eq!(world.signed(3).await, ["ca-2", "ca-3", "ca-4"]);

    for _ in 3..calls.len() {
        world.answer();
    }
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), [1]);
    }
}

#[tokio::test]
async fn the_cas_of_one_namespace_leave_signing_slots_to_others() {
    let mut world = world_with(FOUR_CALLS, false, &["a", "a", "a", "a", "b"]);
    let mut calls = Vec::new();
    for busy in 0..4 {
        calls.extend(world.calls(busy, 4).await);
    }
    let mut busy = [world.asked().await, world.asked().await];
    busy.sort();
    assert_eq!(busy, ["ca-0", "ca-0"], "half of the turns");

    // The token does not respond to these calls.
    calls.extend(world.calls(4, 1).await);
    assert_eq!(world.asked().await, "ca-4");

    for _ in 0..calls.len() {
        world.answer();
    }
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), [1]);
    }
}

/// The CAs in a single namespace can occupy all turns.
#[tokio::test]
async fn four_cas_of_a_single_namespace_use_all_signing_slots() {
    let mut world = world_with(crate::CALLS, false, &["a"; 4]);
    let mut calls = Vec::new();
    for busy in 0..4 {
        calls.extend(world.calls(busy, 8).await);
    }
    for _ in 0..crate::CALLS.of_all {
        world.asked().await;
    }
    assert_eq!(world.free_turns(), 0);

    for _ in 0..calls.len() {
        world.answer();
    }
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), [1]);
    }
}

#[tokio::test]
async fn a_status_call_succeeds_while_all_signing_slots_are_used() {
    let mut world = world();
    let call = world.call(0);
    world.asked().await;

    assert_eq!(world.health().await, "ok");

    world.answer();
    assert_eq!(call.await.unwrap().unwrap(), [1]);
}

#[tokio::test]
async fn a_hanging_token_is_unhealthy_and_all_status_calls_share_one_query() {
    let mut world = world_of(ONE_CALL, true);
    tokio::time::pause();
    let healths: Vec<_> = (0..20)
        .map(|_| {
            let service = world.service.clone();
            tokio::spawn(async move { service.health().await })
        })
        .collect();
    world.asked().await;
    // A waiting thread prevents the clock from advancing automatically.
    for _ in 0..3 {
        tokio::time::advance(STATUS_DEADLINE).await;
    }

    for health in healths {
        assert_eq!(health.await.unwrap(), Err(BUSY.to_owned()));
    }
    assert!(world.asked.try_recv().is_err(), "it was asked once");

    world.answer();
    let mut good = world.service.good.subscribe();
    good.wait_for(Option::is_some).await.unwrap();
    assert_eq!(world.health().await, "ok");
}

#[tokio::test]
async fn a_signature_of_an_abandoned_call_is_logged() {
    let mut world = world();
    let serial = world.serial();
    world.abandon().await;
    assert_eq!(logged(&serial), Vec::<String>::new());

    world.answer();
    world.one_is_free().await;

    let lines = logged(&serial);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("signed"), "{lines:?}");
    assert!(lines[0].contains("system:node:n1"), "{lines:?}");
}

#[tokio::test]
async fn refused_calls_are_logged_100_times_for_each_namespace() {
    let world = world_with(ONE_CALL, false, &["quiet"]);
    tokio::time::pause();
    let refused = async |namespace: &str| {
        let request = SignRequest {
            cluster_namespace: namespace.to_owned(),
            ..world.requests[0].clone()
        };
        let answer = world.service.sign(Request::new(request)).await;
        assert_eq!(answer.unwrap_err().code(), Code::PermissionDenied);
    };
    for _ in 0..10_000 {
        refused("noisy-namespace").await;
    }
    refused("other-namespace").await;

    assert_eq!(logged("noisy-namespace").len(), 100);
    assert_eq!(logged("other-namespace").len(), 1);
    tokio::time::advance(Duration::from_secs(1)).await;
    refused("noisy-namespace").await;
    let lines = logged("noisy-namespace");
    assert!(lines[100].contains("left_out=9900"), "{lines:?}");
}

#[tokio::test]
async fn a_service_with_a_refused_pin_keeps_running_and_reports_it() {
    let request = world().requests.remove(0);
    let mut authority = ca("ca-0").authority;
    authority.cluster.name.clone_from(&request.cluster_name);
    let service = Service::new(Refusing, ONE_CALL, now);
    service.serve([Arc::new(authority)], Vec::new());
    service.check_keys();

    let status = service.status(Request::new(StatusRequest::default()));
    let health = status.await.unwrap().into_inner().health;

    assert!(health.starts_with("the token rejected the PIN"), "{health}");
    let outage = service.sign(Request::new(request)).await.unwrap_err();
    assert_eq!(
        (outage.code(), outage.message()),
        (Code::Unavailable, health.as_str())
    );
}
