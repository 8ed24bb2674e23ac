//! Measures the instructions for one decision of the controller, and for one answered request, with callgrind. The
//! numbers do not depend on the machine's speed.

use std::time::Duration;

use clap::ValueEnum;
use futures::executor::block_on;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use node_attestation_core::decide::{Decision, decide};
use node_attestation_core::testing::{cluster, now, valid};
use node_attestation_runtime::client::CallError;
use node_attestation_runtime::csr_writer::{Answered, RequestStore, answer};

use crate::measure::Program;
use crate::report::{Suite, print_table};

/// The option with which this program only does the work, and the option for the amount of work.
pub const WORK: &str = "work";
pub const COUNT: &str = "count";

/// The number of requests in each of two runs. The difference between the runs does not contain the start of the
/// program.
const FEW: u32 = 5;
const MORE: u32 = 25;

/// The limits on instructions for one request, in a debug build.
const MAX_DECISION: f64 = 3_000_000.0;
const MAX_ANSWER: f64 = 6_000_000.0;

/// The work for a request from a joining machine with evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// Only the decision
    Decide,
    /// The decision, and the two writes of the answer
    Answer,
}

/// An API server that encodes and decodes each object, as a client does.
#[derive(Debug)]
struct Echo;

impl Echo {
    fn copy(request: &CertificateSigningRequest) -> CertificateSigningRequest {
        let text = serde_json::to_vec(request).unwrap();
        serde_json::from_slice(&text).unwrap()
    }
}

#[async_trait::async_trait]
impl RequestStore for Echo {
    async fn get(&self, _: &str) -> Result<Option<CertificateSigningRequest>, CallError> {
        Ok(Some(Self::copy(&valid())))
    }

    async fn update(
        &self,
        _: &'static str,
        request: &CertificateSigningRequest,
    ) -> Result<CertificateSigningRequest, CallError> {
        Ok(Self::copy(request))
    }
}

/// Does the work for this number of requests.
pub fn work(work: Work, count: u32) {
    let (context, request) = (cluster(), valid());
    block_on(async {
        for _ in 0..count {
            let deciding = decide(&request, &context, now(), || Duration::ZERO);
            let decision = deciding.await.decision;
            assert!(matches!(decision, Decision::Issue(_)), "{decision:?}");
            if work == Work::Answer {
                let answered = answer(&Echo, Echo::copy(&request), &decision).await;
                assert!(matches!(answered, Ok(Answered::Written)), "{answered:?}");
            }
        }
    });
}

/// The number of instructions that this program executes for one request.
fn instructions(work: &str) -> f64 {
    let this = std::env::current_exe().unwrap();
    let of = |count: u32| {
        let count = [format!("--{COUNT}"), count.to_string()];
        let args = [format!("--{WORK}"), work.to_owned()].into_iter();
        let program = Program::new("requests", &this);
        program.with_args(args.chain(count)).instructions()
    };
    of(MORE).saturating_sub(of(FEW)) as f64 / f64::from(MORE - FEW)
}

/// Measures the values, prints the table, and returns the values.
pub fn run() -> Suite {
    let mut suite = Suite::new("decision");
    let mut rows = Vec::new();
    for (name, work, limit) in [
        ("one decision", "decide", MAX_DECISION),
        ("one answered request", "answer", MAX_ANSWER),
    ] {
        let count = instructions(work);
        suite.add(name, count, "instructions", Some(limit));
        let millions = |count: f64| format!("{:.2}", count / 1e6);
        rows.push(vec![name.to_owned(), millions(count), millions(limit)]);
    }
    print_table(
        &["a join with evidence", "million instructions", "limit"],
        &rows,
    );
    suite
}
