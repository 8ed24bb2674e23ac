//! EC2: moto server, with a server of ours in front that counts, fails and corrects.
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
//! A client is of the account that its access key names ([`access_key`]); its region is the one that
//! it signs for. Signatures are not verified. What a test does as an account's owner
//! ([`Moto::ec2`]) is neither counted nor failed.
//!
//! The front itself answers `GetInstanceTpmEkPub`, which moto does not know ([`Moto::give_tpm`]).
//!
//! moto server is installed once, outside the tree, by `tests/moto/build`. Starting one takes two
//! seconds: tests that can, share one in a `static` and keep apart by accounts.
//!
//! # Panics
//!
//! Where something does not come to pass, with what was expected.

mod calls;
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

/// Where moto server is installed.
static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(install);

/// How long a start may take that takes two seconds: the machines that tests run on are busy.
const DEADLINE: Duration = Duration::from_secs(180);

/// How often it is started before the test fails, another process having taken its port each time.
const ATTEMPTS: usize = 5;

/// What an access key of [`access_key`] begins with, and ends with after the account.
const ACCESS_KEY: (&str, &str) = ("AKIA", "MOTO");

/// A running moto server and its front; both end when this is dropped.
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
    /// Starts one that knows no instance.
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
        panic!("moto found none of {ATTEMPTS} ports free");
    }

    /// The endpoint of EC2, for every region: `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.front.address())
    }

    /// EC2 as an account's owner sees it in one region.
    pub fn ec2(&self, account: &str, region: &str) -> Ec2 {
        Ec2::new(self.server, account, region)
    }

    /// Every call so far, oldest first, those included that a failure was injected into.
    pub fn calls(&self) -> Vec<Call> {
        self.front.calls()
    }

    /// How many calls there were of an action.
    pub fn count(&self, action: &str) -> usize {
        let calls = self.calls();
        calls.iter().filter(|call| call.action == action).count()
    }

    /// Makes calls go wrong. Rules are asked in the order they were given.
    pub fn inject(&self, scope: Scope, times: Times, failure: Failure) {
        self.front.inject(scope, times, failure);
    }

    /// Answers with another value of an instance's field from now on.
    pub fn amend(&self, instance: &str, field: Field, value: &str) {
        self.front.amend(instance, field, value);
    }

    /// Gives an instance a NitroTPM, or another: what GetInstanceTpmEkPub answers about it.
    pub fn give_tpm(&self, instance: &str, tpm: NitroTpm) {
        self.front.give_tpm(instance, tpm);
    }

    /// Leaves an instance out of every answer, as EC2 does with one that it does not know yet.
    pub fn hide(&self, instance: &str) {
        self.front.hide(instance);
    }

    /// Answers about an instance as moto does again.
    pub fn restore(&self, instance: &str) {
        self.front.restore(instance);
    }
}

/// An access key ID, and its secret, with which calls are an account's.
pub fn access_key(account: &str) -> (String, String) {
    let (prefix, suffix) = ACCESS_KEY;
    (format!("{prefix}{account}{suffix}"), "secret".to_owned())
}

/// The account that an access key ID of [`access_key`] is of.
fn account_of(access_key: &str) -> Option<&str> {
    let (prefix, suffix) = ACCESS_KEY;
    access_key.strip_prefix(prefix)?.strip_suffix(suffix)
}

fn install() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moto/build");
    // Standard error is the terminal's: a first installation takes half a minute and says so.
    let output = Command::new(&script)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output();
    let output = output.unwrap_or_else(|error| panic!("cannot run {}: {error}", script.display()));
    assert!(output.status.success(), "{} failed", script.display());
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim_end())
}
