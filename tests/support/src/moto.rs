//! EC2: moto server, behind a front server that counts calls, injects failures, and corrects responses.
//!
//! ```no_run
//! use kubelet_authenticator_test_support::moto::{Failure, Field, Moto, Scope};
//! use kubelet_authenticator_test_support::api_server::Times;
//!
//! let moto = Moto::start();
//! let ec2 = moto.ec2("111122223333", "eu-west-1");
//! let instance = ec2.run(&[("role", "worker")]);
//! moto.amend(&instance.id, Field::RootAttached, "2026-01-01T00:00:00.000Z");
//! moto.inject(Scope::region("eu-west-2"), Times::always(), Failure::Hang);
//! // ... a client of `moto.url()` with `access_key("111122223333")` describes the instance ...
//! assert_eq!(moto.count("DescribeInstances"), 1);
//! ```
//!
//! A client belongs to the account in its access key ([`access_key`]). Its region is the region in its signatures,
//! which are not verified. Operations that a test makes as the owner of an account ([`Moto::ec2`]) are not counted, and
//! injected failures do not affect them.
//!
//! The front server itself answers `GetInstanceTpmEkPub`, which moto does not implement ([`Moto::give_tpm`]).
//!
//! The front server also forwards JSON calls to other services, for example to Secrets Manager. Commands of the AWS
//! CLI, for any service that moto implements, run in [`Moto::shell`].
//!
//! `tests/moto/build` installs moto server once, outside the repository. A start takes 2 seconds. Tests that can
//! share a server use a `static`, and separate accounts.
//!
//! # Panics
//!
//! Panics if an expected event does not occur, with a description of the event.

mod calls;
mod cli;
mod front;
mod http;
mod owner;
mod tpm;
mod xml;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

pub use self::calls::{Call, Failure, Scope};
use self::front::Front;
pub use self::owner::{Ec2, Instance, Network};
pub use self::tpm::{NitroTpm, PublicKey};
pub use self::xml::Field;
use crate::api_server::Times;
use crate::process::{Launch, Process, Scratch, free_port, poll};

/// The directory of moto server.
static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(install);

/// The deadline for a start, which takes 2 seconds on an idle machine. The machines that run tests are busy.
const DEADLINE: Duration = Duration::from_secs(180);

/// The maximum number of attempts to start moto server, if another process has taken its port each time.
const ATTEMPTS: usize = 5;

/// The text before and after the account in an access key from [`access_key`].
const ACCESS_KEY: (&str, &str) = ("AKIA", "MOTO");

/// A running moto server and its front server. Both stop when this value is dropped.
#[derive(Debug)]
pub struct Moto {
    front: Front,
    server: SocketAddr,
    _process: Process,
    _scratch: Scratch,
}

impl Default for Moto {
    fn default() -> Self {
        Self::start()
    }
}

impl Moto {
    /// Starts a server without instances.
    #[track_caller]
    pub fn start() -> Self {
        let scratch = Scratch::new("moto");
        let log = scratch.join("moto.log");
        for _ in 0..ATTEMPTS {
            let server = SocketAddr::from(([127, 0, 0, 1], free_port()));
            let mut process = Launch::new("moto", DIRECTORY.join("bin/moto_server"))
                .args(["-H", "127.0.0.1", "-p", &server.port().to_string()])
                .env("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
                .spawn(&log);
            let listening = poll(DEADLINE, || {
                let there = process.log().find_after(process.log_start(), "Running on");
                (there.is_some() || !process.is_running()).then_some(there.is_some())
            });
            match listening {
                Some(true) => {
                    return Self {
                        front: Front::start(server),
                        server,
                        _process: process,
                        _scratch: scratch,
                    };
                }
                Some(false) if process.log().text().contains("already in use") => {}
                Some(false) | None => panic!("moto does not start{}", process.log()),
            }
        }
        panic!("moto did not find a free port in {ATTEMPTS} attempts");
    }

    /// The endpoint of EC2 for every region: `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.front.address())
    }

    /// Access to EC2 in one region, as the owner of an account.
    pub fn ec2(&self, account: &str, region: &str) -> Ec2 {
        Ec2::new(self.server, account, region)
    }

    /// All calls so far, oldest first, including calls with an injected failure.
    pub fn calls(&self) -> Vec<Call> {
        self.front.calls()
    }

    /// The number of calls with this action.
    pub fn count(&self, action: &str) -> usize {
        let calls = self.calls();
        calls.iter().filter(|call| call.action == action).count()
    }

    /// Adds a failure for matching calls. Rules are tried in the order in which they were added.
    pub fn inject(&self, scope: Scope, times: Times, failure: Failure) {
        self.front.inject(scope, times, failure);
    }

    /// Replaces the value of an instance's field in all later responses.
    pub fn amend(&self, instance: &str, field: Field, value: &str) {
        self.front.amend(instance, field, value);
    }

    /// Sets an instance's NitroTPM, which GetInstanceTpmEkPub returns for the instance.
    pub fn give_tpm(&self, instance: &str, tpm: NitroTpm) {
        self.front.give_tpm(instance, tpm);
    }

    /// Omits an instance from every response, as EC2 does for an instance that is not visible yet.
    pub fn hide(&self, instance: &str) {
        self.front.hide(instance);
    }

    /// Restores moto's own responses about an instance.
    pub fn restore(&self, instance: &str) {
        self.front.restore(instance);
    }
}

/// An access key ID for the account, and its secret.
pub fn access_key(account: &str) -> (String, String) {
    let (prefix, suffix) = ACCESS_KEY;
    let secret = format!("key-that-nobody-reads-{account}");
    (format!("{prefix}{account}{suffix}"), secret)
}

/// The account of an access key ID from [`access_key`], or from a session that [`crate::sts`] issued.
fn account_of(access_key: &str) -> Option<&str> {
    let (prefix, suffix) = ACCESS_KEY;
    let own = access_key.strip_prefix(prefix);
    let own = own.and_then(|rest| rest.strip_suffix(suffix));
    let session = || access_key.strip_prefix("ASIA")?.get(..12);
    own.or_else(|| session().filter(|account| account.bytes().all(|b| b.is_ascii_digit())))
}

fn install() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moto/build");
    // Standard error is inherited, because a first installation takes 30 seconds and prints a message about this.
    let output = Command::new(&script)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output();
    let output = output.unwrap_or_else(|error| panic!("cannot run {}: {error}", script.display()));
    assert!(output.status.success(), "{} failed", script.display());
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim_end())
}
