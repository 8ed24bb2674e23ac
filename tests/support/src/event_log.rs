//! Event logs of firmware and boot loaders, in the format of the TCG ("TCG PC Client Platform Firmware Profile",
//! section 10), read without checks: the bytes come from the tests' own machines.
//!
//! # Panics
//!
//! Panics if the bytes are not a log with SHA-256 digests.

use std::collections::BTreeMap;

use aws_lc_rs::digest::{SHA256, digest};

/// The number of SHA-256 in the registry of the TCG.
const OF_SHA256: u16 = 0x000b;

/// An event that does not extend a register (`EV_NO_ACTION`).
const NO_ACTION: u32 = 3;

/// An event in a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The register (PCR) that the event extends.
    pub register: u8,
    /// The type of the event.
    pub kind: u32,
    /// The digest that extends the register.
    pub sha256: [u8; 32],
    /// The data about the event.
    pub data: Vec<u8>,
}

/// The events in the log, without the first one, which describes the format.
#[track_caller]
pub fn events(log: &[u8]) -> Vec<Event> {
    let mut log = Bytes(log);
    let sizes = sizes(&mut log);
    let mut events = Vec::new();
    while !log.0.is_empty() {
        let (register, kind, digests) = (log.u32(), log.u32(), log.u32());
        let mut sha256 = None;
        for _ in 0..digests {
            let algorithm = log.u16();
            let size = sizes.get(&algorithm).expect("a described algorithm");
            let bytes = log.take(usize::from(*size));
            if algorithm == OF_SHA256 {
                sha256 = bytes.try_into().ok();
            }
        }
        let size = log.u32();
        events.push(Event {
            register: register.try_into().expect("a register"),
            kind,
            sha256: sha256.expect("a SHA-256 digest"),
            data: log.take(size.try_into().expect("a length")).to_vec(),
        });
    }
    events
}

/// The values of the registers after all events.
#[track_caller]
pub fn replay(log: &[u8]) -> BTreeMap<u8, [u8; 32]> {
    let mut registers = BTreeMap::new();
    for event in events(log) {
        if event.kind == NO_ACTION {
            continue;
        }
        let value = registers.entry(event.register).or_insert([0; 32]);
        let extended = digest(&SHA256, &[*value, event.sha256].concat());
        *value = extended.as_ref().try_into().expect("32 bytes");
    }
    registers
}

/// The sizes of the digests, by algorithm, from the first event. This event has the format of TPM 1.2.
#[track_caller]
fn sizes(log: &mut Bytes<'_>) -> BTreeMap<u16, u16> {
    // Skip the register, the type, and an empty SHA-1 digest.
    log.take(4 + 4 + 20);
    let size = log.u32();
    let mut event = Bytes(log.take(size.try_into().expect("a length")));
    assert_eq!(event.take(16), b"Spec ID Event03\0");
    // Skip the platform class, three version numbers, and the size of a pointer.
    event.take(4 + 3 + 1);
    let algorithms = event.u32();
    (0..algorithms)
        .map(|_| (event.u16(), event.u16()))
        .collect()
}

/// The rest of a log, in which numbers are little-endian.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    #[track_caller]
    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken
    }

    #[track_caller]
    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take(2).try_into().expect("two bytes"))
    }

    #[track_caller]
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().expect("four bytes"))
    }
}
