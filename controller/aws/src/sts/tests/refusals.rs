//! The memory of refusals, at its limit and at the end of their time.

use hyper::Request;
use sha2::{Digest as _, Sha256};

use super::super::refusal_cache::{MAX_REFUSED, Refused};
use super::super::request::Call;
use super::fixture::*;

fn call(number: usize) -> Call {
    Call {
        request: Request::new(""),
        signature: Sha256::digest(number.to_be_bytes()).into(),
        content: [7; 32],
    }
}

#[test]
fn a_full_memory_of_refusals_forgets_none_before_its_end() {
    let node = Bed::start().instance();
    let (proof, document) = (node.proof(), &node.document);
    let memory = Refused::default();
    let refusal = Refusal::from(mismatch());
    let remember = |number: usize, now| {
        memory.remember(&refusal, &call(number), &proof, document, now);
    };
    let is_known = |number: usize, now| {
        let known = memory.look(&call(number), &proof, document, now);
        assert!(known.is_none() || known == Some(mismatch()));
        known.is_some()
    };
    let last_second = now() + Duration::from_secs(59);
    let end = now() + minutes(1);

    for number in 0..MAX_REFUSED {
        remember(number, now());
    }
    remember(MAX_REFUSED, last_second);

    assert!((0..MAX_REFUSED).all(|number| is_known(number, last_second)));
    assert!(!is_known(MAX_REFUSED, last_second), "it is full");
    assert!((0..MAX_REFUSED).all(|number| !is_known(number, end)));
    // The first one only makes room.
    remember(MAX_REFUSED, end);
    assert!(!is_known(MAX_REFUSED, end));
    remember(MAX_REFUSED, end);
    assert!(is_known(MAX_REFUSED, end));
}
