//! Reads one request and writes its answer.

use std::io::{self, BufRead as _, Read as _, Write as _};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use serde::Serialize;
use serde_json::Value;

use crate::protocol::{Ask, DeviceError, MAX_LINE_LEN, Question, Version};
use crate::tpm::Device;

/// Reads a request from standard input and writes its answer to standard output.
pub(crate) fn answer_one() -> io::Result<()> {
    // Without this signal, a process that waits for its TPM could continue to run indefinitely after its parent exits.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut line = String::new();
    io::stdin().lock().take(MAX_LINE_LEN).read_line(&mut line)?;
    let answer = match serde_json::from_str::<Question>(&line) {
        Ok(question) if !is_child_of(question.asker) => {
            return Err(io::Error::other("the calling program has exited"));
        }
        Ok(question) => answer(question),
        Err(_) => Err(DeviceError::Question),
    };
    let mut line = serde_json::to_string(&answer)?;
    line.push('\n');
    let mut out = io::stdout().lock();
    out.write_all(line.as_bytes())?;
    out.flush()
}

/// Whether `asker` is still the parent of this process. If the parent exits before this process requests the death
/// signal, the signal never arrives.
fn is_child_of(asker: u32) -> bool {
    let parent = getppid().map(|parent| parent.as_raw_nonzero().get());
    parent.and_then(|parent| u32::try_from(parent).ok()) == Some(asker)
}

fn answer(question: Question) -> Result<Value, DeviceError> {
    let tcti = &question.tcti;
    match question.ask {
        Ask::Keys { endorsement_key } => of_tpm(tcti, |device| device.keys(endorsement_key)),
        Ask::Quote(asked) => of_tpm(tcti, |device| device.quote(&asked)),
        Ask::Examine { endorsement_key } => of_tpm(tcti, |device| device.examine(endorsement_key)),
        Ask::Version {} => written(&Version {
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }),
    }
}

fn of_tpm<T: Serialize>(
    tcti: &str,
    read: impl FnOnce(&mut Device) -> Result<T, DeviceError>,
) -> Result<Value, DeviceError> {
    let mut device = Device::open(tcti)?;
    let answer = read(&mut device).map_err(|error| device.understand(error))?;
    written(&answer)
}

fn written(answer: &impl Serialize) -> Result<Value, DeviceError> {
    serde_json::to_value(answer).map_err(|_| DeviceError::Question)
}
