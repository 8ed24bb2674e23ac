//! Tests of the limit on concurrent calculations with CA keys.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{self, Poll, Waker};

use super::external::Program;
use super::*;

/// Turns that can begin only after the gate is open.
#[derive(Debug, Default)]
struct Gate {
    is_open: AtomicBool,
    waiting: AtomicUsize,
}

#[async_trait::async_trait]
impl SignatureTurns for Gate {
    async fn turn(&self) -> Box<dyn Send> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        while !self.is_open.load(Ordering::Relaxed) {
            yield_now().await;
        }
        Box::new(())
    }
}

#[test]
fn a_signature_waits_for_its_turn_after_other_tasks() {
    let pki = Pki::new();
    for signer in [pki.signer().unwrap(), Program::of(&pki).for_ca(&pki)] {
        let gate: Arc<Gate> = Arc::default();
        let now = late(&signer);
        let cluster = cluster_of(signer.in_turns(Some(gate.clone())));
        let request = valid();
        let mut decided = pin!(decide(&request, &cluster, now, || Duration::ZERO));
        let mut context = task::Context::from_waker(Waker::noop());
        let mut poll = || decided.as_mut().poll(&mut context);
        let waiting = || gate.waiting.load(Ordering::Relaxed);

        assert!(poll().is_pending());
        assert_eq!(waiting(), 0);
        for _ in 0..3 {
            assert!(poll().is_pending());
            assert_eq!(waiting(), 1);
        }

        gate.is_open.store(true, Ordering::Relaxed);
        let Poll::Ready(decided) = poll() else {
            panic!("it waits although its turn has come")
        };
        let decision = decided.decision;
        assert!(matches!(decision, Decision::Issue(_)), "{decision:?}");
    }
}
