//! Measures how many requests from instances a core can verify per second, without the time spent waiting for AWS.
//!
//! The benchmark measures the complete verification in the controller, from the API server's object to the attested
//! identity. It measures the verification once with STS responses from memory, and once with an STS service on this
//! machine. The measurement includes the client's work, but not the service's work. EC2 responds immediately in both
//! cases. It then measures the parts with the same functions, and the time to resolve the AWS identity of one cluster,
//! among few clusters and among many clusters. After that, a tenant uses long identities in many regions. At the end,
//! the benchmark checks, for each lock, the longest time for which the lock was held.
//!
//! The benchmark measures the CPU time of a single thread. It writes criterion's results to `target/criterion`, and a
//! list of `{name, value, unit, limit}` to `target/bench/aws-verification.json`. Exit code 1 means that a value exceeds
//! its limit.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark ends where something fails, and prints"
)]

mod controller;
mod fleet;
mod parts;
mod resolution;
mod results;
mod tenants;

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;

use kubelet_authenticator_test_support::instance_identity::TestSigner;
use kubelet_authenticator_test_support::sts::Sts as Service;
use tokio::runtime::{Builder, Runtime};

use self::controller::Controller;
use self::fleet::Instance;
use self::results::{Results, cpu_time};

/// The limit for one verification, which corresponds to at least 2,000 verifications per second.
const LIMIT: Duration = Duration::from_micros(500);

const INSTANCES: usize = 16;

/// The number of signatures that the controller remembers for one instance.
const REQUESTS_OF_INSTANCE: usize = 64;

fn main() -> ExitCode {
    let world = World::new();
    let mut results = Results::new();
    world.known_to_sts(&mut results);
    world.asked_of_sts(&mut results);
    parts::measure(&world, &mut results);
    resolution::measure(&mut results);
    tenants::serve();
    results.add_locks();
    results.finish("aws-verification")
}

/// Instances, and the services that the controller queries about them.
struct World {
    runtime: Runtime,
    signer: TestSigner,
    sts: Service,
    fleet: Vec<Instance>,
}

impl World {
    fn new() -> Self {
        let signer = TestSigner::new([0xb6; 8]);
        let sts = Service::start();
        sts.stop_clock(fleet::now());
        Self {
            runtime: Builder::new_current_thread().enable_all().build().unwrap(),
            fleet: (0..INSTANCES)
                .map(|index| Instance::new(index, &signer, &sts))
                .collect(),
            signer,
            sts,
        }
    }

    fn controller(&self) -> Controller {
        Controller::new(&self.fleet, &self.signer, &self.sts)
    }

    /// Measures a repeated request, which STS has already confirmed.
    fn known_to_sts(&self, results: &mut Results) {
        let controller = self.controller();
        let request = self.fleet.first().unwrap().request();
        let decide = || self.runtime.block_on(controller.attest(&request));
        drop(decide());
        let calls = self.sts.calls().len();
        results.measure("a request, without calls", Some(LIMIT), || {
            black_box(decide());
        });
        assert_eq!(self.sts.calls().len(), calls, "STS was asked");
    }

    /// Measures requests, each of which is verified once.
    fn asked_of_sts(&self, results: &mut Results) {
        let requests: Vec<_> = self
            .fleet
            .iter()
            .flat_map(|instance| (0..REQUESTS_OF_INSTANCE).map(|_| instance.request()))
            .collect();
        // The first request opens the connection.
        let (first, others) = requests.split_first().unwrap();
        let measured = |count: u64| {
            let mut left = usize::try_from(count).unwrap();
            let mut took = Duration::ZERO;
            while left > 0 {
                let controller = self.controller();
                drop(self.runtime.block_on(controller.attest(first)));
                let some = others.iter().take(left);
                left -= some.len();
                let start = cpu_time();
                for request in some {
                    black_box(self.runtime.block_on(controller.attest(request)));
                }
                took += cpu_time().saturating_sub(start);
            }
            took
        };
        results.measure_runs("a request, with the call to STS", Some(LIMIT), measured);
    }
}
