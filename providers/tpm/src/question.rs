//! One question and its answer.

use std::io::{self, BufRead as _, Read as _, Write as _};

use kubelet_attestation::binding::KeyBinding;
use kubelet_attestation::names::{Audience, NodeName, Provider, ProviderId};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::device::Device;
use crate::protocol::{Answer, Ask, Binding, MAX_LINE_LEN, Question, QuoteFor, Trouble};

/// Reads a question from standard input and writes its answer to standard output.
pub(crate) fn answer_one() -> io::Result<()> {
    // Without this, a process that waits for its TPM could outlive its parent for ever.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut line = String::new();
    io::stdin().lock().take(MAX_LINE_LEN).read_line(&mut line)?;
    let answer = match serde_json::from_str::<Question>(&line) {
        Ok(question) if !is_child_of(question.asker) => {
            return Err(io::Error::other("who asked has ended"));
        }
        Ok(question) => answer(question).unwrap_or_else(Answer::Trouble),
        Err(_) => Answer::Trouble(Trouble::Question),
    };
    let mut line = serde_json::to_string(&answer)?;
    line.push('\n');
    let mut out = io::stdout().lock();
    out.write_all(line.as_bytes())?;
    out.flush()
}

/// The parent may have ended before the death signal was set. Then no signal arrives.
fn is_child_of(asker: u32) -> bool {
    let parent = getppid().map(|parent| parent.as_raw_nonzero().get());
    parent.and_then(|parent| u32::try_from(parent).ok()) == Some(asker)
}

fn answer(question: Question) -> Result<Answer, Trouble> {
    let mut device = Device::open(&question.tcti)?;
    match question.ask {
        Ask::Keys { endorsement_key } => device.keys(endorsement_key).map(Answer::Keys),
        Ask::Quote(asked) => quote(&mut device, *asked).map(Answer::Quoted),
    }
}

fn quote(device: &mut Device, asked: QuoteFor) -> Result<crate::protocol::Quoted, Trouble> {
    let binding = Parsed::of(asked.binding).ok_or(Trouble::Question)?;
    device.quote(
        &asked.endorsement.0,
        asked.credential_blob.0,
        asked.encrypted_secret.0,
        |secret| *binding.with(secret).as_bytes(),
        &asked.registers,
    )
}

/// The parsed parts of a key binding.
struct Parsed {
    audience: Audience,
    provider_id: ProviderId,
    node_name: NodeName,
    spki: Vec<u8>,
    id: Vec<u8>,
}

impl Parsed {
    fn of(binding: Binding) -> Option<Self> {
        Some(Self {
            audience: Audience::parse(&binding.audience).ok()?,
            provider_id: ProviderId::parse(&binding.provider_id).ok()?,
            node_name: NodeName::parse(&binding.node_name).ok()?,
            spki: binding.spki.0,
            id: binding.id.0,
        })
    }

    fn with(&self, secret: &[u8]) -> KeyBinding {
        KeyBinding::new(
            &Provider::TPM,
            &self.audience,
            &self.provider_id,
            &self.node_name,
            &self.spki,
            &[&self.id, secret],
        )
    }
}
