//! The service, with a token that hangs.

use std::io;
use std::sync::LazyLock;

use node_attestation_signer_api::SignatureAlgorithm;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tonic::Code;

use super::*;
use crate::policy::tests::{ca, now, to_be_signed, valid};

/// The log of all tests of this program.
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

/// The lines with this word.
fn logged(word: &str) -> Vec<String> {
    let text = String::from_utf8(LOG.0.lock().clone()).unwrap();
    let lines = text.lines().filter(|line| line.contains(word));
    lines.map(str::to_owned).collect()
}

/// A token that says that it is asked for a signature, and waits until it may answer. It answers a check immediately,
/// unless that hangs too.
pub(crate) struct Hanging {
    asked: mpsc::UnboundedSender<()>,
    may_answer: Mutex<mpsc::UnboundedReceiver<()>>,
    check_hangs: bool,
}

impl Hanging {
    fn wait(&self) {
        self.asked.send(()).unwrap();
        self.may_answer.lock().blocking_recv().unwrap();
    }
}

impl Keys for Hanging {
    fn check(&self) -> Result<(), TokenError> {
        if self.check_hangs {
            self.wait();
        }
        Ok(())
    }

    fn check_key(&self, _: &str) -> Result<(), TokenError> {
        Ok(())
    }

    fn sign(&self, _: &str, _: SignatureAlgorithm, _: &[u8]) -> Result<Vec<u8>, TokenError> {
        self.wait();
        Ok(vec![1])
    }
}

/// A token that refused the PIN.
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

/// A service for two CAs.
pub(crate) struct World {
    pub(crate) service: Arc<Service<Hanging>>,
    asked: mpsc::UnboundedReceiver<()>,
    may_answer: mpsc::UnboundedSender<()>,
    /// Of the one CA, and of the other.
    pub(crate) requests: [SignRequest; 2],
}

const ONE_CALL: Calls = Calls {
    of_all: 1,
    of_ca: 1,
};

fn world() -> World {
    world_of(ONE_CALL, false)
}

pub(crate) fn world_of(calls: Calls, check_hangs: bool) -> World {
    LazyLock::force(&LOG);
    let mut other = ca("ca-2");
    other.authority.cluster.name = "other".to_owned();
    let cas = [ca("ca"), other];
    let requests = [&cas[0], &cas[1]].map(|ca| SignRequest {
        ca_certificate_sha256: ca.authority.sha256.to_vec(),
        cluster_name: ca.authority.cluster.name.clone(),
        algorithm: SignatureAlgorithm::EcdsaP256Sha256.into(),
        tbs_certificate: to_be_signed(&valid(), ca),
        ..SignRequest::default()
    });
    let (asked_sender, asked) = mpsc::unbounded_channel();
    let (may_answer, answers) = mpsc::unbounded_channel();
    let token = Hanging {
        asked: asked_sender,
        may_answer: Mutex::new(answers),
        check_hangs,
    };
    let authorities = cas.map(|ca| ca.authority).into();
    let service = Service::new(token, calls, authorities, Reserved::default(), now);
    World {
        service: Arc::new(service.unwrap()),
        asked,
        may_answer,
        requests,
    }
}

type Call = tokio::task::JoinHandle<Result<Vec<u8>, Status>>;

impl World {
    /// Requests a signature by the key of this CA.
    fn call(&self, ca: usize) -> Call {
        let (service, request) = (self.service.clone(), self.requests[ca].clone());
        tokio::spawn(async move {
            let answer = service.sign(Request::new(request)).await;
            answer.map(|response| response.into_inner().signature)
        })
    }

    async fn sign(&self) -> Result<Vec<u8>, Status> {
        self.call(0).await.unwrap()
    }

    /// Waits until the token has been asked once more.
    pub(crate) async fn asked(&mut self) {
        self.asked.recv().await.unwrap();
    }

    /// Requests a signature of the token, and waits for it no longer, as a deadline does.
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

    /// Waits until a thread of the first CA does not wait for the token.
    async fn one_is_free(&self) {
        self.service.authorities[0].1.one_is_free().await;
    }

    fn serial(&self) -> String {
        let algorithm = SignatureAlgorithm::EcdsaP256Sha256;
        let (authority, _) = &self.service.authorities[0];
        let reserved = Reserved::default();
        let message = &self.requests[0].tbs_certificate;
        policy::check(message, authority, algorithm, &reserved, now())
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

/// Twice as many hanging calls of one CA as the token is asked at a time, and a call of another CA.
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
    // The token has answered, so that the first CA has turns again.
    world.one_is_free().await;
    world.answer();
    assert_eq!(world.sign().await.unwrap(), [1]);
}

/// Calls of one CA wait behind each other, and leave turns to another CA.
#[tokio::test]
async fn a_busy_ca_has_four_of_sixteen_turns() {
    let mut world = world_of(crate::CALLS, false);
    let of_one: Vec<_> = (0..8).map(|_| world.call(0)).collect();
    for _ in 0..crate::CALLS.of_ca {
        world.asked().await;
    }

    let other = world.call(1);
    world.asked().await;

    assert_eq!(
        world.service.calls.available_permits(),
        crate::CALLS.of_all - 5
    );
    for _ in 0..9 {
        world.answer();
    }
    assert_eq!(other.await.unwrap().unwrap(), [1]);
    for call in of_one {
        assert_eq!(call.await.unwrap().unwrap(), [1]);
    }
}

#[tokio::test]
async fn status_is_answered_while_all_turns_are_taken() {
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
    // A thread waits, so that the clock does not advance by itself.
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
async fn a_service_with_a_refused_pin_keeps_running_and_reports_it() {
    let World { requests, .. } = world();
    let [request, _] = requests;
    let authorities = vec![ca("ca").authority];
    let service = Service::new(Refusing, ONE_CALL, authorities, Reserved::default(), now).unwrap();

    let status = service.status(Request::new(StatusRequest::default()));
    let health = status.await.unwrap().into_inner().health;

    assert!(health.starts_with("the token refused the PIN"), "{health}");
    let outage = service.sign(Request::new(request)).await.unwrap_err();
    assert_eq!(
        (outage.code(), outage.message()),
        (Code::Unavailable, health.as_str())
    );
}
