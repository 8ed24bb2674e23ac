//! Software TPMs 2.0, each of which has an endorsement key that its manufacturer has certified.
//!
//! ```no_run
//! use kubelet_authenticator_test_support::swtpm::{Reset, Swtpm};
//!
//! let tpm = Swtpm::start();
//! // ... a client of `tpm.tcti()` attests, and ends ...
//! tpm.extend(4, &[1; 32]);
//! tpm.reset(Reset::Hard);
//! let clone = Swtpm::copy_of(&tpm);
//! assert!(tpm.transient_handles().is_empty());
//! ```
//!
//! Each TPM is one child process `swtpm`, on two neighboring ports of 127.0.0.1, with a separate state directory. Its
//! endorsement keys are RSA-2048 (0x81010001, certificate in 0x01c00002) and P-384 (0x81010016, 0x01c00016). These two
//! keys are persistent, and an [`EkCa`] has certified them. The P-256 key is neither persistent nor certified.
//!
//! # One client at a time
//!
//! There is no resource manager. A TPM serves one connection at a time, and other connections wait until this
//! connection is closed. The functions in this module also connect. They wait until a connected client disconnects, and
//! fail after one minute. If a client is killed, its objects remain in the TPM, which has space for three objects,
//! until [`Swtpm::flush`] or a reset.
//!
//! # Panics
//!
//! Panics if an expected event does not occur, with a description of the event.

mod provision;
mod tools;
mod trouble;
mod witness;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

pub(crate) use self::tools::{Sequence, Tools};
pub use self::witness::Clock;
use crate::ek_ca::EkCa;
use crate::hex::hex;
use crate::process::{Launch, Process, Scratch, free_port, poll};

/// The default TPM manufacturer.
static MAKER: LazyLock<Arc<EkCa>> = LazyLock::new(Arc::default);

/// The deadline for a start, which takes 30 ms on an idle machine. The machines that run tests are busy.
const DEADLINE: Duration = Duration::from_secs(180);

/// The maximum number of attempts to start a TPM, if another process has taken a port each time.
const ATTEMPTS: usize = 10;

/// The way in which a machine stops and starts again.
///
/// | | resetCount | restartCount | PCRs | clockInfo.safe |
/// | --- | --- | --- | --- | --- |
/// | `Hard` | +1 | 0 | as at the start | no, until the clock passes the last stored value |
/// | `Orderly` | +1 | 0 | as at the start | as before |
/// | `Resume` | same | +1 | kept | as before |
/// | `Restart` | same | +1 | as at the start | as before |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reset {
    /// The power is cut.
    Hard,
    /// The machine is shut down and booted.
    Orderly,
    /// The machine is suspended and resumed.
    Resume,
    /// The machine hibernates and boots.
    Restart,
}

/// A running TPM. The TPM stops when this value is dropped, and at the latest when the test process exits.
#[derive(Debug)]
pub struct Swtpm {
    port: u16,
    tools: Tools,
    maker: Arc<EkCa>,
    state: PathBuf,
    firmware: Firmware,
    _process: Process,
    _scratch: Scratch,
}

/// The firmware of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Firmware {
    /// The firmware extends PCRs 0 to 7 at each boot.
    Measures,
    /// The firmware leaves these PCRs at zero, like firmware that extends only the SHA-1 bank.
    MeasuresNothing,
}

/// The digest of a separator (`EV_SEPARATOR`: four zero bytes) in each bank. A bank that the TPM does not have is
/// skipped.
const SEPARATOR: &str = "sha1=9069ca78e7450a285173431b3e52c5c25299e473,\
    sha256=df3f619804a92fdb4057192dc43dd748ea778adc52bc498ce80524c014b81119,\
    sha384=394341b7182cd227c5c6b07ef8000cdfd86136c4292b8e576573ad7ed9ae41019f5818b4b971c9effc60e1ad9f1289f0";

impl Default for Swtpm {
    fn default() -> Self {
        Self::start()
    }
}

impl Swtpm {
    /// Creates and starts a TPM with the SHA-256 bank. All TPMs in a process have the same vendor.
    #[track_caller]
    pub fn start() -> Self {
        Self::made_by(&MAKER)
    }

    /// Creates and starts a TPM that this manufacturer has certified.
    #[track_caller]
    pub fn made_by(maker: &Arc<EkCa>) -> Self {
        Self::make(maker, "sha256", Firmware::Measures)
    }

    /// Creates and starts a TPM with only these PCR banks: `sha1`, or `sha1,sha256`.
    #[track_caller]
    pub fn with_banks(banks: &str) -> Self {
        Self::make(&MAKER, banks, Firmware::Measures)
    }

    /// Creates and starts a TPM in a machine whose firmware does not extend the SHA-256 bank, so PCRs 0 to 7 are zero.
    #[track_caller]
    pub fn unmeasured() -> Self {
        Self::unmeasured_with_banks("sha256")
    }

    /// Creates and starts a TPM with only these banks. The firmware does not extend the SHA-256 bank.
    #[track_caller]
    pub fn unmeasured_with_banks(banks: &str) -> Self {
        Self::make(&MAKER, banks, Firmware::MeasuresNothing)
    }

    /// Starts a TPM with a copy of another TPM's state, as in a cloned virtual machine, or in one that was reset to a
    /// snapshot.
    ///
    /// This TPM has the same seeds, keys, certificates and counters. The other TPM continues to run. The new TPM has
    /// been switched on once more than the other TPM.
    #[track_caller]
    pub fn copy_of(other: &Self) -> Self {
        let scratch = Scratch::new("swtpm");
        let state = scratch.directory("state");
        other.copy_state(&state);
        Self::run(scratch, state, other.maker.clone(), other.firmware)
    }

    /// Copies the state of the TPM to this directory. A TPM that starts there has been switched on once more.
    #[track_caller]
    pub(crate) fn copy_state(&self, to: &Path) {
        // No command changes the state during the copy.
        let _turn = self.tools.sequence();
        provision::copy(&self.state, to);
    }

    fn make(maker: &Arc<EkCa>, banks: &str, firmware: Firmware) -> Self {
        let scratch = Scratch::new("swtpm");
        let state = scratch.directory("state");
        provision::make(&scratch, &state, maker, banks);
        Self::run(scratch, state, maker.clone(), firmware)
    }

    #[track_caller]
    fn run(scratch: Scratch, state: PathBuf, maker: Arc<EkCa>, firmware: Firmware) -> Self {
        let (log, written) = (scratch.join("swtpm.log"), scratch.join("swtpm.pid"));
        for _ in 0..ATTEMPTS {
            let port = free_port();
            let mut process = launch(port, &state, &written).spawn(&log);
            // swtpm writes its process ID when it starts to listen. A connection would not prove that this process
            // listens. While this process is ending, the ports might belong to a different process.
            let own = process.pid().to_string();
            let listening = poll(DEADLINE, || {
                let ended = !process.is_running();
                let id = std::fs::read_to_string(&written).unwrap_or_default();
                let there = !ended && id.trim() == own;
                (there || ended).then_some(there)
            });
            match listening {
                Some(true) => {
                    let tpm = Self {
                        port,
                        tools: Tools::new(tcti(port)),
                        maker,
                        state,
                        firmware,
                        _process: process,
                        _scratch: scratch,
                    };
                    tpm.boot(&tpm.tools.sequence());
                    return tpm;
                }
                Some(false) | None => {
                    let said = process.log().since(process.log_start());
                    let taken = said.contains("already in use");
                    assert!(taken, "swtpm does not start{}", process.log());
                }
            }
        }
        panic!("swtpm did not find two free ports in {ATTEMPTS} attempts");
    }

    /// The TPM's address in the format of libtss2 and tpm2-tools: `swtpm:host=127.0.0.1,port=PORT`.
    pub fn tcti(&self) -> String {
        tcti(self.port)
    }

    /// The TPM's address for commands. libtss2 and `swtpm_ioctl` use the next port for control.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The manufacturer of the TPM.
    pub fn maker(&self) -> &Arc<EkCa> {
        &self.maker
    }

    /// The certificate of the manufacturer's root CA as PEM.
    pub fn ca_pem(&self) -> &str {
        self.maker.root_pem()
    }

    /// Switches the machine off and on again.
    #[track_caller]
    pub fn reset(&self, reset: Reset) {
        let sequence = self.tools.sequence();
        match reset {
            Reset::Hard => {}
            Reset::Orderly => drop(sequence.must(&["tpm2_shutdown", "-c"])),
            Reset::Resume | Reset::Restart => drop(sequence.must(&["tpm2_shutdown"])),
        }
        let control = self.control();
        sequence.must(&["swtpm_ioctl", "--tcp", &control, "-i"]);
        match reset {
            Reset::Resume => drop(sequence.must(&["tpm2_startup"])),
            Reset::Hard | Reset::Orderly | Reset::Restart => {
                sequence.must(&["tpm2_startup", "-c"]);
                self.boot(&sequence);
            }
        }
    }

    /// Extends PCRs as the firmware of a machine does: at least a separator into each PCR of the firmware.
    #[track_caller]
    fn boot(&self, sequence: &Sequence<'_>) {
        if self.firmware == Firmware::MeasuresNothing {
            return;
        }
        let extensions = (0..8).map(|pcr| format!("{pcr}:{SEPARATOR}"));
        let extensions: Vec<_> = extensions.collect();
        let mut command = vec!["tpm2_pcrextend"];
        command.extend(extensions.iter().map(String::as_str));
        sequence.must(&command);
    }

    /// Clears the TPM. Certificates remain, and so do endorsement keys, even if they are not persistent. The reset
    /// counters are 0.
    #[track_caller]
    pub fn clear(&self) {
        self.tools.once(&["tpm2_clear", "-c", "p"]);
    }

    /// Clears the TPM that has its state in this directory. This TPM must not be running.
    #[track_caller]
    pub(crate) fn clear_at(state: &Path) {
        let scratch = Scratch::new("swtpm");
        let firmware = Firmware::MeasuresNothing;
        Self::run(scratch, state.to_owned(), MAKER.clone(), firmware).clear();
    }

    /// Extends a PCR in the SHA-256 bank, as a changed boot chain does.
    #[track_caller]
    pub fn extend(&self, pcr: u8, digest: &[u8; 32]) {
        let extension = format!("{pcr}:sha256={}", hex(digest));
        self.tools.once(&["tpm2_pcrextend", &extension]);
    }

    /// Removes the objects that clients have left in the TPM's memory.
    #[track_caller]
    pub fn flush(&self) {
        for kind in ["-t", "-l", "-s"] {
            self.tools.once(&["tpm2_flushcontext", kind]);
        }
    }

    /// Removes a persistent key. Most machines have no persistent keys.
    #[track_caller]
    pub fn evict(&self, handle: u32) {
        let handle = format!("{handle:#010x}");
        // The keys that `swtpm_setup` creates belong to the platform hierarchy.
        self.tools
            .once(&["tpm2_evictcontrol", "-C", "p", "-c", &handle]);
    }

    /// Stores a certificate in an index, and replaces an existing certificate.
    #[track_caller]
    pub fn write_certificate(&self, index: u32, der: &[u8]) {
        provision::write_certificate(&self.tools.sequence(), index, der);
    }

    /// Removes a certificate.
    #[track_caller]
    pub fn remove_certificate(&self, index: u32) {
        let index = format!("{index:#010x}");
        self.tools.once(&["tpm2_nvundefine", "-C", "p", &index]);
    }

    pub(crate) fn tools(&self) -> &Tools {
        &self.tools
    }

    fn control(&self) -> String {
        format!("127.0.0.1:{}", self.port + 1)
    }
}

fn tcti(port: u16) -> String {
    format!("swtpm:host=127.0.0.1,port={port}")
}

fn launch(port: u16, state: &Path, written: &Path) -> Launch {
    let channel = |port| format!("type=tcp,port={port},bindaddr=127.0.0.1");
    Launch::new("swtpm", "swtpm")
        .args(["socket", "--tpm2", "--flags", "not-need-init,startup-clear"])
        .args(["--tpmstate", &format!("dir={}", state.display())])
        .args(["--pid", &format!("file={}", written.display())])
        .args(["--server", &channel(port)])
        // libtss2 expects the control channel on the next port.
        .args(["--ctrl", &channel(port + 1)])
}
