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

/// A token that says that it is asked, and waits until it may answer.
struct Hanging {
    asked: mpsc::UnboundedSender<()>,
    may_answer: Mutex<mpsc::UnboundedReceiver<()>>,
}

impl Keys for Hanging {
    fn check(&self) -> Result<(), TokenError> {
        self.asked.send(()).unwrap();
        self.may_answer.lock().blocking_recv().unwrap();
        Ok(())
    }

    fn check_key(&self, _: &str) -> Result<(), TokenError> {
        Ok(())
    }

    fn sign(&self, _: &str, _: SignatureAlgorithm, _: &[u8]) -> Result<Vec<u8>, TokenError> {
        self.check()?;
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

/// A service of one call at a time.
struct World {
    service: Arc<Service<Hanging>>,
    asked: mpsc::UnboundedReceiver<()>,
    may_answer: mpsc::UnboundedSender<()>,
    request: SignRequest,
}

fn world() -> World {
    LazyLock::force(&LOG);
    let ca = ca("ca");
    let request = SignRequest {
        ca_certificate_sha256: ca.authority.sha256.to_vec(),
        algorithm: SignatureAlgorithm::EcdsaP256Sha256.into(),
        tbs_certificate: to_be_signed(&valid(), &ca),
        ..SignRequest::default()
    };
    let (asked_sender, asked) = mpsc::unbounded_channel();
    let (may_answer, answers) = mpsc::unbounded_channel();
    let token = Hanging {
        asked: asked_sender,
        may_answer: Mutex::new(answers),
    };
    let authorities = vec![ca.authority];
    let service = Service::new(token, 1, authorities, Reserved::default(), now);
    World {
        service: Arc::new(service.unwrap()),
        asked,
        may_answer,
        request,
    }
}

impl World {
    async fn sign(&self) -> Result<Vec<u8>, Status> {
        let answer = self.service.sign(Request::new(self.request.clone()));
        answer.await.map(|response| response.into_inner().signature)
    }

    /// Requests a signature of the token, and waits for it no longer, as a deadline does.
    async fn abandon(&mut self) {
        let (service, request) = (self.service.clone(), self.request.clone());
        let call = tokio::spawn(async move { service.sign(Request::new(request)).await });
        self.asked.recv().await.unwrap();
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
    }

    /// Waits until no thread waits for the token.
    async fn all_answered(&self) {
        drop(self.service.permits.acquire().await.unwrap());
    }

    fn serial(&self) -> String {
        let algorithm = SignatureAlgorithm::EcdsaP256Sha256;
        let [authority] = self.service.authorities.as_slice() else {
            panic!("there is one");
        };
        let reserved = Reserved::default();
        let message = &self.request.tbs_certificate;
        policy::check(message, authority, algorithm, &reserved, now())
            .unwrap()
            .serial
    }
}

#[tokio::test]
async fn a_call_is_refused_at_once_while_the_token_hangs_in_calls_that_nobody_waits_for() {
    let mut world = world();
    world.abandon().await;

    assert_eq!(
        world.sign().await.unwrap_err().code(),
        Code::ResourceExhausted
    );
    let status = world.service.status(Request::new(StatusRequest::default()));
    let health = status.await.unwrap().into_inner().health;
    assert_eq!(
        health,
        "the token has not answered the calls before this one"
    );

    world.may_answer.send(()).unwrap();
    world.all_answered().await;
    world.may_answer.send(()).unwrap();
    assert_eq!(world.sign().await.unwrap(), [1]);
}

#[tokio::test]
async fn a_signature_that_nobody_waits_for_is_logged() {
    let mut world = world();
    let serial = world.serial();
    world.abandon().await;
    assert_eq!(logged(&serial), Vec::<String>::new());

    world.may_answer.send(()).unwrap();
    world.all_answered().await;

    let lines = logged(&serial);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("signed"), "{lines:?}");
    assert!(lines[0].contains("system:node:n1"), "{lines:?}");
}

#[tokio::test]
async fn a_service_whose_token_refused_the_pin_stays_and_tells_it() {
    let World { request, .. } = world();
    let authorities = vec![ca("ca").authority];
    let service = Service::new(Refusing, 1, authorities, Reserved::default(), now).unwrap();

    let status = service.status(Request::new(StatusRequest::default()));
    let health = status.await.unwrap().into_inner().health;

    assert!(health.starts_with("the token refused the PIN"), "{health}");
    let outage = service.sign(Request::new(request)).await.unwrap_err();
    assert_eq!(
        (outage.code(), outage.message()),
        (Code::Unavailable, health.as_str())
    );
}
