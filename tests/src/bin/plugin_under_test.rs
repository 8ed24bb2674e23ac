//! A plugin like `kubelet-authenticator-null` that tests can kill after a step, move to a different machine, or make
//! newer than its controller.
//!
//! `KILL_AT` is the name of the step after which the plugin gets SIGKILL, as when the kubelet's unit restarts.
//! `MACHINE_ROOT` is the root directory of the kernel and firmware files that describe the machine. `PANIC_AT` is the
//! name of the step after which the run panics. `PANIC_ON_CALL` is the number of the call to the provider's `renewal`
//! that panics, on any thread. `HANG_FOR` is the number of seconds for which the evidence is unavailable, regardless of
//! the deadline. `SLOW_FOR` is the number of seconds that the device needs for evidence; the device stops at the
//! deadline. `VERSIONS` lists the evidence versions that the plugin supports. `ANSWERS` makes the plugin answer
//! challenges: the audience of an answer consists of the value of `ANSWERS` and the challenge's ID. With the values
//! `cannot` and `not now`, the answer fails.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use kubelet_attestation::evidence::Header;
use kubelet_attestation::names::{Audience, Provider, ProviderId};
use kubelet_attestation::version::EvidenceVersion;
use kubelet_authenticator::attester::{
    Attester, Challenged, Claim, Machine, ProviderIdSources, Renewal,
};
use kubelet_authenticator::failure::{Code, Failure};
use rustix::process::{Signal, getpid, kill_process};

/// The message of a panic. It must not appear in any output.
const SECRET: &str = "-----BEGIN PRIVATE KEY-----";

#[derive(Debug)]
struct Null;

impl Attester for Null {
    fn provider(&self) -> Provider {
        Provider::NULL
    }

    fn renewal(&self) -> Renewal {
        static CALLS: AtomicUsize = AtomicUsize::new(1);
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let panics = std::env::var("PANIC_ON_CALL").is_ok_and(|number| number == call.to_string());
        assert!(!panics, "{SECRET}");
        Renewal::Attested
    }

    fn provider_id(&self, sources: &ProviderIdSources<'_>) -> Result<ProviderId, Failure> {
        sources.configured()
    }

    fn versions(&self) -> Vec<EvidenceVersion> {
        EvidenceVersion::parse_list(&std::env::var("VERSIONS").unwrap_or_else(|_| "v1".into()))
    }

    fn evidence(&self, claim: &Claim<'_>) -> Result<Option<Vec<u8>>, Failure> {
        // Sleep in real time, because the deadlines of this program use real time.
        if let Ok(seconds) = std::env::var("HANG_FOR") {
            sleep(Duration::from_secs(seconds.parse().unwrap()));
        }
        if let Ok(seconds) = std::env::var("SLOW_FOR") {
            let needed = Duration::from_secs(seconds.parse().unwrap());
            let time = claim.deadline.remaining();
            sleep(needed.min(time));
            if needed > time {
                let what = "the device did not respond in time";
                return Err(Failure::new(Code::DeviceUnavailable, what, "nothing"));
            }
        }
        let header = Header {
            version: claim.version.clone(),
            audience: claim.audience.clone(),
        };
        Ok(Some(header.to_json()))
    }

    fn respond(
        &self,
        claim: &Claim<'_>,
        challenged: &Challenged<'_>,
    ) -> Result<Option<Vec<u8>>, Failure> {
        let Ok(prefix) = std::env::var("ANSWERS") else {
            return Ok(None);
        };
        assert!(Header::parse(challenged.evidence).is_ok());
        let kind = match prefix.as_str() {
            "cannot" => Code::EvidenceInvalid,
            "not now" => Code::DeviceUnavailable,
            _ => {
                let id = challenged.challenge.id.to_base64();
                let header = Header {
                    version: claim.version.clone(),
                    audience: Audience::parse(&format!("{prefix}{id}")).unwrap(),
                };
                return Ok(Some(header.to_json()));
            }
        };
        Err(Failure::new(kind, prefix, "nothing"))
    }
}

fn main() -> ExitCode {
    let step = std::env::var("KILL_AT").unwrap_or_default();
    let panics = std::env::var("PANIC_AT").unwrap_or_default();
    let observer = move |done: kubelet_authenticator::testing::Step| {
        assert!(format!("{done:?}") != panics, "{SECRET}");
        if format!("{done:?}") == step {
            kill_process(getpid(), Signal::KILL).expect("a process can end itself");
        }
    };
    let machine = std::env::var_os("MACHINE_ROOT").map(|root| Machine::rooted(Path::new(&root)));
    kubelet_authenticator::testing::run_on(
        machine.unwrap_or_default(),
        Null,
        Some(Arc::new(observer)),
    )
}
