//! Reads one question and writes its answer.

use std::io::{self, BufRead as _, Read as _, Write as _};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use serde_json::Value;

use crate::protocol::{Ask, DeviceError, MAX_LINE_LEN, Question};
use crate::tpm::Device;

/// Reads a question from standard input and writes its answer to standard output.
pub(crate) fn answer_one() -> io::Result<()> {
    // Otherwise, a process that waits for its TPM could outlive its parent indefinitely.
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

/// The parent can exit before the death signal is set. Then no signal arrives.
fn is_child_of(asker: u32) -> bool {
    let parent = getppid().map(|parent| parent.as_raw_nonzero().get());
    parent.and_then(|parent| u32::try_from(parent).ok()) == Some(asker)
}

fn answer(question: Question) -> Result<Value, DeviceError> {
    let mut device = Device::open(&question.tcti)?;
    let answer = match question.ask {
        Ask::Keys { endorsement_key } => device.keys(endorsement_key).map(serde_json::to_value),
        Ask::Quote(asked) => device.quote(&asked).map(serde_json::to_value),
        Ask::Examine { endorsement_key } => {
            device.examine(endorsement_key).map(serde_json::to_value)
        }
    };
    let answer = answer.map_err(|error| device.understand(error))?;
    answer.map_err(|_| DeviceError::Question)
}
